package native

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// openTree makes a detached copy of what is mounted at a mount's source and
// gives it the attributes it will have in the box. userns gives a descriptor of
// the user namespace whose id map the mount gets; nil for none.
//
// No link is followed, in the middle of the path or at its end: every source was
// a real path when it was judged, and an earlier step may have put a link to a
// folder of the host in its way since.
func openTree(m mount, userns func(*unix.Stat_t) (int, error)) (int, error) {
	at, err := unix.Openat2(unix.AT_FDCWD, m.Source, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if errors.Is(err, unix.ELOOP) {
		return -1, fmt.Errorf("there is a link in its path, and none is followed: %w", err)
	}
	if err != nil {
		return -1, err
	}
	defer unix.Close(at)
	fd, err := unix.OpenTree(at, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_EMPTY_PATH)
	if err != nil {
		return -1, fmt.Errorf("%w: %w", ErrMounts, err)
	}
	if err := dress(fd, m, userns); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// dress gives a detached mount the attributes it will have in the box.
func dress(fd int, m mount, userns func(*unix.Stat_t) (int, error)) error {
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if m.ReadOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		return fmt.Errorf("%w: set attributes: %w", ErrMounts, err)
	}
	if m.Mapped && userns != nil {
		if err := mapIDs(fd, userns); err != nil {
			return fmt.Errorf("%w: map ids: %w", ErrMounts, err)
		}
	}
	return nil
}

func mapIDs(fd int, userns func(*unix.Stat_t) (int, error)) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	ns, err := userns(&st)
	if err != nil {
		return err
	}
	return unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns)})
}

func rel(p string) string {
	p = strings.TrimPrefix(path.Clean(p), "/")
	if p == "" {
		return "."
	}
	return p
}

func isDir(fd int) (bool, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return st.Mode&unix.S_IFMT == unix.S_IFDIR, err
}

// attach moves a detached mount to its place below the current folder, making
// the folder or file it covers.
func attach(tree int, target string) error {
	dir, err := isDir(tree)
	if err != nil {
		return err
	}
	at, err := place(target, dir, "")
	if err != nil {
		return err
	}
	defer unix.Close(at)
	return unix.MoveMount(tree, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// place opens the mount point for a target. It resolves inside the new root only
// and follows no link: an image or a mounted folder may hold links that lead out
// of it. What is missing is made, unless the target lies inside a mount that is
// not ours to write.
func place(target string, dir bool, inside string) (int, error) {
	fd, err := unix.Open(".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	parts := strings.Split(rel(target), "/")
	if parts[0] == "." {
		return fd, nil
	}
	for i, name := range parts {
		last := i == len(parts)-1
		flags := unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
		if !last || dir {
			flags |= unix.O_DIRECTORY
		}
		next, err := unix.Openat(fd, name, flags, 0)
		here := "/" + strings.Join(parts[:i+1], "/")
		if errors.Is(err, unix.ENOENT) && inside != "" {
			unix.Close(fd)
			return -1, fmt.Errorf("there is no %s in what is shown at %s, and nothing is made there: %w", here, inside, err)
		}
		if errors.Is(err, unix.ENOENT) {
			if !last || dir {
				err = unix.Mkdirat(fd, name, 0o755)
			} else {
				var f int
				f, err = unix.Openat(fd, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
				if err == nil {
					unix.Close(f)
				}
			}
			if err == nil {
				next, err = unix.Openat(fd, name, flags, 0)
			}
		}
		unix.Close(fd)
		switch {
		case errors.Is(err, unix.ENOTDIR):
			return -1, fmt.Errorf("%s is a file or a link, and a folder is needed: %w", here, err)
		case err != nil:
			return -1, fmt.Errorf("make mount point %s: %w", here, err)
		}
		fd = next
	}
	return fd, nil
}

// writeFile writes a made-up file. Over an image it replaces what is there,
// which may be a link.
func writeFile(f file) error {
	at, err := place(path.Dir(f.Path), true, "")
	if err != nil {
		return err
	}
	defer unix.Close(at)
	mode := uint32(0o644)
	if f.Exec {
		mode = 0o755
	}
	name := path.Base(f.Path)
	if err := unix.Unlinkat(at, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	fd, err := unix.Openat(at, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	if err != nil {
		return err
	}
	w := os.NewFile(uintptr(fd), f.Path)
	_, err = w.WriteString(f.Text)
	if cerr := w.Close(); err == nil {
		err = cerr
	}
	return err
}

// mountAt mounts a file system at a target below the current folder, through a
// descriptor, so that no link in an image can lead the mount elsewhere.
func mountAt(target, fstype string, flags uintptr, data string) error {
	fd, err := place(target, true, "")
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Mount("box", fmt.Sprintf("/proc/self/fd/%d", fd), fstype, flags, data)
}

// mountMemory mounts a file system in memory on the folder that fd is open at.
func mountMemory(fd int, bytes int64, mode uint32) error {
	return unix.Mount("box", fmt.Sprintf("/proc/self/fd/%d", fd), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV,
		fmt.Sprintf("mode=%o,size=%d,nr_inodes=%d", mode, bytes, inodes(bytes)))
}

// inodes bounds the files of a tmpfs: each costs kernel memory beyond its size.
func inodes(bytes int64) int64 { return max(1024, bytes/4096) }
