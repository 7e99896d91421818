package stage

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrMounts: this host lets us make no mount of a file's own, to show it in a box
// or to show it there under another id.
var ErrMounts = errors.New("make a mount of it")

// Source is something of the host that a box is shown.
type Source struct {
	// Path is a real path: an earlier step may have put a link to a folder of the host
	// in its way since it was judged, and none is followed, in its middle or at its end.
	Path string
	// Links lets links be followed, on a way that nobody but us has chosen.
	Links    bool
	ReadOnly bool
	// UserNS gives the user namespace whose id map the mount gets; nil for none.
	UserNS func(*unix.Stat_t) (int, error)
}

// Open makes a detached copy of what is mounted at a source, with the attributes
// that it has in a box.
func Open(s Source) (int, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	if s.Links {
		how.Resolve = 0
	}
	at, err := unix.Openat2(unix.AT_FDCWD, s.Path, &how)
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
	if err := s.Dress(fd); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Dress gives a detached mount the attributes that this source has in a box.
func (s Source) Dress(fd int) error {
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if s.ReadOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		return fmt.Errorf("%w: set attributes: %w", ErrMounts, err)
	}
	if s.UserNS == nil {
		return nil
	}
	if err := mapIDs(fd, s.UserNS); err != nil {
		return fmt.Errorf("%w: map ids: %w", ErrMounts, err)
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

// Place opens the mount point for a path below a folder. It follows no link: an
// image or a mounted folder may hold links that lead out of it. What is missing is
// made, unless inside names a mount that is not ours to write.
func Place(base, target string, dir bool, inside string) (int, error) {
	fd, err := unix.Open(base, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	rel := strings.Trim(path.Clean("/"+target), "/")
	if rel == "" {
		return fd, nil
	}
	parts := strings.Split(rel, "/")
	for i, name := range parts {
		last := i == len(parts)-1
		flags := unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
		if !last || dir {
			flags |= unix.O_DIRECTORY
		}
		here := "/" + strings.Join(parts[:i+1], "/")
		next, err := unix.Openat(fd, name, flags, 0)
		if errors.Is(err, unix.ENOENT) && inside != "" {
			unix.Close(fd)
			return -1, fmt.Errorf("there is no %s in what is shown at %s, and nothing is made there: %w", here, inside, err)
		}
		if errors.Is(err, unix.ENOENT) {
			if err = makeOne(fd, name, !last || dir); err == nil {
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

func makeOne(at int, name string, dir bool) error {
	if dir {
		return unix.Mkdirat(at, name, 0o755)
	}
	fd, err := unix.Openat(at, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// KindOf is the type of the file that a descriptor is open at, as in a stat.
func KindOf(fd int) (uint32, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return st.Mode & unix.S_IFMT, err
}

// Attach moves a detached mount to its place below a folder, making the folder or
// file it covers.
func Attach(tree int, base, target, inside string) error {
	kind, err := KindOf(tree)
	if err != nil {
		return err
	}
	at, err := Place(base, target, kind == unix.S_IFDIR, inside)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	if kind != unix.S_IFDIR {
		if there, err := KindOf(at); err == nil && there == unix.S_IFLNK {
			return fmt.Errorf("%s is a link, and none is followed: %w", target, unix.ELOOP)
		}
	}
	err = unix.MoveMount(tree, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	if errors.Is(err, unix.ENOTDIR) {
		err = fmt.Errorf("one is a folder and the other is not: %w", err)
	}
	return err
}

// Write writes a made-up file below a folder. Over an image it replaces what is
// there, which may be a link.
func Write(base, name, text string, mode uint32) error {
	at, err := Place(base, path.Dir(name), true, "")
	if err != nil {
		return err
	}
	defer unix.Close(at)
	last := path.Base(name)
	if err := unix.Unlinkat(at, last, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	fd, err := unix.Openat(at, last, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	if err != nil {
		return err
	}
	w := os.NewFile(uintptr(fd), name)
	_, err = w.WriteString(text)
	return errors.Join(err, w.Close())
}

// MountAt mounts a file system at a place below the current folder, through a
// descriptor, so that no link in an image can lead the mount elsewhere.
func MountAt(target, fstype string, flags uintptr, data string) error {
	fd, err := Place(".", target, true, "")
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Mount("box", fmt.Sprintf("/proc/self/fd/%d", fd), fstype, flags, data)
}

// MountMemory mounts a file system in memory on the folder that fd is open at. Its
// files are bounded too: each costs kernel memory beyond its size.
func MountMemory(fd int, bytes int64, mode uint32) error {
	return unix.Mount("box", fmt.Sprintf("/proc/self/fd/%d", fd), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV,
		fmt.Sprintf("mode=%o,size=%d,nr_inodes=%d", mode, bytes, max(1024, bytes/4096)))
}

// Link makes a symbolic link below a folder, in folders that are made as needed.
func Link(base, name, target string) error {
	at, err := Place(base, path.Dir(name), true, "")
	if err != nil {
		return err
	}
	defer unix.Close(at)
	return unix.Symlinkat(target, at, path.Base(name))
}

// Protect mounts a folder below the current one over itself, to be read only. An
// earlier step or a setup can have put a link in its way, and none is followed.
func Protect(at string) error {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	fd, err := unix.Openat2(unix.AT_FDCWD, at, &how)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	tree, err := unix.OpenTree(fd, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return err
	}
	return unix.MoveMount(tree, "", fd, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// Cover mounts a file system in memory and makes it the current folder.
// Where does not matter: nobody else sees this mount namespace.
func Cover() error {
	var first error
	for _, dir := range []string{"/tmp", "/run", "/mnt", "/dev"} {
		err := unix.Mount("box", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755,size=64m,nr_inodes=65536")
		if err == nil {
			return unix.Chdir(dir)
		}
		if first == nil {
			first = fmt.Errorf("%s: %w", dir, err)
		}
	}
	return first
}

// Overlay mounts an image's folder at a folder below the current one: read-only
// below, with a layer in memory on top that takes the mount points it lacks. The
// layers lie beside it.
func Overlay(tree int, at string) error {
	for _, d := range []string{"lower", "upper", "work"} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, "lower", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("the image's folder: %w", err)
	}
	if err := unix.Mount("box", at, "overlay", unix.MS_NOSUID|unix.MS_NODEV, "lowerdir=lower,upperdir=upper,workdir=work,userxattr"); err != nil {
		return fmt.Errorf("an overlay over the image's folder: %w", err)
	}
	return unix.Close(tree)
}

// OpenNode makes a detached copy of a device node: a user namespace cannot make any.
func OpenNode(node string) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, node, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("%s: %w", node, err)
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("%s: %w", node, err)
	}
	return fd, nil
}
