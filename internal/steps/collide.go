package steps

import (
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// collide gives the first path of b at which two steps that started from the
// same state did what cannot both be: "" if there is none. Two that made the
// same folder, or the same file with the same content, agree.
func collide(a, b []workspace.Change) string {
	of := func(list []workspace.Change) map[string]workspace.Change {
		m := make(map[string]workspace.Change, len(list))
		for _, c := range list {
			m[c.RawPath()] = c
		}
		return m
	}
	first, second := of(a), of(b)
	for _, c := range b {
		path := c.RawPath()
		if o, both := first[path]; both && !agree(o, c) {
			return c.Path
		}
		if under(path, first) {
			return c.Path
		}
	}
	for _, c := range a {
		if under(c.RawPath(), second) {
			return c.Path
		}
	}
	return ""
}

// agree says whether two changes of one path leave the same there.
func agree(a, b workspace.Change) bool {
	if a.Change == workspace.Deleted || b.Change == workspace.Deleted {
		return a.Change == b.Change
	}
	if a.Type != b.Type || a.Mode != b.Mode || a.Unreadable || b.Unreadable {
		return false
	}
	switch a.Type {
	case "dir":
		return true
	case "file":
		return a.SHA256 != "" && a.SHA256 == b.SHA256
	case "symlink":
		return a.Target == b.Target
	}
	return false
}

// under says whether a path lies below something that another step removed, or
// put something else than a folder in the place of.
func under(path string, other map[string]workspace.Change) bool {
	for {
		i := strings.LastIndexByte(path, '/')
		if i < 0 {
			return false
		}
		path = path[:i]
		if c, ok := other[path]; ok && (c.Change == workspace.Deleted || c.Type != "dir") {
			return true
		}
	}
}
