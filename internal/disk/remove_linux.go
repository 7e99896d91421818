package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// removeContents empties a folder of ours, whatever a step put there: folders
// without permissions, or nested deeper than any path is long. Nobody writes
// there any more. What is a folder is moved up to the top first, so nothing is
// ever deeper than one level, and one name is enough.
func removeContents(top int) error {
	moved := 0
	for {
		again, err := emptyOnce(top, top, &moved)
		if err != nil {
			return fmt.Errorf("remove what a step wrote: %w", err)
		}
		if !again {
			return nil
		}
	}
}

// emptyOnce removes what it can in a folder and moves the rest to the top. It
// says whether there is something left to be removed.
func emptyOnce(dir, top int, moved *int) (again bool, err error) {
	names, err := list(dir)
	if err != nil {
		return false, err
	}
	for _, name := range names {
		err := unix.Unlinkat(dir, name, 0)
		if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
			err = unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
		}
		switch {
		case err == nil || errors.Is(err, unix.ENOENT):
			continue
		case !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST):
			return false, err
		}
		again = true
		fd, err := ourFolder(dir, name)
		if err != nil {
			return false, err
		}
		err = liftAll(fd, top, moved)
		unix.Close(fd)
		if err != nil {
			return false, err
		}
	}
	return again, nil
}

// liftAll unlinks what is no folder in dir and moves its folders to the top.
func liftAll(dir, top int, moved *int) error {
	names, err := list(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		err := unix.Unlinkat(dir, name, 0)
		if err == nil || errors.Is(err, unix.ENOENT) {
			continue
		}
		if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
			return err
		}
		if err := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); err == nil {
			continue
		}
		// To move a folder changes its "..", which takes the right to write it.
		fd, err := ourFolder(dir, name)
		if err != nil {
			return err
		}
		unix.Close(fd)
		for {
			*moved++
			err = unix.Renameat2(dir, name, top, "gone-"+strconv.Itoa(*moved), unix.RENAME_NOREPLACE)
			if !errors.Is(err, unix.EEXIST) {
				break
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ourFolder opens a folder and takes all rights to it.
func ourFolder(at int, name string) (int, error) {
	fd, err := openFolder(at, name)
	if err != nil {
		return -1, err
	}
	if err := unix.Fchmod(fd, 0o700); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func list(dir int) ([]string, error) {
	dup, err := unix.FcntlInt(uintptr(dir), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	d := os.NewFile(uintptr(dup), "folder")
	defer d.Close()
	if _, err := d.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return d.Readdirnames(-1)
}
