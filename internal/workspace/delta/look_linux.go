package delta

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// look is what one folder, or several merged, have under a name.
type look struct {
	there  bool
	denied bool // the kernel did not let us look; mode has at most the type
	inode  inode
	mode   uint16
	nlink  uint32
	size   int64 // of a file's content or a link's target
	device uint64
	target string
	layer  int
	dir    int      // the descriptor of the folder it was found in
	parts  []folder // of a folder: what makes it up, top first
	opaque bool
}

func (l look) is(kind uint16) bool { return l.there && l.mode&modeType == kind }

// whiteout is the kernel's mark for a name that is gone, in a layer in which
// marks mean something.
func (l look) whiteout() bool { return l.is(unix.S_IFCHR) && !l.denied && l.device == 0 }

func (l look) found() Found {
	if !l.there {
		return Found{}
	}
	return Found{Type: workspace.TypeWord(l.mode), Mode: uint32(l.mode & modePerm), Size: l.size, Target: l.target}
}

// lookIn looks at a name, and at the target if it is a link. kind is what a list
// of the folder gave as its type, 0 if none did.
func lookIn(fd int, name string, kind uint16) (look, error) {
	var st unix.Statx_t
	switch err := lookAt(fd, name, &st); {
	case err == unix.ENOENT || err == unix.ENAMETOOLONG: // no such name can be on this file system
		return look{}, nil
	case denied(err):
		return look{there: true, denied: true, mode: kind, dir: fd}, nil
	case err != nil:
		return look{}, err
	}
	l := look{there: true, inode: inodeOf(&st), mode: st.Mode, nlink: st.Nlink, dir: fd}
	switch st.Mode & modeType {
	case unix.S_IFREG:
		l.size = int64(st.Size)
	case unix.S_IFCHR, unix.S_IFBLK:
		l.device = unix.Mkdev(st.Rdev_major, st.Rdev_minor)
	case unix.S_IFLNK:
		var buf [pathMax]byte
		n := 0
		err := again(func() (err error) {
			n, err = unix.Readlinkat(fd, name, buf[:])
			return err
		})
		switch {
		case err == unix.EINVAL || err == unix.ENOENT:
			return look{}, workspace.ErrMoved
		case denied(err):
			l.denied = true
		case err != nil:
			return look{}, err
		}
		l.target, l.size = string(buf[:n]), int64(n)
	}
	return l, nil
}

// folder is an open folder of one layer.
type folder struct {
	fd       int // -1: there is one, and we may not look into it; or closed for now
	layer    int
	inode    inode
	listable bool
	// restore is the mode that the folder gets back, if it had to be opened up.
	restore *uint32
}

var nothing = folder{fd: -1, layer: -1}

// openFolder opens what look saw. A folder that may be searched but not listed
// is enough to look up names in.
func openFolder(fd int, name string, l look) (folder, error) {
	f := folder{layer: l.layer, inode: l.inode, listable: true}
	var err error
	f.fd, err = openAt(fd, name, openDir)
	if denied(err) {
		f.listable = false
		f.fd, err = openAt(fd, name, openPath)
	}
	switch {
	case denied(err):
		f.fd = -1
		return f, nil
	case err == unix.ENOENT || err == unix.ENOTDIR || err == unix.ELOOP:
		return nothing, workspace.ErrMoved
	case err != nil:
		return nothing, err
	}
	if err := f.check(); err != nil {
		unix.Close(f.fd)
		return nothing, err
	}
	return f, nil
}

// check holds an open folder to the inode it must be.
func (f *folder) check() error {
	var st unix.Statx_t
	if err := lookAt(f.fd, "", &st); err != nil {
		return err
	}
	if inodeOf(&st) != f.inode {
		return workspace.ErrMoved
	}
	return nil
}

// opaque asks whether a folder hides what layers below it have there. known is
// false if the kernel does not say.
func (f *folder) opaque() (yes, known bool, err error) {
	const attr = "user.overlay.opaque"
	var buf [8]byte
	var n int
	err = again(func() (err error) {
		if f.listable {
			n, err = unix.Fgetxattr(f.fd, attr, buf[:])
		} else {
			n, err = unix.Getxattr(procPath(f.fd), attr, buf[:])
		}
		return err
	})
	switch {
	case denied(err):
		return false, false, nil
	case err == unix.ENODATA || err == unix.ENOTSUP || err == unix.ERANGE:
		return false, true, nil
	case err != nil:
		return false, false, fmt.Errorf("read the marks of a folder: %w", err)
	}
	return string(buf[:n]) == "y", true, nil
}

func procPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// openUp gives the owner what is missing of want on something of ours, which is
// exactly the inode that was looked at.
func openUp(fd int, name string, l look, want uint16) error {
	flags := unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	at, err := openAt(fd, name, flags)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	var st unix.Statx_t
	if err := lookAt(at, "", &st); err != nil {
		return err
	}
	if inodeOf(&st) != l.inode || st.Mode&modeType != l.mode&modeType {
		return workspace.ErrMoved
	}
	return unix.Chmod(procPath(at), uint32(l.mode&modePerm|want))
}
