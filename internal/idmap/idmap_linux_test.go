package idmap

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
)

func TestInitialMap(t *testing.T) {
	for _, tc := range []struct {
		sentence, text string
		want           bool
	}{
		{"the machine's own map, as the kernel writes it", "         0          0 4294967295\n", true},
		{"the same with other spaces", "0 0\t4294967295", true},
		{"one id, as unshare -r makes it", "         0       1000          1\n", false},
		{"a rootless container's two lines", "0 1000 1\n1 100000 65536\n", false},
		{"a container whose root is the machine's, with fewer ids", "0 0 65536\n", false},
		{"all ids, but moved", "0 100000 4294967295\n", false},
		{"the machine's line and one more is no map of the kernel's", "0 0 4294967295\n5 5 1\n", false},
		{"another number of the same beginning", "0 0 42949672950\n", false},
		{"nothing", "", false},
		{"a namespace whose map is not written yet", "\n", false},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			if got := initialMap(tc.text); got != tc.want {
				t.Errorf("%v, want %v", got, tc.want)
			}
		})
	}
}

// Box is nobody's id: above what useradd, systemd, container tools and
// newuidmap's usual ranges hand out, and below what the kernel reserves.
func TestBoxIsNobodysId(t *testing.T) {
	for _, id := range []int{Box.UID, Box.GID} {
		switch {
		case id <= 1_879_048_191: // systemd's container range ends there
			t.Errorf("%d lies in a range that others hand out", id)
		case id >= 1<<31-1:
			t.Errorf("%d is negative for programs with 32-bit ids", id)
		}
	}
}

func TestMapper(t *testing.T) {
	if !Needed() {
		need.Met(t, "idmap", errors.New("we are not the machine's root, and nobody else's boxes run as another id"))
	}
	dir := t.TempDir()
	theirs := filepath.Join(dir, "theirs")
	if err := os.WriteFile(theirs, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(theirs, 1234, 5678); err != nil {
		t.Fatal(err)
	}
	var m Mapper
	defer m.Close()
	open := func(path string) int {
		t.Helper()
		fd, err := m.For(path)
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}

	t.Run("one namespace serves all paths of an owner", func(t *testing.T) {
		if a, b := open(dir), open(dir); a != b {
			t.Errorf("%d and %d", a, b)
		}
	})
	t.Run("another owner has another", func(t *testing.T) {
		if a, b := open(dir), open(theirs); a == b {
			t.Errorf("both have %d", a)
		}
	})
	t.Run("a path that is not there is said so", func(t *testing.T) {
		if _, err := m.For(filepath.Join(dir, "none")); !os.IsNotExist(err) {
			t.Errorf("%v", err)
		}
	})
	t.Run("through a mount mapped with it the owner's file is the box's, and the file itself is as before", func(t *testing.T) {
		fd, err := unix.OpenTree(unix.AT_FDCWD, theirs, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(open(theirs))}
		if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			t.Fatal(err)
		}
		if int(st.Uid) != Box.UID || int(st.Gid) != Box.GID {
			t.Errorf("the box sees %d:%d, want %d:%d", st.Uid, st.Gid, Box.UID, Box.GID)
		}
		if err := unix.Stat(theirs, &st); err != nil || st.Uid != 1234 || st.Gid != 5678 {
			t.Errorf("on the host it is %d:%d now (%v)", st.Uid, st.Gid, err)
		}
	})
	t.Run("closing lets go, and a mapper can be used again", func(t *testing.T) {
		before := open(dir)
		m.Close()
		if _, err := unix.FcntlInt(uintptr(before), unix.F_GETFD, 0); err != unix.EBADF {
			t.Errorf("it is open still (%v)", err)
		}
		open(dir)
	})
}

// The process that holds a namespace must not outlive whoever asked for it.
func TestHoldEndsWithItsInput(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{"idmap.test", HoldArg}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("it does not live: %v", err)
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}
