package disk

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// removeContents empties a folder of ours, whatever a step put there: folders
// without permissions, or nested deeper than any path is long. Nobody writes
// there any more, so ".." leads back to where we came from.
func removeContents(top int) error {
	if err := removeBelow(top); err != nil {
		return fmt.Errorf("remove what a step wrote: %w", err)
	}
	return nil
}

// doomed is a folder that is being emptied. Its name is the last of subs of the
// folder above.
type doomed struct {
	fd   int // -1: left, and to be found again
	id   file
	subs []string // folders in it that are not empty
}

func removeBelow(top int) (err error) {
	fd, err := unix.FcntlInt(uintptr(top), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	way := []doomed{{fd: fd}}
	defer func() {
		for _, d := range way {
			if d.fd >= 0 {
				unix.Close(d.fd)
			}
		}
	}()
	if err := way[0].strip(); err != nil {
		return err
	}
	for {
		here := &way[len(way)-1]
		if n := len(here.subs); n > 0 {
			fd, err := ourFolder(here.fd, here.subs[n-1])
			if err != nil {
				return err
			}
			way = append(way, doomed{fd: fd})
			if err := way[len(way)-1].strip(); err != nil {
				return err
			}
			if k := len(way) - 1 - openDepth; k >= 0 && way[k].fd >= 0 {
				unix.Close(way[k].fd)
				way[k].fd = -1
			}
			continue
		}
		if len(way) == 1 {
			return nil
		}
		up := &way[len(way)-2]
		if up.fd < 0 {
			if up.fd, err = above(here.fd, up.id); err != nil {
				up.fd = -1
				return err
			}
		}
		unix.Close(here.fd)
		way = way[:len(way)-1]
		last := len(up.subs) - 1
		if err := unix.Unlinkat(up.fd, up.subs[last], unix.AT_REMOVEDIR); err != nil {
			return err
		}
		up.subs = up.subs[:last]
	}
}

// strip removes all that is not a folder with something in it, and lists those.
func (d *doomed) strip() error {
	var st unix.Stat_t
	if err := unix.Fstat(d.fd, &st); err != nil {
		return err
	}
	d.id = fileOf(&st)
	names, err := list(d.fd)
	if errors.Is(err, unix.ENOENT) {
		return nil // it was removed itself, and so it is empty
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		err := unix.Unlinkat(d.fd, name, 0)
		if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
			err = unix.Unlinkat(d.fd, name, unix.AT_REMOVEDIR)
		}
		switch {
		case err == nil || errors.Is(err, unix.ENOENT):
		case errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST):
			d.subs = append(d.subs, name)
		default:
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
