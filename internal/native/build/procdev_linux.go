package build

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/stage"
)

// maskedProc and readOnlyProc are what Docker hides and protects.
var (
	maskedProc = []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi",
		// Beyond Docker: the kernel's symbols, messages and modules.
		"/proc/kallsyms", "/proc/kmsg", "/proc/modules",
	}
	// /proc/1 is our own process: the step runs as the same id.
	readOnlyProc = []string{"/proc/1", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// deviceNames are the device nodes of a box, bound from the host: a user
// namespace cannot make any.
var deviceNames = []string{"null", "zero", "full", "random", "urandom"}

func openDevices() (map[string]int, error) {
	out := map[string]int{}
	for _, n := range deviceNames {
		fd, err := stage.OpenNode("/dev/" + n)
		if err != nil {
			return nil, err
		}
		out[n] = fd
	}
	return out, nil
}

func mountProc() error {
	err := stage.MountAt("/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w (the kernel refuses a fresh /proc where the one outside is partly covered, as in a container)", err)
	}
	return err
}

func mountDev(devices map[string]int, shm int64) error {
	if err := stage.MountAt("/dev", "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755,size=64k,nr_inodes=128"); err != nil {
		return err
	}
	for _, n := range deviceNames {
		if err := stage.Attach(devices[n], ".", "/dev/"+n, ""); err != nil {
			return fmt.Errorf("%s: %w", n, err)
		}
		unix.Close(devices[n])
	}
	for name, target := range map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"} {
		if err := os.Symlink(target, "dev/"+name); err != nil {
			return err
		}
	}
	at, err := stage.Place(".", "/dev/shm", true, "")
	if err != nil {
		return err
	}
	defer unix.Close(at)
	if err := stage.MountMemory(at, shm, 0o1777); err != nil {
		return fmt.Errorf("shm: %w", err)
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(unix.AT_FDCWD, "dev", 0, &attr); err != nil {
		return fmt.Errorf("make read-only: %w", err)
	}
	return nil
}

// maskProc covers what a fresh /proc still shows of the host.
func maskProc() error {
	for _, p := range readOnlyProc {
		fd, err := unix.OpenTree(unix.AT_FDCWD, p, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC}
		if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		if err := unix.MoveMount(fd, "", unix.AT_FDCWD, p, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		unix.Close(fd)
	}
	for _, p := range maskedProc {
		st, err := os.Lstat(p)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		if st.IsDir() {
			err = unix.Mount("box", p, "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=555,size=4k,nr_inodes=2")
		} else {
			err = unix.Mount("/dev/null", p, "", unix.MS_BIND, "")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	return nil
}
