package steps

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/clone"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/commit"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/delta"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/scrub"
)

// Draft is a change to the workspace from the host's side, in the making: a folder of
// ours, empty at first, that is shaped as the layer of a step is. What is in it
// replaces what stands at the same path, and folders are put together. It is held
// open, for the folders above it are not only ours.
type Draft struct {
	dir  string // by its descriptor
	root *os.Root
	t    *Tree
}

// Found is what stands at a path of the workspace; an empty Type is nothing.
type Found struct {
	Type string // file, dir, symlink, fifo, socket, device
	Mode uint32 // the twelve bits
}

// Change brings what the caller writes into the workspace as what a step writes is
// brought there: whole or not at all, seen by the steps that begin later and by none
// that runs, and not silently lost. A step that runs, and changes the same, is in
// conflict. stage writes what does not depend on the workspace, and fit, which may
// look at it, what does: the workspace stands still then. Either may be nil. id is
// what a conflict, or Lost, calls it: a word, and what it wrote to.
//
// While a step runs, the change is kept. That it cannot be brought into the workspace
// later is told by Lost.
func (t *Tree) Change(ctx context.Context, id string, stage func(dir string) error, fit func(*Draft) error) (err error) {
	id = inert(id)
	txn, err := t.transactions().New(id)
	if err != nil {
		return err
	}
	kept := false
	defer func() {
		if !kept {
			err = errors.Join(err, txn.Drop())
		}
	}()
	dir := txn.UpperAt()
	if stage != nil {
		if err := stage(dir); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.half != nil {
		return fmt.Errorf("the workspace holds half of a commit, which the next run completes: %w", t.half)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	h := &Draft{dir: dir, root: root, t: t}
	if fit != nil {
		if err := fit(h); err != nil {
			return err
		}
	}
	// The layer's own folder is the workspace's.
	at, err := h.At(".")
	if err == nil {
		err = h.own(".", at.Mode)
	}
	if err != nil {
		return err
	}
	d, err := delta.Read(ctx, t.now(), dir, delta.Options{})
	if err != nil {
		return fmt.Errorf("look at what was written: %w", err)
	}
	l := &layer{id: id, changes: d.Changes(), after: txn.Upper(), held: dir, txn: txn, host: true, calls: []string{id}, saw: t.seq}
	if len(l.changes) == 0 {
		return nil
	}
	t.seq++
	l.seq = t.seq
	if len(t.open) > 0 {
		t.recent = append(t.recent, l)
	}
	stays := false
	defer func() {
		if (err != nil || !stays) && t.half == nil { // nothing can collide with it
			t.recent = slices.DeleteFunc(t.recent, func(o *layer) bool { return o == l })
		}
	}()
	mask, err := scrub.Find(ctx, dir, scrub.Options{Home: t.home})
	if err != nil {
		return fmt.Errorf("look for secrets in what was written: %w", err)
	}
	l.secret = !mask.Empty()
	if t.copies != "" || len(t.open) == 0 && len(t.kept) == 0 {
		stays = true
		return t.commit(ctx, l)
	}
	// A layer lies above the one that hides what is secret.
	if l.secret {
		return errors.New("what is secret in it can be hidden only once nothing runs that began before")
	}
	switch done, err := t.fold(ctx, l, root); {
	case err != nil:
		return err
	case done:
		return nil
	case len(t.kept) >= maxHostKept:
		return fmt.Errorf("%d changes of files and calls are kept that are not yet in the workspace, because something runs that began before them, and there may be %d: close the kernel, or wait for the call, that has been open for longest, or write many files with one Restore", len(t.kept), maxHostKept)
	}
	txn.Keep, kept, stays = true, true, true
	t.kept = append([]*layer{l}, t.kept...)
	t.flush(context.WithoutCancel(ctx))
	return nil
}

// fold puts a change of the host's that is one file, and the folders above it, into
// the newest layer that is kept, where that is the host's too and no step sees it: a
// box has room for so many layers, and the host can write any number of files while
// one thing runs. t.mu is held.
func (t *Tree) fold(ctx context.Context, l *layer, from *os.Root) (done bool, err error) {
	if len(t.kept) == 0 || !t.kept[0].host {
		return false, nil
	}
	top := t.kept[0]
	for v := range t.open {
		if v.seq >= top.seq {
			return false, nil
		}
	}
	// What it changes is what it changes in what lies below that layer.
	d, err := delta.Read(ctx, t.now()[1:], l.held, delta.Options{})
	if err != nil {
		return false, fmt.Errorf("look at what was written: %w", err)
	}
	var folders []string
	file := ""
	err = filepath.WalkDir(l.held, func(path string, d os.DirEntry, err error) error {
		if err != nil || path == l.held {
			return err
		}
		rel, err := filepath.Rel(l.held, path)
		switch {
		case err != nil:
			return err
		case d.IsDir():
			folders = append(folders, rel)
		case file == "":
			file = rel
		default:
			file = "."
			return filepath.SkipAll
		}
		return nil
	})
	if err != nil || file == "" || file == "." || len(folders) != strings.Count(file, "/") {
		return false, err
	}
	to, err := os.OpenRoot(top.held)
	if err != nil {
		return false, err
	}
	defer to.Close()
	var made []string
	defer func() {
		if err != nil { // it did not happen
			for _, name := range slices.Backward(made) {
				err = errors.Join(err, to.Remove(name))
			}
		}
	}()
	for _, name := range folders {
		switch err := to.Mkdir(name, 0o700); {
		case errors.Is(err, os.ErrExist):
			continue // as it is in the draft
		case err != nil:
			return false, err
		}
		made = append(made, name)
		st, err := from.Lstat(name)
		if err == nil {
			err = (&Draft{root: to, t: t}).give(name, st.Mode())
		}
		if err != nil {
			return false, err
		}
	}
	if err := moveOver(from, to, file); err != nil {
		return false, err
	}
	all := map[string]workspace.Change{}
	for _, c := range top.changes {
		all[c.RawPath()] = c
	}
	delete(all, file)
	for _, c := range d.Changes() {
		all[c.RawPath()] = c
	}
	top.changes = slices.SortedFunc(maps.Values(all), func(a, b workspace.Change) int { return strings.Compare(a.RawPath(), b.RawPath()) })
	top.byPath, top.calls = nil, append(slices.DeleteFunc(top.calls, func(id string) bool { return id == l.id }), l.id)
	return true, nil
}

// moveOver moves a file to the same path below another folder, in place of one there.
func moveOver(from, to *os.Root, path string) error {
	a, err := from.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer a.Close()
	b, err := to.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer b.Close()
	name := filepath.Base(path)
	if err := unix.Renameat(int(a.Fd()), name, int(b.Fd()), name); err != nil {
		return &os.PathError{Op: "keep", Path: path, Err: err}
	}
	return nil
}

// now is the workspace as a step finds it that begins now, but for what is hidden
// from it. t.mu is held.
func (t *Tree) now() []delta.Layer {
	var stack []delta.Layer
	for _, l := range t.kept {
		stack = append(stack, delta.Layer{Dir: l.after, Marks: true})
	}
	return append(stack, delta.Layer{Dir: t.bottom})
}

// At says what stands at a path of the workspace. No link on the way is followed:
// below one there is nothing.
func (h *Draft) At(path string) (Found, error) {
	for _, l := range h.t.kept {
		c, here, gone := l.at(path)
		switch {
		case gone:
			return Found{}, nil
		case here:
			var mode uint32
			if _, err := fmt.Sscanf(c.Mode, "%o", &mode); err != nil {
				return Found{}, fmt.Errorf("steps: bug: mode %q of %q", c.Mode, c.Path)
			}
			return Found{c.Type, mode}, nil
		}
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, h.t.bottom, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return Found{}, &os.PathError{Op: "open", Path: h.t.bottom, Err: err}
	}
	defer unix.Close(fd)
	at, err := unix.Openat2(fd, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS})
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return Found{}, nil
	case errors.Is(err, unix.ELOOP):
		return Found{}, nil
	case err != nil:
		return Found{}, &os.PathError{Op: "look at", Path: path, Err: err}
	}
	defer unix.Close(at)
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return Found{}, &os.PathError{Op: "look at", Path: path, Err: err}
	}
	return Found{workspace.TypeWord(uint16(st.Mode)), st.Mode & 0o7777}, nil
}

// at is what a layer did to a path: it put something there, or took away what was
// there, or what was above it.
func (l *layer) at(path string) (c workspace.Change, here, gone bool) {
	if l.byPath == nil {
		l.byPath = make(map[string]workspace.Change, len(l.changes))
		for _, c := range l.changes {
			l.byPath[c.RawPath()] = c
		}
	}
	c, here = l.byPath[path]
	if here && c.Change == workspace.Deleted {
		return c, false, true
	}
	return c, here, !here && under(path, l.byPath)
}

// Folder makes a folder of the layer, and those above it, as the workspace has them.
// What is missing there is new.
func (h *Draft) Folder(path string) error {
	if path == "." {
		return nil
	}
	done := ""
	for name := range strings.SplitSeq(path, "/") {
		done = filepath.Join(done, name)
		at, err := h.At(done)
		switch {
		case err != nil:
			return err
		case at.Type == "":
			at.Mode = 0o755
		case at.Type != "dir":
			return fmt.Errorf("%s is a file or a link, and no folder", name)
		}
		if err := h.root.Mkdir(done, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		if err := h.own(done, at.Mode); err != nil {
			return err
		}
	}
	return nil
}

// own gives something of the layer the owner of the workspace, and its mode.
func (h *Draft) own(path string, mode uint32) error { return h.give(path, fileMode(mode)) }

func (h *Draft) give(path string, mode os.FileMode) error {
	if os.Geteuid() == 0 {
		if err := h.root.Lchown(path, h.t.owner.uid, h.t.owner.gid); err != nil {
			return err
		}
	}
	return h.root.Chmod(path, mode)
}

// fileMode is the twelve bits of a mode as package os has them.
func fileMode(bits uint32) os.FileMode {
	m := os.FileMode(bits & 0o777)
	for bit, is := range map[uint32]os.FileMode{unix.S_ISUID: os.ModeSetuid, unix.S_ISGID: os.ModeSetgid, unix.S_ISVTX: os.ModeSticky} {
		if bits&bit != 0 {
			m |= is
		}
	}
	return m
}

// File puts a file into the layer, in folders as the workspace has them. What stands
// there is replaced, a link too; a folder is not.
func (h *Draft) File(path string, data []byte) error {
	if err := h.Folder(filepath.Dir(path)); err != nil {
		return err
	}
	switch at, err := h.At(path); {
	case err != nil:
		return err
	case at.Type == "dir":
		return unix.EISDIR
	}
	f, err := h.root.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close(), h.own(path, 0o644))
}

// Fit holds that everything in the layer can be put into the workspace past no link,
// and that what is a folder in one is none but a folder in the other. Folders that
// were made only for what is in them keep the mode that they have there.
func (h *Draft) Fit(made []string) error {
	onlyMade := map[string]bool{}
	for _, m := range made {
		onlyMade[m] = true
	}
	return filepath.WalkDir(h.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || path == h.dir {
			return err
		}
		rel, err := filepath.Rel(h.dir, path)
		if err != nil {
			return err
		}
		at, err := h.At(rel)
		switch {
		case err != nil:
			return err
		case at.Type == "symlink":
			return fmt.Errorf("%q: a link stands there in the workspace, and is not followed", rel)
		case at.Type == "":
			return nil
		case d.IsDir() && at.Type != "dir":
			return fmt.Errorf("%q: what stands there in the workspace is no folder", rel)
		case !d.IsDir() && at.Type != "file":
			return fmt.Errorf("%q: what stands there in the workspace is no regular file", rel)
		case d.IsDir() && onlyMade[rel]:
			return h.root.Chmod(rel, fileMode(at.Mode))
		}
		return nil
	})
}

// Look gives where a path of the workspace is, as a step finds it that begins now:
// the folder, of the workspace or of a layer, that it is in under the same name. The
// folder is as it is only until do returns. What is gone is fs.ErrNotExist.
func (t *Tree) Look(path string, do func(root string) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.kept {
		switch _, here, gone := l.at(path); {
		case gone:
			return unix.ENOENT
		case here:
			return do(l.after)
		}
	}
	return do(t.bottom)
}

// List calls list for the workspace's own folder, and then gives what has changed
// since, the oldest first.
func (t *Tree) List(list func(root string) error, change func(workspace.Change)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := list(t.bottom); err != nil {
		return err
	}
	for _, l := range slices.Backward(t.kept) {
		for _, c := range l.changes {
			change(c)
		}
	}
	return nil
}

// Whole gives a folder that has all of the workspace as a step finds it that begins
// now, and stays as it is until do returns: the workspace's own if that has all.
func (t *Tree) Whole(ctx context.Context, do func(root string) error) error {
	t.mu.Lock()
	if len(t.kept) == 0 && t.copies == "" {
		// As a step would, it has what ends meanwhile kept, and not brought in.
		v := &view{t: t, id: "snapshot", seq: t.seq}
		t.open[v] = struct{}{}
		t.mu.Unlock()
		defer func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			v.leave()
			t.flush(context.WithoutCancel(ctx))
		}()
		return do(t.bottom)
	}
	txn, err := t.copyNow(ctx)
	t.mu.Unlock()
	if err == nil {
		err = do(txn.UpperAt())
	}
	if txn != nil {
		err = errors.Join(err, txn.Drop())
	}
	return err
}

// copyNow makes a copy of the workspace with all that is kept. t.mu is held.
func (t *Tree) copyNow(ctx context.Context) (*commit.Txn, error) {
	txn, err := t.store.New("copy")
	if err != nil {
		return nil, err
	}
	if _, err := clone.Tree(ctx, t.bottom, txn.UpperAt(), clone.Options{}); err != nil {
		return txn, fmt.Errorf("copy the workspace: %w", err)
	}
	store, err := commit.Open(txn.Upper(), commit.Options{At: txn.UpperAt()})
	if err != nil {
		return txn, err
	}
	for _, l := range slices.Backward(t.kept) {
		var one *commit.Txn
		if one, err = store.New(l.id); err != nil {
			break
		}
		one.Keep = true // steps see it
		if _, err = one.Commit(ctx, l.changes, l.held); err != nil {
			break
		}
	}
	return txn, errors.Join(err, store.Close())
}
