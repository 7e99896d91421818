package seccomp

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// otherEscape makes calls in conventions that a Go program has no use for.
func otherEscape(name string) error {
	switch name {
	case "x32 getpid":
		_, _, errno := unix.RawSyscall(x32Bit|unix.SYS_GETPID, 0, 0, 0)
		return errno
	case "i386 getpid":
		return i386(20)
	}
	return fmt.Errorf("no escape %q", name)
}

// i386 makes a system call as a 32-bit program would, which every 64-bit one
// can: mov eax, number; int 0x80; ret.
func i386(number byte) error {
	page, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	copy(page, []byte{0xb8, number, 0, 0, 0, 0xcd, 0x80, 0xc3})
	if err := unix.Mprotect(page, unix.PROT_READ|unix.PROT_EXEC); err != nil {
		return err
	}
	// A func value points to a word that holds the address of the code.
	code := &page[0]
	value := &code
	(*(*func())(unsafe.Pointer(&value)))()
	return nil
}

var otherEscapes = []struct{ name, reported string }{
	{"x32 getpid", "x32 system call 39"},
	{"i386 getpid", "i386 system call 20"},
}
