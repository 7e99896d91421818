package policy

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"
)

// The bounds of a policy. Whoever wrote the step may have written its globs,
// and each is compared with each change: without bounds, a line of braces would
// cost hours after the step is long over.
const (
	maxGlob     = 4096 // bytes of one glob
	maxPatterns = 1024 // of all globs, after their braces are written out
	maxBraces   = 32   // pairs of braces in one glob
)

// Policy is a compiled allowChanges. The zero Policy permits nothing.
type Policy struct {
	globs    []string // as written
	patterns []pattern
	dot      bool // the workspace's own folder is named
}

// Compile reads globs. The words are those of doublestar: * ? [class] {a,b} and
// \ within a component, ** as a component of its own for any number of them.
// They match raw bytes, and the case of letters counts. "." is the workspace's
// own folder. No glob at all permits nothing.
func Compile(globs []string) (Policy, error) {
	p := Policy{globs: slices.Clone(globs)}
	for i, glob := range globs {
		more, err := compile(glob, maxPatterns-len(p.patterns))
		if err != nil {
			return Policy{}, &GlobError{Index: i, Glob: glob, Err: err}
		}
		p.patterns = append(p.patterns, more...)
		p.dot = p.dot || glob == "."
	}
	return p, nil
}

// GlobError is what is wrong with one glob.
type GlobError struct {
	Index int // in the list
	Glob  string
	Err   error
}

func (e *GlobError) Error() string {
	return fmt.Sprintf("glob %s: %v", strconv.Quote(shortened(e.Glob)), e.Err)
}

func (e *GlobError) Unwrap() error { return e.Err }

// ErrTooMany: it is the list that is too long, and not one glob that is wrong.
var ErrTooMany = fmt.Errorf("too many: the globs of a step come to more than %d, with every {a,b} written out", maxPatterns)

var errSyntax = errors.New("bad syntax: a [ or { without its end, an empty [], a / inside [], or a \\ at the end of a component")

// compile gives the patterns of one glob, at most room of them.
func compile(glob string, room int) ([]pattern, error) {
	switch {
	case glob == "":
		return nil, errors.New(`it is empty; "**" permits everything, and an empty list nothing`)
	case len(glob) > maxGlob:
		return nil, fmt.Errorf("it has %d bytes; the longest has %d", len(glob), maxGlob)
	case !utf8.ValidString(glob) || strings.ContainsRune(glob, 0):
		return nil, errors.New("no path can be meant by it: it is not UTF-8 or has a NUL character; ? stands for any one byte that is not UTF-8")
	case glob == ".":
		if room < 1 {
			return nil, ErrTooMany
		}
		return []pattern{{}}, nil
	case !doublestar.ValidatePattern(glob):
		return nil, errSyntax
	}
	if n := strings.Count(glob, "{"); n > maxBraces {
		return nil, fmt.Errorf("it has %d braces; at most %d", n, maxBraces)
	}
	plain, err := expand(nil, glob, room)
	if err != nil {
		return nil, err
	}
	out := make([]pattern, 0, len(plain))
	for _, one := range plain {
		p, err := newPattern(one)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// expand writes the first {a,b} out, and with each result the next, so that a
// pattern has no braces: what it names literally can then be seen, and no match
// takes exponential time.
func expand(out []string, glob string, room int) ([]string, error) {
	open, commas, end := braces(glob)
	if open < 0 {
		if len(out) >= room {
			return nil, ErrTooMany
		}
		return append(out, glob), nil
	}
	from := open + 1
	for _, to := range append(commas, end) {
		var err error
		if out, err = expand(out, glob[:open]+glob[from:to]+glob[end+1:], room); err != nil {
			return nil, err
		}
		from = to + 1
	}
	return out, nil
}

// braces finds the first pair of a valid glob, and the commas that belong to it.
func braces(glob string) (open int, commas []int, end int) {
	open = -1
	depth := 0
	for i := 0; i < len(glob); i++ {
		switch c := glob[i]; {
		case c == '\\':
			i++
		case c == '[':
			for i++; i < len(glob) && glob[i] != ']'; i++ {
				if glob[i] == '\\' {
					i++
				}
			}
		case c == '{':
			if depth++; depth == 1 {
				open = i
			}
		case c == ',' && depth == 1:
			commas = append(commas, i)
		case c == '}':
			if depth--; depth == 0 {
				return open, commas, i
			}
		}
	}
	return -1, nil, -1
}

// escape is the glob that means one path. A byte that is not UTF-8 cannot be
// written in a steps file; ? stands for it.
func escape(path string) string {
	var b strings.Builder
	for i := 0; i < len(path); {
		r, n := utf8.DecodeRuneInString(path[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			b.WriteByte('?')
		case strings.ContainsRune(`*?[]{}\`, r):
			b.WriteByte('\\')
			fallthrough
		default:
			b.WriteString(path[i : i+n])
		}
		i += n
	}
	return b.String()
}

// maxShown is how much of a text an error or a note repeats.
const maxShown = 160

func shortened(s string) string {
	if len(s) > maxShown {
		return s[:maxShown] + "..."
	}
	return s
}
