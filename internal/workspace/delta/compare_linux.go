package delta

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// add notes a path that changed.
func (w *walk) add(kind string, before, after look) (*item, error) {
	i := w.item(kind, before, after)
	return i, w.note(i)
}

func (w *walk) item(kind string, before, after look) *item {
	i := &item{kind: kind, before: before.found(), after: after.found(), layer: before.layer}
	f := i.after
	if kind == deleted {
		f = i.before
	}
	i.entry = workspace.Entry{Path: string(w.path), Type: f.Type, Mode: f.Mode, Size: f.Size, Target: f.Target}
	return i
}

// note keeps an item. The list holds whole paths, and in a deep tree these are
// long.
func (w *walk) note(i *item) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts += int64(len(i.entry.Path))
	if w.texts > w.opt.MaxText {
		return fmt.Errorf("%w: paths of what changed of more than %d bytes", workspace.ErrLimit, w.opt.MaxText)
	}
	w.items = append(w.items, i)
	return nil
}

// compare notes what happened to one path.
func (w *walk) compare(before, after look, through bool) error {
	switch {
	case !before.there && !after.there:
		return nil
	case !after.there:
		i, err := w.add(deleted, before, after)
		if err != nil {
			return err
		}
		i.entry.Unreadable = before.denied || unknown(before)
		if before.denied || !before.is(unix.S_IFREG) || before.size > w.budget {
			return nil
		}
		w.budget -= before.size
		return w.hash(i, before, false)
	case !before.there:
		i, err := w.add(created, before, after)
		if err != nil {
			return err
		}
		return w.now(i, after)
	case before.denied:
		i, err := w.add(modified, before, after)
		if err != nil {
			return err
		}
		i.entry.Unreadable = true
		return w.now(i, after)
	case before.mode&modeType != after.mode&modeType:
		i, err := w.add(retyped, before, after)
		if err != nil {
			return err
		}
		return w.now(i, after)
	}
	return w.both(before, after, through)
}

// unknown says whether there is something in a folder that we cannot list.
func unknown(l look) bool {
	return slices.ContainsFunc(l.parts, func(f folder) bool { return f.fd < 0 || !f.listable })
}

// now fills in what has to be read of what is there now.
func (w *walk) now(i *item, after look) error {
	if after.denied || unknown(after) {
		i.entry.Unreadable = true
		return nil
	}
	if after.is(unix.S_IFREG) {
		return w.hash(i, after, true)
	}
	return nil
}

// both compares two of the same type.
func (w *walk) both(before, after look, through bool) error {
	kind := ""
	if before.mode != after.mode {
		kind = moded
	}
	unsure := false
	switch after.mode & modeType {
	case unix.S_IFREG:
		if before.size == after.size {
			return w.sameSize(before, after, kind)
		}
		kind = modified
	case unix.S_IFLNK:
		if before.target != after.target || after.denied {
			kind, unsure = modified, after.denied
		}
	case unix.S_IFCHR, unix.S_IFBLK:
		if before.device != after.device {
			kind = modified
		}
	case unix.S_IFDIR:
		if unsure = unknown(after) || !through && unknown(before); unsure {
			kind = cmp.Or(kind, modified)
		}
	}
	if kind == "" {
		return nil
	}
	i, err := w.add(kind, before, after)
	if err != nil {
		return err
	}
	if err := w.now(i, after); err != nil {
		return err
	}
	i.entry.Unreadable = i.entry.Unreadable || unsure
	return nil
}

func (w *walk) nameOf() string {
	return string(w.path[bytes.LastIndexByte(w.path, '/')+1:])
}

// open opens the file at the path for a job, which has to close it.
func (w *walk) open(l look, ours bool) (file, error) {
	fd, err := openContent(w.nameOf(), l, ours && !w.root)
	return file{fd: fd, size: l.size, inode: l.inode, links: l.nlink}, err
}

// hash has the content of one file read.
func (w *walk) hash(i *item, l look, ours bool) error {
	f, err := w.open(l, ours)
	if denied(err) {
		i.entry.Unreadable = true
		return nil
	}
	if err != nil {
		return err
	}
	w.pool.jobs <- func(r *reader) (err error) {
		defer unix.Close(f.fd)
		i.entry.SHA256, err = r.sum(f)
		return named(i, err)
	}
	return nil
}

// sameSize has the contents of two files compared. kind is the change there is
// if they are the same.
func (w *walk) sameSize(before, after look, kind string) error {
	i := w.item(kind, before, after)
	a, err := w.open(after, true)
	if denied(err) {
		i.kind, i.entry.Unreadable = modified, true
		return w.note(i)
	}
	if err != nil {
		return err
	}
	b, err := w.open(before, false)
	if err != nil {
		unix.Close(a.fd)
	}
	if denied(err) {
		i.kind, i.entry.Unreadable = modified, true
		return errors.Join(w.note(i), w.hash(i, after, true))
	}
	if err != nil {
		return err
	}
	w.pool.jobs <- func(r *reader) error {
		defer unix.Close(a.fd)
		defer unix.Close(b.fd)
		same, err := r.same(a, b)
		if err != nil {
			return named(i, err)
		}
		if !same {
			i.kind = modified
		}
		if i.kind == "" {
			return nil
		}
		if i.entry.SHA256, err = r.sum(a); err != nil {
			return named(i, err)
		}
		return w.note(i)
	}
	return nil
}

func named(i *item, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%q: %w", shown(i.entry.Path), err)
}
