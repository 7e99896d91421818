package seccomp

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// wakeSignal takes a thread out of a wait for the next report: neither closing
// the listener nor anything else this side can do would. The Go runtime has a
// handler for it, which does nothing as long as nobody asks os/signal for it.
const wakeSignal = unix.Signal(63)

const saRestart = 0x10000000 // SA_RESTART

// treatment is struct sigaction of the system call.
type treatment struct{ handler, flags, restorer, mask uint64 }

// interruptsCalls makes the runtime's own handler for a signal end the system
// call it comes into with EINTR. The runtime asks the kernel to restart calls,
// and a restarted wait would not end. Doing it twice changes nothing.
func interruptsCalls(signal unix.Signal) error {
	var a treatment
	if err := sigaction(signal, nil, &a); err != nil {
		return err
	}
	if a.handler <= 1 { // the default, which is death, or ignored
		return fmt.Errorf("signal %d has no handler in this program", signal)
	}
	if a.flags&saRestart == 0 {
		return nil
	}
	a.flags &^= saRestart
	return sigaction(signal, &a, nil)
}

func sigaction(signal unix.Signal, set, old *treatment) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(signal),
		uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(old)), unsafe.Sizeof(treatment{}.mask), 0, 0)
	if errno != 0 {
		return fmt.Errorf("set what signal %d does: %w", signal, errno)
	}
	return nil
}

// admitWake lets the signal through to the calling thread, which may have
// inherited a mask that holds it back, and gives the way back.
func admitWake() (restore func(), err error) {
	var set, old unix.Sigset_t
	bits := uint(unsafe.Sizeof(set.Val[0]) * 8)
	set.Val[(uint(wakeSignal)-1)/bits] |= 1 << ((uint(wakeSignal) - 1) % bits)
	if err := unix.PthreadSigmask(unix.SIG_UNBLOCK, &set, &old); err != nil {
		return nil, fmt.Errorf("let signal %d through: %w", wakeSignal, err)
	}
	return func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil) }, nil
}
