package delta

import (
	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

const (
	openDir  = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK
	openPath = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	openFile = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY

	statMask = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_NLINK | unix.STATX_INO | unix.STATX_SIZE

	modeType = unix.S_IFMT
	modePerm = 0o7777
	ownerAll = 0o700

	// pathMax is the longest link target that there is.
	pathMax = 4096
)

// again repeats a system call that a signal cut short.
func again(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

// denied says whether the kernel refused us, as against could not do it.
func denied(err error) bool { return err == unix.EACCES || err == unix.EPERM }

// openAt opens a name below a folder, never through a link, and without leaving
// an access time behind where we may.
func openAt(fd int, name string, flags int) (int, error) {
	open := func(flags int) (got int, err error) {
		err = again(func() (err error) {
			got, err = unix.Openat(fd, name, flags, 0)
			return err
		})
		return got, err
	}
	if flags&unix.O_PATH != 0 {
		return open(flags)
	}
	got, err := open(flags | unix.O_NOATIME)
	if err == unix.EPERM {
		got, err = open(flags)
	}
	return got, err
}

func lookAt(fd int, name string, st *unix.Statx_t) error {
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	return again(func() error { return unix.Statx(fd, name, flags, statMask, st) })
}

// inode says which one it is.
type inode struct{ dev, ino uint64 }

func inodeOf(st *unix.Statx_t) inode {
	return inode{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino}
}

// openContent opens the file that look saw, and nothing else. ours: it is the
// step's own, and may be opened up for a moment.
func openContent(name string, l look, ours bool) (fd int, err error) {
	fd, err = openAt(l.dir, name, openFile)
	if denied(err) && ours && l.mode&0o400 == 0 {
		if err := openUp(l.dir, name, l, 0o400); err != nil {
			return -1, err
		}
		fd, err = openAt(l.dir, name, openFile)
		if back := openUp(l.dir, name, l, 0); back != nil {
			if err == nil {
				unix.Close(fd)
			}
			return -1, back
		}
	}
	switch {
	case err == unix.ENOENT || err == unix.ELOOP || err == unix.ENXIO || err == unix.ENOTDIR:
		return -1, workspace.ErrMoved
	case err != nil:
		return -1, err
	}
	var st unix.Statx_t
	if err := lookAt(fd, "", &st); err != nil {
		unix.Close(fd)
		return -1, err
	}
	if inodeOf(&st) != l.inode || st.Mode&modeType != unix.S_IFREG {
		unix.Close(fd)
		return -1, workspace.ErrMoved
	}
	return fd, nil
}
