package steps

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
)

// A set-id program that a step can write to can be rewritten through shared memory
// and keeps its bits: this is what no filter of calls sees.
func TestTheKernelLeavesTheBitsOfWhatIsMapped(t *testing.T) {
	boxtest.Need(t, "setid")
	path := filepath.Join(t.TempDir(), "tool")
	if err := errors.Join(os.WriteFile(path, []byte("old"), 0o755), os.Chmod(path, os.ModeSetuid|0o755)); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := unix.Mmap(int(f.Fd()), 0, 3, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	copy(m, "new")
	if err := unix.Munmap(m); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	i, serr := os.Stat(path)
	if err != nil || serr != nil || string(text) != "new" || i.Mode()&os.ModeSetuid == 0 {
		t.Errorf("%s %q (%v, %v): such files need not be looked for any more", i.Mode(), text, err, serr)
	}
}

func TestNoStepCanWriteToASetIDFile(t *testing.T) {
	for _, tc := range []struct {
		sentence string
		make     func(dir string) error
		source   string // in dir
		want     string // that the refusal names, in dir; empty is none
	}{
		{"nothing of the kind", func(dir string) error { return nil }, "", ""},
		{"a program for everybody as its owner", func(dir string) error { return os.Chmod(dir+"/a/b/c", os.ModeSetuid|0o755) }, "", "a/b/c"},
		{"for everybody as its group", func(dir string) error { return os.Chmod(dir+"/a/b/c", os.ModeSetgid|0o755) }, "", "a/b/c"},
		{"nobody can run it yet", func(dir string) error { return os.Chmod(dir+"/a/b/c", os.ModeSetgid|0o600) }, "", "a/b/c"},
		{"the source itself", func(dir string) error { return os.Chmod(dir+"/a/b/c", os.ModeSetuid|0o755) }, "a/b/c", "a/b/c"},
		{"a file beside it", func(dir string) error { return os.Chmod(dir+"/a/b/c", os.ModeSetuid|0o755) }, "a/plain", ""},
		{"what a link leads to is not in the box", func(dir string) error {
			return errors.Join(os.WriteFile(dir+"/out", nil, 0o755), os.Chmod(dir+"/out", os.ModeSetuid|0o755), os.Symlink(dir+"/out", dir+"/a/link"), os.Symlink("..", dir+"/a/up"))
		}, "a", ""},
		{"folders give their group to what is made in them", func(dir string) error { return os.Chmod(dir+"/a/b", os.ModeSetgid|0o755) }, "", ""},
		{"the sticky bit", func(dir string) error { return os.Chmod(dir+"/a/b/c", os.ModeSticky|0o755) }, "", ""},
		{"in a folder without read permission", func(dir string) error {
			return errors.Join(os.Chmod(dir+"/a/b/c", os.ModeSetuid|0o755), os.Chmod(dir+"/a/b", 0o300))
		}, "", "a/b"},
		{"what is neither file nor folder", func(dir string) error {
			l, err := net.Listen("unix", dir+"/a/s")
			if err == nil {
				l.(*net.UnixListener).SetUnlinkOnClose(false)
				err = l.Close()
			}
			return errors.Join(err, syscall.Mkfifo(dir+"/a/f", 0o644))
		}, "", ""},
		{"a missing source is told when the box is built", func(dir string) error { return nil }, "missing", ""},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			boxtest.Need(t, "setid")
			top, err := filepath.EvalSymlinks(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			dir := filepath.Join(top, "data")
			err = errors.Join(os.Mkdir(top+"/ws", 0o755), os.MkdirAll(dir+"/a/b", 0o755), os.WriteFile(dir+"/a/b/c", nil, 0o755), os.WriteFile(dir+"/a/plain", nil, 0o755), tc.make(dir))
			if err != nil {
				t.Fatal(err)
			}
			defer os.Chmod(dir+"/a/b", 0o755)
			r := &Runner{Workspace: top + "/ws", Guard: NewGuard(Options{})}
			m := box.Mount{Source: filepath.Join(dir, tc.source), Target: "/data"}
			why := r.recheck(t.Context(), PlanStep{Mounts: []box.Mount{m}})
			at := filepath.Join(dir, tc.want)
			switch {
			case tc.want == "" && why != "":
				t.Errorf("refused: %s", why)
			case tc.want != "" && (!strings.HasPrefix(why, "mounts: "+at) && !strings.Contains(why, "a/b: ") || !strings.Contains(why, "[path, ro]")):
				t.Errorf("got %q, want %s", why, at)
			case strings.HasSuffix(tc.want, "/c") && !strings.Contains(why, "chmod ug-s "+at):
				t.Errorf("no way out in %q", why)
			}
			m.ReadOnly = true
			if why := r.recheck(t.Context(), PlanStep{Mounts: []box.Mount{m}}); why != "" {
				t.Errorf("read-only it is refused: %s", why)
			}
		})
	}
}

// What is too large to be looked at is not known, and so not shown.
func TestWhatCannotBeSearchedIsNotWritten(t *testing.T) {
	dir := t.TempDir()
	for i := range 600 {
		if err := os.WriteFile(fmt.Sprintf("%s/%d", dir, i), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if why := anySetID(t.Context(), dir, bounds{600, time.Hour}); why != "" {
		t.Fatalf("control: %s", why)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for sentence, why := range map[string]string{
		"too many":  anySetID(t.Context(), dir, bounds{599, time.Hour}),
		"too long":  anySetID(t.Context(), dir, bounds{600, -1}),
		"cancelled": anySetID(cancelled, dir, bounds{600, time.Hour}),
	} {
		if !strings.Contains(why, dir) || !strings.Contains(why, "mount a smaller folder, or this one with [path, ro]") {
			t.Errorf("%s: %q", sentence, why)
		}
	}
	// Deeper than a path can be.
	deep, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 30 {
		name := strings.Repeat("d", 200)
		if err := unix.Mkdirat(deep, name, 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(deep, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		unix.Close(deep)
		if deep = next; err != nil {
			t.Fatal(err)
		}
	}
	unix.Close(deep)
	if why := anySetID(t.Context(), dir, mountBounds); !strings.Contains(why, "cannot be searched") {
		t.Errorf("too deep: %q", why)
	}
}
