package clone

import (
	"sync"

	"golang.org/x/sys/unix"
)

// linkKey is an inode in one state. An inode number that was freed and given to
// another file meanwhile has another change time.
type linkKey struct {
	id          identity
	size, ctime int64
}

// link is the copy of a file that has several names.
type link struct {
	mu   sync.Mutex // held while it is copied: whoever meets it again waits
	n    *node      // nil if there is none yet
	name string
}

// link gives the one record of a file, nil if there are too many.
func (c *copying) link(k linkKey) *link {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.links[k]
	if l == nil && len(c.links) < maxLinks {
		l = &link{}
		c.links[k] = l
	}
	return l
}

// linked copies a file that has several names, once if possible.
func (w *worker) linked(n *node, name string) (steady bool, err error) {
	l := w.c.link(linkKey{identityOf(&w.st), int64(w.st.Size), w.st.Ctime.Sec*1e9 + int64(w.st.Ctime.Nsec)})
	if l == nil {
		l = &link{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n != nil && w.join(l, n, name) {
		w.c.made.Add(1)
		return true, nil
	}
	made, steady, err := w.plain(n, name)
	if made {
		w.c.made.Add(1)
		l.n, l.name = n, name // of the latest, which is the likeliest in reach
	}
	return steady, err
}

// join makes name another name of a file already copied. It may be out of
// reach: in a folder that is closed to us by now, at the end of a path longer
// than the kernel takes, or with as many names as its file system allows.
func (w *worker) join(l *link, n *node, name string) bool {
	at := w.top().dst
	if l.n != n {
		path := l.n.path("")
		if path == "" {
			path = "."
		}
		if len(path) >= unix.PathMax {
			return false
		}
		fd, err := beneath(w.c.to, path, holdDir)
		if err != nil {
			return false
		}
		defer unix.Close(fd)
		at = fd
	}
	return again(func() error { return unix.Linkat(at, l.name, w.top().dst, name, 0) }) == nil
}
