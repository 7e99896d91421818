package kern

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
)

// judge looks at every place, and refuses what kern would follow, wait for or
// stumble over. No link is followed, in the middle or at the end, and nothing
// is opened that could answer: O_PATH opens no FIFO.
//
// There is a moment between this look and kern's own. Nobody of the box lives
// in it: the step has not begun, and what an earlier step left is dead. A step
// that runs beside this one has a workspace of its own. A folder that both may
// write holds no tmpfs, whose place kern reaches by name (expressible refuses
// that); to all else that a step names kern walks without following links.
func judge(list []mountPoint) error {
	roots := map[string]int{}
	defer func() {
		for _, fd := range roots {
			unix.Close(fd)
		}
	}()
	open := func(path string, how uint64) (int, error) {
		if fd, ok := roots[path]; ok {
			return fd, nil
		}
		fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: how})
		if err == nil {
			roots[path] = fd
		}
		return fd, err
	}
	for _, p := range list {
		var why string
		for _, path := range p.In.shown() {
			root, err := open(path, resolve(p.In))
			if err != nil {
				return &box.StartupError{Why: fmt.Sprintf("%s: cannot look at %s: %v", p.Key, path, err)}
			}
			// An overlay shows the first layer that has something there.
			if why = look(root, p); why != missing {
				break
			}
		}
		if why != "" {
			wanted := "a file"
			if p.Dir {
				wanted = "a folder"
			}
			return &box.StartupError{Why: fmt.Sprintf("%s: %s %s (in %s); %s is needed there", p.Key, p.Target, why, p.In.shown()[0], wanted)}
		}
	}
	return nil
}

// missing is what look says of a place that is not there.
const missing = "does not exist"

// look says what is wrong with a place.
func look(root int, p mountPoint) string {
	fd, err := unix.Openat2(root, p.Rel, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	switch {
	case err == unix.ENOENT && p.Missing:
		return ""
	case err == unix.ENOENT:
		return missing
	case err == unix.ELOOP:
		return "has a link in its path"
	case err == unix.ENOTDIR:
		return "has something else than a folder in its path"
	case err != nil:
		return fmt.Sprintf("cannot be looked at: %v", err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Sprintf("cannot be looked at: %v", err)
	}
	kind := st.Mode & unix.S_IFMT
	switch {
	case p.Dir && kind == unix.S_IFDIR:
		return ""
	case !p.Dir && (kind == unix.S_IFREG || kind == unix.S_IFLNK):
		// kern opens a file without following a link, and mounts on the link
		// itself: many images have one for /etc/resolv.conf.
		return ""
	}
	return "is " + kindName(kind)
}

func kindName(kind uint32) string {
	switch kind {
	case unix.S_IFDIR:
		return "a folder"
	case unix.S_IFREG:
		return "a file"
	case unix.S_IFLNK:
		return "a link"
	case unix.S_IFIFO:
		return "a FIFO"
	case unix.S_IFSOCK:
		return "a socket"
	case unix.S_IFCHR, unix.S_IFBLK:
		return "a device"
	}
	return "something unknown"
}
