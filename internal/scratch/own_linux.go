package scratch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Who may own what a path leads through.
type Who int

const (
	// Root alone. The zero value is the strict one.
	Root Who = iota
	// RootOrUs: this process's user as well, and folders like /tmp, where each has
	// what is its own. In a user namespace that does not have everybody, who is not
	// in it counts as root: nobody there can tell the machine's own root from them.
	RootOrUs
)

// maxLinks bounds a path that leads through links.
const maxLinks = 40

// Way says why somebody else could change what a path leads to: every folder and
// link on the way, and what is at its end, must be of who may own it and nobody
// else's to write. Nil if nobody can.
func Way(path string, who Who) error { return way(path, who, maxLinks) }

func way(path string, who Who, links int) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("%s is no absolute path", path)
	}
	at := "/"
	for left := split(path); ; left = left[1:] {
		var st unix.Stat_t
		if err := unix.Lstat(at, &st); err != nil {
			return &os.PathError{Op: "lstat", Path: at, Err: err}
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			if err := who.mayOwn(&st, at); err != nil {
				return err
			}
		} else {
			if err := who.owns(&st, at); err != nil {
				return err
			}
			to, err := os.Readlink(at)
			switch {
			case err != nil:
				return err
			case links == 0:
				return fmt.Errorf("%s leads through too many links", path)
			case !filepath.IsAbs(to):
				to = filepath.Join(filepath.Dir(at), to)
			}
			return way(filepath.Join(append([]string{to}, left...)...), who, links-1)
		}
		if len(left) == 0 {
			return nil
		}
		at = filepath.Join(at, left[0])
	}
}

func (w Who) owns(st *unix.Stat_t, at string) error {
	switch {
	case st.Uid == 0, w == RootOrUs && (int(st.Uid) == os.Geteuid() || int(st.Uid) == unmapped()):
		return nil
	case w == RootOrUs:
		return fmt.Errorf("%s belongs to user %d", at, st.Uid)
	}
	return fmt.Errorf("%s belongs to user %d and not to root", at, st.Uid)
}

// mayOwn is owns, and nobody else may write there.
func (w Who) mayOwn(st *unix.Stat_t, at string) error {
	if err := w.owns(st, at); err != nil {
		return err
	}
	switch sticky := st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Mode&unix.S_ISVTX != 0; {
	case st.Mode&0o022 == 0, w == RootOrUs && sticky:
		return nil
	case w == RootOrUs:
		return fmt.Errorf("%s can be written by others (mode %o)", at, st.Mode&0o7777)
	}
	return fmt.Errorf("%s can be written by others than root (mode %o)", at, st.Mode&0o7777)
}

// OpenOwn opens a folder that only we can write to, and that nobody else can put
// another in the place of: every folder on the way belongs to us or to root, and
// is written by nobody else, unless it is one like /tmp, where each has what is
// its own. A link on the way is one of ours or of root's too, and the folder
// itself is none. With make, what is missing at the end of the way is made.
func OpenOwn(path string, make bool) (*os.Root, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("%s is no full path", path)
	}
	at, links := "/", 0
	fd, err := unix.Open(at, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { unix.Close(fd) }()
	left := split(path)
	for {
		if err := trusted(fd, at); err != nil {
			return nil, err
		}
		if len(left) == 0 {
			return lastOwn(fd, at)
		}
		name := left[0]
		next, err := unix.Openat(fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) && make {
			if err = unix.Mkdirat(fd, name, 0o700); err == nil || errors.Is(err, unix.EEXIST) {
				next, err = unix.Openat(fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
			}
		}
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: filepath.Join(at, name), Err: err}
		}
		to, link, err := readLink(next, filepath.Join(at, name))
		switch {
		case err != nil:
			unix.Close(next)
			return nil, err
		case !link:
			unix.Close(fd)
			fd, at, left = next, filepath.Join(at, name), left[1:]
			continue
		}
		unix.Close(next)
		if links++; len(left) == 1 || links > maxLinks {
			return nil, fmt.Errorf("%s is a link", filepath.Join(at, name))
		}
		left = append(split(to), left[1:]...)
		if filepath.IsAbs(to) {
			unix.Close(fd)
			if fd, err = unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
				return nil, err
			}
			at = "/"
		}
	}
}

func split(path string) []string {
	return slices.DeleteFunc(strings.Split(path, "/"), func(p string) bool { return p == "" || p == "." })
}

// readLink says where a link leads that we or root have made.
func readLink(fd int, path string) (to string, link bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", false, fmt.Errorf("look at %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return "", false, nil
	}
	if err := RootOrUs.owns(&st, path); err != nil {
		return "", false, err
	}
	b := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", b)
	if err != nil {
		return "", false, fmt.Errorf("follow %s: %w", path, err)
	}
	return string(b[:n]), true, nil
}

// lastOwn is the end of the way: ours alone.
func lastOwn(fd int, path string) (*os.Root, error) {
	at := fmt.Sprintf("/proc/self/fd/%d", fd)
	f, err := os.Open(at)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := OursAlone(f, unix.S_IFDIR); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return os.OpenRoot(at)
}

// trusted says why a folder on the way is not to be trusted.
func trusted(fd int, path string) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("look at %s: %w", path, err)
	}
	return RootOrUs.mayOwn(&st, path)
}
