package delta

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// seeker looks one path up, without what a walk knows.
type seeker struct {
	ours   bool  // the topmost layer is the step's, and may be opened up
	opened []int // folders on the way, the last openFrames of them
	kept   []int // those that undo needs
	undo   []func() error
}

// done closes what was opened on the way and gives modes back.
func (s *seeker) done() (err error) {
	for _, undo := range s.undo {
		err = errors.Join(err, undo())
	}
	for _, fd := range append(s.opened, s.kept...) {
		unix.Close(fd)
	}
	return err
}

func (d *Delta) find(when string, layers []Layer, path string, ours bool) (Found, error) {
	l, err := d.seek(layers, path, ours, nil)
	if err != nil {
		return Found{}, fmt.Errorf("look at %q as it was %s: %w", shown(path), when, err)
	}
	return l.found(), nil
}

func (d *Delta) open(when string, layers []Layer, path string, ours bool) (*os.File, error) {
	var file *os.File
	l, err := d.seek(layers, path, ours, func(name string, l look, ours bool) error {
		fd, err := openContent(name, l, ours)
		if err == nil {
			file = os.NewFile(uintptr(fd), shown(path))
		}
		return err
	})
	switch {
	case err != nil:
		if file != nil {
			file.Close()
		}
		return nil, fmt.Errorf("open %q as it was %s: %w", shown(path), when, err)
	case file == nil:
		return nil, notAFile(when, path, l.found())
	}
	return file, nil
}

// seek looks a path up in layers, top first, one after the other: each either
// has it, or hides it from those below, or says nothing about it. read is called
// for a regular file.
func (d *Delta) seek(layers []Layer, path string, ours bool, read func(name string, l look, ours bool) error) (look, error) {
	names, err := components(path)
	if err != nil {
		return look{}, err
	}
	if ours && unix.Geteuid() != 0 {
		// Modes are changed for a moment, and two at once would take one
		// another's for the true one.
		d.opening.Lock()
		defer d.opening.Unlock()
	}
	for i, layer := range layers {
		s := &seeker{ours: ours && i == 0 && unix.Geteuid() != 0}
		l, hides, err := s.layer(layer, names)
		if err == nil && read != nil && !l.denied && l.is(unix.S_IFREG) {
			err = read(names[len(names)-1], l, s.ours)
		}
		if err == nil && l.denied && l.mode == 0 {
			err = unix.EACCES
		}
		if err := errors.Join(err, s.done()); err != nil {
			return look{}, err
		}
		if l.there || hides {
			return l, nil
		}
	}
	return look{}, nil
}

// layer looks a path up in one layer.
func (s *seeker) layer(l Layer, names []string) (got look, hides bool, err error) {
	root, seen, err := openRoot(l.Dir)
	if err != nil {
		return look{}, false, err
	}
	if len(names) == 0 {
		if root.fd >= 0 {
			s.opened = append(s.opened, root.fd)
		}
		return seen, true, nil
	}
	if s.ours && seen.mode&ownerAll != ownerAll {
		if root.fd >= 0 {
			unix.Close(root.fd)
		}
		mode := uint32(seen.mode & modePerm)
		if err := unix.Chmod(l.Dir, mode|ownerAll); err != nil {
			return look{}, false, err
		}
		s.undo = append(s.undo, func() error { return unix.Chmod(l.Dir, mode) })
		if root, _, err = openRoot(l.Dir); err != nil {
			return look{}, false, err
		}
	}
	if root.fd < 0 {
		return look{}, false, unix.EACCES
	}
	s.opened = append(s.opened, root.fd)
	last := names[len(names)-1]
	if !l.Marks && !s.ours {
		fd, hides, err := openBelow(root.fd, names[:len(names)-1])
		if err != nil || fd < 0 {
			return look{}, hides, err
		}
		s.opened = append(s.opened, fd)
		got, err = lookIn(fd, last, 0)
		return got, false, err
	}
	return s.steps(l, root, names)
}

// openBelow opens a folder in a layer without marks, in as few steps as the
// kernel takes a path in. Where a link or a file is on the way there is nothing,
// and that hides what layers below have.
func openBelow(root int, names []string) (fd int, hides bool, err error) {
	fd, err = openAt(root, ".", openPath)
	if err != nil {
		return -1, false, err
	}
	for len(names) > 0 {
		n, length := 0, 0
		for n < len(names) && length+len(names[n])+1 < pathMax {
			length += len(names[n]) + 1
			n++
		}
		if n == 0 {
			unix.Close(fd)
			return -1, false, nil // no name is that long
		}
		var next int
		err := again(func() (err error) {
			next, err = unix.Openat2(fd, strings.Join(names[:n], "/"), &unix.OpenHow{
				Flags:   openPath,
				Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
			})
			return err
		})
		unix.Close(fd)
		switch err {
		case nil:
		case unix.ENOENT, unix.ENAMETOOLONG:
			return -1, false, nil
		case unix.ENOTDIR, unix.ELOOP:
			return -1, true, nil
		default:
			return -1, false, err
		}
		fd, names = next, names[n:]
	}
	return fd, false, nil
}

// steps looks a path up name by name, as marks may stand at each.
func (s *seeker) steps(l Layer, at folder, names []string) (got look, hides bool, err error) {
	for i, name := range names {
		got, err = lookIn(at.fd, name, 0)
		got.layer = 0
		switch {
		case err != nil:
			return look{}, false, err
		case !got.there:
			return look{}, hides, nil
		case got.denied || l.Marks && got.whiteout():
			return look{there: got.denied, denied: got.denied}, true, nil
		case i == len(names)-1:
			return got, false, nil
		case !got.is(unix.S_IFDIR):
			return look{}, true, nil
		}
		if s.ours && got.mode&ownerAll != ownerAll {
			if err := openUp(at.fd, name, got, ownerAll); err != nil {
				return look{}, false, err
			}
			parent, err := unix.FcntlInt(uintptr(at.fd), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				return look{}, false, errors.Join(err, openUp(at.fd, name, got, 0))
			}
			s.kept = append(s.kept, parent)
			was := got
			s.undo = append([]func() error{func() error { return openUp(parent, name, was, 0) }}, s.undo...)
		}
		next, err := openFolder(at.fd, name, got)
		if err != nil {
			return look{}, false, err
		}
		if next.fd < 0 {
			return look{}, false, unix.EACCES
		}
		s.opened = append(s.opened, next.fd)
		if n := len(s.opened) - openFrames; n > 0 {
			// A path may have more folders than we may have descriptors.
			unix.Close(s.opened[0])
			s.opened = s.opened[1:]
		}
		if at = next; l.Marks {
			yes, known, err := at.opaque()
			if err != nil {
				return look{}, false, err
			}
			if !known {
				return look{}, false, unix.EACCES
			}
			hides = hides || yes
		}
	}
	return got, false, nil
}
