package boxinit

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestListenAll(t *testing.T) {
	any4 := addr("127.0.0.1:0")
	bound := func(t *testing.T, fd int) Addr {
		t.Helper()
		sa, err := unix.Getsockname(fd)
		if err != nil {
			t.Fatal(err)
		}
		in, ok := sa.(*unix.SockaddrInet4)
		if !ok {
			t.Fatalf("%T", sa)
		}
		return Addr{IP: in.Addr[:], Port: uint16(in.Port)}
	}

	t.Run("without a proxy and without forwards there is no socket", func(t *testing.T) {
		if fds, failed := listenAll(Prepare{}); len(fds) != 0 || failed != nil {
			t.Errorf("%v %v", fds, failed)
		}
	})
	t.Run("the proxy's comes first, then the others in their order, all listening and close-on-exec", func(t *testing.T) {
		held, failed := listenAll(Prepare{Listen: []Addr{any4, any4}})
		if failed != nil {
			t.Fatal(failed)
		}
		proxy, second := bound(t, held[0]), bound(t, held[1])
		closeAll(held)
		fds, failed := listenAll(Prepare{ProxyPort: int(proxy.Port), Listen: []Addr{any4, second}})
		if failed != nil {
			t.Fatal(failed)
		}
		defer closeAll(fds)
		if len(fds) != 3 || bound(t, fds[0]).String() != proxy.String() || bound(t, fds[2]).String() != second.String() {
			t.Fatalf("%d sockets, the first %v, want %v", len(fds), bound(t, fds[0]), proxy)
		}
		for _, fd := range fds {
			if on, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err != nil || on != 1 {
				t.Errorf("descriptor %d does not listen (%v)", fd, err)
			}
			if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
				t.Errorf("descriptor %d would be the step's too (%v)", fd, err)
			}
		}
	})
	t.Run("a place that is taken is named, and nothing stays open", func(t *testing.T) {
		taken, failed := listenAll(Prepare{Listen: []Addr{any4}})
		if failed != nil {
			t.Fatal(failed)
		}
		defer closeAll(taken)
		where := bound(t, taken[0])
		before := openFiles(t)
		fds, failed := listenAll(Prepare{Listen: []Addr{any4, where}})
		if failed == nil || fds != nil {
			closeAll(fds)
			t.Fatalf("it worked: %v", fds)
		}
		if failed.Errno != int(unix.EADDRINUSE) || !strings.Contains(failed.Name, where.String()) {
			t.Errorf("%+v", failed)
		}
		if now := openFiles(t); now != before {
			t.Errorf("%d files are open, were %d", now, before)
		}
	})
	t.Run("an address that loopback cannot be given is named, before anything listens", func(t *testing.T) {
		before := openFiles(t)
		fds, failed := listenAll(Prepare{Addrs: []Addr{addr("[::2]:0")}, Listen: []Addr{any4}})
		if failed == nil || fds != nil || !strings.Contains(failed.Name, "0:0:2") {
			t.Errorf("%v %v", fds, failed)
		}
		if now := openFiles(t); now != before {
			t.Errorf("%d files are open, were %d", now, before)
		}
	})
}

func TestCapMask(t *testing.T) {
	for _, tc := range []struct {
		caps []int
		want uint64
	}{{nil, 0}, {[]int{0}, 1}, {[]int{0, 1, 33}, 1 | 2 | 1<<33}, {[]int{5, 5}, 1 << 5}} {
		if got := capMask(tc.caps); got != tc.want {
			t.Errorf("%v: %x, want %x", tc.caps, got, tc.want)
		}
	}
}

// What capset is told never holds more than what there is.
func TestReducedNeverAdds(t *testing.T) {
	have, err := permitted()
	if err != nil {
		t.Fatal(err)
	}
	var all []int
	for c := range 64 {
		all = append(all, c)
	}
	for _, keep := range [][]int{nil, {unix.CAP_CHOWN}, all} {
		_, data, err := reduced(keep)
		if err != nil {
			t.Fatal(err)
		}
		got := uint64(data[0].Permitted) | uint64(data[1].Permitted)<<32
		if want := capMask(keep) & have; got != want {
			t.Errorf("keep %d of them: %x, want %x", len(keep), got, want)
		}
		for _, d := range data {
			if d.Effective != d.Permitted || d.Inheritable != d.Permitted {
				t.Errorf("the sets differ: %+v", d)
			}
		}
	}
	if _, data, _ := reduced(nil); slices.ContainsFunc(data[:], func(d unix.CapUserData) bool { return d != (unix.CapUserData{}) }) {
		t.Errorf("keeping none leaves %+v", data)
	}
}
