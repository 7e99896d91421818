package seccomp

import (
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

// receive takes the next report. unix.ENOENT means that its caller is gone.
func receive(listener int) (report, error) {
	var r report // the kernel wants it zero
	return r, control(listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&r))
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
