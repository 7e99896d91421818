package scratch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Follow opens a folder at the end of a path on which others may change what is
// there, and says where that is. What is missing is made. Each step of the way is
// taken from the one before, and no link is followed that somebody else could have
// put there: whatever is swapped meanwhile, it ends in a folder that the path could
// have led to without any link of theirs.
func Follow(path string, perm uint32) (dir *os.File, real string, err error) {
	if !filepath.IsAbs(path) {
		return nil, "", fmt.Errorf("%s is no full path", path)
	}
	const how = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	at, links, linked := "/", 0, 0
	fd, err := unix.Open(at, how|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, "", err
	}
	defer func() { unix.Close(fd) }()
	for left := split(path); len(left) > 0; {
		name := left[0]
		here := filepath.Join(at, name)
		next, err := unix.Openat(fd, name, how, 0)
		if errors.Is(err, unix.ENOENT) && linked > 0 {
			return nil, "", fmt.Errorf("%s is, or is under, a link to something that does not exist", path)
		}
		if errors.Is(err, unix.ENOENT) {
			if err = unix.Mkdirat(fd, name, perm); err == nil || errors.Is(err, unix.EEXIST) {
				next, err = unix.Openat(fd, name, how, 0)
			}
		}
		if err != nil {
			return nil, "", &os.PathError{Op: "open", Path: here, Err: err}
		}
		to, link, err := readLink(next, here)
		if err != nil || link {
			unix.Close(next)
		}
		switch {
		case err != nil:
			return nil, "", err
		case !link:
			unix.Close(fd)
			fd, at, left, linked = next, here, left[1:], max(0, linked-1)
			continue
		}
		if links++; links > maxLinks {
			return nil, "", fmt.Errorf("%s leads through too many links", path)
		}
		parts := split(to)
		left, linked = append(parts, left[1:]...), len(parts)+max(0, linked-1)
		if filepath.IsAbs(to) {
			unix.Close(fd)
			if fd, err = unix.Open("/", how|unix.O_DIRECTORY, 0); err != nil {
				return nil, "", err
			}
			at = "/"
		}
	}
	// By its descriptor: it is what was walked to, whatever has its name by now.
	dir, err = os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), os.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, unix.ENOTDIR) {
		return nil, "", fmt.Errorf("%s is not a folder", path)
	}
	return dir, at, err
}

// RootsWay says why root may keep nothing for temporary files in a folder: somebody
// else could put another one, or a link, in the place of what root makes there, and
// boxes are made of what lies there. Nil for everybody else, whose own files are all
// that could be had by it.
func RootsWay(temp string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	abs, err := filepath.Abs(temp)
	if err != nil {
		return err
	}
	return Way(abs, RootOrUs)
}

// unmapped is the id that owners have here who have none in this user namespace, as
// the machine's own root has for root of a rootless container; -1 where all have one.
var unmapped = sync.OnceValue(func() int {
	ids, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return -1
	}
	text, err := os.ReadFile("/proc/sys/kernel/overflowuid")
	if err != nil {
		return -1
	}
	id, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || hasID(string(ids), id) {
		return -1
	}
	return id
})

// hasID says whether a user namespace has an account of that id, by its uid_map; a map
// that cannot be read has it. With one as large as is usual, 65536, the id of those
// without one is also that of nobody, who may be a real account: it is trusted with
// nothing then, and neither is who has no id here.
func hasID(uidMap string, id int) bool {
	for line := range strings.Lines(uidMap) {
		f := strings.Fields(line)
		if len(f) != 3 {
			return true
		}
		first, err := strconv.ParseUint(f[0], 10, 32)
		n, err2 := strconv.ParseUint(f[2], 10, 32)
		if err != nil || err2 != nil || uint64(id) >= first && uint64(id)-first < n {
			return true
		}
	}
	return uidMap == ""
}
