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

// OpenOwn opens a folder that only we can write to, and that nobody else can put
// another in the place of: every folder on the way belongs to us or to root, and
// is written by nobody else, unless it is one like /tmp, where each has what is
// its own. A link on the way is one of ours or of root's too, and the folder
// itself is none. With make, what is missing at the end of the way is made.
func OpenOwn(path string, make bool) (*os.Root, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("%s is no full path", path)
	}
	const mostLinks = 16
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
		if links++; len(left) == 1 || links > mostLinks {
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
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return "", false, fmt.Errorf("%s is a link of user %d", path, st.Uid)
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
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d", path, st.Uid)
	}
	if st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0 {
		return fmt.Errorf("%s can be written by others (mode %o)", path, st.Mode&0o7777)
	}
	return nil
}
