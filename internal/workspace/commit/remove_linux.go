package commit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	// maxOpen is how many folders of a tree are open while it is removed. What
	// lies deeper is first moved up to the top.
	maxOpen = 48
	// maxPasses is how often a folder is listed again while something keeps
	// putting entries there.
	maxPasses = 64
)

// RemoveTree removes a folder, or whatever else has that name, and all below
// it. Nothing there is an error to it that a program without privileges can
// make: a folder that may not be read, a path that is longer than a path can
// be, a million entries. Links are removed and not followed. A file system that
// is mounted within is an error, and not emptied. What is not there is removed
// already.
func RemoveTree(dir string) error {
	parent, base := filepath.Split(filepath.Clean(dir))
	if base == "" || base == "." || base == ".." {
		return fmt.Errorf("remove %q: it names no entry of a folder", dir)
	}
	if parent == "" {
		parent = "."
	}
	fd, err := openAt(unix.AT_FDCWD, parent, pathFlags&^unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		defer unix.Close(fd)
		err = removeAt(fd, base, nil)
	}
	if err != nil {
		return fmt.Errorf("remove %q: %w", dir, err)
	}
	return nil
}

// remover empties one tree.
type remover struct {
	top   int // the folder itself
	fresh int // numbers for names at the top
	step  func(string)
}

// removeAt removes a name of an open folder and all below it. An error that is
// EACCES says that the folder itself does not let us.
func removeAt(dir int, name string, step func(string)) error {
	if step == nil {
		step = func(string) {}
	}
	err := unlink(dir, name, 0)
	switch err {
	case nil:
		step("unlink")
		return nil
	case unix.ENOENT:
		return nil
	case unix.EISDIR, unix.EPERM: // POSIX has the second for a folder
	default:
		return err
	}
	if st, serr := lstatAt(dir, name); serr != nil || !isDir(st.Mode) {
		return err
	}
	// An empty one is the common case, and goes whatever its mode is.
	if err := unlink(dir, name, unix.AT_REMOVEDIR); err == nil || err == unix.ENOENT {
		step("rmdir")
		return nil
	} else if err != unix.ENOTEMPTY && err != unix.EEXIST {
		return err
	}
	top, err := enter(dir, name)
	if err != nil {
		return fmt.Errorf("open folder %s: %w", shown([]byte(name)), inner(err))
	}
	defer unix.Close(top)
	r := remover{top: top, step: step}
	for pass := 0; ; pass++ {
		if err := r.empty(top, 0); err != nil {
			return fmt.Errorf("empty folder %s: %w", shown([]byte(name)), inner(err))
		}
		err := unlink(dir, name, unix.AT_REMOVEDIR)
		if err == nil || err == unix.ENOENT {
			step("rmdir")
			return nil
		}
		if err != unix.ENOTEMPTY && err != unix.EEXIST || pass == maxPasses {
			return err
		}
	}
}

// inner keeps an EACCES from within a tree from looking like one of the folder
// around it, which opening up would cure.
func inner(err error) error {
	if errors.Is(err, unix.EACCES) {
		return fmt.Errorf("%s (%w)", err.Error(), unix.EPERM)
	}
	return err
}

// enter opens a folder that is to be emptied, and gives us all rights to it if
// it is ours. It does not cross into another mount: what is mounted there is
// somebody's and was never the step's.
func enter(dir int, name string) (int, error) {
	fd, err := beneath(dir, name, listFlags, unix.RESOLVE_NO_XDEV)
	if err == unix.EACCES {
		var shut int
		if shut, err = beneath(dir, name, pathFlags, unix.RESOLVE_NO_XDEV); err != nil {
			return -1, err
		}
		err = chmodFD(shut, 0o700)
		unix.Close(shut)
		if err != nil {
			return -1, err
		}
		fd, err = beneath(dir, name, listFlags, unix.RESOLVE_NO_XDEV)
	}
	if err == unix.EXDEV {
		return -1, fmt.Errorf("another file system is mounted there: %w", err)
	}
	if err != nil {
		return -1, err
	}
	st, err := statFD(fd)
	if err == nil && st.Mode&0o700 != 0o700 && int(st.Uid) == os.Geteuid() {
		err = again(func() error { return unix.Fchmod(fd, 0o700) })
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// empty removes what is in a folder. It is called once for each level below the
// top, and no deeper than maxOpen.
func (r *remover) empty(fd, depth int) error {
	buf := make([]byte, 16<<10)
	var names []string
	for pass := 0; ; pass++ {
		if _, err := unix.Seek(fd, 0, 0); err != nil {
			return err
		}
		met, lifted := 0, r.fresh
		for {
			var n int
			err := again(func() (err error) {
				n, err = unix.Getdents(fd, buf)
				return err
			})
			if err != nil {
				return err
			}
			if n == 0 {
				break
			}
			_, _, names = unix.ParseDirent(buf[:n], -1, names[:0])
			for _, name := range names {
				met++
				if err := r.entry(fd, name, depth); err != nil {
					return fmt.Errorf("%s: %w", shown([]byte(name)), err)
				}
			}
		}
		// A pass that met nothing is the proof: a list that is read while it
		// changes may leave entries out.
		if met == 0 {
			return nil
		}
		if r.fresh > lifted {
			pass = 0 // a deep tree takes as many as it is deep
		}
		if pass == maxPasses {
			return fmt.Errorf("something keeps writing there")
		}
	}
}

func (r *remover) entry(fd int, name string, depth int) error {
	err := unlink(fd, name, 0)
	switch err {
	case nil:
		r.step("unlink")
		return nil
	case unix.ENOENT:
		return nil
	case unix.EISDIR, unix.EPERM:
	default:
		return err
	}
	if e := unlink(fd, name, unix.AT_REMOVEDIR); e == nil {
		r.step("rmdir")
		return nil
	} else if e == unix.ENOTDIR {
		return err // so the first error was not about a folder
	} else if e != unix.ENOTEMPTY && e != unix.EEXIST {
		return e
	}
	sub, err := enter(fd, name)
	if err != nil {
		return err
	}
	defer unix.Close(sub)
	if depth+1 >= maxOpen {
		return r.lift(fd, name)
	}
	if err := r.empty(sub, depth+1); err != nil {
		return err
	}
	err = unlink(fd, name, unix.AT_REMOVEDIR)
	if err == unix.ENOENT || err == unix.ENOTEMPTY || err == unix.EEXIST {
		return nil // the next pass meets it again, if it is there
	}
	r.step("rmdir")
	return err
}

// lift moves a folder up to the top, whose next pass meets it. So no tree is
// ever deeper than maxOpen, and no step can make us hold more.
func (r *remover) lift(fd int, name string) error {
	for {
		r.fresh++
		err := again(func() error {
			return unix.Renameat2(fd, name, r.top, ".lifted-"+strconv.Itoa(r.fresh), unix.RENAME_NOREPLACE)
		})
		if err == nil {
			r.step("lift")
			return nil
		}
		if err != unix.EEXIST {
			return err
		}
	}
}
