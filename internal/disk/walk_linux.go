package disk

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// openDepth is how many folders on the way down are kept open. Deeper ones
	// are left and found again by "..": a step may nest as many as it has inodes.
	openDepth = 64
	// nameBatch is how many names are read at once.
	nameBatch = 512
)

// walk adds up a folder that is somebody else's, maybe while that somebody
// changes it. It goes by descriptors, so no link leads it anywhere, opens
// nothing but folders, and takes an entry that is gone for one that never was.
type walk struct {
	done   func() bool      // true: no time is left; nil: no limit
	enough func(Usage) bool // true: no need to go on; nil: always go on

	use  Usage
	seen map[file]bool // of those with several names
}

type file struct{ dev, ino uint64 }

// level is a folder that is being walked.
type level struct {
	fd   int // -1: left, and to be found again
	id   file
	subs []string // folders in it that are still to be walked
}

// run adds up what is below a folder. The folder itself is not counted.
func (w *walk) run(at int, name string) (Usage, error) {
	var way []level
	defer func() {
		for _, l := range way {
			if l.fd >= 0 {
				unix.Close(l.fd)
			}
		}
	}()
	l, err := w.enter(at, name)
	if err != nil {
		return w.use, err
	}
	way = append(way, l)
	for len(way) > 0 {
		here := &way[len(way)-1]
		if w.stop() {
			w.use.AtLeast = true
			return w.use, nil
		}
		if n := len(here.subs); n > 0 {
			sub := here.subs[n-1]
			here.subs = here.subs[:n-1]
			l, err := w.enter(here.fd, sub)
			if gone(err) {
				continue
			}
			if err != nil {
				return w.use, err
			}
			way = append(way, l)
			if k := len(way) - 1 - openDepth; k >= 0 && way[k].fd >= 0 {
				unix.Close(way[k].fd)
				way[k].fd = -1
			}
			continue
		}
		// Done here: back to the folder above.
		if len(way) > 1 && way[len(way)-2].fd < 0 {
			up, err := above(here.fd, way[len(way)-2].id)
			if errors.Is(err, errMoved) {
				// Somebody moved it while we were in it. What is known so far is
				// known; the rest is for the next look.
				w.use.AtLeast = true
				return w.use, nil
			}
			if err != nil {
				return w.use, err
			}
			way[len(way)-2].fd = up
		}
		unix.Close(here.fd)
		way = way[:len(way)-1]
	}
	return w.use, nil
}

func (w *walk) stop() bool {
	return w.done != nil && w.done() || w.enough != nil && w.enough(w.use)
}

var errMoved = errors.New("a folder was moved while it was measured")

// above opens the folder above, if it is still the one that we came from. Else
// ".." could lead anywhere that a folder was moved to.
func above(fd int, want file) (int, error) {
	var up int
	err := withAccess(fd, func() (err error) {
		up, err = openFolder(fd, "..")
		return err
	})
	if gone(err) {
		return -1, errMoved
	}
	if err != nil {
		return -1, fmt.Errorf("go back to the folder above: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(up, &st); err != nil || fileOf(&st) != want {
		unix.Close(up)
		return -1, errMoved
	}
	return up, nil
}

func fileOf(st *unix.Stat_t) file { return file{uint64(st.Dev), st.Ino} }

// gone says whether an entry is no longer what it was listed as.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ESTALE)
}

// enter opens a folder, counts its entries and notes the folders among them.
func (w *walk) enter(at int, name string) (level, error) {
	var fd int
	err := withAccess(at, func() (err error) {
		fd, err = openFolder(at, name)
		return err
	})
	if err != nil {
		return level{}, fmt.Errorf("open a folder: %w", err)
	}
	var st unix.Stat_t
	l := level{fd: fd}
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return level{}, err
	}
	l.id = fileOf(&st)
	if err := withAccess(fd, func() error { l.subs = nil; return w.count(fd, &l) }); err != nil {
		unix.Close(fd)
		return level{}, fmt.Errorf("list a folder: %w", err)
	}
	return l, nil
}

func (w *walk) count(fd int, l *level) error {
	// A second descriptor, for the list closes the one it reads from.
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	d := os.NewFile(uintptr(dup), "folder")
	defer d.Close()
	if _, err := d.Seek(0, io.SeekStart); err != nil {
		return err
	}
	before := w.use
	for {
		names, err := d.Readdirnames(nameBatch)
		for _, name := range names {
			var st unix.Stat_t
			err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
			if gone(err) {
				continue
			}
			if err != nil {
				w.use = before // to be tried again with access
				return err
			}
			w.add(&st)
			if st.Mode&unix.S_IFMT == unix.S_IFDIR {
				l.subs = append(l.subs, name)
			}
		}
		if errors.Is(err, io.EOF) || gone(err) || w.stop() {
			return nil
		}
		if err != nil {
			w.use = before
			return err
		}
	}
}

func (w *walk) add(st *unix.Stat_t) {
	if st.Mode&unix.S_IFMT != unix.S_IFDIR && st.Nlink > 1 {
		id := fileOf(st)
		if w.seen[id] {
			return
		}
		if w.seen == nil {
			w.seen = map[file]bool{}
		}
		w.seen[id] = true
	}
	w.use.Inodes++
	w.use.Bytes += st.Blocks * 512
}

const openFlags = unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// openFolder opens a folder for reading, also one that its owner, whose id is
// ours, has taken the right to read from.
func openFolder(at int, name string) (int, error) {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_NONBLOCK|openFlags, 0)
	if !errors.Is(err, unix.EACCES) {
		return fd, err
	}
	p, err := unix.Openat(at, name, unix.O_PATH|openFlags, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(p)
	err = withAccess(p, func() (err error) {
		fd, err = unix.Openat(p, ".", unix.O_RDONLY|openFlags, 0)
		return err
	})
	return fd, err
}

// accessTries bounds how often a mode is changed that somebody changes back.
const accessTries = 16

// withAccess does something in a folder. Where the folder's mode forbids it, the
// mode is another for that moment: a step could otherwise write where nobody
// looks. It sees the moment, if it looks for it; a folder of its own that it
// closed to itself is what it costs.
func withAccess(fd int, do func() error) error {
	err := do()
	for try := 0; try < accessTries && errors.Is(err, unix.EACCES); try++ {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return err
		}
		if st.Mode&0o700 == 0o700 {
			err = do() // its owner has changed it meanwhile, or it was not this one
			continue
		}
		// By descriptor, through /proc: one opened with O_PATH takes no fchmod.
		self := fmt.Sprintf("/proc/self/fd/%d", fd)
		if cerr := unix.Chmod(self, st.Mode&0o7777|0o700); cerr != nil {
			return fmt.Errorf("%w (and its mode cannot be changed: %v)", err, cerr)
		}
		err = do()
		if cerr := unix.Chmod(self, st.Mode&0o7777); cerr != nil && !gone(cerr) && err == nil {
			err = fmt.Errorf("give a folder its mode back: %w", cerr)
		}
	}
	return err
}
