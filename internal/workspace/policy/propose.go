package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// proposal is the line of the steps file that would permit all that a step was
// refused. It is made once, when the first message asks for it.
type proposal struct {
	policy Policy
	items  []item
	told   bool
}

// advice ends the first message about a refused change, and no other: one line to
// write is enough for all of them.
func (o *proposal) advice() string {
	if o.told {
		return ""
	}
	o.told = true
	what := "it"
	if n := 0; slices.ContainsFunc(o.items, func(it item) bool {
		if lacksGlob(it) {
			n++
		}
		return n > 1
	}) {
		what = "all of these"
	}
	return "; to permit " + what + ", write " + o.policy.line(o.globs())
}

func lacksGlob(it item) bool { return it.fate == refused || it.fate == guarded }

// deepest is how far down a folder is looked for that a glob could mean. A step can
// nest a thousand folders in a second, and to look at all of each path is work that
// grows with the square of that. Below it the path itself is the glob.
const deepest = 64

// folder is a glob for a folder and all in it.
func folder(names []string) string { return escape(strings.Join(names, "/")) + "/**" }

// globs are few and no wider than what was done: a folder that the step made, or
// changed more than one thing in, and else the path itself. Of a repository it is
// never all of .git, which would let a step set hooks.
func (o *proposal) globs() []string {
	below, dirs := map[string]int{}, map[string]bool{}
	for _, it := range o.items {
		if !lacksGlob(it) {
			continue
		}
		for i := range it.names[:min(max(0, len(it.names)-1), deepest)] {
			below[strings.Join(it.names[:i+1], "/")]++
		}
		if it.Type == "dir" {
			dirs[it.raw] = true
		}
	}
	var out []string
	seen := map[string]bool{}
	add := func(glob string) {
		if !seen[glob] {
			seen[glob] = true
			out = append(out, glob)
		}
	}
	objects := map[string]bool{}
	for _, it := range o.items {
		if lacksGlob(it) {
			add(o.glob(it, below, dirs))
		}
		if it.fate == dropped && it.pinned >= 0 && len(it.names) > it.pinned+2 && it.names[it.pinned+1] == "objects" {
			objects[strings.Join(it.names[:it.pinned+2], "/")] = true
		}
	}
	// A commit without its objects is none.
	for _, it := range o.items {
		if it.fate == guarded {
			if at := strings.Join(it.names[:it.pinned+1], "/") + "/objects"; objects[at] {
				add(escape(at) + "/**")
			}
		}
	}
	return out
}

// glob is the one for a change.
func (o *proposal) glob(it item, below map[string]int, dirs map[string]bool) string {
	n := len(it.names)
	if n == 0 {
		return it.raw
	}
	// No wildcard stands for the name that must be named.
	for i := max(1, it.pinned+1); i <= min(n, deepest); i++ {
		at := strings.Join(it.names[:i], "/")
		// A glob for the folder alone, which most likely was to mean all in it.
		if i < n && slices.Contains(o.policy.globs, escape(at)) {
			return folder(it.names[:i])
		}
		if dirs[at] && below[at] > 0 {
			return folder(it.names[:i])
		}
	}
	if it.fate == guarded {
		if i := it.pinned + 2; n > i && below[strings.Join(it.names[:i], "/")] > 1 {
			return folder(it.names[:i])
		}
		return escape(it.raw)
	}
	if n > 1 && below[strings.Join(it.names[:n-1], "/")] > 1 {
		return folder(it.names[:n-1])
	}
	return escape(it.raw)
}

// line is the line of the steps file that would permit more globs. A text in
// Go's quotes is one in YAML's, as long as it is valid UTF-8.
func (p Policy) line(more []string) string {
	var list, added []string
	for _, g := range p.globs {
		if !slices.Contains(more, g+"/**") { // which means the folder too
			list = append(list, strconv.Quote(g))
		}
	}
	for _, g := range more {
		added = append(added, strconv.Quote(g))
	}
	if all := "allowChanges: [" + strings.Join(append(list, added...), ", ") + "]"; len(all) <= maxLine {
		return all
	}
	if len(added[0]) > maxGlob/4 {
		return "a glob that means it under allowChanges"
	}
	if len(added) == 1 {
		return "one more line under allowChanges: - " + added[0]
	}
	n, size := 1, len(added[0])
	for ; n < len(added) && size+len(added[n]) < maxLine; n++ {
		size += len(added[n])
	}
	text := "more lines under allowChanges: - " + strings.Join(added[:n], ", - ")
	if rest := len(added) - n; rest > 0 {
		text += fmt.Sprintf(", and %d more", rest)
	}
	return text
}
