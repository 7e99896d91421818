package seccomp

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Install puts a filter, in the encoding of [Program.Raw], on the calling
// thread and on everything it starts from now on. The caller has locked the
// goroutine to its thread, never unlocks it, and has set no_new_privs. The
// other threads of the process stay unfiltered.
//
// The listener is closed on exec. It must reach the host, and no copy of it may
// stay in the box: whoever holds it answers for the filter.
func Install(prog []byte) (listener int, err error) {
	if err := sizesAgree(); err != nil {
		return -1, err
	}
	filter, err := instructions(prog)
	if err != nil {
		return -1, err
	}
	fprog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}

	// Once the host has a report in hand, only death may take the caller out
	// of it: with signals it could step aside between the report and the kill.
	// Linux before 5.19 does not know the flag; there a caller that does so is
	// still reported.
	flags := uintptr(unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)
	fd, errno := setFilter(flags, &fprog)
	if errno == unix.EINVAL {
		fd, errno = setFilter(unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, &fprog)
	}
	runtime.KeepAlive(filter)
	switch errno {
	case 0:
		return fd, nil
	case unix.EBUSY:
		return -1, fmt.Errorf("install the system call filter: something outside already listens to this process's filter (a container runtime's seccomp agent); run without it: %w", errno)
	case unix.EACCES:
		return -1, fmt.Errorf("install the system call filter: no_new_privs is not set on this thread: %w", errno)
	case unix.EINVAL:
		return -1, fmt.Errorf("install the system call filter: the kernel must be Linux 5.6 or newer, with CONFIG_SECCOMP_FILTER: %w", errno)
	}
	return -1, fmt.Errorf("install the system call filter: %w", errno)
}

// InstallPlain puts a filter that reports nothing on the calling thread and on
// everything it starts from now on. What [Install] says of the thread holds.
func InstallPlain(prog []byte) error {
	filter, err := instructions(prog)
	if err != nil {
		return err
	}
	fprog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, errno := setFilter(0, &fprog)
	runtime.KeepAlive(filter)
	switch errno {
	case 0:
		return nil
	case unix.EACCES:
		return fmt.Errorf("install the guard of the first process: no_new_privs is not set on this thread: %w", errno)
	}
	return fmt.Errorf("install the guard of the first process: %w", errno)
}

// instructions reads a program in the kernel's own form. It is never empty.
func instructions(prog []byte) ([]unix.SockFilter, error) {
	p, err := ParseProgram(prog)
	if err != nil {
		return nil, err
	}
	filter := make([]unix.SockFilter, p.Len())
	for i, r := range p.raw {
		filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return filter, nil
}

func setFilter(flags uintptr, prog *unix.SockFprog) (int, unix.Errno) {
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(prog)))
	return int(fd), errno
}
