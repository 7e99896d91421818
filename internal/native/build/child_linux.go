package build

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxinit"
	"github.com/untrusted-steps/untrusted-steps/internal/overlay"
	"github.com/untrusted-steps/untrusted-steps/internal/stage"
)

// Marker is the only argument of this program as a box's first process. The
// control socket is descriptor 3.
const Marker = "untrusted-steps-native-box"

const controlFD = 3

// A program that links this package becomes a box's first process when it is
// started as one, and that here, not in main: see package boxinit.
func init() {
	if isChild(os.Args) {
		child()
	}
}

func isChild(args []string) bool { return len(args) == 2 && args[1] == Marker }

// child builds the box it is in and serves it. It does not return.
func child() {
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
	var s Setup
	if err := json.Unmarshal(m.Setup, &s); err != nil {
		report("read", "the setup message", err)
	}
	tasks := -1
	if f := build(s, fds, &tasks); f != nil {
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
	boxinit.ServeIn(controlFD, tasks)
}

func report(op, name string, err error) {
	_ = boxinit.Send(controlFD, boxinit.Fail(op, name, err))
	os.Exit(1)
}

// failure is an error with what was tried.
func failure(op, name string, err error) *boxinit.Failed { return boxinit.Fail(op, name, err).Failed }

// fault is a failure with whose doing it is: the key of the step that names the
// thing, or nobody's.
func fault(m Mount, op, name string, err error) *boxinit.Failed {
	f := failure(op, name, err)
	f.Named, f.Why = m.Named, err.Error()
	return f
}

// build makes the root file system and enters it. The step's own mounts come
// last: whatever we wrote after one of them could be written into a folder of the
// host that the step chose.
//
// Where the step enters an AppArmor profile, tasks becomes a descriptor of our own
// threads in /proc, through which a thread of ours can say so: what is seen of us
// at /proc/1 is read-only afterwards.
func build(s Setup, fds []int, tasks *int) *boxinit.Failed {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return failure("make private", "/", err)
	}
	// Every source is opened before anything of the host is covered.
	trees, sources := fds, s.Sources()
	if len(trees) == 0 {
		for _, m := range sources {
			fd, err := stage.Open(m.Shown(nil))
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
	if err := stage.Cover(); err != nil {
		return failure("mount", "the box's root", err)
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
		for _, at := range m.Protect {
			if err := stage.Protect(strings.TrimPrefix(at, "/")); err != nil {
				return failure("protect", at, err)
			}
		}
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
	if s.AppArmor {
		if *tasks, err = unix.Open("/proc/self/task", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			return failure("open", "/proc/self/task", err)
		}
	}
	if err := maskProc(); err != nil {
		return failure("mask", "/proc", err)
	}
	return nil
}

// buildRoot puts down all that is not the step's.
func buildRoot(s Setup, trees []int, devices map[string]int) *boxinit.Failed {
	view := s.View
	if s.Overlay {
		if kind, err := stage.KindOf(trees[0]); err == nil && kind != unix.S_IFDIR {
			return fault(view[0], "show", view[0].Source, unix.ENOTDIR)
		}
		if err := os.Mkdir("root", 0o755); err != nil {
			return failure("make", "the image's root", err)
		}
		if err := stage.Overlay(trees[0], "root"); err != nil {
			return failure("mount", "the image", err)
		}
		if err := unix.Chdir("root"); err != nil {
			return failure("enter", "the image's overlay", err)
		}
		view, trees = view[1:], trees[1:]
	}
	for i, m := range view {
		if err := stage.Attach(trees[i], ".", m.Target, ""); err != nil {
			return failure("mount", m.Target, err)
		}
		unix.Close(trees[i])
	}
	for _, l := range s.Links {
		if err := stage.Link(".", l.Path, l.Target); err != nil {
			return failure("link", l.Path, err)
		}
	}
	for _, f := range s.Files {
		mode := uint32(0o644)
		if f.Exec {
			mode = 0o755
		}
		if err := stage.Write(".", f.Path, f.Text, mode); err != nil {
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
func mountOwn(m Mount, trees []int) *boxinit.Failed {
	for _, tree := range trees {
		defer unix.Close(tree)
	}
	dir := true
	if len(trees) == 1 {
		kind, err := stage.KindOf(trees[0])
		if err != nil {
			return failure("look at", m.Source, err)
		}
		dir = kind == unix.S_IFDIR
	}
	at, err := stage.Place(".", m.Target, dir, m.Inside)
	if err != nil {
		return fault(m, "mount at", m.Target, err)
	}
	defer unix.Close(at)
	switch {
	case len(m.Lower) > 0:
		if err := overlay.Mount(at, trees); err != nil {
			f := failure(boxinit.OverlayFailed, m.Target, err)
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
		if err := stage.MountMemory(at, m.Bytes, m.Mode); err != nil {
			return failure("mount", m.Target, err)
		}
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
