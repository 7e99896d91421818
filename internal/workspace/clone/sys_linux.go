package clone

import (
	"golang.org/x/sys/unix"
)

const (
	readDir  = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	readFile = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC
	holdDir  = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

	statMask = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_NLINK | unix.STATX_UID | unix.STATX_GID |
		unix.STATX_INO | unix.STATX_SIZE | unix.STATX_BLOCKS | unix.STATX_MTIME | unix.STATX_CTIME
)

// again repeats a system call that a signal cut short.
func again(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

// beneath opens a path below a folder and goes through no link, whatever the
// path is replaced by meanwhile.
func beneath(fd int, path string, flags int) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags), Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	got := -1
	err := again(func() (err error) {
		got, err = unix.Openat2(fd, path, &how)
		return err
	})
	return got, err
}

// quietly leaves no access time behind, where we may.
func quietly(fd int, name string, flags int) (int, error) {
	got, err := beneath(fd, name, flags|unix.O_NOATIME)
	if err == unix.EPERM {
		got, err = beneath(fd, name, flags)
	}
	return got, err
}

// above opens the folder that holds the open folder fd. openat2 would not go
// there; the caller checks that it is the one it came from.
func above(fd, flags int) (int, error) {
	got := -1
	err := again(func() (err error) {
		got, err = unix.Openat(fd, "..", flags, 0)
		return err
	})
	return got, err
}

// lookAt reads the state of a name, of a link itself; of fd if it is empty.
func lookAt(fd int, name string, st *unix.Statx_t) error {
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	return again(func() error { return unix.Statx(fd, name, flags, statMask, st) })
}

// identity is which inode something is.
type identity struct{ dev, ino uint64 }

func identityOf(st *unix.Statx_t) identity {
	return identity{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino}
}

// denied says whether the kernel refused us, as against could not do it.
func denied(err error) bool { return err == unix.EACCES || err == unix.EPERM }

// moved says whether a name stands for something else than a moment ago, or is
// leased to a file server.
func moved(err error) bool {
	switch err {
	case unix.ENOENT, unix.ELOOP, unix.ENOTDIR, unix.ENXIO, unix.EAGAIN, unix.EXDEV, unix.EISDIR:
		return true
	}
	return false
}
