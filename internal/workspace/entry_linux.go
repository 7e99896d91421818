package workspace

import (
	"math"

	"golang.org/x/sys/unix"
)

// entry looks at one name of the folder on top and, if it is a file or a link,
// at its content. It says whether there is a folder to descend into. spare says
// whether a large file may go to another worker, which then owns the entry.
func (w *walker) entry(n *node, i int, spare bool) (folder bool) {
	e := &n.d.entries[i]
	name := string(n.d.name(e))
	for try := 1; ; try++ {
		switch err := lookAt(w.fd(), name, &w.st); {
		case err == unix.ENOENT:
			e.flags |= flagGone
			return false
		case denied(err):
			// A folder that may be listed but not entered: the listing gave
			// the name and the type.
			// There is no change time that could vouch for it.
			e.flags |= flagUnreadable
			e.aux, e.ctime = noDir, math.MaxInt64
			return false
		case err != nil:
			w.s.fail(n, name, err)
			return false
		}
		at, err := w.indexOf(n, placeOf(&w.st))
		if err != nil {
			w.s.fail(n, name, err)
			return false
		}
		e.fill(&w.st, at)
		steady := true
		switch e.mode & modeType {
		case modeDir:
			return true
		case modeFile:
			was := n.prev.find(n.d.name(e), i)
			if w.s.unchanged(was, e) {
				e.sum, e.flags = was.sum, was.flags
				return false
			}
			if spare && e.size >= largeFile {
				n.pending.Add(1)
				if w.s.spawn(w.dup, n, func(w *walker) {
					defer n.done()
					if w.entry(n, i, false) {
						w.s.fail(n, name, ErrMoved)
					}
				}) {
					return false
				}
				n.pending.Add(-1) // not the last: the chunk itself is pending
			}
			steady, err = w.content(name, e, was, w.st.Nlink > 1)
		case modeLink:
			steady, err = w.readLink(n, i, name)
		}
		if err != nil {
			w.s.fail(n, name, err)
			return false
		}
		if steady || w.s.stopped() {
			return false
		}
		if try == tries {
			// A log that something outside the box keeps writing to. What was
			// read stands, and the next snapshot reads it again.
			e.flags |= flagUnsettled
			return false
		}
	}
}

// indexOf is placeIndex for what nearly always is the folder's own place.
func (w *walker) indexOf(n *node, p place) (uint16, error) {
	if w.lastNode != n {
		w.lastNode, w.last = n, w.placeAt(n.place)
	}
	if p == w.last {
		return n.place, nil
	}
	return w.s.placeIndex(p)
}

// unchanged says whether a file is provably what prev saw.
func (s *scan) unchanged(was, e *entry) bool {
	return was != nil && was.flags&(flagUnreadable|flagUnsettled) == 0 &&
		was.ino == e.ino && was.ctime == e.ctime && was.size == e.size && was.mode == e.mode &&
		was.place == e.place && e.ctime < s.prev.settled[e.place]
}

// readLink keeps the target of a link. It is text; nobody goes there.
func (w *walker) readLink(n *node, i int, name string) (steady bool, err error) {
	var got int
	err = again(func() (err error) {
		got, err = unix.Readlinkat(w.fd(), name, w.buf)
		return err
	})
	switch {
	case err == unix.EINVAL || err == unix.ENOENT:
		n.d.entries[i].flags |= flagUnreadable
		return false, nil
	case denied(err):
		n.d.entries[i].flags |= flagUnreadable
		return true, nil
	case err != nil:
		return false, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.targets = append(n.targets, target{i, string(w.buf[:got])})
	return true, nil
}
