package egress

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// ext is one extension of a made ClientHello.
type ext struct {
	typ  uint16
	data []byte
}

func sniExt(names ...string) ext {
	var list []byte
	for _, n := range names {
		list = append(list, nameTypeHost, byte(len(n)>>8), byte(len(n)))
		list = append(list, n...)
	}
	return ext{extServerName, append(binary.BigEndian.AppendUint16(nil, uint16(len(list))), list...)}
}

var echExt = ext{extEncryptedCH, append([]byte{0, 0, 1, 0, 1, 7, 0, 32}, make([]byte, 200)...)}

// makeHello makes a ClientHello message with these extensions.
func makeHello(exts ...ext) []byte {
	body := append([]byte{3, 3}, make([]byte, 32)...)
	body = append(body, 0)                      // session id
	body = append(body, 0, 2, 0x13, 0x01, 1, 0) // suites, compression
	var all []byte
	for _, e := range exts {
		all = binary.BigEndian.AppendUint16(all, e.typ)
		all = binary.BigEndian.AppendUint16(all, uint16(len(e.data)))
		all = append(all, e.data...)
	}
	body = binary.BigEndian.AppendUint16(body, uint16(len(all)))
	body = append(body, all...)
	return append([]byte{typeClientHello, byte(len(body) >> 16), byte(len(body) >> 8), byte(len(body))}, body...)
}

// records cuts a message into records of at most size bytes.
func records(msg []byte, size int) []byte {
	var out []byte
	for len(msg) > 0 {
		n := min(size, len(msg))
		out = append(out, recordHandshake, 3, 1, byte(n>>8), byte(n))
		out = append(out, msg[:n]...)
		msg = msg[n:]
	}
	return out
}

// Attacks 50 to 54, on the reader alone.
func TestHelloIsJudged(t *testing.T) {
	good := makeHello(sniExt("good.test"))
	for name, c := range map[string]struct {
		raw  []byte
		want string
	}{
		"accepts the name asked for":              {records(good, 1<<14), ""},
		"accepts it in upper case and with a dot": {records(makeHello(sniExt("GOOD.test.")), 1<<14), ""},
		"accepts it cut into many records":        {records(good, 7), ""},
		"accepts it in records of one byte":       {records(good, 1), ""},
		"accepts GREASE ECH beside the name":      {records(makeHello(sniExt("good.test"), echExt), 1<<14), ""},
		"accepts unknown extensions":              {records(makeHello(ext{0x0a0a, nil}, sniExt("good.test"), ext{0x1a1a, []byte{1}}), 1<<14), ""},
		"refuses another name":                    {records(makeHello(sniExt("evil.test")), 1<<14), ReasonSNIMismatch},
		"refuses a longer name":                   {records(makeHello(sniExt("good.test.evil.test")), 1<<14), ReasonSNIMismatch},
		"refuses a name after a NUL":              {records(makeHello(sniExt("good.test\x00.evil.test")), 1<<14), ReasonSNIMismatch},
		"refuses an address as the name":          {records(makeHello(sniExt("192.0.2.10")), 1<<14), ReasonSNIMismatch},
		"refuses two names in one extension":      {records(makeHello(sniExt("good.test", "evil.test")), 1<<14), ReasonSNIMismatch},
		"refuses two server name extensions":      {records(makeHello(sniExt("good.test"), sniExt("evil.test")), 1<<14), ReasonSNIMismatch},
		"refuses no name":                         {records(makeHello(ext{0x0a0a, nil}), 1<<14), ReasonNoSNI},
		"refuses an empty name":                   {records(makeHello(sniExt("")), 1<<14), ReasonNoSNI},
		"refuses ECH with another name outside":   {records(makeHello(sniExt("front.test"), echExt), 1<<14), ReasonECH},
		"refuses ECH with no name outside":        {records(makeHello(echExt), 1<<14), ReasonNoSNI},
		"refuses an SSH banner":                   {[]byte("SSH-2.0-OpenSSH_9.9\r\n"), ReasonNotTLS},
		"refuses HTTP":                            {[]byte("GET / HTTP/1.1\r\nHost: good.test\r\n\r\n"), ReasonNotTLS},
		"refuses SSLv2":                           {[]byte{0x80, 0x2e, 1, 3, 1, 0, 0x15, 0, 0, 0, 0x10}, ReasonNotTLS},
		"refuses another handshake message":       {records(append([]byte{2}, good[1:]...), 1<<14), ReasonNotTLS},
		"refuses a second message in the record":  {records(append(bytes.Clone(good), makeHello(sniExt("evil.test"))...), 1<<14), ReasonNotTLS},
		"refuses an empty record":                 {[]byte{recordHandshake, 3, 1, 0, 0}, ReasonNotTLS},
		"refuses a record that is too long":       {[]byte{recordHandshake, 3, 1, 0x40, 1}, ReasonNotTLS},
		"refuses a message over the bound":        {append([]byte{recordHandshake, 3, 1, 0, 4}, 1, 1, 0, 0), ReasonNotTLS},
		"refuses an alert between two records":    {append(records(good[:20], 20), 21, 3, 1, 0, 2, 1, 0), ReasonNotTLS},
		"refuses one extension twice":             {records(makeHello(sniExt("good.test"), ext{16, nil}, ext{16, nil}), 1<<14), ReasonNotTLS},
		"refuses bytes after the name list":       {records(makeHello(ext{0, append(sniExt("good.test").data, 0)}), 1<<14), ReasonNotTLS},
		"refuses another type of name":            {records(makeHello(ext{0, []byte{0, 4, 1, 0, 1, 'a'}}), 1<<14), ReasonNotTLS},
		"refuses bytes after the extensions":      {records(lengthen(good), 1<<14), ReasonNotTLS},
		"refuses too many records":                {records(makeHello(sniExt("good.test"), ext{21, make([]byte, 1000)}), 1), ReasonNotTLS},
	} {
		t.Run(name, func(t *testing.T) {
			_, msg, err := readHello(bytes.NewReader(c.raw))
			var h hello
			if err == nil {
				h, err = parseHello(msg)
			}
			if got := judgeHello("good.test", h, err); got != c.want {
				t.Errorf("got %q (%v), want %q", got, err, c.want)
			}
		})
	}
	t.Run("a cut hello is no verdict", func(t *testing.T) {
		for i := range records(good, 20) {
			if _, _, err := readHello(bytes.NewReader(records(good, 20)[:i])); err == nil || errors.Is(err, errNotTLS) {
				t.Fatalf("cut at %d: %v", i, err)
			}
		}
	})
}

// lengthen adds a byte to the message's body that no vector covers.
func lengthen(msg []byte) []byte {
	out := append(bytes.Clone(msg), 0)
	n := len(out) - handshakeHeader
	out[1], out[2], out[3] = byte(n>>16), byte(n>>8), byte(n)
	return out
}

func TestHelloOfARealClientIsRead(t *testing.T) {
	for _, ver := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		raw := clientHello(t, &tls.Config{ServerName: "good.test", MaxVersion: ver, MinVersion: tls.VersionTLS12})
		_, msg, err := readHello(bytes.NewReader(raw))
		if err != nil {
			t.Fatal(err)
		}
		h, err := parseHello(msg)
		if err != nil || h.serverName != "good.test" {
			t.Errorf("version %x: %+v, %v", ver, h, err)
		}
	}
}

// serverView is what Go's TLS server takes for the server name in raw; ok is
// false if it does not get as far.
func serverView(raw []byte) (name string, ok bool) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	stop := errors.New("seen")
	srv := tls.Server(b, &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		name, ok = h.ServerName, true
		return nil, stop
	}})
	go func() {
		a.SetDeadline(time.Now().Add(time.Second))
		go io.Copy(io.Discard, a)
		a.Write(raw)
		a.Close()
	}()
	srv.HandshakeContext(context.Background())
	return name, ok
}

// FuzzClientHello: a hello that we accept for a name, Go's TLS server reads as
// naming it too.
func FuzzClientHello(f *testing.F) {
	f.Add(records(makeHello(sniExt("good.test")), 1<<14))
	f.Add(records(makeHello(sniExt("good.test"), echExt), 50))
	f.Add(records(makeHello(sniExt("good.test", "evil.test")), 1<<14))
	f.Add(records(makeHello(), 1))
	f.Add([]byte("SSH-2.0-x\r\n"))
	f.Add(clientHello(f, &tls.Config{ServerName: "good.test"}))
	f.Fuzz(func(t *testing.T, data []byte) {
		raw, msg, err := readHello(bytes.NewReader(data))
		if len(raw) > maxHello || !bytes.HasPrefix(data, raw) {
			// After an early stop raw may end in bytes that were not there.
			if err == nil || len(raw) > maxHello {
				t.Fatalf("read %d bytes that are not the beginning", len(raw))
			}
		}
		if err != nil {
			return
		}
		h, err := parseHello(msg)
		if err != nil {
			return
		}
		name, reason := canonicalName(h.serverName)
		if reason != "" {
			return
		}
		if seen, ok := serverView(raw); ok {
			if got, _ := canonicalName(seen); got != name {
				t.Fatalf("we read %q, Go's server %q", name, seen)
			}
		}
	})
}
