package egress

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestForwardsGiveEveryTargetItsListener(t *testing.T) {
	private := func(to string) Entry { return Entry{To: to, Private: true} }
	list := entries(t,
		Entry{To: "web.test"}, Entry{To: "tcp://git.test:22"}, Entry{To: "tcp://db.test:5432"}, Entry{To: "tcp://git.test:9418"},
		private("tcp://127.0.0.1:6379"), private("tcp://localhost:5432"), private("tcp://127.64.0.3:1"), Entry{To: "tcp://other.test:22"},
		Entry{To: "tcp://9.9.9.9:853"}, private("tcp://[::1]:5432"), Entry{To: "tcp://git.test:22"}, Entry{To: "preset:github-ssh"},
	)
	got, err := Forwards(list)
	if err != nil {
		t.Fatal(err)
	}
	var text []string
	for _, f := range got {
		s := fmt.Sprintf("%s -> %s:%d %s", f.Listen, f.Host, f.Port, f.Rule)
		if f.NeedsAddr {
			s += " needs its address"
		}
		text = append(text, s)
	}
	want := []string{
		"127.64.0.1:22 -> git.test:22 tcp://git.test:22",
		"127.64.0.2:5432 -> db.test:5432 tcp://db.test:5432",
		"127.64.0.1:9418 -> git.test:9418 tcp://git.test:9418",
		"127.0.0.1:6379 -> 127.0.0.1:6379 tcp://127.0.0.1:6379",
		"127.0.0.1:5432 -> localhost:5432 tcp://localhost:5432",
		"127.64.0.3:1 -> 127.64.0.3:1 tcp://127.64.0.3:1",
		"127.64.0.4:22 -> other.test:22 tcp://other.test:22",
		"9.9.9.9:853 -> 9.9.9.9:853 tcp://9.9.9.9:853 needs its address",
		"[::1]:5432 -> ::1:5432 tcp://[::1]:5432",
		"127.64.0.5:22 -> github.com:22 tcp://github.com:22",
	}
	if diff := cmp.Diff(want, text); diff != "" {
		t.Errorf("forwards (-want +got):\n%s", diff)
	}
	hosts := []string{"127.64.0.1 git.test", "127.64.0.2 db.test", "127.64.0.4 other.test", "127.64.0.5 github.com"}
	if diff := cmp.Diff(hosts, HostsLines(got)); diff != "" {
		t.Errorf("hosts lines (-want +got):\n%s", diff)
	}
}

func TestForwardsThatWouldMeetAreRefused(t *testing.T) {
	private := func(to string) Entry { return Entry{To: to, Private: true} }
	many := make([]Entry, maxForwards+1)
	for i := range many {
		many[i].To = fmt.Sprintf("tcp://h%d.test:22", i)
	}
	for want, list := range map[string][]Entry{
		"the proxy's":              {private("tcp://127.0.0.1:3128")},
		"port 3128":                {private("tcp://localhost:3128")},
		"would both listen":        {private("tcp://127.0.0.1:22"), private("tcp://localhost:22")},
		"private: true and withou": {private("tcp://db.test:22"), {To: "tcp://db.test:22"}},
		"more than 64":             many,
	} {
		if got, err := Forwards(entries(t, list...)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want an error with %q", got, err, want)
		}
	}
	if got, err := Forwards(entries(t, private("tcp://127.0.0.2:3128"), Entry{To: "tcp://db.test:3128"})); err != nil || len(got) != 2 {
		t.Errorf("control: port 3128 elsewhere: %v, %v", got, err)
	}
}

// forwarded starts the listener of the one tcp:// rule of a world, and gives
// what a program in the box connects to.
func (w *world) forwarded(t testing.TB) (dial func() net.Conn) {
	t.Helper()
	fs, err := Forwards(w.proxy.Policy.Allow)
	if err != nil || len(fs) != 1 {
		t.Fatalf("forwards: %v, %v", fs, err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- w.proxy.ServeForward(ctx, ln, fs[0]) }()
	w.onEnd = func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("serve forward: %v", err)
		}
	}
	return func() net.Conn {
		c, err := net.Dial("tcp", ln.Addr().String())
		if errors.Is(err, syscall.ECONNRESET) {
			return wasReset{err: err} // by a proxy that was quicker than our connect
		}
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(10 * time.Second))
		t.Cleanup(func() { c.Close() })
		return c
	}
}

type wasReset struct {
	net.Conn
	err error
}

func (r wasReset) Read([]byte) (int, error)  { return 0, r.err }
func (r wasReset) Write([]byte) (int, error) { return 0, r.err }
func (wasReset) Close() error                { return nil }

// Attack 58 and item 4 of the egress issue: any protocol, to one target only,
// and what it looked like is recorded.
func TestForwardCarriesAnyProtocolAndNamesIt(t *testing.T) {
	startup := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, 17), 3<<16)
	ssl := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, 8), 80877103)
	for name, c := range map[string]struct{ client, server, want string }{
		"SSH":                        {"SSH-2.0-OpenSSH_9.9\r\n", "SSH-2.0-server\r\n", "tcp/ssh"},
		"a server's SSH banner":      {"", "SSH-2.0-server\r\n", "tcp/ssh"},
		"Postgres":                   {string(startup) + "user\x00me\x00\x00", "R", "tcp/postgres"},
		"Postgres over TLS":          {string(ssl), "S", "tcp/postgres"},
		"Redis":                      {"*1\r\n$4\r\nPING\r\n", "+PONG\r\n", "tcp/redis"},
		"Redis by hand":              {"PING\r\n", "+PONG\r\n", "tcp/redis"},
		"MySQL":                      {"", "\x4a\x00\x00\x00\x0a8.0.36\x00", "tcp/mysql"},
		"SMTP":                       {"EHLO box\r\n", "220 mail.test ESMTP\r\n", "tcp/smtp"},
		"STARTTLS of SMTP (58)":      {"EHLO box\r\nSTARTTLS\r\n" + string(records(makeHello(sniExt("evil.test")), 1<<14)), "220 mail.test ESMTP\r\n", "tcp/smtp"},
		"TLS":                        {string(records(makeHello(sniExt("any.test")), 1<<14)), "\x16\x03\x03", "tcp/tls"},
		"TLS in pieces":              {string(records(makeHello(sniExt("any.test")), 9)), "\x16\x03\x03", "tcp/tls"},
		"half a hello":               {string(records(makeHello(sniExt("any.test")), 1<<14)[:30]), "x", "tcp/tls"},
		"HTTP":                       {"GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n", "tcp/http"},
		"HTTP/2 without TLS":         {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "x", "tcp/http"},
		"something of one's own":     {"hello", "world", "tcp/unknown"},
		"a length that is no packet": {"\x00\x00\x00\x08\x00\x00\x00\x00", "x", "tcp/unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "tcp://good.test:5432")
			good := w.serveRaw(goodAddr+":5432", func(nc net.Conn) {
				io.WriteString(nc, c.server)
				got, _ := io.ReadAll(nc)
				fmt.Fprintf(nc, "%d", len(got))
			})
			dial := w.forwarded(t)
			w.start()
			nc := dial()
			io.WriteString(nc, c.client)
			closeWrite(nc)
			got, err := io.ReadAll(nc)
			if want := c.server + fmt.Sprint(len(c.client)); string(got) != want || err != nil {
				t.Errorf("got %q, %v, want %q", got, err, want)
			}
			if n := good.bytes.Load(); n != int64(len(c.client)) {
				t.Errorf("the server got %d bytes of %d", n, len(c.client))
			}
			recs := w.end()
			if len(recs) != 1 {
				t.Fatalf("records %+v", recs)
			}
			want := Record{Host: "good.test", Port: 5432, Protocol: c.want, Verdict: Allowed, Rule: "tcp://good.test:5432", Count: 1,
				BytesIn: uint64(len(got)), BytesOut: uint64(len(c.client))}
			if diff := cmp.Diff(want, recs[0]); diff != "" {
				t.Errorf("record (-want +got):\n%s", diff)
			}
		})
	}
}

// Attack 54: plain bytes in a tunnel, where a rule says so.
func TestAttack54ATCPRuleNeedsNoTLS(t *testing.T) {
	w := newWorld(t, "tcp://good.test:22", "good.test:443")
	w.serveRaw(goodAddr+":22", func(nc net.Conn) { io.WriteString(nc, "SSH-2.0-server\r\n"); io.Copy(nc, nc) })
	good := w.serveRaw(goodAddr+":443", func(nc net.Conn) { io.Copy(nc, nc) })
	w.start()
	nc := w.conn()
	io.WriteString(nc, "CONNECT good.test:22 HTTP/1.1\r\n\r\n")
	banner := make([]byte, len(established)+16)
	if _, err := io.ReadFull(nc, banner); err != nil || string(banner) != established+"SSH-2.0-server\r\n" {
		t.Errorf("a server that speaks first: %q, %v", banner, err)
	}
	nc.Close()
	w.tunnelBytes("good.test:443", []byte("SSH-2.0-client\r\n"))
	if n := good.bytes.Load(); n != 0 {
		t.Errorf("port 443, for which no tcp:// rule speaks, got %d bytes", n)
	}
	recs := w.end()
	wantOnly(t, recs, "good.test", map[string]uint64{"allowed": 1, "denied:not_tls": 1})
	for _, r := range recs {
		if r.Verdict == Allowed && (r.Protocol != "tcp/ssh" || r.Rule != "tcp://good.test:22") {
			t.Errorf("record %+v", r)
		}
	}
}

// A connection that turns to TLS midway (STARTTLS) names what it likes in its
// hello: it stays with the server of the rule.
func TestAttack58STARTTLSStaysWithTheServerOfTheRule(t *testing.T) {
	w := newWorld(t, "tcp://good.test:25", "evil.test:25")
	good := w.serveRaw(goodAddr+":25", func(nc net.Conn) { io.WriteString(nc, "220 ready\r\n"); io.Copy(nc, nc) })
	evil := w.serveRaw(evilAddr+":25", func(nc net.Conn) { io.Copy(nc, nc) })
	w.start()
	nc := w.conn()
	sent := "STARTTLS\r\n" + string(records(makeHello(sniExt("evil.test")), 1<<14))
	io.WriteString(nc, "CONNECT good.test:25 HTTP/1.1\r\n\r\n")
	want := established + "220 ready\r\n"
	got := make([]byte, len(want)+len(sent))
	if _, err := io.ReadFull(nc, got[:len(want)]); err != nil || string(got[:len(want)]) != want {
		t.Fatalf("the server's greeting: %q, %v", got, err)
	}
	io.WriteString(nc, sent)
	if _, err := io.ReadFull(nc, got[len(want):]); err != nil || string(got[len(want):]) != sent {
		t.Errorf("after the upgrade: %q, %v", got, err)
	}
	nc.Close()
	recs := w.end()
	untouched(t, "evil", evil)
	if n := good.conns.Load(); n != 1 {
		t.Errorf("%d connections to the good server", n)
	}
	wantOnly(t, recs, "good.test", map[string]uint64{"allowed": 1})
	wantOnly(t, recs, "evil.test", map[string]uint64{})
}

func TestAForwardThatIsRefusedIsReset(t *testing.T) {
	w := newWorld(t, "tcp://dead.test:22")
	w.names["dead.test"] = addrs("192.0.2.99")
	dial := w.forwarded(t)
	w.start()
	if n, err := dial().Read(make([]byte, 1)); n != 0 || err == nil || err == io.EOF {
		t.Errorf("a dead server looks like %d bytes, %v", n, err)
	}
	wantOnly(t, w.end(), "dead.test", map[string]uint64{"failed:dial": 1})

	w = newWorld(t, "tcp://good.test:22")
	w.serveRaw(goodAddr+":22", func(nc net.Conn) { io.Copy(nc, nc) })
	w.proxy.MaxConns = 1
	dial = w.forwarded(t)
	w.start()
	first := dial()
	w.waitActive(1)
	second := dial()
	if got, err := io.ReadAll(second); len(got) != 0 || err == nil {
		t.Errorf("a connection too many: %q, %v", got, err)
	}
	io.WriteString(first, "x")
	if n, err := first.Read(make([]byte, 1)); n != 1 {
		t.Errorf("control: the one within bounds: %v", err)
	}
	first.Close()
	wantOnly(t, w.end(), "good.test", map[string]uint64{"allowed": 1})
}

// Attacks 17 and 134 for forwards: Drain covers them, and they end with the step.
func TestDrainCoversForwards(t *testing.T) {
	for range 20 {
		w := newWorld(t, "tcp://bad.test:22")
		w.names["bad.test"] = addrs("10.0.0.1")
		dial := w.forwarded(t)
		w.start()
		for w.forwardsServed() != 2 {
			time.Sleep(time.Millisecond)
		}
		const n = 20
		for range n {
			dial().Close()
		}
		wantOnly(t, w.end(), "bad.test", map[string]uint64{"denied:non_public": n})
	}
}

func (w *world) forwardsServed() int {
	w.proxy.mu.Lock()
	defer w.proxy.mu.Unlock()
	return len(w.proxy.serving)
}

func TestServeForwardRefusesWhatIsNoForward(t *testing.T) {
	w := newWorld(t, "good.test")
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.proxy.ServeForward(context.Background(), ln, Forward{Rule: w.proxy.Policy.Allow[0], Host: "good.test", Port: 443}); err == nil {
		t.Error("a rule that is not tcp:// was served")
	}
	if _, err := net.Dial("tcp", ln.Addr().String()); err == nil {
		t.Error("its listener is still open")
	}
}

func FuzzSniffer(f *testing.F) {
	f.Add(records(makeHello(sniExt("good.test")), 9), []byte("\x16\x03"), 3)
	f.Add([]byte("*1\r\n$4\r\n"), []byte("+PONG\r\n"), 1)
	f.Add([]byte("\x00\x00\x00\x08\x04\xd2\x16\x2f"), []byte("S"), 5)
	f.Fuzz(func(t *testing.T, client, server []byte, step int) {
		step = max(step%97, 1)
		var one, pieces sniffer
		feed := func(s *sniffer, side int, b []byte, step int) {
			for len(b) > 0 {
				n := min(step, len(b))
				s.see(side, b[:n])
				b = b[n:]
			}
		}
		feed(&one, fromClient, client, max(len(client), 1))
		feed(&one, fromServer, server, max(len(server), 1))
		feed(&pieces, fromClient, client, step)
		feed(&pieces, fromServer, server, step)
		a, ha, ea := one.verdict()
		b, hb, eb := pieces.verdict()
		if a != b || ha != hb || (ea == nil) != (eb == nil) {
			t.Fatalf("in one piece %q %v %v, in pieces of %d %q %v %v", a, ha, ea, step, b, hb, eb)
		}
		if len(pieces.client) > maxPeek || len(pieces.server) > sniffBytes {
			t.Fatalf("kept %d and %d bytes", len(pieces.client), len(pieces.server))
		}
	})
}
