package seccomp

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// report is struct seccomp_notif: a call that waits for our answer.
type report struct {
	ID    uint64
	PID   uint32 // the calling thread, in our pid namespace; 0 if not in it
	Flags uint32
	Call  callData
}

// response is struct seccomp_notif_resp.
type response struct {
	ID    uint64
	Value int64
	Error int32
	Flags uint32
}

// sizesAgree refuses a kernel whose structures outgrew ours: it would write
// past the end of them.
func sizesAgree() error {
	var sizes struct{ report, response, data uint16 }
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_NOTIF_SIZES, 0, uintptr(unsafe.Pointer(&sizes)))
	if errno != 0 {
		return fmt.Errorf("ask the kernel about system call notification (Linux 5.0): %w", errno)
	}
	if uintptr(sizes.report) > unsafe.Sizeof(report{}) || uintptr(sizes.response) > unsafe.Sizeof(response{}) {
		return fmt.Errorf("the kernel's system call notifications have a form that is not known here (%d and %d bytes)", sizes.report, sizes.response)
	}
	return nil
}

// receive waits for the next report. The kernel counts the calls and keeps a
// list of those that wait, and it is the count that lets us in:
//
//   - unix.ENOENT: a call was made, and a signal or death took the caller out
//     of it before it came to us. Waiting with poll instead would miss it: that
//     looks at the list. Since Linux 6.11 it is also the answer, at once and
//     for ever, when every process under the filter is gone; see allGone.
//   - unix.EINTR: wakeSignal came, and the count was zero afterwards.
func receive(listener int) (report, error) {
	var r report // the kernel wants it zero
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&r)))
	if errno != 0 {
		return r, errno
	}
	return r, nil
}

// allGone says whether no process is left under the filter. There will never be
// another one then.
func allGone(listener int) (bool, error) {
	for {
		fds := []unix.PollFd{{Fd: int32(listener)}}
		_, err := unix.Poll(fds, 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return false, fmt.Errorf("ask whether a filter is still in use: %w", err)
		// wakeSignal came while the kernel had the filter locked. It has not
		// looked.
		case fds[0].Revents&(unix.POLLERR|unix.POLLHUP) == unix.POLLERR:
		default:
			return fds[0].Revents&unix.POLLHUP != 0, nil
		}
	}
}

// stillWaits says whether the caller of a report is stopped in that very call:
// as long as it is, its ids belong to it and to no later process.
func stillWaits(listener int, id uint64) bool {
	return control(listener, unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&id)) == nil
}

// refuse answers a report with EPERM. Answering "continue" would let the call
// happen, with arguments that may have changed since; there is no code for it.
func refuse(listener int, id uint64) error {
	r := response{ID: id, Error: -int32(unix.EPERM)}
	return control(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r))
}

func control(fd int, request uintptr, arg unsafe.Pointer) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return errno
		}
	}
}
