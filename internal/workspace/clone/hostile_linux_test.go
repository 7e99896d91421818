package clone

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// TestAFolderSwappedForALinkLeadsNowhere: something outside of any box swaps a
// folder and a file for links to secrets while they are copied.
func TestAFolderSwappedForALinkLeadsNowhere(t *testing.T) {
	outside := t.TempDir()
	from, _ := pair(t)
	do(t, os.MkdirAll(outside+"/d", 0o755), os.WriteFile(outside+"/d/secret", []byte("secret"), 0o644), os.WriteFile(outside+"/f", []byte("secret"), 0o644),
		os.MkdirAll(from+"/a/d", 0o755), os.WriteFile(from+"/a/d/mine", []byte("mine"), 0o644), os.WriteFile(from+"/a/f", []byte("mine"), 0o644),
		os.Symlink(outside+"/d", from+"/swapd"), os.Symlink(outside+"/f", from+"/swapf"))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, n := range []string{"d", "f"} {
				_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(from, "a", n), unix.AT_FDCWD, filepath.Join(from, "swap"+n), unix.RENAME_EXCHANGE)
			}
		}
	})
	seen := map[string]int{}
	for end := time.Now().Add(400 * time.Millisecond); time.Now().Before(end); {
		to := t.TempDir()
		if _, err := Tree(context.Background(), from, to, Options{}); err != nil {
			if !errors.Is(err, workspace.ErrMoved) {
				t.Error(err)
			}
			seen["moved"]++
			continue
		}
		for e := range snapshot(t, to).All() {
			seen[e.Path+" "+e.Type]++
			if strings.Contains(e.Path, "secret") {
				t.Fatalf("copied %q from outside", e.Path)
			}
			if e.Type == "file" {
				b, err := os.ReadFile(filepath.Join(to, e.Path))
				do(t, err)
				if bytes.Contains(b, []byte("secret")) {
					t.Fatalf("%q has content from outside", e.Path)
				}
			}
		}
	}
	close(stop)
	wg.Wait()
	// The control: both states were met, or the race proves nothing.
	if seen["a/d dir"] == 0 || seen["a/d symlink"] == 0 {
		t.Errorf("the race was not run: %v", seen)
	}
}

// TestDeepTree runs in a process that may hold few descriptors.
func TestDeepTree(t *testing.T) {
	if !inside() {
		uid := os.Geteuid()
		if uid == 0 {
			uid = 65534
		}
		rerun(t, uid)
		return
	}
	const depth = 400 // 6,800 bytes of path
	name := strings.Repeat("d", 16)
	from, to := pair(t)
	fd, err := unix.Open(from, unix.O_DIRECTORY|unix.O_RDONLY, 0)
	do(t, err)
	for i := range depth {
		do(t, unix.Mkdirat(fd, name, 0o755), unix.Mkdirat(fd, "z", 0o755))
		f, err := unix.Openat(fd, "twice", unix.O_CREAT|unix.O_WRONLY, 0o644)
		do(t, err, unix.Close(f))
		next, err := unix.Openat(fd, name, unix.O_DIRECTORY|unix.O_RDONLY, 0)
		do(t, err, unix.Linkat(fd, "twice", next, "again", 0), unix.Mkdirat(next, "0", 0o755))
		if i%2 == 0 {
			do(t, unix.Fchmod(fd, 0o555))
		}
		do(t, unix.Close(fd))
		fd = next
	}
	var was unix.Rlimit
	do(t, unix.Close(fd), unix.Getrlimit(unix.RLIMIT_NOFILE, &was),
		unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 128, Max: was.Max}))
	r, err := Tree(context.Background(), from, to, Options{})
	do(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was), err)
	if r.Entries != 5*depth {
		t.Errorf("got %+v, want %d entries", r, 5*depth)
	}
	if d := differences(t, from, to); len(d) > 0 {
		t.Errorf("%d differences, first %.100s", len(d), d[0])
	}
}

func TestSpecialFilesAreNotOpened(t *testing.T) {
	from, _ := pair(t)
	do(t, unix.Mkfifo(from+"/p", 0o600))
	// An opener waits for a reader of the FIFO: were it opened, it would be let go.
	opened := make(chan error, 1)
	go func() {
		f, err := os.OpenFile(from+"/p", os.O_WRONLY, 0)
		if err == nil {
			f.Close()
		}
		opened <- err
	}()
	for range 20 {
		mustClone(t, from, t.TempDir(), Options{})
		time.Sleep(time.Millisecond)
	}
	select {
	case <-opened:
		t.Error("the FIFO was opened")
	default:
	}
	f, err := os.OpenFile(from+"/p", os.O_RDONLY|unix.O_NONBLOCK, 0)
	do(t, err, <-opened, f.Close())
}

// TestOtherFileSystems: one mounted in the original is copied as content, and
// nothing is the same inode for having the same number.
func TestOtherFileSystems(t *testing.T) {
	need.Root(t)
	from, to := pair(t)
	for _, d := range []string{"m", "n"} {
		at := from + "/" + d
		do(t, os.Mkdir(at, 0o755))
		need.Met(t, "mounts", unix.Mount("tmpfs", at, "tmpfs", 0, "size=16m"))
		t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
		do(t, os.WriteFile(at+"/f", []byte("text of "+d), 0o644), os.Link(at+"/f", at+"/g"), os.Truncate(at+"/f", 5<<20))
	}
	want := facts(t, from)
	r := mustClone(t, from, to, Options{})
	if r.Entries != 6 || r.Bytes > 1<<20 {
		t.Errorf("got %+v", r)
	}
	if d := differences(t, from, to); len(d) > 0 {
		t.Errorf("differs: %v", d)
	}
	for p, f := range facts(t, to) {
		if f != want[p] {
			t.Errorf("%s: %s, was %s", p, f, want[p])
		}
	}
}

// TestACopyThatDoesNotFit ends with an error and not with less.
func TestACopyThatDoesNotFit(t *testing.T) {
	need.Root(t)
	from, to := pair(t)
	need.Met(t, "mounts", unix.Mount("tmpfs", to, "tmpfs", 0, "size=1m,nr_inodes=100"))
	t.Cleanup(func() { _ = unix.Unmount(to, unix.MNT_DETACH) })
	do(t, os.WriteFile(from+"/big", bytes.Repeat([]byte("x"), 3<<20), 0o644))
	if r, err := Tree(context.Background(), from, to, Options{}); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), `"big"`) {
		t.Errorf("bytes: got %+v, %v", r, err)
	}
	do(t, os.Remove(from+"/big"), os.RemoveAll(to+"/big"))
	for i := range 200 {
		do(t, os.WriteFile(fmt.Sprintf("%s/%d", from, i), nil, 0o644))
	}
	if r, err := Tree(context.Background(), from, to, Options{}); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("inodes: got %+v, %v", r, err)
	}
}
