package commit

import (
	"bytes"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// window is how many folders at the end of a path are held open, and
	// besides every one whose depth is a multiple of it. What was closed is
	// found again from the nearest that is open: never through "..", which
	// leads wherever the folder was moved to meanwhile.
	window = 64
)

// climber finds folders below a root, one name at a time, each opened with
// openat2 so that no link is followed. Paths that come in the order of
// comparePaths cost about one call each.
type climber struct {
	root  int // not its own
	names [][]byte
	fds   []int // -1: closed
	// widen is asked to let us into a folder that is ours and shut to us.
	widen func(fd int, path []byte) error
}

// notThere is a path of which a component is missing or no folder.
type notThere struct {
	path    []byte // up to that component
	missing bool   // as against something else being in its place
}

func (e *notThere) Error() string {
	if e.missing {
		return shown(e.path) + " is not there"
	}
	return shown(e.path) + " is no folder"
}

// at gives the folder of a path. It stays open until the next call.
func (c *climber) at(path []byte) (int, error) {
	if string(path) == "." {
		return c.root, nil
	}
	// How much of the way is the same as last time.
	depth, from := 0, 0
	for depth < len(c.names) && from < len(path) {
		name := nextName(path, from)
		if !bytes.Equal(name, c.names[depth]) {
			break
		}
		depth++
		from += len(name) + 1
	}
	c.cut(depth)
	// The last of those that is open.
	for depth > 0 && c.fds[depth-1] < 0 {
		depth--
	}
	if depth < len(c.names) {
		c.cut(depth)
		from = 0
		for _, n := range c.names {
			from += len(n) + 1
		}
	}
	for from < len(path) {
		name := nextName(path, from)
		end := from + len(name)
		fd, err := c.enter(string(name), path[:end])
		if err != nil {
			return -1, err
		}
		c.push(bytes.Clone(name), fd)
		from = end + 1
	}
	return c.top(), nil
}

func nextName(path []byte, from int) []byte {
	if i := bytes.IndexByte(path[from:], '/'); i >= 0 {
		return path[from : from+i]
	}
	return path[from:]
}

func (c *climber) enter(name string, path []byte) (int, error) {
	fd, err := beneath(c.top(), name, pathFlags, 0)
	if err == unix.EACCES && c.widen != nil {
		folder, _ := split(path)
		if err = c.widen(c.top(), folder); err == nil {
			fd, err = beneath(c.top(), name, pathFlags, 0)
		}
	}
	switch err {
	case nil:
		return fd, nil
	case unix.ENOENT:
		return -1, &notThere{path: bytes.Clone(path), missing: true}
	case unix.ENOTDIR, unix.ELOOP:
		return -1, &notThere{path: bytes.Clone(path)}
	}
	return -1, fmt.Errorf("open folder %s: %w", shown(path), err)
}

func (c *climber) top() int {
	if len(c.fds) == 0 {
		return c.root
	}
	return c.fds[len(c.fds)-1]
}

func (c *climber) push(name []byte, fd int) {
	c.names, c.fds = append(c.names, name), append(c.fds, fd)
	if i := len(c.fds) - 1 - window; i >= 0 && (i+1)%window != 0 && c.fds[i] >= 0 {
		unix.Close(c.fds[i])
		c.fds[i] = -1
	}
}

// cut leaves all folders below a depth.
func (c *climber) cut(depth int) {
	for _, fd := range c.fds[depth:] {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	c.names, c.fds = c.names[:depth], c.fds[:depth]
}

func (c *climber) close() { c.cut(0) }

// widenOurs gives us all rights to a folder if it is ours, and answers the mode
// it had. note is called between, so that the mode can be put down first.
func widenOurs(fd int, note func(mode uint32) error) error {
	st, err := statFD(fd)
	if err != nil {
		return err
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o700 == 0o700 {
		return unix.EACCES
	}
	if err := note(st.Mode & 0o7777); err != nil {
		return err
	}
	return chmodFD(fd, st.Mode&0o7777|0o700)
}
