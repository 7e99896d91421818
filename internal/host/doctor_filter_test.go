package host

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// setFilter puts a filter on this thread. Its listener, if it asks for one, stays
// open for as long as this process.
func setFilter(flags uintptr, prog *unix.SockFprog) error {
	const setModeFilter = 1
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, setModeFilter, flags, uintptr(unsafe.Pointer(prog)))
	if errno != 0 {
		return errno
	}
	if flags == 0 {
		return nil
	}
	// A listener that nobody holds any more is in nobody's way.
	_, err := unix.FcntlInt(fd, unix.F_SETFD, 0)
	return err
}
