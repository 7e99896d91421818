package patch

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// Limits, where Options does not say otherwise.
const (
	// DefaultMaxFile is the largest file that is carried.
	DefaultMaxFile = 64 << 20
	// DefaultMaxTotal is how long the diffs of a patch may be together.
	DefaultMaxTotal = 512 << 20
	// readFactor times MaxTotal is how much is read for one patch. A sparse
	// file costs a step nothing to make, compresses to nothing, and would be
	// read for ever.
	readFactor = 4
)

// Options of a patch. The zero value means the defaults, and no masking.
type Options struct {
	MaxFile  int64
	MaxTotal int64
	// Mask takes the values of secrets out of a text. What it would take out of
	// a part of a text it has to take out of the whole.
	Mask func(text []byte) []byte
	// TempDir is where a patch is kept, without a name, until its comments are
	// known. Default: os.TempDir. Small ones stay in memory.
	TempDir string
}

// Found is what lies at a path.
type Found struct {
	Type   string // as in workspace.Change; "" is nothing
	Mode   uint32 // twelve bits
	Size   int64
	Target string // of a symlink
}

// Source gives what was at a raw path before the step and what is there after
// it. Only regular files are opened, and never through a link.
type Source interface {
	Before(path string) (Found, error)
	After(path string) (Found, error)
	OpenBefore(path string) (*os.File, error)
	OpenAfter(path string) (*os.File, error)
}

// Summary is what came of a patch.
type Summary struct {
	// Files have a diff. A patch without any is one that git apply calls empty.
	Files int
	// Bytes of the whole patch.
	Bytes int64
	// Lost is what changed and is not carried, or not wholly.
	Lost []Note
	// Refused are paths that no patch may touch.
	Refused []Note
	// Masked counts files with masked lines: they may not apply, or get the
	// mask as their content.
	Masked int
	// MaskedPaths are the first of these files.
	MaskedPaths []string
}

// Note says something of a path, which is the exact and untrusted one, less the
// values of secrets.
type Note struct {
	Path string
	Why  string
}

type writer struct {
	o      Options
	src    Source
	sum    Summary
	masked []Note
	body   spool
	read   int64
	lines  int
	full   bool
	// made and gone are the folders in which a carried file is created or
	// deleted: git makes and removes them without being told.
	made, gone map[string]bool
	folders    []folder
}

// folder is one that was made or removed. Whether a patch says so is known when
// all files are.
type folder struct {
	path string
	made bool
}

// Write writes the patch of the changes, which are sorted by path. On an error
// nothing has been written, unless it is w's.
func Write(ctx context.Context, w io.Writer, changes []workspace.Change, src Source, o Options) (Summary, error) {
	if o.MaxFile <= 0 {
		o.MaxFile = DefaultMaxFile
	}
	if o.MaxTotal <= 0 {
		o.MaxTotal = DefaultMaxTotal
	}
	p := &writer{o: o, src: src, made: map[string]bool{}, gone: map[string]bool{}, body: spool{dir: o.TempDir}}
	defer p.body.close()
	for i, c := range changes {
		if err := ctx.Err(); err != nil {
			return Summary{}, err
		}
		if i > 0 && c.RawPath() == changes[i-1].RawPath() {
			return Summary{}, fmt.Errorf("patch: bug: %q is in the list of changes twice", c.RawPath())
		}
		if err := p.change(ctx, c); err != nil {
			return Summary{}, fmt.Errorf("write the patch of %q: %w", p.hide(c.RawPath()), err)
		}
	}
	p.emptyFolders()
	head := p.comment()
	p.sum.Bytes = int64(len(head)) + p.body.size
	if _, err := io.WriteString(w, head); err != nil {
		return Summary{}, fmt.Errorf("write the patch: %w", err)
	}
	if err := p.body.copyTo(w); err != nil {
		return Summary{}, fmt.Errorf("write the patch: %w", err)
	}
	return p.sum, nil
}

func (p *writer) lose(path, format string, args ...any) {
	p.sum.Lost = append(p.sum.Lost, Note{p.hide(path), fmt.Sprintf(format, args...)})
}

// hide takes secrets out of a text that is for people.
func (p *writer) hide(text string) string {
	if p.o.Mask == nil {
		return text
	}
	return string(p.o.Mask([]byte(text)))
}

func (p *writer) emptyFolders() {
	for _, f := range p.folders {
		switch {
		case f.made && !p.made[f.path]:
			p.lose(f.path, "an empty folder, which git does not know")
		case !f.made && !p.gone[f.path]:
			p.lose(f.path, "the removal of an empty folder, which git does not know")
		}
	}
	slices.SortStableFunc(p.sum.Lost, func(a, b Note) int { return strings.Compare(a.Path, b.Path) })
}

// mark notes the folders above a path. It stops at the first that is known, so
// that deep trees cost no more than their folders.
func mark(known map[string]bool, path string) {
	for {
		i := strings.LastIndexByte(path, '/')
		if i < 0 || known[path[:i]] {
			return
		}
		path = path[:i]
		known[path] = true
	}
}
