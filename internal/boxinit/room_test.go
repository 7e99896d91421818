package boxinit

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
)

func TestFullIsAPlaceInMemoryWithoutRoom(t *testing.T) {
	dir := t.TempDir()
	mounted := func(name, options string) string {
		at := filepath.Join(dir, name)
		err := os.Mkdir(at, 0o755)
		if err == nil {
			err = unix.Mount("tmpfs", at, "tmpfs", 0, options)
		}
		need.Met(t, "mounts", err)
		t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
		return at
	}
	bytes, names, half := mounted("bytes", "size=1m"), mounted("names", "size=1m,nr_inodes=8"), mounted("half", "size=1m")
	tiny, unbounded := mounted("tiny", "size=16k"), mounted("unbounded", "size=0")
	link := filepath.Join(dir, "link")
	if err := os.Symlink(bytes, link); err != nil {
		t.Fatal(err)
	}
	rooms := watchRoom([]string{bytes, names, half, tiny, unbounded, dir, link, filepath.Join(dir, "none")})
	t.Cleanup(func() {
		for _, r := range rooms {
			unix.Close(r.fd)
		}
	})
	if got := full(rooms); got != nil {
		t.Errorf("before anything was written: %+v", got)
	}
	fill := func(at string, n int) { _ = os.WriteFile(filepath.Join(at, "x"), make([]byte, n), 0o600) }
	fill(bytes, 2<<20)
	fill(half, 1<<19)
	for i := range 20 {
		_ = os.WriteFile(filepath.Join(names, fmt.Sprint(i)), nil, 0o600)
	}
	if got, want := full(rooms), []Full{{Target: bytes}, {Target: names, Files: true}}; !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	fill(tiny, 1<<20)
	if err := os.Remove(filepath.Join(bytes, "x")); err != nil {
		t.Fatal(err)
	}
	if got, want := full(rooms), []Full{{Target: names, Files: true}, {Target: tiny}}; !slices.Equal(got, want) {
		t.Errorf("later: %+v, want %+v", got, want)
	}
	for _, r := range rooms {
		if flags, err := unix.FcntlInt(uintptr(r.fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("%s would be the step's too (%v)", r.target, err)
		}
	}
}
