package boxinit

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// harden makes the first process untouchable for the step, which runs as the
// same user id.
func harden() error {
	// Not dumpable: no ptrace, no /proc/1/mem, environ, fd, exe for the step.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("clear dumpable: %w", err)
	}
	// A core dump would run the host's core_pattern program with the box's
	// bytes. One byte is the limit that the kernel takes as "never", for
	// pipes as well as for files; zero still starts a pipe's program.
	// Where the limit is zero already (sudo does that) it cannot be raised to
	// one; then the host has chosen, and there is no file at least.
	var core unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &core); err != nil {
		return fmt.Errorf("read the limit of core dumps: %w", err)
	}
	if core.Max > 0 {
		if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1, Max: 1}); err != nil {
			return fmt.Errorf("limit core dumps: %w", err)
		}
	}
	return defaultSignals()
}

// defaultSignals gives every signal its default action, behind the back of the
// Go runtime. A process 1 whose action for a signal is the default cannot be
// sent it from inside its namespace; with the runtime's handlers in place a
// step could end the box with kill -TERM 1. A true crash still kills us.
func defaultSignals() error {
	var sa struct {
		handler, flags, restorer uintptr
		mask                     uint64
	}
	for sig := uintptr(1); sig <= 64; sig++ {
		if sig == uintptr(unix.SIGKILL) || sig == uintptr(unix.SIGSTOP) || sig == 32 || sig == 33 {
			continue // cannot be set, or reserved by C libraries and unused here
		}
		_, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&sa)), 0, 8, 0, 0)
		if e != 0 {
			return fmt.Errorf("reset signal %d: %w", sig, e)
		}
	}
	return nil
}

// cutBounding removes every capability but keep from the bounding set of the
// calling thread, and so of all it will start, for good.
func cutBounding(keep []int) error {
	mask := capMask(keep)
	// A thread's own, like the bounding set: it must be this thread's.
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	have, err := permitted()
	if err != nil {
		return err
	}
	for c := 0; c < 64; c++ {
		if mask&(1<<uint(c)) != 0 {
			continue
		}
		v, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0)
		if err != nil {
			break // past the last capability of this kernel
		}
		if v == 0 {
			continue
		}
		// Without CAP_SETPCAP the bounding set cannot be cut. It then bounds
		// nothing that could be had: no_new_privs holds and there is no
		// privileged file, since every mount is nosuid.
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil && have&(1<<unix.CAP_SETPCAP) != 0 {
			return fmt.Errorf("drop capability %d from the bounding set: %w", c, err)
		}
	}
	return nil
}

// dropAll leaves every thread of this process with keep, of what it has.
func dropAll(keep []int) error {
	hdr, data, err := reduced(keep)
	if err != nil {
		return err
	}
	_, _, e := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&data[0])), 0)
	switch e {
	case 0:
		return nil
	case syscall.ENOTSUP:
		// A program built with cgo can only speak for one thread. The step's
		// thread does so for itself; the rest of the runtime's threads run
		// nothing of the step's and cannot be reached by it.
		return dropOwn(keep)
	}
	return fmt.Errorf("drop capabilities: %w", e)
}

// dropOwn leaves the calling thread with keep, of what it has.
func dropOwn(keep []int) error {
	hdr, data, err := reduced(keep)
	if err != nil {
		return err
	}
	if err := unix.Capset(&hdr, &data[0]); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	return nil
}

// reduced is what capset is told to leave keep, of what there is.
func reduced(keep []int) (hdr unix.CapUserHeader, data [2]unix.CapUserData, err error) {
	have, err := permitted()
	if err != nil {
		return hdr, data, err
	}
	mask := capMask(keep) & have
	for i := range data {
		w := uint32(mask >> (32 * i))
		data[i] = unix.CapUserData{Effective: w, Permitted: w, Inheritable: w}
	}
	hdr.Version = unix.LINUX_CAPABILITY_VERSION_3
	return hdr, data, nil
}

// raiseAmbient lets the calling thread hand keep on to a program it starts.
func raiseAmbient(keep []int) error {
	have, err := permitted()
	if err != nil {
		return err
	}
	for _, c := range keep {
		if have&(1<<uint(c)) == 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(c), 0, 0); err != nil {
			return fmt.Errorf("raise ambient capability %d: %w", c, err)
		}
	}
	return nil
}

func capMask(caps []int) (mask uint64) {
	for _, c := range caps {
		mask |= 1 << uint(c)
	}
	return mask
}

func permitted() (uint64, error) {
	var data [2]unix.CapUserData
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return 0, fmt.Errorf("read capabilities: %w", err)
	}
	return uint64(data[0].Permitted) | uint64(data[1].Permitted)<<32, nil
}
