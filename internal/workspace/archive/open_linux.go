package archive

import (
	"strings"

	"golang.org/x/sys/unix"
)

const (
	openDir  = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	openFile = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC
)

// again repeats a system call that a signal cut short.
func again(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

func openAt(dir int, name string, flags int, perm uint32) (fd int, err error) {
	err = again(func() (err error) {
		fd, err = unix.Openat(dir, name, flags, perm)
		return err
	})
	return fd, err
}

// folderAt opens a folder below another through no link at all; "" is the
// folder itself. The result is the caller's to close.
func folderAt(dir int, path string) (fd int, err error) {
	if path == "" {
		path = "."
	}
	err = again(func() (err error) {
		fd, err = unix.Openat2(dir, path, &unix.OpenHow{
			Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
		})
		return err
	})
	return fd, err
}

func lstatAt(dir int, name string) (st unix.Stat_t, err error) {
	err = again(func() error { return unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	return st, err
}

func fstat(fd int) (st unix.Stat_t, err error) {
	err = again(func() error { return unix.Fstat(fd, &st) })
	return st, err
}

func split(path string) (folder, name string) {
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		return path[:i], path[i+1:]
	}
	return "", path
}
