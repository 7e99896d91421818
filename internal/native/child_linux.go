package native

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxinit"
	"github.com/untrusted-steps/untrusted-steps/internal/idmap"
)

// marker is the only argument of this program as a box's first process. The
// control socket is descriptor 3.
const marker = "untrusted-steps-native-box"

const controlFD = 3

// IsChild says whether this process was started as a box's first process. It
// must be asked before anything else in main.
func IsChild(args []string) bool {
	return len(args) == 2 && (args[1] == marker || args[1] == idmap.HoldArg)
}

// Child builds the box it is in and serves it. It does not return.
func Child(args []string) {
	if args[1] == idmap.HoldArg {
		idmap.Hold()
	}
	runtime.LockOSThread()
	syscall.CloseOnExec(controlFD)
	// A descriptor that leaked from whoever started us must not even be held:
	// the runtime has opened nothing yet that is needed later.
	_ = unix.CloseRange(controlFD+1, 1<<31-1, 0)
	unix.Umask(0o022)
	m, fds, err := boxinit.Receive(controlFD)
	if err != nil {
		os.Exit(1)
	}
	var s setup
	if err := json.Unmarshal(m.Setup, &s); err != nil {
		report("read", "the setup message", err)
	}
	if f := build(s, fds); f != nil {
		// An image with something else where a mount point has to be made: no
		// link of it is followed, and it is the step that names the image.
		switch syscall.Errno(f.Errno) {
		case unix.ENOTDIR, unix.ELOOP, unix.EEXIST, unix.EISDIR:
			if s.Overlay && !strings.HasPrefix(f.Op, "named ") {
				f.Op = "named image"
			}
		}
		_ = boxinit.Send(controlFD, boxinit.Message{Failed: f})
		os.Exit(1)
	}
	boxinit.Serve(controlFD)
}

func report(op, name string, err error) {
	_ = boxinit.Send(controlFD, boxinit.Fail(op, name, err))
	os.Exit(1)
}

// failure is an error with what was tried; op "named" means the step's doing.
func failure(op, name string, err error) *boxinit.Failed { return boxinit.Fail(op, name, err).Failed }

// build makes the root file system and enters it.
func build(s setup, fds []int) *boxinit.Failed {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return failure("make private", "/", err)
	}
	// Every source is opened before anything of the host is covered.
	trees := fds
	if len(trees) == 0 {
		for _, b := range s.Binds {
			fd, err := openTree(b, -1)
			if err != nil {
				return sourceFailure(b, err)
			}
			trees = append(trees, fd)
		}
	}
	if len(trees) != len(s.Binds) {
		return failure("match", "mounts with their descriptors", errors.New("bug: counts differ"))
	}
	devices, err := openDevices()
	if err != nil {
		return failure("open", "devices", err)
	}
	root, err := stage()
	if err != nil {
		return failure("mount", "the box's root", err)
	}
	if err := unix.Chdir(root); err != nil {
		return failure("enter", "the box's root", err)
	}
	if s.Overlay {
		if f := overlayRoot(trees[0], s.Binds[0].Source); f != nil {
			return f
		}
		s.Binds, trees = s.Binds[1:], trees[1:]
	}
	if f := mountAll(s, trees); f != nil {
		return f
	}
	for _, l := range s.Links {
		if err := os.MkdirAll(rel(path.Dir(l.Path)), 0o755); err != nil {
			return failure("make", l.Path, err)
		}
		if err := os.Symlink(l.Target, rel(l.Path)); err != nil {
			return failure("link", l.Path, err)
		}
	}
	for _, f := range s.Files {
		if err := writeFile(f); err != nil {
			return failure("write", f.Path, err)
		}
	}
	if err := mountProc(); err != nil {
		return failure("mount", "/proc", err)
	}
	if err := mountDev(devices, s.ShmBytes); err != nil {
		return failure("mount", "/dev", err)
	}
	if err := enter(); err != nil {
		return failure("enter", "the box's root", err)
	}
	if err := unix.Sethostname([]byte(s.Hostname)); err != nil {
		return failure("set", "host name", err)
	}
	if !s.HostNetwork {
		if err := boxinit.LoopbackUp(); err != nil {
			return failure("bring up", "loopback", err)
		}
	}
	if err := maskProc(); err != nil {
		return failure("mask", "/proc", err)
	}
	return nil
}

// mountAll mounts binds and file systems in memory, outer places before inner
// ones: what is mounted last hides what lies below it. Both lists are sorted.
func mountAll(s setup, trees []int) *boxinit.Failed {
	i, j := 0, 0
	for i < len(s.Binds) || j < len(s.Tmpfs) {
		if j < len(s.Tmpfs) && (i == len(s.Binds) || depth(s.Tmpfs[j].Target) < depth(s.Binds[i].Target)) {
			t := s.Tmpfs[j]
			if err := mountTmpfs(t); err != nil {
				return failure("mount", t.Target, err)
			}
			j++
			continue
		}
		b := s.Binds[i]
		if err := attach(trees[i], b.Target); err != nil {
			op := "mount"
			if b.Named != "" {
				op = "named " + b.Named
			}
			return failure(op, b.Target, err)
		}
		unix.Close(trees[i])
		i++
	}
	return nil
}

func sourceFailure(b bind, err error) *boxinit.Failed {
	op := "open"
	if b.Named != "" {
		op = "named " + b.Named
	}
	return failure(op, b.Source, err)
}

// openTree makes a detached copy of what is mounted at a bind's source and
// gives it the attributes it will have in the box. userns is a descriptor of
// the user namespace whose id map the mount gets; -1 for none.
func openTree(b bind, userns int) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, b.Source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return -1, err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if b.ReadOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("set attributes: %w", err)
	}
	if b.Mapped && userns >= 0 {
		m := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(userns)}
		if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &m); err != nil {
			unix.Close(fd)
			return -1, fmt.Errorf("map ids: %w", err)
		}
	}
	return fd, nil
}

// stage mounts the tmpfs that becomes the root. Where does not matter: nobody
// else sees this mount namespace.
func stage() (string, error) {
	var first error
	for _, dir := range []string{"/tmp", "/run", "/mnt", "/dev"} {
		err := unix.Mount("box", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755,size=64m,nr_inodes=65536")
		if err == nil {
			return dir, nil
		}
		if first == nil {
			first = fmt.Errorf("%s: %w", dir, err)
		}
	}
	return "", first
}

// overlayRoot makes a root folder's content the root: read-only below, with a
// layer in memory on top that takes the mount points it lacks.
func overlayRoot(tree int, source string) *boxinit.Failed {
	var st unix.Stat_t
	if err := unix.Fstat(tree, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return failure("named image", source, unix.ENOTDIR)
	}
	for _, d := range []string{"lower", "upper", "work", "root"} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return failure("make", d, err)
		}
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, "lower", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return failure("mount", "the image's folder", err)
	}
	unix.Close(tree)
	if err := unix.Mount("box", "root", "overlay", unix.MS_NOSUID|unix.MS_NODEV, "lowerdir=lower,upperdir=upper,workdir=work,userxattr"); err != nil {
		return failure("mount", "an overlay over the image's folder", err)
	}
	if err := unix.Chdir("root"); err != nil {
		return failure("enter", "the image's overlay", err)
	}
	return nil
}

func rel(p string) string {
	p = strings.TrimPrefix(path.Clean(p), "/")
	if p == "" {
		return "."
	}
	return p
}

// attach moves a detached mount to its place below the current folder, making
// the folder or file it covers.
func attach(tree int, target string) error {
	var st unix.Stat_t
	if err := unix.Fstat(tree, &st); err != nil {
		return err
	}
	at, err := place(target, st.Mode&unix.S_IFMT == unix.S_IFDIR)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	return unix.MoveMount(tree, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// place opens the mount point for a target, making what is missing. It resolves
// inside the new root only and follows no link: an image or a mounted folder
// may hold links that lead out of it.
func place(target string, dir bool) (int, error) {
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
		if err != nil {
			return -1, fmt.Errorf("make mount point %s: %w", "/"+strings.Join(parts[:i+1], "/"), err)
		}
		fd = next
	}
	return fd, nil
}

// writeFile writes a made-up file. Over an image it replaces what is there,
// which may be a link.
func writeFile(f file) error {
	at, err := place(path.Dir(f.Path), true)
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
	fd, err := place(target, true)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Mount("box", fmt.Sprintf("/proc/self/fd/%d", fd), fstype, flags, data)
}

func mountTmpfs(t tmpfs) error {
	return mountAt(t.Target, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("mode=%o,size=%d,nr_inodes=%d", t.Mode, t.Bytes, inodes(t.Bytes)))
}

// inodes bounds the files of a tmpfs: each costs kernel memory beyond its size.
func inodes(bytes int64) int64 { return max(1024, bytes/4096) }

// enter makes the current folder the root and lets go of the host's.
func enter() error {
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("detach the host's root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", 0, &attr); err != nil {
		return fmt.Errorf("make read-only: %w", err)
	}
	return nil
}
