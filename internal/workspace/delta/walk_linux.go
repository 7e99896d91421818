package delta

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

const (
	created  = workspace.Created
	modified = workspace.Modified
	deleted  = workspace.Deleted
	moded    = workspace.Mode
	retyped  = workspace.Retyped

	// openFrames is how many folders of one path stay open. Those above are
	// closed and found again through "..", so that a deep tree costs no
	// descriptors. It is at least 2, see push.
	openFrames = 16
)

// frame is a folder on the way to where the walk is: what the stack has there,
// merged, top first, and what the upper or the copy has.
type frame struct {
	before []folder
	after  folder
}

// walk is one reading of a delta.
type walk struct {
	ctx    context.Context
	opt    workspace.Options
	stack  []Layer
	marks  bool // marks mean something in what the step left
	root   bool // modes do not stop us
	pool   *pool
	buf    []byte
	path   []byte
	frames []*frame
	counts [2]count // before, after
	budget int64    // what is left of MaxDeletedBytes

	mu    sync.Mutex // guards what follows
	texts int64      // of the paths of items
	items []*item
}

func (d *Delta) read(ctx context.Context, top Layer, through bool, o Options) error {
	w := &walk{
		opt: o, stack: d.stack, marks: top.Marks, root: unix.Geteuid() == 0,
		buf: make([]byte, bufferSize), budget: MaxDeletedBytes,
	}
	w.pool, w.ctx = newPool(ctx, o.Workers)
	defer w.pool.stop(nil)
	err := w.run(top.Dir, through)
	if err != nil {
		w.pool.stop(err)
	}
	w.pool.wait()
	if err := context.Cause(w.ctx); err != nil {
		return err // what came first
	}
	d.items = w.items
	slices.SortFunc(d.items, func(a, b *item) int { return strings.Compare(a.entry.Path, b.entry.Path) })
	pair(d.items)
	return nil
}

func (w *walk) halted() error { return context.Cause(w.ctx) }

// run compares the folders themselves and then what is in them.
func (w *walk) run(top string, through bool) error {
	if len(w.stack) == 0 {
		return errors.New("a stack of no layers")
	}
	f := &frame{after: nothing}
	var before, after look
	for i, l := range w.stack {
		part, seen, err := openRoot(l.Dir)
		if err != nil {
			f.close()
			return fmt.Errorf("layer %q: %w", l.Dir, err)
		}
		part.layer = i
		f.before = append(f.before, part)
		if i == 0 {
			before = seen
		}
	}
	part, after, err := openRoot(top)
	if err == nil && !w.root && after.mode&ownerAll != ownerAll {
		if part.fd >= 0 {
			unix.Close(part.fd)
		}
		if err = unix.Chmod(top, uint32(after.mode&modePerm|ownerAll)); err == nil {
			part, _, err = openRoot(top)
			mode := uint32(after.mode & modePerm)
			part.restore = &mode
		}
	}
	if err != nil {
		f.close()
		return err
	}
	f.after = part
	before.parts, after.parts = f.before, []folder{f.after}
	w.path = append(w.path, '.')
	err = w.both(before, after, through)
	w.path = w.path[:0]
	w.frames = append(w.frames, f)
	if err == nil && part.fd >= 0 && part.listable {
		err = w.visit(f, through, 0)
	}
	return errors.Join(err, f.close())
}

// openRoot opens a folder that the caller names. It may be a link itself.
func openRoot(dir string) (folder, look, error) {
	var st unix.Statx_t
	if err := again(func() error { return unix.Statx(unix.AT_FDCWD, dir, unix.AT_NO_AUTOMOUNT, statMask, &st) }); err != nil {
		return nothing, look{}, err
	}
	l := look{there: true, inode: inodeOf(&st), mode: st.Mode}
	if !l.is(unix.S_IFDIR) {
		return nothing, look{}, unix.ENOTDIR
	}
	f := folder{inode: l.inode, listable: true}
	var err error
	f.fd, err = openAt(unix.AT_FDCWD, dir, openDir&^unix.O_NOFOLLOW)
	if denied(err) {
		f.listable = false
		f.fd, err = openAt(unix.AT_FDCWD, dir, openPath&^unix.O_NOFOLLOW)
	}
	if denied(err) {
		f.fd, err = -1, nil
	}
	if err != nil {
		return nothing, look{}, err
	}
	return f, l, nil
}

// close closes a frame's folders and gives back the mode of what was opened up.
func (f *frame) close() (err error) {
	for _, b := range f.before {
		if b.fd >= 0 {
			unix.Close(b.fd)
		}
	}
	if f.after.fd >= 0 {
		if f.after.restore != nil {
			if e := unix.Fchmod(f.after.fd, *f.after.restore); e != nil {
				err = fmt.Errorf("give a folder its mode back: %w", e)
			}
		}
		unix.Close(f.after.fd)
	}
	return err
}

// of gives a frame's folder of one layer, nil if it has none; -1 is the upper or
// the copy.
func (f *frame) of(layer int) *folder {
	if layer < 0 {
		if f.after.fd < 0 && f.after.inode == (inode{}) {
			return nil
		}
		return &f.after
	}
	for i := range f.before {
		if f.before[i].layer == layer {
			return &f.before[i]
		}
	}
	return nil
}

func (f *frame) each(do func(*folder, int) error) error {
	for i := range f.before {
		if err := do(&f.before[i], f.before[i].layer); err != nil {
			return err
		}
	}
	return do(&f.after, -1)
}

// push enters a folder and closes what is beyond openFrames above it. A layer's
// folder is closed only if two below it are open: the upper of these was looked
// up in, so ".." can be too. A layer that ends on the way stays open where it
// ends, which is once for each layer.
func (w *walk) push(f *frame) {
	w.frames = append(w.frames, f)
	i := len(w.frames) - 1 - openFrames
	if i < 0 {
		return
	}
	_ = w.frames[i].each(func(part *folder, layer int) error {
		child, grandchild := w.frames[i+1].of(layer), w.frames[i+2].of(layer)
		if part.fd >= 0 && child != nil && child.fd >= 0 && grandchild != nil && grandchild.fd >= 0 {
			unix.Close(part.fd)
			part.fd = closed
		}
		return nil
	})
}

// closed is the descriptor of a folder that has to be found again.
const closed = -2

// pop leaves a folder. What was closed above it is found again, and must be the
// inode that it was: ".." is wherever the folder lies now.
func (w *walk) pop() error {
	f := w.frames[len(w.frames)-1]
	w.frames = w.frames[:len(w.frames)-1]
	err := w.frames[len(w.frames)-1].each(func(part *folder, layer int) error {
		if part.fd != closed {
			return nil
		}
		flags := openDir
		if !part.listable {
			flags = openPath
		}
		fd, err := openAt(f.of(layer).fd, "..", flags)
		if err != nil {
			return err
		}
		part.fd = fd
		return part.check()
	})
	return errors.Join(err, f.close())
}

// visit looks at what has to be looked at in the folder on top. through: what
// the upper does not name here is as it was.
func (w *walk) visit(f *frame, through bool, depth int) error {
	names, err := w.names(f, through)
	if err != nil {
		return w.at("", err)
	}
	base := len(w.path)
	for _, n := range names {
		if err := w.halted(); err != nil {
			return err
		}
		if base > 0 {
			w.path = append(w.path[:base], '/')
		}
		w.path = append(w.path, n.name...)
		if err := w.one(f, n, through, depth); err != nil {
			return err
		}
		w.path = w.path[:base]
	}
	return nil
}

// at says where an error was met.
func (w *walk) at(name string, err error) error {
	if err == nil || errors.Is(err, workspace.ErrLimit) || w.ctx.Err() != nil {
		return err
	}
	return fmt.Errorf("%q: %w", shown(string(w.path)+name), err)
}

// one compares what was and what is under one name, and goes on below it.
func (w *walk) one(f *frame, n listed, through bool, depth int) (err error) {
	before, err := w.below(f, n)
	sub := &frame{before: before.parts, after: nothing}
	pushed := false
	defer func() {
		if !pushed {
			err = errors.Join(err, w.at("", sub.close()))
		}
	}()
	if err != nil {
		return w.at("", err)
	}
	after, err := w.above(f, n)
	if len(after.parts) > 0 {
		sub.after = after.parts[0]
	}
	if err != nil {
		return w.at("", err)
	}
	through = through && !after.opaque
	if err := w.compare(before, after, through); err != nil {
		return w.at("", err)
	}
	if !before.is(unix.S_IFDIR) && !after.is(unix.S_IFDIR) {
		return nil
	}
	if after.is(unix.S_IFDIR) && (sub.after.fd < 0 || !sub.after.listable) {
		return nil // to list what was in it as deleted would be a guess
	}
	if depth+1 > w.opt.MaxDepth {
		return fmt.Errorf("%w: folders more than %d deep", workspace.ErrLimit, w.opt.MaxDepth)
	}
	if before.denied {
		// Whatever is in it now may or may not have been there.
		sub.before = []folder{nothing}
	}
	pushed = true
	w.push(sub)
	err = w.visit(sub, through, depth+1)
	return errors.Join(err, w.at("", w.pop()))
}

// below looks a name up in what the stack has at a folder, as the kernel does:
// the first layer that has it counts, folders of the layers below it are merged
// into it, and a whiteout, an opaque folder or anything that is no folder ends
// the search.
func (w *walk) below(f *frame, n listed) (look, error) {
	var got look
	for _, part := range f.before {
		if part.fd < 0 {
			if !got.there {
				return look{there: true, denied: true, mode: n.before}, nil
			}
			got.parts = append(got.parts, nothing)
			return got, nil
		}
		l, err := lookIn(part.fd, n.name, n.before)
		if err != nil {
			return got, err
		}
		l.layer = part.layer
		marks := part.layer >= 0 && w.stack[part.layer].Marks
		switch {
		case !l.there:
			continue
		case marks && l.whiteout():
			return got, nil
		case l.denied && got.there:
			got.parts = append(got.parts, nothing)
			return got, nil
		case l.denied || !l.is(unix.S_IFDIR):
			if !got.there {
				got = l
			}
			return got, w.tally(&w.counts[0], 0, int64(len(l.target)))
		}
		sub, err := openFolder(part.fd, n.name, l)
		if err != nil {
			return got, err
		}
		if !got.there {
			got = l
		}
		got.parts = append(got.parts, sub)
		if !marks {
			continue
		}
		if sub.fd < 0 {
			return got, nil
		}
		switch yes, known, err := sub.opaque(); {
		case err != nil:
			return got, err
		case yes:
			return got, nil
		case !known:
			got.parts = append(got.parts, nothing)
			return got, nil
		}
	}
	return got, nil
}

// above looks a name up in the upper or the copy, which is ours: what the step
// closed to its owner is opened up while we are in it.
func (w *walk) above(f *frame, n listed) (look, error) {
	if f.after.fd < 0 {
		return look{}, nil
	}
	l, err := lookIn(f.after.fd, n.name, n.after)
	if err != nil || !l.there {
		return l, err
	}
	l.layer = -1
	if w.marks && l.whiteout() {
		return look{}, nil
	}
	if l.denied || !l.is(unix.S_IFDIR) {
		return l, w.tally(&w.counts[1], 0, int64(len(l.target)))
	}
	open := !w.root && l.mode&ownerAll != ownerAll
	if open {
		switch err := openUp(f.after.fd, n.name, l, ownerAll); {
		case denied(err):
			open = false
		case err != nil:
			return l, err
		}
	}
	sub, err := openFolder(f.after.fd, n.name, l)
	if err != nil {
		return l, err
	}
	if open {
		mode := uint32(l.mode & modePerm)
		sub.restore = &mode
	}
	l.parts = []folder{sub}
	if w.marks && sub.fd >= 0 {
		l.opaque, _, err = sub.opaque()
	}
	return l, err
}

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
