package egress

import (
	"errors"
	"io"
)

// What a ClientHello can be wrong about. Each is a denial with its own reason.
var (
	errNotTLS   = errors.New("not a TLS ClientHello")
	errNoSNI    = errors.New("no server name")
	errManySNIs = errors.New("more than one server name")
)

// hello is what a ClientHello says about where it wants to go.
type hello struct {
	serverName string // as written
	ech        bool   // an encrypted_client_hello extension is there
}

const (
	recordHandshake  = 22
	maxRecord        = 1 << 14
	typeClientHello  = 1
	extServerName    = 0
	extEncryptedCH   = 0xfe0d
	nameTypeHost     = 0
	handshakeHeader  = 4
	recordHeader     = 5
	maxHelloFragment = 512 // records one ClientHello may be cut into
)

// readHello reads the records that carry a ClientHello and nothing after it. It
// returns them as read, and the message put together from them.
//
// It stops at the first byte that cannot belong to one, so that a server's
// banner is not waited for.
func readHello(r io.Reader) (raw, msg []byte, err error) {
	want := -1 // length of the message, once its header is there
	for range maxHelloFragment {
		start := len(raw)
		if start+recordHeader > maxHello {
			return raw, nil, errNotTLS
		}
		raw = append(raw, make([]byte, recordHeader)...)
		if _, err := io.ReadFull(r, raw[start:start+1]); err != nil {
			return raw[:start], nil, err
		}
		if raw[start] != recordHandshake {
			return raw, nil, errNotTLS
		}
		if _, err := io.ReadFull(r, raw[start+1:]); err != nil {
			return raw, nil, cut(err)
		}
		n := int(raw[start+3])<<8 | int(raw[start+4])
		if raw[start+1] != 3 || n == 0 || n > maxRecord || len(raw)+n > maxHello {
			return raw, nil, errNotTLS
		}
		body := len(raw)
		raw = append(raw, make([]byte, n)...)
		if _, err := io.ReadFull(r, raw[body:]); err != nil {
			return raw, nil, cut(err)
		}
		msg = append(msg, raw[body:]...)
		if msg[0] != typeClientHello {
			return raw, nil, errNotTLS
		}
		if want < 0 && len(msg) >= handshakeHeader {
			want = handshakeHeader + int(msg[1])<<16 + int(msg[2])<<8 + int(msg[3])
			if want > maxHello {
				return raw, nil, errNotTLS
			}
		}
		switch {
		case want < 0 || len(msg) < want:
		case len(msg) > want: // a second message rides in the same record
			return raw, nil, errNotTLS
		default:
			return raw, msg, nil
		}
	}
	return raw, nil, errNotTLS
}

// cut makes an end in the middle of something an end in the middle.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// parseHello reads a ClientHello message (RFC 8446, 4.1.2; the same layout since
// TLS 1.0). Every length must come out even: a server that is laxer than us
// could find another name in the leftovers.
func parseHello(msg []byte) (hello, error) {
	var h hello
	s := span(msg)
	typ, ok0 := s.uint(1)
	body, ok1 := s.vector(3)
	if !ok0 || !ok1 || typ != typeClientHello || len(s) != 0 {
		return h, errNotTLS
	}
	version, ok0 := body.uint(2)
	_, ok1 = body.take(32)
	session, ok2 := body.vector(1)
	suites, ok3 := body.vector(2)
	compression, ok4 := body.vector(1)
	if !ok0 || !ok1 || !ok2 || !ok3 || !ok4 || version>>8 != 3 ||
		len(session) > 32 || len(suites) < 2 || len(suites)%2 != 0 || len(compression) == 0 {
		return h, errNotTLS
	}
	if len(body) == 0 {
		return h, errNoSNI
	}
	exts, ok := body.vector(2)
	if !ok || len(body) != 0 {
		return h, errNotTLS
	}
	seen := map[int]bool{}
	for len(exts) > 0 {
		typ, ok0 := exts.uint(2)
		data, ok1 := exts.vector(2)
		if !ok0 || !ok1 {
			return h, errNotTLS
		}
		if seen[typ] {
			if typ == extServerName {
				return h, errManySNIs
			}
			return h, errNotTLS
		}
		seen[typ] = true
		switch typ {
		case extServerName:
			name, err := parseServerName(data)
			if err != nil {
				return h, err
			}
			h.serverName = name
		case extEncryptedCH:
			h.ech = true
		}
	}
	if h.serverName == "" {
		return h, errNoSNI
	}
	return h, nil
}

func parseServerName(data span) (string, error) {
	list, ok := data.vector(2)
	if !ok || len(data) != 0 {
		return "", errNotTLS
	}
	typ, ok0 := list.uint(1)
	name, ok1 := list.vector(2)
	switch {
	case !ok0 || !ok1 || typ != nameTypeHost:
		return "", errNotTLS
	case len(list) != 0:
		return "", errManySNIs
	case len(name) == 0:
		return "", errNoSNI
	}
	return string(name), nil
}

// span is bytes read from the front.
type span []byte

func (s *span) take(n int) (span, bool) {
	if n > len(*s) {
		return nil, false
	}
	out := (*s)[:n]
	*s = (*s)[n:]
	return out, true
}

func (s *span) uint(size int) (int, bool) {
	b, ok := s.take(size)
	n := 0
	for _, c := range b {
		n = n<<8 | int(c)
	}
	return n, ok
}

// vector takes bytes that are preceded by their number.
func (s *span) vector(size int) (span, bool) {
	n, ok := s.uint(size)
	if !ok {
		return nil, false
	}
	return s.take(n)
}

// judgeHello says whether a tunnel that was asked for under a canonical name may
// go on with this ClientHello; the reason is empty if so.
//
// Browsers and others send a meaningless encrypted_client_hello so that real
// ones do not stand out, and nobody but the server can tell the two apart. A
// meaningless one comes with the true name outside. A real one comes with the
// name of the front that can open it: if that is not the name asked for, it is
// refused; if it is, the connection goes to that front as allowed, and what is
// asked of it inside is as hidden as a Host field under TLS always is.
func judgeHello(name string, h hello, err error) string {
	switch {
	case errors.Is(err, errNoSNI):
		return ReasonNoSNI
	case errors.Is(err, errManySNIs):
		return ReasonSNIMismatch
	case err != nil:
		return ReasonNotTLS
	}
	if got, reason := canonicalName(h.serverName); reason != "" || got != name {
		if h.ech {
			return ReasonECH
		}
		return ReasonSNIMismatch
	}
	return ""
}
