package egress

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// Attack 46: endless responses. What a step may move is bounded, over all its
// connections and in both directions; another step has its own bound.
func TestAttack46AStepMovesNoMoreThanItMay(t *testing.T) {
	const most = 4 << 20
	const inHands = 1 << 20 // of one connection, at most
	hello := records(makeHello(sniExt("good.test")), 1<<14)
	endless := func(c net.Conn) {
		io.ReadFull(c, make([]byte, len(hello)))
		b := make([]byte, 64<<10)
		for {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	}
	for name, read := range map[string]func(w *world) int64{
		"from a tunnel": func(w *world) int64 {
			c, _ := w.connect("good.test:443")
			c.Write(hello)
			n, _ := io.Copy(io.Discard, c)
			return n
		},
		"into a tunnel": func(w *world) int64 {
			c, _ := w.connect("sink.test:443")
			c.Write(records(makeHello(sniExt("sink.test")), 1<<14))
			n, _ := io.Copy(c, io.LimitReader(zeros{}, 64*most))
			return min(n, most) // the rest lies in socket buffers
		},
		"from plain HTTP": func(w *world) int64 {
			return int64(len(w.ask(plainGet("good.test"))))
		},
		"from many tunnels together": func(w *world) (n int64) {
			sum := make(chan int64)
			for range 8 {
				c, _ := w.connect("good.test:443")
				c.Write(hello)
				go func() {
					n, _ := io.Copy(io.Discard, c)
					sum <- n
				}()
			}
			for range 8 {
				n += <-sum
			}
			return n
		},
		"from a tcp:// rule": func(w *world) int64 {
			c, _ := w.connect("tcp.test:9")
			c.Write(hello)
			n, _ := io.Copy(io.Discard, c)
			return n
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "good.test", "sink.test", "idle.test", "tcp://tcp.test:9")
			w.names["tcp.test"] = addrs(goodAddr)
			w.names["sink.test"] = addrs("192.0.2.11")
			w.names["idle.test"] = addrs("192.0.2.11")
			w.serveRaw(goodAddr+":443", endless)
			w.serveRaw(goodAddr+":9", endless)
			sink := w.serveRaw("192.0.2.11:443", func(c net.Conn) { io.Copy(io.Discard, c) })
			w.serveHTTP(goodAddr+":80", nil, func(rw http.ResponseWriter, r *http.Request) {
				for b := make([]byte, 64<<10); ; {
					if _, err := rw.Write(b); err != nil {
						return
					}
				}
			})
			w.proxy.MaxBytes = most
			w.start()
			silent, _ := w.connect("idle.test:443")
			silent.Write(records(makeHello(sniExt("idle.test")), 1<<14))

			got := read(w)
			// What is over is what each connection had in its hands.
			if got < most/2 || got > most+10*inHands {
				t.Errorf("%d bytes came through, %d may", got, most)
			}
			if b := sink.bytes.Load(); b > most+10*inHands {
				t.Errorf("the server got %d bytes", b)
			}
			if n, err := silent.Read(make([]byte, 1)); err == nil {
				t.Errorf("a silent tunnel is still open: %d bytes", n)
			}
			if got := w.ask(plainGet("good.test")); status(got) != 403 || !contains(got, "(max_bytes)") {
				t.Errorf("the next request: %q", got[:min(len(got), 200)])
			}
			looked := len(w.lookedUp())
			w.ask("CONNECT good.test:443 HTTP/1.1\r\n\r\n")
			if len(w.lookedUp()) != looked {
				t.Error("a name was looked up for a step that may move nothing")
			}
			recs := w.end()
			wantOnly(t, recs, "idle.test", map[string]uint64{"denied:max_bytes": 1})
			var denied, bytes uint64
			for _, r := range recs {
				if r.Reason == ReasonMaxBytes {
					denied += r.Count
				}
				bytes += r.BytesIn + r.BytesOut
			}
			if denied < 4 || bytes < most || bytes > most+10*inHands {
				t.Errorf("%d denials, %d bytes recorded: %+v", denied, bytes, recs)
			}
			other := newWorld(t, "good.test")
			other.serveHTTP(goodAddr+":80", nil, nil)
			other.start()
			other.plainReached(t)
		})
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// Attack 45, in its number: ten thousand connections of one step cost others
// nothing, and that step no more than it may have.
func TestAttack45TenThousandIdleConnections(t *testing.T) {
	w := newWorld(t, "good.test")
	w.proxy.HeadTimeout = time.Minute
	w.start()
	other := newWorld(t, "good.test")
	other.serveHTTP(goodAddr+":80", nil, nil)
	other.start()
	var open []net.Conn
	turnedAway := 0
	for i := range 10_000 {
		c, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		if i < maxConns {
			open = append(open, c)
			continue
		}
		if i == maxConns {
			w.waitActive(maxConns)
		}
		var b [12]byte
		c.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := io.ReadFull(c, b[:]); err == nil && bytes.Equal(b[:], []byte("HTTP/1.1 503")) {
			turnedAway++
		}
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
		if i%2000 == 0 {
			other.plainReached(t)
		}
	}
	if turnedAway != 10_000-maxConns || w.proxy.active.Load() != maxConns {
		t.Errorf("%d turned away, %d served", turnedAway, w.proxy.active.Load())
	}
	other.plainReached(t)
	for _, c := range open {
		c.Close()
	}
	wantOnly(t, w.end(), "", map[string]uint64{"failed:overload": 10_000 - maxConns})
}
