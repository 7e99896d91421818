package egress

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
)

// box is a thread in a network namespace of its own, with loopback up.
type box struct{ do chan func() }

func newBox(t *testing.T) *box {
	t.Helper()
	b := &box{do: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its namespace
		ready <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("unshare the network: %w", err)
			}
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			req, err := unix.NewIfreq("lo")
			if err != nil {
				return err
			}
			req.SetUint16(unix.IFF_UP)
			return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
		}()
		for f := range b.do {
			f()
		}
	}()
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(b.do) })
	return b
}

// in runs f in the box's namespace.
func (b *box) in(f func() error) error {
	done := make(chan error)
	b.do <- func() { done <- f() }
	return <-done
}

// connectTo connects from inside the box and returns the socket.
func (b *box) connectTo(ap netip.AddrPort) (fd int, err error) {
	err = b.in(func() error {
		var e error
		fd, e = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if e != nil {
			return e
		}
		return unix.Connect(fd, &unix.SockaddrInet4{Port: int(ap.Port()), Addr: ap.Addr().As4()})
	})
	return fd, err
}

// Attacks 1, 13, 15 and 134 from inside a real namespace: the socket that was
// handed out is the only way, and it ends with Serve.
func TestAListenerHandedOutOfABoxIsItsOnlyWay(t *testing.T) {
	need.Root(t) // or no network namespace can be made
	w := newWorld(t, "good.test")
	w.serveHTTP(goodAddr+":80", nil, nil)
	b := newBox(t)
	var ln net.Listener
	if err := b.in(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err := unix.Bind(fd, &unix.SockaddrInet4{Port: 3128, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			return err
		}
		if err := unix.Listen(fd, 128); err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), "listener")
		defer f.Close()
		ln, err = net.FileListener(f)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	host, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	w.startOn(ln)

	ask := func(raw string) string {
		t.Helper()
		fd, err := b.connectTo(netip.MustParseAddrPort("127.0.0.1:3128"))
		defer unix.Close(fd)
		if err != nil {
			t.Fatal(err)
		}
		unix.Write(fd, []byte(raw))
		var got strings.Builder
		buf := make([]byte, 4096)
		for {
			n, err := unix.Read(fd, buf)
			if n <= 0 || err != nil {
				return got.String()
			}
			got.Write(buf[:n])
		}
	}
	if got := ask(plainGet("good.test")); status(got) != 200 {
		t.Errorf("control: http://good.test/ from inside: %q", got)
	}
	if got := ask(plainGet("evil.test")); status(got) != 403 {
		t.Errorf("http://evil.test/ from inside: %q", got)
	}
	for addr, want := range map[string]error{
		"192.0.2.10:80":      unix.ENETUNREACH,  // attack 1
		host.Addr().String(): unix.ECONNREFUSED, // attack 13: its own loopback, not ours
	} {
		fd, err := b.connectTo(netip.MustParseAddrPort(addr))
		unix.Close(fd)
		if !errors.Is(err, want) {
			t.Errorf("connect to %s past the proxy: %v, want %v", addr, err, want)
		}
	}
	if c, err := net.DialTimeout("tcp", host.Addr().String(), time.Second); err != nil {
		t.Errorf("control: the host's own service: %v", err)
	} else {
		c.Close()
	}
	// The last thing that happens in the box.
	fd, err := b.connectTo(netip.MustParseAddrPort("127.0.0.1:3128"))
	if err != nil {
		t.Fatal(err)
	}
	unix.Write(fd, []byte("CONNECT last.evil.test:443 HTTP/1.1\r\n\r\n"))
	unix.Close(fd)
	recs := w.end()
	wantOnly(t, recs, "last.evil.test", map[string]uint64{"denied:no_rule": 1})
	wantOnly(t, recs, "evil.test", map[string]uint64{"denied:no_rule": 1})
	wantOnly(t, recs, "good.test", map[string]uint64{"allowed": 1})
	fd, err = b.connectTo(netip.MustParseAddrPort("127.0.0.1:3128"))
	unix.Close(fd)
	if !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("after the end the box's way out answers: %v", err)
	}
}
