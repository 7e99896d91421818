package egress

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// Attack 45: a slow head costs its own connection only, and too many are turned
// away while others go on.
func TestAttack45SlowAndManyConnections(t *testing.T) {
	w := newWorld(t, "good.test")
	w.serveHTTP(goodAddr+":80", nil, nil)
	w.proxy.HeadTimeout = 300 * time.Millisecond
	w.proxy.MaxConns = 20
	w.start()

	slow := w.conn()
	began := time.Now()
	go func() {
		for _, b := range []byte("GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\n") {
			if _, err := slow.Write([]byte{b}); err != nil {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	}()
	w.plainReached(t)
	got, _ := io.ReadAll(slow)
	if d := time.Since(began); d > 2*time.Second || status(string(got)) != 400 {
		t.Errorf("a byte every 50 ms was read for %v: %q", d, got)
	}

	slow.Close()
	w.waitActive(0)
	var idle []net.Conn
	for range 20 {
		idle = append(idle, w.conn())
	}
	w.waitActive(20)
	c := w.conn()
	answer, _ := io.ReadAll(c)
	if status(string(answer)) != 503 {
		t.Errorf("connection 21: %q", answer)
	}
	for _, c := range idle { // they say nothing, so their time runs out
		if n, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("an idle connection got %d bytes", n)
		}
	}
	w.plainReached(t)
	wantOnly(t, w.end(), "", map[string]uint64{"failed:bad_request": 1, "failed:overload": 1})
}

// Attack 46: endless, silent and half-closed.
func TestAttack46StreamsAreBounded(t *testing.T) {
	stopped := make(chan error, 1)
	w := newWorld(t, "good.test", "silent.test", "half.test")
	w.serveHTTP(goodAddr+":80", nil, func(rw http.ResponseWriter, r *http.Request) {
		chunk := bytes.Repeat([]byte("x"), 32<<10)
		for {
			if _, err := rw.Write(chunk); err != nil {
				stopped <- err
				return
			}
		}
	})
	w.serveRaw("192.0.2.20:443", func(c net.Conn) { io.Copy(io.Discard, c); select {} })
	w.serveRaw("192.0.2.21:443", func(c net.Conn) {
		got, _ := io.ReadAll(c) // needs the client's end to be passed on
		fmt.Fprintf(c, "%d bytes", len(got))
	})
	w.names["silent.test"] = addrs("192.0.2.20")
	w.names["half.test"] = addrs("192.0.2.21")
	w.proxy.IdleTimeout = 300 * time.Millisecond
	w.start()

	c := w.conn()
	io.WriteString(c, plainGet("good.test"))
	if n, err := io.CopyN(io.Discard, c, 1<<20); err != nil {
		t.Errorf("control: the endless response ended after %d: %v", n, err)
	}
	c.Close()
	select {
	case <-stopped:
	case <-time.After(5 * time.Second):
		t.Error("the server still writes to a client that is gone")
	}

	hello := records(makeHello(sniExt("silent.test")), 1<<14)
	s, _ := w.connect("silent.test:443")
	s.Write(hello)
	began := time.Now()
	if _, err := s.Read(make([]byte, 1)); err == nil || time.Since(began) > 3*time.Second {
		t.Errorf("a silent tunnel was held for %v: %v", time.Since(began), err)
	}

	hello = records(makeHello(sniExt("half.test")), 1<<14)
	h, _ := w.connect("half.test:443")
	h.Write(hello)
	h.(*net.TCPConn).CloseWrite()
	if got, err := io.ReadAll(h); err != nil || string(got) != fmt.Sprintf("%d bytes", len(hello)) {
		t.Errorf("after a half-close: %q, %v", got, err)
	}
	recs := w.end()
	wantOnly(t, recs, "silent.test", map[string]uint64{"allowed": 1})
	wantOnly(t, recs, "half.test", map[string]uint64{"allowed": 1})
}

func TestOneWayTrafficIsNoIdleTunnel(t *testing.T) {
	w := newWorld(t, "good.test")
	w.serveRaw(goodAddr+":443", func(c net.Conn) {
		for range 12 {
			time.Sleep(60 * time.Millisecond)
			io.WriteString(c, "tick")
		}
	})
	w.proxy.IdleTimeout = 300 * time.Millisecond
	w.start()
	c, _ := w.connect("good.test:443")
	c.Write(records(makeHello(sniExt("good.test")), 1<<14))
	if got, err := io.ReadAll(c); len(got) != 48 {
		t.Errorf("%d bytes of 48, %v", len(got), err)
	}
}
