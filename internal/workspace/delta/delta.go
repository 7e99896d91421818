package delta

import (
	"context"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// MaxDeletedBytes is how much of deleted files is read to find out which were
// renamed. Deleting costs a step nothing, so it must cost us little.
const MaxDeletedBytes = 64 << 20

// Layer is a folder that an overlay shows.
type Layer struct {
	Dir string
	// Marks: whiteouts and opaque folders in it mean what the kernel means. It
	// must be a folder that only the kernel and we have written to.
	Marks bool
}

// Options bounds what is looked at, each side for itself. MaxText also bounds
// the paths of all changes together.
type Options = workspace.Options

// Found is what is at a path.
type Found struct {
	Type   string // "" for nothing
	Mode   uint32 // twelve bits
	Size   int64  // of a file's content or a link's target
	Target string // raw, of a symlink
}

// Delta is what a step did. It never changes, and may be used by several
// goroutines; the folders it was read from must stay as they are.
type Delta struct {
	stack, after []Layer // what the step found and what it left, top first
	items        []*item // sorted by the bytes of the path
	opening      sync.Mutex
}

// item is a path that may have changed, and in the end one that has.
type item struct {
	kind          string
	entry         workspace.Entry
	from          string
	before, after Found
	layer         int // of the stack, in which before was found
}

func (i *item) change() workspace.Change {
	c := workspace.NewChange(i.kind, i.entry)
	c.From = i.from
	return c
}

// Read says what the upper folder of an overlay over stack changes. Nobody may
// be writing to it any more.
func Read(ctx context.Context, stack []Layer, upper string, o Options) (*Delta, error) {
	top := Layer{Dir: upper, Marks: true}
	d := &Delta{stack: slices.Clone(stack), after: append([]Layer{top}, stack...)}
	if err := d.read(ctx, top, true, o.WithDefaults()); err != nil {
		return nil, fmt.Errorf("read what a step changed, from %q: %w", upper, err)
	}
	return d, nil
}

// Compare says in what the folder after differs from what stack shows.
func Compare(ctx context.Context, stack []Layer, after string, o Options) (*Delta, error) {
	top := Layer{Dir: after}
	d := &Delta{stack: slices.Clone(stack), after: []Layer{top}}
	if err := d.read(ctx, top, false, o.WithDefaults()); err != nil {
		return nil, fmt.Errorf("compare %q with the workspace: %w", after, err)
	}
	return d, nil
}

// Changes lists every path that differs, sorted by the bytes of RawPath.
func (d *Delta) Changes() []workspace.Change { return slices.AppendSeq([]workspace.Change{}, d.All()) }

// All yields what Changes lists, one at a time.
func (d *Delta) All() iter.Seq[workspace.Change] {
	return func(yield func(workspace.Change) bool) {
		for _, i := range d.items {
			if !yield(i.change()) {
				return
			}
		}
	}
}

// Len is how many paths differ.
func (d *Delta) Len() int { return len(d.items) }

// Before says what the step found at a raw path, changed or not.
func (d *Delta) Before(path string) (Found, error) {
	if i := d.item(path); i != nil {
		return i.before, nil
	}
	return d.find("before the step", d.stack, path, false)
}

// After says what the step left at a raw path, changed or not.
func (d *Delta) After(path string) (Found, error) {
	if i := d.item(path); i != nil {
		return i.after, nil
	}
	return d.find("after the step", d.after, path, true)
}

// OpenBefore opens the content that a file had when the step began.
func (d *Delta) OpenBefore(path string) (*os.File, error) {
	layers := d.stack
	if i := d.item(path); i != nil {
		if i.before.Type != "file" {
			return nil, notAFile("before the step", path, i.before)
		}
		// Nothing above can hide it: that was looked at.
		layers = []Layer{{Dir: d.stack[i.layer].Dir}}
	}
	return d.open("before the step", layers, path, false)
}

// OpenAfter opens the content that a file has now.
func (d *Delta) OpenAfter(path string) (*os.File, error) {
	layers := d.after
	if i := d.item(path); i != nil {
		if i.after.Type != "file" {
			return nil, notAFile("after the step", path, i.after)
		}
		layers = []Layer{{Dir: d.after[0].Dir}}
	}
	return d.open("after the step", layers, path, true)
}

func notAFile(when, path string, f Found) error {
	if f.Type == "" {
		return fmt.Errorf("open %q as it was %s: %w", shown(path), when, fs.ErrNotExist)
	}
	return fmt.Errorf("open %q as it was %s: it is a %s and not a file", shown(path), when, f.Type)
}

func (d *Delta) item(path string) *item {
	at, ok := slices.BinarySearchFunc(d.items, path, func(i *item, p string) int { return strings.Compare(i.entry.Path, p) })
	if !ok {
		return nil
	}
	return d.items[at]
}

// components are the names of a raw path, none for the workspace itself. A path
// that leads anywhere else is a bug of the caller, or somebody's attempt.
func components(path string) ([]string, error) {
	if path == "." {
		return nil, nil
	}
	names := strings.Split(path, "/")
	for _, n := range names {
		if n == "" || n == "." || n == ".." || strings.ContainsRune(n, 0) {
			return nil, fmt.Errorf("%q is no path in a workspace", shown(path))
		}
	}
	return names, nil
}

// shown keeps a path in a message short: a step may make one of a megabyte.
func shown(path string) string {
	const most = 200
	if len(path) > most {
		return "..." + path[len(path)-most:]
	}
	return path
}
