package egress

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"
)

// Attack 134: a denial in the last millisecond is in the ledger. The client
// sends and is gone; nobody has accepted or read anything yet, as far as the
// test can arrange it.
func TestAttack134ADenialAtTheLastMoment(t *testing.T) {
	for round := range 30 {
		w := newWorld(t, "good.test")
		w.serveHTTP(goodAddr+":443", w.cert("good.test"), nil)
		w.start()
		w.reached(t)
		const n = 20
		for i := range n {
			c, err := net.Dial("tcp", w.addr)
			if err != nil {
				t.Fatal(err)
			}
			if i%2 == 0 {
				fmt.Fprint(c, "CONNECT evil.test:443 HTTP/1.1\r\n\r\n")
			} else {
				// Unread answers make the close a reset.
				fmt.Fprint(c, "GET http://good.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n")
			}
			c.Close()
		}
		// And a tunnel whose hello is the last thing the box says.
		c, _ := w.connect("good.test:443")
		c.Write(records(makeHello(sniExt("evil.test")), 1<<14))
		c.Close()
		recs := w.end()
		wantOnly(t, recs, "evil.test", map[string]uint64{"denied:no_rule": n / 2})
		wantOnly(t, recs, "good.test", map[string]uint64{"allowed": 1, "denied:host_mismatch": n / 2, "denied:sni_mismatch": 1})
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
}

// The accept queue is emptied even if Serve comes late.
func TestAttack134RequestsThatNobodyAcceptedYet(t *testing.T) {
	w := newWorld(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const n = 100
	for range n {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(c, "CONNECT evil.test:443 HTTP/1.1\r\n\r\n")
		c.Close()
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	entered := make(chan struct{})
	go func() {
		close(entered)
		served <- w.proxy.Serve(ctx, ln)
	}()
	<-entered
	for { // Drain covers the listeners that are being served
		w.proxy.mu.Lock()
		k := len(w.proxy.serving)
		w.proxy.mu.Unlock()
		if k == 1 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err := w.proxy.Drain(context.Background()); err != nil {
		t.Error(err)
	}
	wantOnly(t, w.ledger.Records(), "evil.test", map[string]uint64{"denied:no_rule": n})
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// Drain waits for a name server no longer than it is told, and what was pending
// is in the ledger all the same.
func TestDrainIsBounded(t *testing.T) {
	w := newWorld(t, "good.test")
	w.proxy.ResolveTimeout = time.Minute
	asked := make(chan struct{})
	w.proxy.Resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
		close(asked)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	w.start()
	fmt.Fprint(w.conn(), "CONNECT good.test:443 HTTP/1.1\r\n\r\n")
	<-asked
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if err := w.proxy.Drain(ctx); err == nil {
		t.Error("drain says all is decided while a name is being looked up")
	}
	w.cancel()
	w.cancel = nil
	if err := <-w.served; err != nil {
		t.Error(err)
	}
	wantOnly(t, w.ledger.Records(), "good.test", map[string]uint64{"failed:cancelled": 1})
}

func TestDrainDoesNotWaitForOpenTunnels(t *testing.T) {
	w := newWorld(t, "good.test")
	w.serveRaw(goodAddr+":443", func(c net.Conn) { io.Copy(c, c) })
	w.start()
	c, _ := w.connect("good.test:443")
	hello := records(makeHello(sniExt("good.test")), 1<<14)
	c.Write(hello)
	io.ReadFull(c, make([]byte, len(hello)))
	began := time.Now()
	w.end()
	if d := time.Since(began); d > 2*time.Second {
		t.Errorf("drain took %v", d)
	}
}

// None of many denials at once is lost.
func TestTenThousandDenialsAreAllCounted(t *testing.T) {
	w := newWorld(t, "good.test")
	disk := &slowDisk{t: t}
	w.ledger.Log = disk
	w.start()
	const workers, each = 8, 1250
	var wg sync.WaitGroup
	began := time.Now()
	for k := range workers {
		wg.Go(func() {
			for i := range each {
				c, err := net.Dial("tcp", w.addr)
				if err != nil {
					t.Error(err)
					return
				}
				fmt.Fprintf(c, "CONNECT h%d-%d.evil.test:443 HTTP/1.1\r\n\r\n", k, i)
				c.(*net.TCPConn).CloseWrite()
				if _, err := io.Copy(io.Discard, c); err != nil {
					t.Error(err)
				}
				c.Close()
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	var n uint64
	for _, r := range w.end() {
		if r.Verdict != Denied || r.Reason != ReasonNoRule {
			t.Errorf("%+v", r)
		}
		n += r.Count
	}
	if n != workers*each {
		t.Errorf("%d denials counted, %d made", n, workers*each)
	}
	if disk.n != workers*each {
		t.Errorf("%d lines in the log, %d denials made", disk.n, workers*each)
	}
	t.Logf("%.0f denials/s", workers*each/took.Seconds())
}
