package gvisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxinit"
	"github.com/untrusted-steps/untrusted-steps/internal/overlay"
	"github.com/untrusted-steps/untrusted-steps/internal/stage"
)

// launcherArg is the only argument of this program as a launcher.
const launcherArg = "untrusted-steps-gvisor-launcher"

// A program that links this package becomes the launcher when it is started as
// one, before main: nothing of its own may run in a process that becomes runsc.
func init() {
	if len(os.Args) == 2 && os.Args[1] == launcherArg {
		becomeRunsc()
	}
}

// becomeRunsc waits for the order, builds the stage and becomes runsc. It does not
// return. That nothing was wrong is told by the order's socket closing, which it
// does with the exec.
func becomeRunsc() {
	runtime.LockOSThread()
	for fd := orderFD; fd <= lastFD; fd++ {
		if fd != controlFD && fd != wayFD {
			syscall.CloseOnExec(fd)
		}
	}
	// A descriptor that leaked from whoever started us must not even be held.
	_ = unix.CloseRange(lastFD+1, 1<<31-1, 0)
	unix.Umask(0o022)
	m, trees, err := boxinit.Receive(orderFD)
	if errors.Is(err, io.EOF) {
		os.Exit(1) // nobody is left to read why
	}
	var s setup
	if err == nil {
		err = json.Unmarshal(m.Setup, &s)
	}
	if err != nil {
		give(failure("read", "the order", err))
	}
	if f := build(s, trees); f != nil {
		// An image with something else where a mount point has to be made: no link
		// of it is followed, and it is the step that names the image.
		switch syscall.Errno(f.Errno) {
		case unix.ENOTDIR, unix.ELOOP, unix.EEXIST, unix.EISDIR:
			if s.Image && f.Named == "" {
				f.Named = "image"
			}
		}
		give(f)
	}
	// A crash of runsc must not start the host's core_pattern program; 1 is what
	// the kernel takes for "never".
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1, Max: 1}); err != nil && !errors.Is(err, unix.EPERM) {
		give(failure("limit", "core dumps", err))
	}
	err = syscall.Exec(fmt.Sprintf("/proc/self/fd/%d", runscFD), s.Argv, []string{"PATH=/", "LANG=C.UTF-8", "GOTRACEBACK=none"})
	give(failure("start", "runsc", err))
}

func give(f *boxinit.Failed) {
	_ = boxinit.Send(orderFD, boxinit.Message{Failed: f})
	os.Exit(1)
}

func failure(op, name string, err error) *boxinit.Failed {
	f := boxinit.Fail(op, name, err).Failed
	f.Why = err.Error()
	return f
}

// fault is a failure with whose doing it is: the key of the step that names the
// thing, or nobody's.
func fault(m mount, op, name string, err error) *boxinit.Failed {
	f := failure(op, name, err)
	f.Named = m.Named
	return f
}

// devices are taken from the host for the box's /dev. What answers when one is
// opened is the box's own kernel.
var devices = []string{"null", "zero", "full", "random", "urandom"}

// build makes the stage and enters it. The step's own mounts come last: whatever
// we wrote after one of them could be written into a folder of the host that the
// step chose.
func build(s setup, trees []int) *boxinit.Failed {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return failure("make private", "/", err)
	}
	// Every source is opened before anything of the host is covered.
	sources := s.sources()
	if len(trees) == 0 {
		for _, m := range sources {
			fd, err := stage.Open(m.shown(nil))
			if err != nil {
				return fault(m, "show", m.Source, err)
			}
			trees = append(trees, fd)
		}
	}
	if len(trees) != len(sources) {
		return failure("match", "mounts with their descriptors", errors.New("bug: counts differ"))
	}
	nodes, err := openDevices(s.KVM)
	if err != nil {
		return failure("open", "devices", err)
	}
	if err := stage.Cover(); err != nil {
		return failure("mount", "the stage", err)
	}
	view, trees := trees[:len(s.View)], trees[len(s.View):]
	if f := buildRoot(s, view); f != nil {
		return f
	}
	if err := buildAround(s, nodes); err != nil {
		return failure("make", "the stage", err)
	}
	for _, m := range s.Own {
		n := len(m.parts())
		if f := mountOwn(m, trees[:n]); f != nil {
			return f
		}
		trees = trees[n:]
		for _, at := range m.Protect {
			if err := stage.Protect(rootName + at); err != nil {
				return failure("protect", at, err)
			}
		}
	}
	if err := closeRoot(); err != nil {
		return failure("make read-only", "the box's root", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return failure("enter", "the stage", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return failure("let go of", "the host's root", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return failure("enter", "the stage", err)
	}
	return nil
}

// openDevices opens the nodes that the stage needs, by their place on it.
func openDevices(withKVM bool) (map[string]int, error) {
	open := map[string]int{}
	list := map[string]string{"/dev/null": "/dev/null"}
	for _, n := range devices {
		list["/"+deviceName+"/"+n] = "/dev/" + n
	}
	if withKVM {
		list["/dev/kvm"] = "/dev/kvm"
	}
	for at, of := range list {
		fd, err := stage.OpenNode(of)
		if err != nil {
			return nil, err
		}
		open[at] = fd
	}
	return open, nil
}

// buildRoot puts down all of the box's root that is not the step's.
func buildRoot(s setup, trees []int) *boxinit.Failed {
	for _, d := range []string{rootName, deviceName, mountName, bundleName, stateName, "proc", "dev", "tmp"} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return failure("make", d, err)
		}
	}
	view := s.View
	if s.Image {
		if kind, err := stage.KindOf(trees[0]); err == nil && kind != unix.S_IFDIR {
			return fault(view[0], "show", view[0].Source, unix.ENOTDIR)
		}
		if err := stage.Overlay(trees[0], rootName); err != nil {
			return failure("mount", "the image", err)
		}
		view, trees = view[1:], trees[1:]
	}
	for _, l := range s.Links {
		if err := stage.Link(rootName, l.Path, l.Target); err != nil {
			return failure("link", l.Path, err)
		}
	}
	// Before the view: nothing of ours is written through it.
	for _, f := range s.Files {
		if err := stage.Write(rootName, f.Path, f.Text, 0o644); err != nil {
			return failure("write", f.Path, err)
		}
	}
	for i, m := range view {
		if err := stage.Attach(trees[i], rootName, m.Target, ""); err != nil {
			return failure("mount", m.Target, err)
		}
		unix.Close(trees[i])
	}
	// The mount points of what the box's own kernel makes.
	for _, d := range []string{"/proc", "/sys", "/dev", box.HomeTarget} {
		at, err := stage.Place(rootName, d, true, "")
		if err != nil {
			return failure("make", d, err)
		}
		unix.Close(at)
	}
	return nil
}

// buildAround makes what runsc itself needs, and the box's devices.
func buildAround(s setup, nodes map[string]int) error {
	err := stage.MountAt("proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("mount proc: %w (the kernel refuses a fresh /proc where the one outside is partly covered, as in a container)", err)
	}
	if err != nil {
		return fmt.Errorf("mount proc: %w", err)
	}
	for at, fd := range nodes {
		if err := stage.Attach(fd, ".", at, ""); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		unix.Close(fd)
	}
	for _, d := range []string{"pts", "shm"} {
		if err := os.Mkdir(deviceName+"/"+d, 0o755); err != nil {
			return err
		}
	}
	for name, target := range map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"} {
		if err := os.Symlink(target, deviceName+"/"+name); err != nil {
			return err
		}
	}
	return os.WriteFile(bundleName+"/config.json", s.Config, 0o600)
}

// mountOwn puts one thing of the step's in its place. What the box's own kernel
// mounts only gets its mount point here, or is refused for the lack of one: that
// kernel would make it, in a folder of the host.
func mountOwn(m mount, trees []int) *boxinit.Failed {
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
	if m.Base != "" {
		at, err := stage.Place(m.Base, m.Rel, dir, m.Inside)
		if err != nil {
			return fault(m, "mount at", m.Target, err)
		}
		defer unix.Close(at)
		if there, err := stage.KindOf(at); err != nil || !dir && there != unix.S_IFREG {
			return fault(m, "mount at", m.Target, errors.Join(err, unix.ENOTDIR))
		}
	}
	at := m.At
	if at == rootName {
		at += m.Target
	}
	switch {
	case len(m.Lower) > 0:
		at, err := stage.Place(".", at, true, "")
		if err != nil {
			return failure("make", m.Target, err)
		}
		defer unix.Close(at)
		if err := overlay.Mount(at, trees); err != nil {
			return failure(boxinit.OverlayFailed, m.Target, err)
		}
	case len(trees) == 1:
		if err := stage.Attach(trees[0], ".", at, ""); err != nil {
			return fault(m, "show", m.Source, err)
		}
	}
	return nil
}

// closeRoot makes the box's root a mount of its own that nobody can write: not
// what is mounted in it, whose attributes are its own.
func closeRoot() error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, rootName, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return err
	}
	return unix.MoveMount(fd, "", unix.AT_FDCWD, rootName, unix.MOVE_MOUNT_F_EMPTY_PATH)
}
