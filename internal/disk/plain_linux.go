package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lookLimit bounds one look while the step runs, lastLimit the one after.
	lookLimit = 2 * time.Second
	lastLimit = 30 * time.Second
)

// plain is a pair of folders on the host's disk.
type plain struct {
	path          string // as others name it
	up            int    // the folder that it was made in, for as long as it is there
	dir           int
	bytes, inodes int64
}

func newPlain(o Options) (place, error) {
	up, err := unix.Open(o.At, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	path, err := os.MkdirTemp(fmt.Sprintf("/proc/self/fd/%d", up), "room-")
	if err != nil {
		unix.Close(up)
		return nil, err
	}
	p := &plain{path: filepath.Join(o.Dir, filepath.Base(path)), up: up, bytes: o.Bytes, inodes: o.Inodes}
	p.dir, err = unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		p.dir = -1
	} else if o.Root {
		// Our own folder keeps others out; the box's id has to pass.
		err = unix.Fchmod(p.dir, 0o711)
	}
	if err == nil {
		err = makeFolders(p.dir, o)
	}
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// root is by the descriptor: whatever has the folder's name by now is another.
func (p *plain) root() string { return fmt.Sprintf("/proc/self/fd/%d", p.dir) }

func (p *plain) tree() (int, error) { return -1, nil }

func (p *plain) settle() error { return nil }

// used walks the upper folder, and asks the host's file system how it does: one
// that is full holds the step back as much as a bound of its own would.
func (p *plain) used(ctx context.Context, quick bool) (Usage, error) {
	limit := lastLimit
	if quick {
		limit = lookLimit
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	w := walk{done: func() bool { return ctx.Err() != nil }}
	if quick {
		w.enough = func(u Usage) bool { return u.Over(p.bytes, p.inodes) }
	}
	u, err := w.run(p.dir, upperName)
	if err != nil {
		return u, fmt.Errorf("measure what the step wrote: %w", err)
	}
	if u.AtLeast && !quick && !u.Over(p.bytes, p.inodes) {
		return u, fmt.Errorf("measure what the step wrote: not done within %v", limit)
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(p.dir, &st); err != nil {
		return u, fmt.Errorf("ask what the host has free: %w", err)
	}
	// Some file systems have no number of inodes.
	u.Full = u.full(p.bytes, p.inodes) || available(st) < nearlyFull || st.Files > 0 && st.Ffree == 0
	return u, nil
}

func (p *plain) close() error {
	var err error
	if p.dir >= 0 {
		err = removeContents(p.dir)
		unix.Close(p.dir)
		p.dir = -1
	}
	if p.up >= 0 {
		if rerr := unix.Unlinkat(p.up, filepath.Base(p.path), unix.AT_REMOVEDIR); rerr != nil && rerr != unix.ENOENT {
			err = errors.Join(err, &os.PathError{Op: "remove", Path: p.path, Err: rerr})
		}
		unix.Close(p.up)
		p.up = -1
	}
	return err
}
