package disk_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/disk"
)

func TestNothingIsLeft(t *testing.T) {
	clean := func(t *testing.T, dir, before string) {
		t.Helper()
		if left := mine(t, dir); len(left) > 0 {
			t.Errorf("loop devices: %v", left)
		}
		if now := mounts(t); now != before {
			t.Errorf("mounts changed:\n%s\nwere\n%s", now, before)
		}
		if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
			t.Errorf("files: %v %v", list, err)
		}
	}
	for _, kind := range []string{disk.Loop, disk.Tmpfs, disk.Sampler} {
		t.Run(kind+": nothing shows while it is there, and nothing is there afterwards", func(t *testing.T) {
			o := of(t, kind, 64*mib, 1024)
			before, files := mounts(t), openFiles(t)
			r := openOptions(t, kind, o)
			if kind == disk.Loop && len(mine(t, o.Dir)) != 1 {
				t.Errorf("the control: %v", devices(t))
			}
			if now := mounts(t); now != before {
				t.Errorf("mounts changed:\n%s", now)
			}
			if _, err := fill(r.Upper()+"/x", 32*mib); err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			if err := r.Close(); err != nil {
				t.Error(err)
			}
			t.Logf("closed with 32 MiB written in %v", time.Since(begun))
			clean(t, o.Dir, before)
			if now := openFiles(t); now != files {
				t.Errorf("%d files are open, were %d", now, files)
			}
			if err := r.Close(); err != nil {
				t.Errorf("closed again: %v", err)
			}
		})
	}
	for _, kind := range []string{disk.Loop, disk.Tmpfs} {
		t.Run(kind+": nothing is there after SIGKILL", func(t *testing.T) {
			o := of(t, kind, 16*mib, 4096)
			before := mounts(t)
			cmd := exec.Command("/proc/self/exe", "hold", kind, o.Dir)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			line, _ := bufio.NewReader(out).ReadString('\n')
			if kind == disk.Loop && len(mine(t, o.Dir)) != 1 {
				t.Errorf("the control: %v", devices(t))
			}
			_ = cmd.Process.Signal(syscall.SIGKILL)
			_ = cmd.Wait()
			if line != "held\n" {
				t.Fatalf("%q", line)
			}
			for end := time.Now().Add(10 * time.Second); len(mine(t, o.Dir)) > 0 && time.Now().Before(end); {
				time.Sleep(10 * time.Millisecond)
			}
			clean(t, o.Dir, before)
		})
	}
	t.Run("a file system that cannot be mounted leaves nothing but the reason", func(t *testing.T) {
		o := of(t, disk.Loop, 16*mib, 4096)
		o.MemoryBytes, o.Programs = 0, []string{t.TempDir()}
		// It has the mark of an ext4, and free blocks without end.
		fake := "#!/bin/sh\nfor a; do to=$a; done\nprintf '\\377\\377\\377\\177' | dd of=$to bs=1 seek=1036 conv=notrunc 2>/dev/null\n" +
			"printf '\\123\\357' | dd of=$to bs=1 seek=1080 conv=notrunc 2>/dev/null\n"
		if err := os.WriteFile(o.Programs[0]+"/mkfs.ext4", []byte(fake), 0o755); err != nil {
			t.Fatal(err)
		}
		before, files := mounts(t), openFiles(t)
		r := openOptions(t, disk.Sampler, o)
		if !strings.Contains(r.Why(), "make the file system ext4") {
			t.Errorf("it did not come that far: %s", r.Why())
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		clean(t, o.Dir, before)
		if now := openFiles(t); now != files {
			t.Errorf("%d files are open, were %d", now, files)
		}
	})
}

func openFiles(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// Steps run side by side, and so do others on the host who want loop devices.
func TestManyAtOnce(t *testing.T) {
	boxtest.Need(t, "root", "loop")
	before, files := mounts(t), openFiles(t)
	dir := home(t)
	var images disk.Images
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			o := disk.Options{Dir: dir, Bytes: int64(1+i%3) * 4 * mib, Inodes: 1024, Root: true, Images: &images}
			for range 3 {
				r, err := disk.Open(o)
				if err != nil {
					t.Error(err)
					return
				}
				if r.By() != disk.Loop {
					t.Errorf("%s: %s", r.By(), r.Why())
				}
				if list, err := os.ReadDir(r.Upper()); err != nil || len(list) > 0 {
					t.Errorf("a room that is not new: %v %v", list, err)
				}
				if _, err := fill(r.Upper()+"/x", mib); err != nil {
					t.Error(err)
				}
				if u, err := r.Used(); err != nil || u.Bytes < mib || u.Bytes > mib+128<<10 {
					t.Errorf("%+v %v", u, err)
				}
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if left := mine(t, dir); len(left) > 0 {
		t.Errorf("loop devices: %v", left)
	}
	if now := mounts(t); now != before {
		t.Errorf("mounts changed:\n%s", now)
	}
	if now := openFiles(t); now != files {
		t.Errorf("%d files are open, were %d", now, files)
	}
}

// A file system that promises blocks which the host has not must not pass for
// what the step wrote.
func TestSettle(t *testing.T) {
	on := func(t *testing.T, size string) *disk.Room {
		o := of(t, disk.Loop, 64*mib, 1024)
		if err := unix.Mount("small", o.Dir, "tmpfs", 0, "mode=0700,size="+size); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(o.Dir, 0); err != nil {
				t.Error(err)
			}
		})
		r := openOptions(t, disk.Loop, o)
		_, _ = fill(r.Upper()+"/x", 48*mib)
		return r
	}
	t.Run("a host with room: all is there", func(t *testing.T) {
		if err := on(t, "128m").Settle(); err != nil {
			t.Error(err)
		}
	})
	t.Run("a host without: it is said", func(t *testing.T) {
		err := on(t, "16m").Settle()
		if err == nil {
			t.Fatal("all is well, with 48 MiB on a host of 16")
		}
		t.Log(err)
	})
}

// Before Linux 6.15 only what is attached can be cloned.
func TestCloneAttached(t *testing.T) {
	boxtest.Need(t, "root", "tmpfs")
	before, files := mounts(t), openFiles(t)
	m, err := disk.MountDetachedTmpfs()
	if err != nil {
		t.Fatal(err)
	}
	fds, err := disk.CloneAttached(m, 3)
	if err != nil || len(fds) != 3 {
		t.Fatalf("%v %v", fds, err)
	}
	if now := mounts(t); now != before {
		t.Errorf("mounts changed:\n%s", now)
	}
	path := func(fd int) string { return fmt.Sprintf("/proc/self/fd/%d/x", fd) }
	if err := os.WriteFile(path(fds[0]), []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if b, err := os.ReadFile(path(fd)); err != nil || string(b) != "one" {
			t.Errorf("%q %v", b, err)
		}
		unix.Close(fd)
	}
	unix.Close(m)
	if now := openFiles(t); now != files {
		t.Errorf("%d files are open, were %d", now, files)
	}
}
