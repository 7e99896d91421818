package boxinit

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// outside answers a relay as package box does: serve gets the number of each
// connection and our end of it.
func outside(t *testing.T, way *os.File, serve func(n, listener int, c net.Conn)) {
	t.Helper()
	c, err := net.FileConn(way)
	if err != nil {
		t.Fatal(err)
	}
	way.Close()
	u := c.(*net.UnixConn)
	t.Cleanup(func() { u.Close() })
	go func() {
		var b [1]byte
		for n := 0; ; n++ {
			if _, err := u.Read(b[:]); err != nil {
				return
			}
			ours, theirs, err := Pair()
			if err != nil {
				t.Error(err)
				return
			}
			mine, err := net.FileConn(ours)
			ours.Close()
			if err != nil {
				t.Error(err)
				return
			}
			_, _, err = u.WriteMsgUnix([]byte{1}, unix.UnixRights(int(theirs.Fd())), nil)
			theirs.Close()
			if err != nil {
				return
			}
			go serve(n, int(b[0]), mine)
		}
	}()
}

// relaying starts a relay with listeners and gives their addresses.
func relaying(t *testing.T, listeners int, serve func(n, listener int, c net.Conn)) (*relay, []string, int) {
	t.Helper()
	ours, theirs, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	outside(t, ours, serve)
	words, control, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { words.Close() })
	var fds []int
	var at []string
	for range listeners {
		fd, err := listen(Addr{IP: []byte{127, 0, 0, 1}})
		if err != nil {
			t.Fatal(err)
		}
		sa, err := unix.Getsockname(fd)
		if err != nil {
			t.Fatal(err)
		}
		fds, at = append(fds, fd), append(at, fmt.Sprintf("127.0.0.1:%d", sa.(*unix.SockaddrInet4).Port))
	}
	r, err := newRelay(int(control.Fd()), int(theirs.Fd()), fds, nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		// It ends with the test: a relay ends with its process only.
		runtime.LockOSThread()
		r.serve()
	}()
	t.Cleanup(func() { runtime.KeepAlive(control); runtime.KeepAlive(theirs) })
	return r, at, int(words.Fd())
}

func TestRelay(t *testing.T) {
	// As in a first process: a relay's thread waits in a raw call, which a
	// collection would wait for.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(16)) // each relay keeps one
	dial := func(t *testing.T, at string) net.Conn {
		t.Helper()
		c, err := net.DialTimeout("tcp", at, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		t.Cleanup(func() { c.Close() })
		return c
	}

	t.Run("what goes in comes out, both ways, whole and at the listener it was for", func(t *testing.T) {
		_, at, _ := relaying(t, 2, func(_, listener int, c net.Conn) {
			defer c.Close()
			fmt.Fprintf(c, "%d:", listener)
			_, _ = io.Copy(c, c)
		})
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				text := make([]byte, 300_000)
				_, _ = rand.Read(text)
				c, err := net.Dial("tcp", at[i%2])
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				go func() {
					_, _ = c.Write(text)
					_ = c.(*net.TCPConn).CloseWrite()
				}()
				got, err := io.ReadAll(c)
				if want := append(fmt.Appendf(nil, "%d:", i%2), text...); err != nil || !bytes.Equal(got, want) {
					t.Errorf("%d bytes came back of %d (%v)", len(got), len(want), err)
				}
			})
		}
		wg.Wait()
	})

	t.Run("connections that are turned away make room although the box holds them", func(t *testing.T) {
		const served, many = 20, maxPairs + 200
		hold := make(chan struct{})
		t.Cleanup(func() { close(hold) })
		_, at, _ := relaying(t, 1, func(n, _ int, c net.Conn) {
			defer c.Close()
			if n < served {
				<-hold
				return
			}
			fmt.Fprint(c, "no room")
		})
		for n := range many {
			c := dial(t, at[0])
			if n < served {
				continue
			}
			if got, err := io.ReadAll(c); err != nil || string(got) != "no room" {
				t.Fatalf("connection %d got %q (%v)", n, got, err)
			}
		}
	})

	t.Run("who is turned away while speaking hears why", func(t *testing.T) {
		_, at, _ := relaying(t, 1, func(_, _ int, c net.Conn) {
			fmt.Fprint(c, "no room")
			c.Close()
		})
		for n := range 300 {
			c := dial(t, at[0])
			fmt.Fprint(c, "a request")
			if got, err := io.ReadAll(c); string(got) != "no room" {
				t.Fatalf("connection %d got %q (%v)", n, got, err)
			}
			c.Close()
		}
	})

	t.Run("one that is broken off is reset, whether it has spoken or not", func(t *testing.T) {
		_, at, _ := relaying(t, 1, func(n, _ int, c net.Conn) {
			defer c.Close()
			if n%3 == 2 {
				return // control: this one comes to its end
			}
			if n%3 == 1 {
				_, _ = c.Read(make([]byte, 64))
			}
			word, other, err := Pair()
			if err != nil {
				t.Error(err)
				return
			}
			word.Close()
			defer other.Close()
			if _, _, err := c.(*net.UnixConn).WriteMsgUnix([]byte{0}, unix.UnixRights(int(other.Fd())), nil); err != nil {
				t.Error(err)
			}
		})
		before := len(open(t))
		for n := range 300 {
			c, err := net.DialTimeout("tcp", at[0], 10*time.Second)
			var got []byte
			if err == nil {
				_ = c.SetDeadline(time.Now().Add(20 * time.Second))
				if n%3 == 1 {
					fmt.Fprint(c, "a request")
				}
				got, err = io.ReadAll(c)
				c.Close()
			} // else it was so soon that it was never open
			if reset := errors.Is(err, unix.ECONNRESET); reset != (n%3 != 2) || len(got) > 0 {
				t.Fatalf("connection %d got %q (%v)", n, got, err)
			}
		}
		if now := len(open(t)); now > before+20 {
			t.Errorf("%d descriptors became %d", before, now)
		}
	})

	t.Run("nobody outside is a reset too", func(t *testing.T) {
		ours, theirs, err := Pair()
		if err != nil {
			t.Fatal(err)
		}
		fd, err := listen(Addr{IP: []byte{127, 0, 0, 1}})
		if err != nil {
			t.Fatal(err)
		}
		sa, err := unix.Getsockname(fd)
		if err != nil {
			t.Fatal(err)
		}
		r, err := newRelay(int(theirs.Fd()), int(theirs.Fd()), []int{fd}, nil)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			runtime.LockOSThread()
			r.serve()
		}()
		t.Cleanup(func() { runtime.KeepAlive(theirs) })
		c := dial(t, fmt.Sprintf("127.0.0.1:%d", sa.(*unix.SockaddrInet4).Port))
		if _, err := ours.Read(make([]byte, 1)); err != nil { // it is asked for
			t.Fatal(err)
		}
		ours.Close()
		if got, err := io.ReadAll(c); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%q (%v)", got, err)
		}
	})

	t.Run("one that does not read stops itself and no other", func(t *testing.T) {
		_, at, _ := relaying(t, 1, func(_, _ int, c net.Conn) {
			defer c.Close()
			b := make([]byte, 64<<10)
			for range 1000 {
				if _, err := c.Write(b); err != nil {
					return
				}
			}
		})
		dial(t, at[0]) // and reads nothing
		if n, err := io.Copy(io.Discard, dial(t, at[0])); n != 64_000<<10 || err != nil {
			t.Errorf("the other one got %d bytes (%v)", n, err)
		}
	})

	t.Run("what was sent before the end is carried before the end is told", func(t *testing.T) {
		heard := make(chan string, 1)
		r, at, words := relaying(t, 1, func(_, _ int, c net.Conn) {
			defer c.Close()
			b := make([]byte, 64)
			n, _ := c.Read(b)
			heard <- string(b[:n])
		})
		c := dial(t, at[0])
		fmt.Fprint(c, "last words")
		r.ended(Message{Exited: &Exited{Status: 7}})
		m, _, err := Receive(words)
		if err != nil || m.Exited == nil || m.Exited.Status != 7 {
			t.Fatalf("%+v %v", m, err)
		}
		select {
		case got := <-heard:
			if got != "last words" {
				t.Errorf("%q", got)
			}
		case <-time.After(5 * time.Second):
			t.Error("they did not arrive")
		}
	})
}

// open are the descriptors of this process.
func open(t *testing.T) []os.DirEntry {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestRelayHasNoPatienceWithoutEnd(t *testing.T) {
	// As in a first process: the runtime's signals would cut each wait short.
	if still := "asyncpreemptoff=1"; os.Getenv("GODEBUG") != still {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), "GODEBUG="+still)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(16))
	way, theirs, err := Pair() // on which nobody answers
	if err != nil {
		t.Fatal(err)
	}
	defer way.Close()
	words, control, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer words.Close()
	fd, err := listen(Addr{IP: []byte{127, 0, 0, 1}})
	if err != nil {
		t.Fatal(err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	r, err := newRelay(int(control.Fd()), int(theirs.Fd()), []int{fd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.patience != lastTime {
		t.Errorf("it has patience for %v", r.patience)
	}
	r.patience = time.Millisecond
	go func() {
		runtime.LockOSThread()
		r.serve()
	}()
	t.Cleanup(func() { runtime.KeepAlive(control); runtime.KeepAlive(theirs) })
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", sa.(*unix.SockaddrInet4).Port))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var b [1]byte
	if _, err := way.Read(b[:]); err != nil { // it is asked for
		t.Fatal(err)
	}
	began := time.Now()
	r.ended(Message{Exited: &Exited{}})
	if m, _, err := Receive(int(words.Fd())); err != nil || m.Exited == nil {
		t.Fatalf("%+v %v", m, err)
	}
	if took := time.Since(began); took > lastWaits*lastWait*time.Millisecond*3/4 {
		t.Errorf("the end was told after %v", took)
	}
}

func TestLastNumber(t *testing.T) {
	for line, want := range map[string]int64{"max 12": 12, "7": 7, "": -1, "max": -1, "max 1x": -1, "12345678901234567890": -1, "-1": -1} {
		if got := lastNumber([]byte(line)); got != want {
			t.Errorf("%q: %d, want %d", line, got, want)
		}
	}
}
