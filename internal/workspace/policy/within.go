package policy

import (
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// Within says whether every change that p permits is one that the ceiling
// permits too, by comparing the globs. What cannot be shown is not so: a glob
// such as a[bc] is within itself, *, ** and nothing else.
//
// A protected name that a glob of p names has to be named by the ceiling too, at
// whatever depth: the ceiling's "**" permits none of them, and so permits no
// list that does.
func (p Policy) Within(ceiling Policy) bool {
	_, ok := p.Outside(ceiling)
	return ok
}

// Outside finds the first glob of p that is not within the ceiling. The index is
// that of the glob in the list; -1 where all are within.
func (p Policy) Outside(ceiling Policy) (index int, ok bool) {
	for i, glob := range p.globs {
		one, err := compile(glob, maxPatterns)
		if err != nil {
			return i, false // it was compiled once already
		}
		for _, pat := range one {
			if !ceiling.includes(pat) {
				return i, false
			}
		}
	}
	return -1, true
}

func (p Policy) includes(pat pattern) bool {
	if len(pat) == 0 { // the workspace's own folder, which only "." names
		return p.dot
	}
	for _, c := range p.patterns {
		if len(c) > 0 && c.includes(pat) {
			return true
		}
	}
	return false
}

// includes says whether all paths of the other pattern are paths of c. It walks
// both at once, from the ends: in[j] is whether what is left of c includes what
// is left of the other from its component j on.
func (c pattern) includes(other pattern) bool {
	in, next := make([]bool, len(other)+1), make([]bool, len(other)+1)
	next[len(other)] = true // nothing left includes nothing left
	for i := len(c) - 1; i >= 0; i-- {
		for j := len(other); j >= 0; j-- {
			switch {
			case c[i].any: // stands for nothing, or for one component more
				in[j] = next[j] || j < len(other) && !other[j].guarded() && in[j+1]
			default:
				in[j] = j < len(other) && c[i].includes(other[j]) && next[j+1]
			}
		}
		in, next = next, in
	}
	return next[0]
}

// includes says whether a component of a ceiling permits all that another does.
func (s segment) includes(other segment) bool {
	switch {
	case other.any:
		return false
	case s.literal || other.guarded():
		return s.literal && other.literal && s.text == other.text
	case other.literal:
		return doublestar.MatchUnvalidated(s.text, other.text)
	}
	return s.text == other.text || s.text == "*"
}

// guarded says whether a component names what only a name permits.
func (s segment) guarded() bool {
	if !s.literal {
		return false
	}
	for _, name := range protectedNames {
		if looksLike(s.text, name) {
			return true
		}
	}
	return strings.EqualFold(s.text, "CODEOWNERS")
}
