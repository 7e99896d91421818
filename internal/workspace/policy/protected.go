package policy

import (
	"path"
	"slices"
	"strings"
)

// protectedNames are, at the workspace's root, what git or the forge obeys: to
// change one is to run code on the next machine, or to take a reviewer away. A
// glob permits them only if it names them.
var protectedNames = []string{".git", ".github", "CODEOWNERS", ".gitattributes", ".gitmodules"}

// protection says which component of a path has to be named, the outermost if
// there are several; -1 is none. made is that of a repository in a sub folder
// which the step itself made, folder and all: git clone is ordinary, and shown
// first.
func (j *judging) protection(names []string) (pinned, made int) {
	if len(names) == 0 {
		return -1, -1
	}
	if at := protectedAt(names); at >= 0 {
		return at, -1
	}
	for i := 1; i < len(names); i++ {
		if !looksLike(names[i], ".git") {
			continue
		}
		folder := strings.Join(names[:i], "/")
		// On a file system that ignores case, .GIT is the .git that was there.
		if j.wasThere(folder+"/"+names[i]) || names[i] != ".git" && j.wasThere(folder+"/.git") {
			return i, -1
		}
		// git clone makes the folder too. One that was there may be where a
		// submodule belongs that nobody has checked out: git status in the
		// workspace looks into it, and obeys what is configured there.
		if j.isModule(folder) || j.wasThere(folder) {
			return i, -1
		}
		return -1, i // and what lies below it is as new
	}
	return -1, -1
}

// protectedAt is where a path has a protected name at the root; -1 is nowhere.
func protectedAt(names []string) int {
	for _, want := range protectedNames {
		if looksLike(names[0], want) {
			return 0
		}
	}
	if len(names) > 1 && strings.EqualFold(names[0], "docs") && looksLike(names[1], "CODEOWNERS") {
		return 1
	}
	return -1
}

func (j *judging) isModule(folder string) bool {
	return slices.ContainsFunc(j.env.Modules, func(m string) bool { return strings.EqualFold(path.Clean(m), folder) })
}

// wasThere says whether the step found something at a path; in doubt it did.
func (j *judging) wasThere(path string) bool {
	if there, known := j.there[path]; known {
		return there
	}
	f, err := j.env.before(path)
	j.there[path] = err != nil || f.Type != ""
	return j.there[path]
}

// looksLike says whether some file system, somewhere this workspace may be
// checked out, would take one name for the other: NTFS drops dots and blanks at
// the end, has short names, streams behind a colon and \ as a slash; HFS+ skips
// characters without width; both, and APFS, ignore case. git refuses the same
// forms of .git; an attacker only needs one machine where they are the same.
func looksLike(name, want string) bool {
	if name == want {
		return true
	}
	if !odd(name) {
		return strings.EqualFold(name, want)
	}
	if i := strings.IndexAny(name, `\:`); i >= 0 {
		name = name[:i]
	}
	name = strings.TrimRight(strings.Map(withWidth, name), " .")
	return strings.EqualFold(name, want) || isShortName(strings.ToLower(name), want)
}

// odd says whether a name has anything in it that some file system drops or
// reads in another way. Most have not, and paths may have thousands of names.
func odd(name string) bool {
	for i := range len(name) {
		switch c := name[i]; {
		case c >= 0x80, c == '\\', c == ':', c == '~':
			return true
		}
	}
	return name != "" && (name[len(name)-1] == '.' || name[len(name)-1] == ' ')
}

// withWidth drops the characters that HFS+ skips when it compares names.
func withWidth(r rune) rune {
	switch {
	case r >= 0x200c && r <= 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x206a && r <= 0x206f, r == 0xfeff:
		return -1
	}
	return r
}

// isShortName says whether a name can be the 8.3 name NTFS gives to want, such
// as git~1: its first letters, or four digits of a hash when those are taken.
func isShortName(name, want string) bool {
	head, number, ok := strings.Cut(name, "~")
	if !ok || number == "" || number[0] == '0' || len(name) > 8 || strings.Trim(number, "0123456789") != "" {
		return false
	}
	starts := []string{strings.TrimPrefix(strings.ToLower(want), ".")}
	switch want { // the hashes are those of these names
	case ".gitmodules":
		starts = append(starts, "gi7eba")
	case ".gitattributes":
		starts = append(starts, "gi7d29")
	}
	for _, s := range starts {
		if n := min(len(s), 6, 7-len(number)); n > 0 && head == s[:n] {
			return true
		}
	}
	return false
}

// refreshed says whether a path is what git writes when it is only asked a
// question, such as git status: never committed unless named, and no violation.
// A submodule's own folder under .git/modules has the same.
func refreshed(names []string) bool {
	if len(names) < 2 || names[0] != ".git" {
		return false
	}
	own := names[1:]
	if own[0] == "objects" || len(own) == 1 && refreshedFile(own[0]) {
		return true
	}
	if own[0] != "modules" || len(own) < 3 {
		return false
	}
	own = own[2:] // a submodule's name may have slashes in it
	for _, n := range own {
		if n == "objects" {
			return true
		}
	}
	return refreshedFile(own[len(own)-1])
}

func refreshedFile(name string) bool {
	switch name {
	case "index", "FETCH_HEAD", "ORIG_HEAD":
		return true
	}
	return strings.HasSuffix(name, ".lock")
}
