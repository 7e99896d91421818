package delta

import (
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
)

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
