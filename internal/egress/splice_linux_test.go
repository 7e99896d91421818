package egress

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// randomBytes are the same for the same seed, and different at every place.
func randomBytes(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed)})
	r.Read(b)
	return b
}

func openFDs(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// What goes through pipes comes out whole, in order, both ways at once, at any
// pace; and no pipe is left behind.
func TestLongStreamsComeOutAsTheyWentIn(t *testing.T) {
	before := openFDs(t)
	const size = 24 << 20
	down, up := randomBytes(1, size), randomBytes(2, size)
	hello := records(makeHello(sniExt("good.test")), 1<<14)
	w := newWorld(t, "good.test")
	sums := make(chan [32]byte, 8)
	w.serveRaw(goodAddr+":443", func(c net.Conn) {
		io.ReadFull(c, make([]byte, len(hello)))
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			c.Write(down)
			closeWrite(c)
		}()
		got, _ := io.ReadAll(c)
		<-sent
		sums <- sha256.Sum256(got)
	})
	w.start()
	const streams = 3
	done := make(chan error, streams)
	for i := range streams {
		c, code := w.connect("good.test:443")
		if code != 200 {
			t.Fatal(code)
		}
		go func() {
			defer c.Close()
			c.Write(hello)
			// What comes down may all be there before what goes up has gone.
			sent := make(chan struct{})
			defer func() { <-sent }()
			go func() {
				defer close(sent)
				for rest := up; len(rest) > 0; { // in uneven pieces
					n := min(len(rest), 1+rand.IntN(300<<10))
					c.Write(rest[:n])
					rest = rest[n:]
				}
				closeWrite(c)
			}()
			var got bytes.Buffer
			var err error
			if i == 0 { // a slow reader fills the pipe and the sockets
				for err == nil {
					_, err = io.CopyN(&got, c, 1<<20)
					time.Sleep(5 * time.Millisecond)
				}
			} else {
				io.Copy(&got, c)
			}
			if !bytes.Equal(got.Bytes(), down) {
				done <- fmt.Errorf("stream %d: %d bytes came down, and not those that were sent", i, got.Len())
				return
			}
			done <- nil
		}()
	}
	for range streams {
		if err := <-done; err != nil {
			t.Error(err)
		}
		if sum := <-sums; sum != sha256.Sum256(up) {
			t.Error("what went up is not what was sent")
		}
	}
	recs := w.end()
	want := uint64(streams)
	wantOnly(t, recs, "good.test", map[string]uint64{"allowed": want})
	if r := recs[0]; r.BytesIn != want*size || r.BytesOut != want*uint64(size+len(hello)) {
		t.Errorf("bytes %d in, %d out", r.BytesIn, r.BytesOut)
	}
	w.ln.Close()
	for _, o := range w.hosts {
		o.ln.Close()
	}
	for end := time.Now().Add(3 * time.Second); openFDs(t) > before+2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d descriptors before, %d after", before, openFDs(t))
		}
	}
}

// A receiver that stops in the middle of a long stream ends it, by the idle
// time, and what lay in its pipe comes out nowhere else.
func TestALongStreamToAStoppedReceiverEnds(t *testing.T) {
	hello := records(makeHello(sniExt("good.test")), 1<<14)
	w := newWorld(t, "good.test")
	w.proxy.IdleTimeout = 300 * time.Millisecond
	stopped := make(chan error, 1)
	w.serveRaw(goodAddr+":443", func(c net.Conn) {
		io.ReadFull(c, make([]byte, len(hello)))
		b := bytes.Repeat([]byte("secret of one stream"), 50<<10)
		for {
			if _, err := c.Write(b); err != nil {
				stopped <- err
				return
			}
		}
	})
	w.start()
	c, _ := w.connect("good.test:443")
	c.Write(hello)
	io.CopyN(io.Discard, c, 4<<20)
	select {
	case <-stopped:
	case <-time.After(5 * time.Second):
		t.Fatal("the server still writes to a receiver that has stopped")
	}
	c.Close()
	w.waitActive(0)
	w.proxy.pipes.mu.Lock()
	defer w.proxy.pipes.mu.Unlock()
	for _, p := range w.proxy.pipes.free {
		var b [1]byte
		if n, err := unix.Read(p.r, b[:]); n > 0 || err != unix.EAGAIN {
			t.Errorf("a pipe was kept with %d bytes in it, %v", n, err)
		}
	}
}

// Where there is no pipe to be had the bytes take the other way.
func TestWithoutPipesBytesGoThroughABuffer(t *testing.T) {
	type wrapped struct{ net.Conn } // no *net.TCPConn: cannot be spliced
	for name, c := range map[string]struct {
		wrap func(net.Conn) net.Conn
		used int
	}{
		"a connection of another kind": {func(nc net.Conn) net.Conn { return wrapped{nc} }, 0},
		"as many pipes as may be":      {func(nc net.Conn) net.Conn { return nc }, maxPipes},
		"control: pipes":               {func(nc net.Conn) net.Conn { return nc }, maxPipes - 1},
	} {
		t.Run(name, func(t *testing.T) {
			const size = 4 << 20
			down := randomBytes(3, size)
			a, b := tcpPair(t)
			in, out := tcpPair(t)
			w := newWorld(t)
			w.proxy.pipes.used = c.used
			done := make(chan tunnelResult, 1)
			go func() { done <- w.proxy.tunnel(t.Context(), in, c.wrap(b), nil, nil) }()
			go func() {
				a.Write(down)
				closeWrite(a)
				io.Copy(io.Discard, a)
			}()
			got, err := io.ReadAll(out)
			if err != nil || !bytes.Equal(got, down) {
				t.Errorf("%d bytes of %d, %v", len(got), size, err)
			}
			closeWrite(out)
			if !strings.HasPrefix(name, "a connection") { // that one cannot be half closed
				if res := <-done; res.in != size || res.out != 0 {
					t.Errorf("%+v", res)
				}
			}
			if w.proxy.pipes.used != c.used {
				t.Errorf("%d pipes in use before, %d after", c.used, w.proxy.pipes.used)
			}
			if spliced := len(w.proxy.pipes.free) > 0; spliced != (name == "control: pipes") {
				t.Errorf("went through a pipe: %v", spliced)
			}
		})
	}
}

func tcpPair(t testing.TB) (net.Conn, net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	a, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		a.Close()
		b.Close()
	})
	return a, b
}
