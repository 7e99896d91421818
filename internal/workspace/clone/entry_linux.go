package clone

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// opaque is the attribute by which a folder of an upper layer hides what is
// below it. The kernel gives it the value "y".
const opaque = "user.overlay.opaque"

// entry copies one name of the folder on top, or says that it is a folder.
// spare says whether a large file may go to another worker.
func (w *worker) entry(n *node, name string, spare bool) (folder bool, err error) {
	for range tries {
		switch err := lookAt(w.top().src, name, &w.st); {
		case err == unix.ENOENT:
			return false, nil // gone since it was listed
		case denied(err):
			// A folder that may be listed but not entered.
			return false, w.c.lacks(n, name)
		case err != nil:
			return false, err
		}
		steady := true
		switch w.st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			return true, nil
		case unix.S_IFREG:
			if spare && w.st.Size >= largeFile && w.spawn(n, func(w *worker) {
				if err := w.alone(n, name); err != nil {
					w.c.fail(n, name, err)
				}
			}) {
				return false, nil
			}
			steady, err = w.file(n, name)
		case unix.S_IFLNK:
			steady, err = w.symlink(n, name)
		default:
			err = w.special(n, name)
		}
		if steady || err != nil {
			return false, err
		}
	}
	return false, workspace.ErrMoved
}

// alone copies what was a large file a moment ago.
func (w *worker) alone(n *node, name string) error {
	folder, err := w.entry(n, name, false)
	if folder {
		return w.descend(n, name)
	}
	return err
}

// symlink copies a link. Its target is text; nobody goes there.
func (w *worker) symlink(n *node, name string) (steady bool, err error) {
	m := metaOf(&w.st)
	var got int
	err = again(func() (err error) {
		got, err = unix.Readlinkat(w.top().src, name, w.buf)
		return err
	})
	switch {
	case err == unix.EINVAL || err == unix.ENOENT:
		return false, nil
	case denied(err):
		return true, w.c.lacks(n, name)
	case err != nil:
		return false, err
	}
	target := string(w.buf[:got])
	if err := again(func() error { return unix.Symlinkat(target, w.top().dst, name) }); err != nil {
		return false, making(err)
	}
	w.c.made.Add(1)
	return true, w.keepAt(name, m, false)
}

// special makes a FIFO, a socket or a device again. None is opened.
func (w *worker) special(n *node, name string) error {
	m := metaOf(&w.st)
	kind := uint32(w.st.Mode) & unix.S_IFMT
	dev := 0
	if kind == unix.S_IFCHR || kind == unix.S_IFBLK {
		dev = int(unix.Mkdev(w.st.Rdev_major, w.st.Rdev_minor))
	}
	// 0600 until it has its owner: a device is power over hardware.
	err := again(func() error { return unix.Mknodat(w.top().dst, name, kind|0o600, dev) })
	whiteout := w.c.opt.Marks && kind == unix.S_IFCHR && dev == 0
	switch {
	case whiteout && err != nil:
		// It must not go missing: what a step deleted would come back.
		return fmt.Errorf("keep a whiteout, which the file system of the copy must be able to hold: %w", err)
	case denied(err) && (kind == unix.S_IFCHR || kind == unix.S_IFBLK):
		return w.c.lacks(n, name)
	case err != nil:
		return making(err)
	}
	w.c.made.Add(1)
	return w.keepAt(name, m, true)
}

// keepAt gives a name of the copy its owner, mode and time without opening it.
// The name was made by us a moment ago and is nobody else's.
func (w *worker) keepAt(name string, m meta, mode bool) error {
	at := w.top().dst
	if w.c.root {
		if err := w.owned(again(func() error {
			return unix.Fchownat(at, name, int(m.uid), int(m.gid), unix.AT_SYMLINK_NOFOLLOW)
		})); err != nil {
			return err
		}
	}
	if mode {
		if err := again(func() error { return unix.Fchmodat(at, name, m.mode, 0) }); err != nil {
			return fmt.Errorf("keep the mode: %w", err)
		}
	}
	return stamp(at, name, unix.AT_SYMLINK_NOFOLLOW, m)
}

// keep gives an open file or folder of the copy its owner, mode and time.
func (w *worker) keep(fd int, m meta, folder bool) error {
	if w.c.root {
		if err := w.owned(again(func() error { return unix.Fchown(fd, int(m.uid), int(m.gid)) })); err != nil {
			return err
		}
	}
	const setID = unix.S_ISUID | unix.S_ISGID
	if m.mode&setID != 0 && !folder {
		// Owned by another, the program would run as us for whoever starts it.
		if err := lookAt(fd, "", &w.st); err != nil {
			return err
		}
		if w.st.Uid != m.uid {
			m.mode &^= unix.S_ISUID
		}
		if w.st.Gid != m.gid {
			m.mode &^= unix.S_ISGID
		}
	}
	err := again(func() error { return unix.Fchmod(fd, m.mode) })
	if err == unix.EPERM && m.mode&setID != 0 {
		err = again(func() error { return unix.Fchmod(fd, m.mode&^setID) })
	}
	if err != nil {
		return fmt.Errorf("keep the mode: %w", err)
	}
	return stamp(fd, "", unix.AT_EMPTY_PATH, m)
}

// owned judges an attempt to keep an owner. A file system without owners, or
// root of a user namespace that does not know this one, is no reason to have no
// copy at all.
func (w *worker) owned(err error) error {
	switch {
	case err == nil:
		return nil
	case err == unix.EPERM || err == unix.EINVAL || err == unix.EOVERFLOW:
		w.c.reowned.Add(1)
		return nil
	}
	return fmt.Errorf("keep the owner: %w", err)
}

func stamp(at int, name string, flags int, m meta) error {
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, m.mtime}
	if err := again(func() error { return unix.UtimesNanoAt(at, name, times, flags) }); err != nil {
		return fmt.Errorf("keep the time: %w", err)
	}
	return nil
}

// keepMark keeps that a folder of an upper layer is opaque. Without it, files
// that a step deleted would come back.
func (w *worker) keepMark(src, dst int) error {
	if !w.c.opt.Marks {
		return nil
	}
	var value [2]byte
	n, err := unix.Fgetxattr(src, opaque, value[:])
	switch {
	case errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ERANGE):
		return nil // no mark, or a value that the kernel takes for none
	case err != nil:
		return fmt.Errorf("read %s: %w", opaque, err)
	case string(value[:n]) != "y":
		return nil
	}
	if err := unix.Fsetxattr(dst, opaque, value[:n], 0); err != nil {
		return fmt.Errorf("keep %s, which the file system of the copy must be able to hold: %w", opaque, err)
	}
	return nil
}
