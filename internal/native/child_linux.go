package native

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxinit"
	"github.com/untrusted-steps/untrusted-steps/internal/idmap"
	"github.com/untrusted-steps/untrusted-steps/internal/overlay"
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
			if s.Overlay && f.Named == "" {
				f.Named = "image"
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

// failure is an error with what was tried.
func failure(op, name string, err error) *boxinit.Failed { return boxinit.Fail(op, name, err).Failed }

// fault is a failure with whose doing it is: the key of the step that names the
// thing, or nobody's.
func fault(m mount, op, name string, err error) *boxinit.Failed {
	f := failure(op, name, err)
	f.Named, f.Why = m.Named, err.Error()
	return f
}

// build makes the root file system and enters it. The step's own mounts come
// last: whatever we wrote after one of them could be written into a folder of the
// host that the step chose.
func build(s setup, fds []int) *boxinit.Failed {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return failure("make private", "/", err)
	}
	// Every source is opened before anything of the host is covered.
	trees, sources := fds, s.sources()
	if len(trees) == 0 {
		for _, m := range sources {
			fd, err := openTree(m, nil)
			if err != nil {
				return fault(m, "show", m.Source, err)
			}
			trees = append(trees, fd)
		}
	}
	if len(trees) != len(sources) {
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
	view, trees := trees[:len(s.View)], trees[len(s.View):]
	if f := buildRoot(s, view, devices); f != nil {
		return f
	}
	for _, m := range s.Own {
		n := len(m.parts())
		if f := mountOwn(m, trees[:n]); f != nil {
			return f
		}
		trees = trees[n:]
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

// buildRoot puts down all that is not the step's.
func buildRoot(s setup, trees []int, devices map[string]int) *boxinit.Failed {
	view := s.View
	if s.Overlay {
		if f := overlayRoot(trees[0], view[0].Source); f != nil {
			return f
		}
		view, trees = view[1:], trees[1:]
	}
	for i, m := range view {
		if err := attach(trees[i], m.Target); err != nil {
			return failure("mount", m.Target, err)
		}
		unix.Close(trees[i])
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
	return nil
}

// mountOwn puts one thing of the step's in its place.
func mountOwn(m mount, trees []int) *boxinit.Failed {
	for _, tree := range trees {
		defer unix.Close(tree)
	}
	dir := true
	if len(trees) == 1 {
		var err error
		if dir, err = isDir(trees[0]); err != nil {
			return failure("look at", m.Source, err)
		}
	}
	at, err := place(m.Target, dir, m.Inside)
	if err != nil {
		return fault(m, "mount at", m.Target, err)
	}
	defer unix.Close(at)
	switch {
	case len(m.Lower) > 0:
		if err := overlay.Mount(at, trees); err != nil {
			f := failure(box.OverlayFailed, m.Target, err)
			f.Why = err.Error()
			return f
		}
	case len(trees) == 1:
		err := unix.MoveMount(trees[0], "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
		if errors.Is(err, unix.ENOTDIR) {
			err = fmt.Errorf("one is a folder and the other is not: %w", err)
		}
		if err != nil {
			return fault(m, "mount at", m.Target, err)
		}
	default:
		if err := mountMemory(at, m.Bytes, m.Mode); err != nil {
			return failure("mount", m.Target, err)
		}
	}
	return nil
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
		return fault(mount{Named: "image"}, "show", source, unix.ENOTDIR)
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
