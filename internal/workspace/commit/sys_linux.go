package commit

import (
	"io"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	// pathFlags open a folder without reading it. It must be a folder and no
	// link to one.
	pathFlags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	listFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK
	readFlags = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY
	makeFlags = unix.O_RDWR | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
)

// again repeats a system call that a signal cut short.
func again(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

func openAt(dir int, name string, flags int, mode uint32) (fd int, err error) {
	err = again(func() error {
		fd, err = unix.Openat(dir, name, flags, mode)
		return err
	})
	return fd, err
}

// beneath opens one name of a folder as openat2 guards it. flags hold
// O_NOFOLLOW too; extra are further RESOLVE flags.
func beneath(dir int, name string, flags int, extra uint64) (fd int, err error) {
	how := unix.OpenHow{
		Flags:   uint64(flags),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | extra,
	}
	err = again(func() error {
		fd, err = unix.Openat2(dir, name, &how)
		return err
	})
	if err == unix.EAGAIN { // something was renamed meanwhile; one name needs no guard
		return openAt(dir, name, flags, 0)
	}
	return fd, err
}

func lstatAt(dir int, name string) (st unix.Stat_t, err error) {
	err = again(func() error { return unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	return st, err
}

func statFD(fd int) (st unix.Stat_t, err error) {
	err = again(func() error { return unix.Fstat(fd, &st) })
	return st, err
}

func rename(from int, name string, to int, as string) error {
	return again(func() error { return unix.Renameat(from, name, to, as) })
}

func unlink(dir int, name string, flags int) error {
	return again(func() error { return unix.Unlinkat(dir, name, flags) })
}

// chmodFD sets the mode of what an O_PATH descriptor is open on, which fchmod
// refuses. The link in /proc leads to that inode, whatever its name is by now.
func chmodFD(fd int, mode uint32) error {
	err := again(func() error { return unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), mode) })
	if err == unix.ENOENT { // no /proc here; kernels from 6.6 need none
		return again(func() error { return unix.Fchmodat(fd, "", mode, unix.AT_EMPTY_PATH) })
	}
	return err
}

// isDir says whether a mode is a folder's.
func isDir(mode uint32) bool { return mode&unix.S_IFMT == unix.S_IFDIR }

// reader and writer are a descriptor as io has them; they do not own it.
type reader int

func (r reader) Read(p []byte) (n int, err error) {
	err = again(func() error {
		n, err = unix.Read(int(r), p)
		return err
	})
	if err != nil {
		return 0, err
	}
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

type writer int

func (w writer) Write(p []byte) (done int, err error) {
	for done < len(p) {
		var n int
		err := again(func() (err error) {
			n, err = unix.Write(int(w), p[done:])
			return err
		})
		if err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}
