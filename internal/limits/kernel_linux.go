package limits

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// kernel is what this package asks of the control group and proc file systems.
type kernel interface {
	read(path string) (string, error)
	// write writes an existing file with one system call, as the kernel's
	// files want it.
	write(path, text string) error
	mkdir(path string) error
	rmdir(path string) error
	// list names the folders in a folder.
	list(path string) ([]string, error)
	// link reads a symbolic link.
	link(path string) (string, error)
	// writable says whether a file could be opened for writing, without
	// doing so.
	writable(path string) bool
	// delegated says whether systemd marked a folder as left to others.
	delegated(path string) bool
	// missing says whether there is certainly no process of that id.
	missing(pid int) bool
	// kill ends a process if, once it can no longer be mistaken for a later
	// one with the same id, still holds.
	kill(pid int, still func() (bool, error)) error
	sleep(d time.Duration)
}

// maxKernelFile is more than any file we read has. A list of processes is the
// longest: 4 million lines of 8 bytes.
const maxKernelFile = 32 << 20

type hostKernel struct{}

// read and write call the kernel directly: os.File would first ask whether the
// file can be waited for, which is half the time, and a step reads dozens.
func (hostKernel) read(path string) (string, error) {
	fd, err := openFile(path, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var all []byte
	buf := make([]byte, 4096)
	for {
		n, err := unix.Read(fd, buf)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return "", &os.PathError{Op: "read", Path: path, Err: err}
		case n == 0:
			return string(all), nil
		case len(all)+n > maxKernelFile:
			return "", fmt.Errorf("read %s: it is longer than %d bytes", path, maxKernelFile)
		}
		all = append(all, buf[:n]...)
	}
}

func (hostKernel) write(path, text string) error {
	fd, err := openFile(path, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for {
		n, err := unix.Write(fd, []byte(text))
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return &os.PathError{Op: "write", Path: path, Err: err}
		case n != len(text):
			return &os.PathError{Op: "write", Path: path, Err: io.ErrShortWrite}
		}
		return nil
	}
}

func openFile(path string, mode int) (int, error) {
	for {
		fd, err := unix.Open(path, mode|unix.O_CLOEXEC, 0)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return -1, &os.PathError{Op: "open", Path: path, Err: err}
		}
		return fd, nil
	}
}

func (hostKernel) mkdir(path string) error { return os.Mkdir(path, 0o755) }

// rmdir and not os.Remove: that one tries to unlink first.
func (hostKernel) rmdir(path string) error {
	for {
		err := unix.Rmdir(path)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return &os.PathError{Op: "rmdir", Path: path, Err: err}
		}
		return nil
	}
}

func (hostKernel) list(path string) ([]string, error) {
	// A control group's folder has one link for each folder in it, its own two
	// apart: nearly always there is nothing to read.
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err == nil && st.Nlink == 2 {
		return nil, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, e := range entries {
		if e.IsDir() {
			dirs = append(dirs, e.Name())
		}
	}
	return dirs, nil
}

func (hostKernel) writable(path string) bool {
	return unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS) == nil
}

func (hostKernel) delegated(path string) bool {
	// user.delegate can be read by anybody and comes with systemd 251; the
	// older trusted.delegate can be read by root only.
	for _, name := range []string{"user.delegate", "trusted.delegate"} {
		b := make([]byte, 8)
		if n, err := unix.Getxattr(path, name, b); err == nil && string(b[:n]) == "1" {
			return true
		}
	}
	return false
}

func (hostKernel) missing(pid int) bool { return unix.Kill(pid, 0) == unix.ESRCH }

func (hostKernel) kill(pid int, still func() (bool, error)) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH {
		return nil
	}
	if err != nil {
		return fmt.Errorf("pidfd_open %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if ok, err := still(); err != nil || !ok {
		return err
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && err != unix.ESRCH {
		return fmt.Errorf("kill %d: %w", pid, err)
	}
	return nil
}

func (hostKernel) sleep(d time.Duration) { time.Sleep(d) }

func (hostKernel) link(path string) (string, error) { return os.Readlink(path) }
