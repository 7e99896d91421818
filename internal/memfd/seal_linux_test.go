package memfd

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestSeal(t *testing.T) {
	fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "x")
	defer f.Close()
	if _, err := f.WriteString("a"); err != nil {
		t.Fatal(err)
	}
	// A mapping that can be written is what the kernel waits for nobody to have.
	m, err := unix.Mmap(fd, 0, 1, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	gone := time.AfterFunc(50*time.Millisecond, func() { _ = unix.Munmap(m) })
	defer gone.Stop()
	if err := Seal(f.Fd()); err != nil {
		t.Fatalf("not sealed once the page was free: %v", err)
	}
	if _, err := f.WriteString("b"); err == nil {
		t.Error("it was written to")
	}
	if err := Seal(f.Fd()); err != unix.EPERM {
		t.Errorf("sealed again: %v", err)
	}
}

func TestBusyForEver(t *testing.T) {
	n := 0
	err := tried(20*time.Millisecond, func() error { n++; return unix.EBUSY })
	if err != unix.EBUSY || n < 2 {
		t.Errorf("%v after %d tries", err, n)
	}
}
