package scrub

import (
	"errors"
	"fmt"
	"io"
	"os"
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

// openQuiet leaves no access time behind, where we may.
func openQuiet(dir int, name string, flags int) (int, error) {
	fd, err := openAt(dir, name, flags|unix.O_NOATIME, 0)
	if err == unix.EPERM {
		fd, err = openAt(dir, name, flags, 0)
	}
	return fd, err
}

func lstatAt(dir int, name string) (st unix.Stat_t, err error) {
	err = again(func() error { return unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	return st, err
}

// folderAt opens a folder below a folder: no link on the way is followed, no
// ".." leaves, and the path may be longer than the kernel takes at once. The
// result is the caller's to close.
func folderAt(dir int, path string) (int, error) {
	const longest = unix.PathMax - 1
	fd := dir
	for first := true; first || path != ""; first = false {
		part, rest := path, ""
		if len(part) > longest {
			end := strings.LastIndexByte(part[:longest], '/')
			if end <= 0 {
				end = longest // a name too long: the kernel says so
			}
			part, rest = part[:end], strings.TrimPrefix(part[end:], "/")
		}
		if part == "" {
			part = "."
		}
		var next int
		err := again(func() (err error) {
			next, err = unix.Openat2(fd, part, &unix.OpenHow{
				Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
				Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
			})
			return err
		})
		if fd != dir {
			unix.Close(fd)
		}
		if err != nil {
			return -1, err
		}
		fd, path = next, rest
	}
	return fd, nil
}

// split gives the folder of a path and the name in it.
func split(path string) (folder, name string) {
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		return path[:i], path[i+1:]
	}
	return "", path
}

var (
	errTooLarge = errors.New("larger than is read")
	errNoFile   = errors.New("no regular file")
)

// readFile reads a small regular file, and never anything else: to open a FIFO
// would be to wait for whoever made it.
func readFile(dir int, name string, limit int64) ([]byte, error) {
	fd, err := openQuiet(dir, name, openFile)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	var st unix.Stat_t
	if err := again(func() error { return unix.Fstat(fd, &st) }); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errNoFile
	}
	if st.Size > limit {
		return nil, errTooLarge
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	if int64(len(b)) > limit {
		return nil, errTooLarge
	}
	return b, nil
}

func readLink(dir int, name string) (string, error) {
	b := make([]byte, unix.PathMax)
	var n int
	err := again(func() (err error) {
		n, err = unix.Readlinkat(dir, name, b)
		return err
	})
	if err != nil {
		return "", err
	}
	return string(b[:n]), nil
}
