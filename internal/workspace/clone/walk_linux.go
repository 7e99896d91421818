package clone

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

const (
	// chunkSize is how many entries of one folder a worker takes at once.
	chunkSize = 256
	// largeFile is the size from which a file may get a worker to itself.
	largeFile = 1 << 20
	// openFolders is how many folders of one path a worker keeps open. Those
	// above are closed and found again through "..", so that a deep tree costs
	// no descriptors.
	openFolders = 16
	// tries is how often a name that changes meanwhile is looked at again.
	tries = 3
)

// frame is a folder on the path of a worker, and its copy. Both descriptors are
// -1 while it is closed.
type frame struct {
	src, dst int
	n        *node
}

// worker is one worker's state.
type worker struct {
	c      *copying
	frames []frame
	buf    []byte
	st     unix.Statx_t
	// Devices from which content cannot be shared, or copied by the kernel.
	noShare, noRange map[uint64]bool
}

func (w *worker) top() frame { return w.frames[len(w.frames)-1] }

// visit copies what is in the folder on top.
func (w *worker) visit(n *node) {
	names := n.names
	n.names = nil
	for len(names) > 0 && !w.c.stopped() {
		part := names[:min(chunkSize, len(names))]
		names = names[len(part):]
		// The last part is ours: a worker that hands everything on is idle.
		if len(names) == 0 || !w.spawn(n, func(w *worker) { w.chunk(n, part) }) {
			w.chunk(n, part)
		}
	}
}

// spawn does a part of the folder on top on another worker, if one is free.
func (w *worker) spawn(n *node, work func(*worker)) bool {
	select {
	case w.c.slots <- struct{}{}:
	default:
		return false
	}
	src, err := unix.FcntlInt(uintptr(w.top().src), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		dst, err := unix.FcntlInt(uintptr(w.top().dst), unix.F_DUPFD_CLOEXEC, 0)
		if err == nil {
			n.pending.Add(1)
			w.start(frame{src, dst, n}, work)
			return true
		}
		unix.Close(src)
	}
	<-w.c.slots
	return false // the caller does it itself
}

// start runs work on a worker of its own, which owns the frame and the slot.
func (w *worker) start(f frame, work func(*worker)) {
	c := w.c
	c.wg.Go(func() {
		w := c.pool.Get().(*worker)
		w.frames = append(w.frames[:0], f)
		work(w)
		w.leave()
		c.pool.Put(w)
		<-c.slots
	})
}

// chunk copies some entries of a folder and then all that lies below them.
func (w *worker) chunk(n *node, names []string) {
	var folders []string
	for _, name := range names {
		if w.c.stopped() {
			return
		}
		folder, err := w.entry(n, name, true)
		if err != nil {
			w.c.fail(n, name, err)
			return
		}
		if folder {
			folders = append(folders, name)
		}
	}
	for _, name := range folders {
		if w.c.stopped() {
			return
		}
		if err := w.descend(n, name); err != nil {
			w.c.fail(n, name, err)
		}
	}
}

// descend copies the folder of a name.
func (w *worker) descend(n *node, name string) error {
	if n.depth+1 > workspace.DefaultMaxDepth {
		return fmt.Errorf("%w: folders more than %d deep", workspace.ErrLimit, workspace.DefaultMaxDepth)
	}
	for range tries {
		src, err := quietly(w.top().src, name, readDir)
		switch {
		case err == nil:
			return w.into(n, name, src)
		case denied(err):
			return w.c.lacks(n, name)
		case !moved(err):
			return err
		}
		// Something else has this name now.
		if folder, err := w.entry(n, name, false); err != nil || !folder {
			return err
		}
	}
	return workspace.ErrMoved
}

// into makes the copy of an open folder and visits it, on a worker of its own
// if there is one. It owns src.
func (w *worker) into(n *node, name string, src int) error {
	child := &node{c: w.c, parent: n, name: name, depth: n.depth + 1}
	dst, err := w.begin(child, src)
	if dst < 0 {
		unix.Close(src)
		if denied(err) {
			return w.c.lacks(n, name)
		}
		return err
	}
	w.c.made.Add(1)
	child.pending.Store(1)
	n.pending.Add(1)
	f := frame{src, dst, child}
	select {
	case w.c.slots <- struct{}{}:
		w.start(f, func(w *worker) { w.visit(child) })
		return nil
	default:
	}
	w.frames = append(w.frames, f)
	if i := len(w.frames) - 1 - openFolders; i >= 0 && w.frames[i].src >= 0 {
		unix.Close(w.frames[i].src)
		unix.Close(w.frames[i].dst)
		w.frames[i].src, w.frames[i].dst = -1, -1
	}
	w.visit(child)
	w.leave()
	return nil
}

// begin reads the folder src, then makes and opens its copy. An error that is
// denied is about src.
func (w *worker) begin(child *node, src int) (dst int, err error) {
	if err := lookAt(src, "", &w.st); err != nil {
		return -1, err
	}
	child.id, child.meta = identityOf(&w.st), metaOf(&w.st)
	if child.id == w.c.toID {
		return -1, errInside
	}
	if child.names, err = w.list(src); err != nil {
		return -1, err
	}
	at := w.top().dst
	// Ours alone, and open to us, until it is complete.
	if err := again(func() error { return unix.Mkdirat(at, child.name, 0o700) }); err != nil {
		return -1, making(err)
	}
	if dst, err = beneath(at, child.name, readDir); err != nil {
		return -1, making(err)
	}
	if err = lookAt(dst, "", &w.st); err == nil {
		child.copyID = identityOf(&w.st)
		err = w.keepMark(src, dst)
	}
	if err != nil {
		unix.Close(dst)
		return -1, making(err)
	}
	return dst, nil
}

// making says that it is the copy something is wrong with.
func making(err error) error {
	if err == unix.EEXIST {
		return fmt.Errorf("make the copy: %w; the folder changed while it was read, or names that differ are the same where the copy is", err)
	}
	return fmt.Errorf("make the copy: %w", err)
}

// leave ends our part of the folder on top.
func (w *worker) leave() {
	f := w.top()
	w.frames = w.frames[:len(w.frames)-1]
	held := len(w.frames) > 0
	// Before anybody may close the copy to us.
	if held && !w.c.stopped() {
		if err := w.back(f); err != nil {
			w.c.fail(f.n, "", err)
		}
	}
	unix.Close(f.src)
	w.finish(f.n, f.dst, held)
}

// back opens the folder above f again if it was closed. ".." is wherever a
// folder lies now, so it must be the inode we came from.
func (w *worker) back(f frame) error {
	up := &w.frames[len(w.frames)-1]
	if up.src >= 0 {
		return nil
	}
	src, err := w.parent(f.src, holdDir, f.n.parent.id)
	if err != nil {
		return err
	}
	dst, err := w.parent(f.dst, readDir, f.n.parent.copyID)
	if err != nil {
		unix.Close(src)
		return err
	}
	up.src, up.dst = src, dst
	return nil
}

func (w *worker) parent(fd, flags int, want identity) (int, error) {
	got, err := above(fd, flags)
	if err != nil {
		return -1, err
	}
	if err = lookAt(got, "", &w.st); err == nil && identityOf(&w.st) != want {
		err = workspace.ErrMoved
	}
	if err != nil {
		unix.Close(got)
		return -1, err
	}
	return got, nil
}

// finish ends a part of n, and with the last one n itself and whatever above is
// complete with it. It owns dst, the copy of n. held: we hold a part of the
// folder above n, so that cannot be complete.
func (w *worker) finish(n *node, dst int, held bool) {
	for n.pending.Add(-1) == 0 && !w.c.stopped() {
		up := -1
		var err error
		if n.parent != nil && !held {
			up, err = w.parent(dst, readDir, n.parent.copyID)
		}
		if err == nil {
			err = w.keep(dst, n.meta, true)
		}
		unix.Close(dst)
		dst = up
		if err != nil {
			w.c.fail(n, "", err)
			break
		}
		if n = n.parent; n == nil {
			return
		}
		if held {
			n.pending.Add(-1)
			return
		}
	}
	if dst >= 0 {
		unix.Close(dst)
	}
}
