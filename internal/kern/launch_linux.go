package kern

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/overlay"
)

// launcherArg is the only argument of this program as a launcher.
const launcherArg = "untrusted-steps-kern-launcher"

// The launcher's descriptors. What follows lastFD are the trees of a stage.
const (
	orderFD   = 3
	startedFD = 4
	aliveFD   = 5
	kernFD    = 6
	lastFD    = kernFD
)

// launcherFailed is the exit code of a launcher that did not become kern; kern
// is not known to use it.
const launcherFailed = 99

// A program that links this package becomes the launcher when it is started as
// one, before main: nothing of its own may run in a process that becomes kern.
func init() {
	if len(os.Args) == 2 && os.Args[1] == launcherArg {
		becomeKern()
	}
}

// becomeKern waits for the order, follows it and becomes kern. It does not return.
func becomeKern() {
	runtime.LockOSThread()
	err := launch()
	if errors.Is(err, io.EOF) {
		os.Exit(launcherFailed) // nobody is left to read why
	}
	fmt.Fprintf(os.Stderr, "untrusted-steps: kern launcher: %v\n", err)
	os.Exit(launcherFailed)
}

func launch() error {
	o, err := readOrder(os.NewFile(orderFD, "order"))
	if err != nil {
		return err
	}
	trees := o.Stage.descriptors()
	// kern gets two pipes and nothing else: not what leaked from whoever
	// started us, not the trees, not its own program.
	for fd := orderFD; fd <= lastFD+trees; fd++ {
		if fd != startedFD && fd != aliveFD {
			syscall.CloseOnExec(fd)
		}
	}
	if err := unix.CloseRange(uint(lastFD+trees+1), 1<<31-1, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("protect inherited descriptors: %w", err)
	}
	unix.Umask(0o022)
	// A crash must not start the host's core_pattern program on a box's bytes;
	// 1 is what the kernel takes for "never". The first process asks for it
	// too, but where sudo has set the bound to 0 it may not raise it, and we may.
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1, Max: 1}); err != nil && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("limit core dumps: %w", err)
	}
	if o.Stage != nil {
		if err := o.Stage.build(); err != nil {
			return err
		}
		if err := become(*o.Stage); err != nil {
			return err
		}
	} else if os.Geteuid() == 0 {
		return errors.New("the order would start kern as root")
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	err = syscall.Exec(fmt.Sprintf("/proc/self/fd/%d", kernFD), o.Argv, o.Env)
	return fmt.Errorf("start kern: %w", err)
}

// devices are what kern takes from the host's /dev for a box.
var devices = []string{"null", "zero", "full", "random", "urandom"}

// build makes the stage and enters it. The process is in a mount namespace of
// its own, so nobody else sees any of this and the kernel takes it down when
// kern is gone.
func (s stage) build() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	// Opened before anything of the host is covered.
	open := map[string]int{}
	for _, d := range devices {
		fd, err := cloneTree("/dev/"+d, 0)
		if err != nil {
			return fmt.Errorf("open /dev/%s: %w", d, err)
		}
		open["dev/"+d] = fd
	}
	// kern looks at the group it is in, to see that the caps are in force.
	if fd, err := cloneTree("/sys/fs/cgroup", unix.MOUNT_ATTR_RDONLY); err == nil {
		open["sys/fs/cgroup"] = fd
	} else if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("open /sys/fs/cgroup: %w", err)
	}
	proc := -1
	if s.Own {
		// A proc of the host's own processes can be shown here, and no other one
		// mounted: it is what kern finds where it runs without a stage, too.
		fd, err := cloneTree("/proc", 0)
		if err != nil {
			return fmt.Errorf("open /proc: %w", err)
		}
		proc = fd
	}
	trees, err := s.open()
	if err != nil {
		return err
	}
	base, err := cover()
	if err != nil {
		return err
	}
	p := s.Parts
	p.Dirs = append([]string{"proc", "sys/fs/cgroup", "dev"}, p.Dirs...)
	for _, d := range devices {
		p.Empty = append(p.Empty, "dev/"+d)
	}
	private := func(dir string) error { return os.Chown(dir, s.UID, s.GID) }
	if s.Own {
		private = func(string) error { return nil } // it is made by that id
	}
	if err := p.make(base, private); err != nil {
		return fmt.Errorf("make the stage: %w", err)
	}
	if s.Own {
		open["proc"] = proc
	} else if err := unix.Mount("proc", filepath.Join(base, "proc"), "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount proc on the stage: %w", err)
	}
	for _, t := range s.Trees {
		n := 1 + t.Lower
		if err := t.put(base, trees[:n]); err != nil {
			return err
		}
		trees = trees[n:]
	}
	for at, fd := range open {
		if err := attach(fd, filepath.Join(base, at)); err != nil {
			return err
		}
	}
	if err := os.Chdir(base); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("enter the stage: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("let go of the host's root: %w", err)
	}
	return nil
}

// open gives the mounts of the trees: those that came along, or the host's own.
func (s stage) open() (trees []int, err error) {
	if s.descriptors() > 0 {
		for i := range s.layers() {
			trees = append(trees, lastFD+1+i)
		}
		return trees, nil
	}
	if len(s.Open) != s.layers() {
		return nil, errors.New("bug: the order names other sources than places for them")
	}
	for _, o := range s.Open {
		how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC}
		if !o.Links {
			how.Resolve = unix.RESOLVE_NO_SYMLINKS
		}
		at, err := unix.Openat2(unix.AT_FDCWD, o.Path, &how)
		if err != nil {
			return nil, fmt.Errorf("open %s for the box: %w", o.Path, err)
		}
		fd, err := unix.OpenTree(at, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_EMPTY_PATH)
		unix.Close(at)
		if err == nil {
			err = dress(fd, o.ReadOnly)
		}
		if err != nil {
			return nil, fmt.Errorf("open %s for the box: %w", o.Path, err)
		}
		trees = append(trees, fd)
	}
	return trees, nil
}

// dress gives a detached mount the attributes it has in every box.
func dress(fd int, readOnly bool) error {
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if readOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		return fmt.Errorf("set attributes: %w", err)
	}
	return nil
}

// put puts a source in its place on the stage.
func (t tree) put(base string, trees []int) error {
	at := filepath.Join(base, t.At)
	if t.Lower == 0 {
		return attach(trees[0], at)
	}
	fd, err := unix.Open(at, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the workspace's place: %w", err)
	}
	defer unix.Close(fd)
	if err := overlay.Mount(fd, trees); err != nil {
		return fmt.Errorf("%s: %w", overlayFailed, err)
	}
	for _, tree := range trees {
		unix.Close(tree)
	}
	return nil
}

// overlayFailed begins the launcher's words where the host does not let it mount
// the workspace. They are ours: kern has not been started by then.
const overlayFailed = "the workspace cannot be an overlay here"

// cover mounts the stage. Where does not matter.
func cover() (string, error) {
	var first error
	for _, dir := range []string{"/tmp", "/run", "/mnt"} {
		err := unix.Mount("stage", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755,size=64m,nr_inodes=65536")
		if err == nil {
			return dir, nil
		}
		if first == nil {
			first = fmt.Errorf("mount the stage at %s: %w", dir, err)
		}
	}
	return "", first
}

func cloneTree(path string, attrs uint64) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return -1, err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | attrs, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("set attributes: %w", err)
	}
	return fd, nil
}

func attach(tree int, at string) error {
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("put a mount on the stage at %s: %w", at, err)
	}
	return unix.Close(tree)
}

// become gives up root for good, in every thread and in every id.
func become(s stage) error {
	uid, gid := s.UID, s.GID
	// In a user namespace of ours groups were dropped, or can never be, before.
	if !s.Own {
		if err := syscall.Setgroups(nil); err != nil {
			return fmt.Errorf("drop groups: %w", err)
		}
	}
	if err := syscall.Setresgid(gid, gid, gid); err != nil {
		return fmt.Errorf("become group %d: %w", gid, err)
	}
	if err := syscall.Setresuid(uid, uid, uid); err != nil {
		return fmt.Errorf("become user %d: %w", uid, err)
	}
	// An exec takes away the permitted set of a process without uid 0; the
	// ambient set would bring it back.
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	if syscall.Setuid(0) == nil {
		return errors.New("root was given up and could be had again")
	}
	return nil
}
