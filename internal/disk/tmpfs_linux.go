package disk

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// treesAhead is how many mounts of a tmpfs are made at once where they cannot
// be made later: a step needs one, and an engine that tries twice another.
const treesAhead = 4

// inMemory is a tmpfs. Its pages are charged to whoever writes them: the step.
type inMemory struct {
	mounted
	mu    sync.Mutex
	ahead []int
}

func newTmpfs(o Options) (place, error) {
	switch {
	case !o.Root:
		return nil, errNotRoot
	case o.MemoryBytes <= 0:
		return nil, errors.New("the step has no memory cap, and what is in memory would have none either")
	case o.Bytes > o.MemoryBytes/2:
		return nil, fmt.Errorf("%d MiB are over half of the step's memory of %d MiB, which they would be charged to", o.Bytes>>20, o.MemoryBytes>>20)
	}
	t := &inMemory{mounted: mounted{mount: -1, dir: -1}}
	var err error
	t.mount, err = mountDetached("tmpfs", []option{
		{"size", strconv.FormatInt(o.Bytes+ownBlocks*block, 10)},
		{"nr_inodes", strconv.FormatInt(o.Inodes+ownInodes, 10)}, {"mode", "0755"},
	})
	if err == nil {
		err = t.enter(o)
	}
	if err == nil {
		err = t.marks()
	}
	if err == nil {
		err = t.prepare()
	}
	if err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

// marks tries whether the file system keeps the marks of an overlay that a user
// namespace mounts. tmpfs does since Linux 6.6; before, a folder that a step
// replaced would read as if it had not been.
func (t *inMemory) marks() error {
	const name = "user.overlay.opaque"
	fd, err := unix.Openat(t.dir, workName, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Fsetxattr(fd, name, []byte("y"), 0); err != nil {
		return fmt.Errorf("this kernel's tmpfs keeps no marks of an overlay: %w", err)
	}
	return unix.Fremovexattr(fd, name)
}

// prepare makes sure that tree has something to give.
func (t *inMemory) prepare() error {
	fd, err := clone(t.mount)
	if err == nil {
		unix.Close(fd)
		return nil
	}
	t.ahead, err = cloneAttached(t.mount, treesAhead)
	return err
}

func clone(fd int) (int, error) {
	return unix.OpenTree(fd, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
}

// cloneAttached clones a detached mount before Linux 6.15, which clones only
// what is in the caller's own table of mounts: a thread takes a table for
// itself, attaches the mount there, clones it, and ends together with its table.
// The mount is used up by that; a clone takes its place.
func cloneAttached(mount, n int) (fds []int, err error) {
	done := make(chan error)
	go onOwnThread(func() {
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
				return fmt.Errorf("take a table of mounts: %w", err)
			}
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				return fmt.Errorf("keep it from the host's: %w", err)
			}
			if err := unix.MoveMount(mount, "", unix.AT_FDCWD, "/", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
				return fmt.Errorf("attach the file system: %w", err)
			}
			for range n {
				fd, err := clone(mount)
				if err != nil {
					return fmt.Errorf("clone the mount: %w", err)
				}
				fds = append(fds, fd)
			}
			return nil
		}()
	})
	if err = <-done; err != nil {
		closeAll(fds)
		return nil, err
	}
	return fds, nil
}

// onOwnThread runs f on a thread that ends with it. The program's first thread
// would not end, and what /proc/self shows is that thread's: it is passed on.
func onOwnThread(f func()) {
	runtime.LockOSThread() // and never back, but for the first thread
	if unix.Gettid() != unix.Getpid() {
		f()
		return
	}
	done := make(chan bool)
	go func() { defer close(done); onOwnThread(f) }()
	<-done
	runtime.UnlockOSThread()
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

func (t *inMemory) tree() (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.ahead); n > 0 {
		fd := t.ahead[n-1]
		t.ahead = t.ahead[:n-1]
		return fd, nil
	}
	fd, err := clone(t.mount)
	if err != nil {
		return -1, fmt.Errorf("clone the mount of the step's file system: %w", err)
	}
	return fd, nil
}

func (t *inMemory) used(context.Context, bool) (Usage, error) { return t.usage() }

func (t *inMemory) settle() error { return nil }

func (t *inMemory) close() error {
	closeAll(t.ahead)
	t.ahead = nil
	t.release()
	return nil
}
