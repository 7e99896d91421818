package policy

import (
	"errors"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// pattern is one glob without braces, by component. A component is matched on
// its own, so that no wildcard, and no [!x] either, reaches across a slash.
// Without components it is the workspace's own folder.
type pattern []segment

// segment is one component.
type segment struct {
	any     bool // **: any number of components, none included
	literal bool
	text    string // literal: the name itself, else what doublestar reads
}

func newPattern(glob string) (pattern, error) {
	if strings.HasPrefix(glob, "/") {
		return nil, errors.New("it is absolute; paths are relative to the workspace, so leave the first / out")
	}
	if len(glob) > 1 && strings.HasSuffix(glob, "/") {
		return nil, errors.New("it ends with a slash; DIR is the folder itself, DIR/** that and all below")
	}
	var p pattern
	for part := range strings.SplitSeq(glob, "/") {
		if !doublestar.ValidatePattern(part) {
			return nil, errSyntax
		}
		s := segment{any: part == "**", text: part}
		if text, ok := unescape(part); ok {
			s.literal, s.text = true, text
		}
		switch {
		case s.literal && s.text == "":
			return nil, errors.New("a component of it is empty: // or nothing at all")
		case s.literal && s.text == "..":
			return nil, errors.New("it has the component ..; a step changes nothing outside the workspace, and no path has that in it")
		case s.literal && s.text == ".":
			return nil, errors.New("it has the component .; leave ./ out")
		case s.any && len(p) > 0 && p[len(p)-1].any:
			continue // **/** is **
		}
		p = append(p, s)
	}
	return p, nil
}

// unescape gives the name a component stands for, if it is one name only.
func unescape(part string) (string, bool) {
	if part != "" && !strings.ContainsAny(part, `*?[\`) {
		return part, true
	}
	var b strings.Builder
	for i := 0; i < len(part); i++ {
		switch part[i] {
		case '*', '?', '[':
			return "", false
		case '\\':
			if i++; i == len(part) {
				return "", false
			}
		}
		b.WriteByte(part[i])
	}
	return b.String(), true
}

// match says whether the pattern means a path. The component at pinned, if it is
// not negative, must be named: no wildcard stands for it.
func (p pattern) match(names []string, pinned int) bool {
	k := 0
	for len(p) > 0 && p[0].literal { // most are told apart here
		if k == len(names) || p[0].text != names[k] {
			return false
		}
		p, k = p[1:], k+1
	}
	if len(p) == 1 && p[0].any && pinned < k {
		return true
	}
	// Where in the pattern the names so far may have led. Backtracking would
	// take exponential time on a path made for it.
	at, next := make([]bool, len(p)+1), make([]bool, len(p)+1)
	at[0] = true
	p.skip(at)
	for ; k < len(names); k++ {
		clear(next)
		alive := false
		for i, s := range p {
			if !at[i] {
				continue
			}
			switch {
			case s.any && k != pinned:
				next[i], alive = true, true
			case s.any:
			case s.literal && s.text == names[k],
				!s.literal && k != pinned && doublestar.MatchUnvalidated(s.text, names[k]):
				next[i+1], alive = true, true
			}
		}
		if !alive {
			return false
		}
		at, next = next, at
		p.skip(at)
	}
	return at[len(p)]
}

// skip lets every ** that was reached stand for nothing.
func (p pattern) skip(at []bool) {
	for i, s := range p {
		if s.any && at[i] {
			at[i+1] = true
		}
	}
}

// permits says whether some glob means the path; see match for pinned.
func (p Policy) permits(names []string, pinned int) bool {
	for _, one := range p.patterns {
		if one.match(names, pinned) {
			return true
		}
	}
	return false
}

// split gives the components of a path, none for the workspace itself. What is
// no path inside the workspace has none and is not ok.
func split(path string) (names []string, ok bool) {
	if path == "." {
		return nil, true
	}
	if path == "" || strings.ContainsRune(path, 0) {
		return nil, false
	}
	names = strings.Split(path, "/")
	for _, n := range names {
		if n == "" || n == "." || n == ".." {
			return nil, false
		}
	}
	return names, true
}
