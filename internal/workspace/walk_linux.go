package workspace

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	// bufferSize is what a worker reads at once, of a file or a folder.
	bufferSize = 256 << 10
	// chunkSize is how many entries of one folder a worker takes at once.
	chunkSize = 256
	// largeFile is the size above which a file may get a worker to itself.
	largeFile = 1 << 20
	// openFolders is how many folders of one path a worker keeps open. Those
	// above are closed and found again through "..", so that a deep tree costs
	// no descriptors.
	openFolders = 16
	// tries is how often a path that changes while it is read is read again.
	tries = 3
)

// node is a folder being read. Whoever finishes the last part of it hands it to
// its parent, so no worker ever waits for another.
type node struct {
	s          *scan
	parent     *node
	index      int // in the parent
	depth      int
	place      uint16
	ino        uint64
	prev       *dir // what prev had here
	d          *dir
	unreadable bool

	pending atomic.Int32 // parts not finished
	mu      sync.Mutex   // guards what follows
	subs    []sub
	targets []target
}

type sub struct {
	index int
	d     *dir
}

type target struct {
	index int
	text  string
}

// where names a path for a message, bounded: a path may be a megabyte long.
func (n *node) where(name string) string {
	parts := []string{name}
	for ; n.parent != nil; n = n.parent {
		if len(parts) > 8 {
			parts = append(parts, "...")
			break
		}
		parts = append(parts, string(n.parent.d.name(&n.parent.d.entries[n.index])))
	}
	slices.Reverse(parts)
	return fmt.Sprintf("%q", strings.Join(parts, "/"))
}

// done ends one part of a folder, and with the last the folder itself.
func (n *node) done() {
	for n != nil && n.pending.Add(-1) == 0 {
		if n.s.failed.Load() {
			return
		}
		if err := n.seal(); err != nil {
			n.s.fail(n, "", err)
			return
		}
		p := n.parent
		if p != nil {
			p.mu.Lock()
			if n.unreadable {
				p.d.entries[n.index].flags |= flagUnreadable
			} else {
				p.subs = append(p.subs, sub{n.index, n.d})
			}
			p.mu.Unlock()
		}
		n = p
	}
}

// seal makes a folder part of the tree: link targets and folders get their
// places, and whatever is as it was in prev is shared with it.
func (n *node) seal() error {
	if n.unreadable {
		n.d = nil
		return nil
	}
	d := n.d
	var bytesOf int
	for _, t := range n.targets {
		bytesOf += len(t.text)
	}
	if err := n.s.count(0, int64(bytesOf)); err != nil {
		return err
	}
	slices.SortFunc(n.targets, func(a, b target) int { return cmp.Compare(a.index, b.index) })
	d.text = slices.Grow(d.text, bytesOf)
	for _, t := range n.targets {
		e := &d.entries[t.index]
		e.aux, e.size = uint32(len(d.text)), int64(len(t.text))
		d.text = append(d.text, t.text...)
	}
	slices.SortFunc(n.subs, func(a, b sub) int { return cmp.Compare(a.index, b.index) })
	if len(n.subs) > 0 {
		d.dirs = make([]*dir, len(n.subs))
	}
	for i, s := range n.subs {
		d.entries[s.index].aux, d.dirs[i] = uint32(i), s.d
	}
	all := len(d.entries)
	d.entries = slices.DeleteFunc(d.entries, func(e entry) bool { return e.flags&flagGone != 0 })
	n.s.entries.Add(int64(len(d.entries) - all))
	n.d = d.shared(n.prev)
	n.targets, n.subs = nil, nil
	return nil
}

// shared replaces as much of d as is the same in prev by prev's.
func (d *dir) shared(prev *dir) *dir {
	if prev == nil || !bytes.Equal(d.text, prev.text) {
		return d
	}
	d.text = prev.text
	if !slices.Equal(d.entries, prev.entries) {
		return d
	}
	d.entries = prev.entries
	if !slices.Equal(d.dirs, prev.dirs) {
		return d
	}
	return prev
}

// frame is a folder on the path of a worker; fd is -1 while it is closed.
type frame struct {
	fd int
	n  *node
}

// walker is one worker's state.
type walker struct {
	s      *scan
	frames []frame
	buf    []byte
	st     unix.Statx_t
	hash   hasher

	lastNode *node // whose place last is
	last     place
}

// release closes what the worker holds and puts it back.
func (w *walker) release() {
	for _, f := range w.frames {
		if f.fd >= 0 {
			unix.Close(f.fd)
		}
	}
	clear(w.frames)
	w.frames, w.lastNode = w.frames[:0], nil
	w.s.pool.Put(w)
}

func (w *walker) fd() int { return w.frames[len(w.frames)-1].fd }

// push enters a folder and closes the highest one beyond openFolders.
func (w *walker) push(fd int, n *node) {
	w.frames = append(w.frames, frame{fd, n})
	if i := len(w.frames) - 1 - openFolders; i >= 0 && w.frames[i].fd >= 0 {
		unix.Close(w.frames[i].fd)
		w.frames[i].fd = -1
	}
}

// pop leaves a folder. Its parent, if it was closed, must be the same inode as
// before: ".." is wherever the folder lies now.
func (w *walker) pop() error {
	last := w.frames[len(w.frames)-1]
	w.frames = w.frames[:len(w.frames)-1]
	defer unix.Close(last.fd)
	up := &w.frames[len(w.frames)-1]
	if up.fd >= 0 {
		return nil
	}
	fd, err := openQuiet(last.fd, "..", openDir)
	if err != nil {
		return err
	}
	up.fd = fd
	if err := lookAt(fd, "", &w.st); err != nil {
		return err
	}
	if w.st.Ino != up.n.ino || placeOf(&w.st) != w.placeAt(up.n.place) {
		return ErrMoved
	}
	return nil
}

func (w *walker) placeAt(i uint16) place {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	return w.s.places[i]
}

// visit reads the folder on top of the frames.
func (w *walker) visit(n *node) {
	defer n.done()
	w.s.enter(w.fd(), n.place)
	if err := w.list(w.fd(), n); denied(err) {
		n.unreadable = true
		return
	} else if err != nil {
		w.s.fail(n, "", err)
		return
	}
	total := len(n.d.entries)
	for lo := 0; lo < total && !w.s.stopped(); lo += chunkSize {
		hi := min(lo+chunkSize, total)
		n.pending.Add(1)
		part := func(w *walker) {
			defer n.done()
			w.chunk(n, lo, hi)
		}
		// The last part is ours: a worker that hands everything on is idle.
		if hi == total || !w.s.spawn(w.dup, n, part) {
			part(w)
		}
	}
}

// dup gives another worker the folder on top.
func (w *walker) dup() (int, error) {
	return unix.FcntlInt(uintptr(w.fd()), unix.F_DUPFD_CLOEXEC, 0)
}

// chunk reads some entries of a folder and then all that lies below them.
func (w *walker) chunk(n *node, lo, hi int) {
	var folders []int
	for i := lo; i < hi && !w.s.stopped(); i++ {
		if w.entry(n, i, true) {
			folders = append(folders, i)
		}
	}
	for _, i := range folders {
		if w.s.stopped() {
			return
		}
		w.descend(n, i)
	}
}

// descend reads the folder that is entry i.
func (w *walker) descend(n *node, i int) {
	e := &n.d.entries[i]
	name := string(n.d.name(e))
	if n.depth+1 > w.s.opt.MaxDepth {
		w.s.fail(n, name, fmt.Errorf("%w: folders more than %d deep", ErrLimit, w.s.opt.MaxDepth))
		return
	}
	for range tries {
		fd, err := openQuiet(w.fd(), name, openDir)
		switch {
		case err == nil:
			if err := lookAt(fd, "", &w.st); err != nil {
				unix.Close(fd)
				w.s.fail(n, name, err)
				return
			}
			at, err := w.s.placeIndex(placeOf(&w.st))
			if err == nil && w.st.Ino == e.ino && at == e.place {
				w.into(fd, n, i)
				return
			}
			unix.Close(fd)
			if err != nil {
				w.s.fail(n, name, err)
				return
			}
		case denied(err):
			e.flags |= flagUnreadable
			return
		case err != unix.ENOENT && err != unix.ENOTDIR && err != unix.ELOOP:
			w.s.fail(n, name, err)
			return
		}
		// Something else has this name now.
		if !w.entry(n, i, false) {
			return
		}
	}
	w.s.fail(n, name, ErrMoved)
}

// into visits an open folder, on a worker of its own if there is one.
func (w *walker) into(fd int, n *node, i int) {
	e := &n.d.entries[i]
	child := &node{s: w.s, parent: n, index: i, depth: n.depth + 1, place: e.place, ino: e.ino}
	if was := n.prev.find(n.d.name(e), i); was != nil {
		child.prev = n.prev.sub(was)
	}
	child.pending.Store(1)
	n.pending.Add(1)
	given := func() (int, error) { return fd, nil }
	if w.s.spawn(given, child, func(w *walker) { w.visit(child) }) {
		return
	}
	w.push(fd, child)
	w.visit(child)
	if err := w.pop(); err != nil {
		w.s.fail(n, string(n.d.name(e)), err)
	}
}
