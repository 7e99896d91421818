package policy

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

const (
	// inBox is where a box has the workspace.
	inBox = "/workspace"
	// maxLinks is how many links the kernel follows within one path.
	maxLinks = 40
	// maxLooks bounds how much of the tree is looked at for all links of a step.
	// One with a few hundred thousand, each with two thousand components on its
	// way, would else keep us busy for hours. npm makes some ten thousand.
	maxLooks = 1 << 20
)

// leaves says why a link leads out of the workspace, now or once another step has
// put a link in the place of a folder on its way: a/b/c/../../../x is inside only
// while a/b/c is a folder three levels down, and to make it another one looks
// harmless by itself. What goes up only at its beginning goes up from the folder
// the link lies in, and no step can change where that is without the link being
// judged anew.
func (j *judging) leaves(names []string, target string) string {
	if why := j.leads(names, target); why != "" {
		return why
	}
	if target[0] != '/' && turnsBack(target) {
		return "its target goes up behind a name, and whatever a later step puts at that name would decide where it leads"
	}
	return ""
}

// turnsBack says whether a target has .. behind a name.
func turnsBack(target string) bool {
	named := false
	for name := range strings.SplitSeq(target, "/") {
		switch name {
		case "", ".":
		case "..":
			if named {
				return true
			}
		default:
			named = true
		}
	}
	return false
}

// leads says why a link leads out of the workspace; empty: it does not. Only
// its last component is not followed: if that is a link, it is judged itself,
// or was there before.
//
// An attacker wants a link that our side, or a later upload, reads or writes
// through. The text alone does not tell: a/b/../../x is inside until a/b is a
// link to the root. So what lies on the way is looked up.
func (j *judging) leads(names []string, target string) string {
	if target == "" || strings.ContainsRune(target, 0) {
		return "its target cannot be read"
	}
	if target[0] == '/' {
		return j.leavesRoot(names, target)
	}
	at := slices.Clone(names[:len(names)-1])
	rest := strings.Split(target, "/")
	for followed := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			if len(at) == 0 {
				return "its target lies above the workspace"
			}
			at = at[:len(at)-1]
			continue
		}
		at = append(at, name)
		if !goesOn(rest) {
			break
		}
		if j.looked++; j.looked > maxLooks {
			return "the step made more links than can be followed"
		}
		here := strings.Join(at, "/")
		f, err := j.left(here)
		switch {
		case err != nil:
			return "what lies on its way is not known: " + strconv.Quote(here)
		case f.Type != "symlink":
			continue
		case f.Target == "":
			return "a link on its way cannot be read: " + strconv.Quote(here)
		}
		if followed++; followed > maxLinks {
			return fmt.Sprintf("its target leads through more than %d links", maxLinks)
		}
		at = at[:len(at)-1]
		if f.Target[0] == '/' {
			return j.leavesRoot(names, f.Target+"/"+strings.Join(rest, "/"))
		}
		rest = append(strings.Split(f.Target, "/"), rest...)
	}
	return ""
}

// goesOn says whether a path has a component left that leads anywhere.
func goesOn(rest []string) bool {
	return slices.ContainsFunc(rest, func(n string) bool { return n != "" && n != "." })
}

// left is what a commit would leave at a path: what the step left, but where its
// change is not committed, what it found.
func (j *judging) left(path string) (Found, error) {
	if j.stays[path] {
		return j.env.before(path)
	}
	return j.env.after(path)
}

// leavesRoot judges an absolute target.
func (j *judging) leavesRoot(names []string, target string) string {
	parts := strings.Split(target, "/")
	clean := path.Clean(target)
	switch {
	case under(clean, inBox):
		return fmt.Sprintf("%s is the workspace only inside the box; make it relative: %s",
			strconv.Quote(shortened(target)), strconv.Quote(shortened(relative(names, clean))))
	case slices.Contains(parts, ".."):
		// /usr/bin/link/../x is in /usr only if we know what link is.
		return "its target is absolute and has .. in it"
	case !j.isTool(clean):
		return "its target lies outside the workspace"
	case j.env.Real == nil:
		return ""
	}
	if real := j.env.Real(clean); real != "" && !j.isTool(path.Clean(real)) {
		return "its target is among the box's tools and leads out of them on this machine"
	}
	return ""
}

func (j *judging) isTool(clean string) bool {
	return slices.ContainsFunc(j.env.Tools, func(t string) bool {
		t = path.Clean(t)
		return len(t) > 1 && t[0] == '/' && under(clean, t)
	})
}

func under(clean, folder string) bool {
	return clean == folder || strings.HasPrefix(clean, folder+"/")
}

// relative is what a link would say instead of a path of the box.
func relative(names []string, clean string) string {
	from := names[:len(names)-1]
	var to []string
	if rest := strings.TrimPrefix(clean, inBox+"/"); rest != clean {
		to = strings.Split(rest, "/")
	}
	for len(from) > 0 && len(to) > 0 && from[0] == to[0] {
		from, to = from[1:], to[1:]
	}
	out := strings.Repeat("../", len(from)) + strings.Join(to, "/")
	if out = strings.TrimSuffix(out, "/"); out == "" {
		return "."
	}
	return out
}
