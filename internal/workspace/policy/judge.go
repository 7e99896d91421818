package policy

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// The types of violations that are found here.
const (
	ChangeNotAllowed = "change_not_allowed"
	ProtectedPath    = "protected_path"
	LinkEscape       = "link_escape"
	SetID            = "set_id"
)

// Violation is something a step did to the workspace that it may not.
type Violation struct {
	Type    string
	Message string
}

// Verdict is what becomes of each change: it is in exactly one of Commit,
// Dropped and Special, or it is in none and Violations speaks of it. With a
// violation nothing is committed, Commit included.
type Verdict struct {
	Commit []workspace.Change
	// Dropped is what git itself refreshes, and a mode that would close the
	// workspace: no violation, and not committed.
	Dropped []workspace.Change
	// Special are FIFOs, sockets and devices: listed, and not committed.
	Special []workspace.Change
	// Violations are at most maxEach of a type, the last one saying how many more.
	Violations []Violation
	// First are the raw paths to show before all others, most urgent first. Why
	// has a word about each. Where many changes lie in a folder of installed
	// packages, that is here in place of them, with a slash at its end.
	First []string
	Notes []string
}

// judging is one call of Judge.
type judging struct {
	policy Policy
	env    Env
	there  map[string]bool // what the step found, as far as it was asked
	stays  map[string]bool // paths whose change is not committed
	looked int             // how often a link's way was looked at
}

// fate is what becomes of one change.
type fate int

const (
	refusedForm fate = iota // we do not know what it is
	refused                 // no glob permits it
	guarded                 // protected, and no glob names it
	permitted
	dropped
	closing // a mode of the workspace that no later step could work with
	special
)

// item is a change with what was found out about it.
type item struct {
	workspace.Change
	raw   string
	names []string
	fate  fate
	// made: a repository that the step itself made lies at names[:made+1].
	made   int
	pinned int
}

// Judge says what becomes of the changes of a step that is over. The order of
// changes does not matter, but is kept.
func (p Policy) Judge(changes []workspace.Change, env Env) Verdict {
	j := &judging{policy: p, env: env, there: map[string]bool{}, stays: map[string]bool{}}
	items := make([]item, len(changes))
	for i, c := range changes {
		items[i] = j.look(c)
	}
	j.folders(items)
	for _, it := range items {
		if it.fate == dropped || it.fate == closing || it.fate == special {
			j.stays[it.raw] = true
		}
	}
	var v Verdict
	t := tally{}
	missing := &proposal{policy: p, items: items}
	for _, it := range items {
		switch it.fate {
		case special:
			v.Special = append(v.Special, it.Change)
		case dropped, closing:
			v.Dropped = append(v.Dropped, it.Change)
		case permitted:
			switch {
			case j.escapes(it, &t):
			case j.armed(it, &t):
			default:
				v.Commit = append(v.Commit, it.Change)
			}
		case guarded:
			t.add(ProtectedPath, func() string { return guardedMessage(it, missing) })
		case refused:
			t.add(ChangeNotAllowed, func() string { return refusedMessage(it, missing) })
		default:
			t.add(ChangeNotAllowed, func() string { return unknownMessage(it) })
		}
	}
	v.Violations = t.list()
	v.First = first(items)
	v.Notes = notes(items)
	return v
}

// look judges a change by its path alone.
func (j *judging) look(c workspace.Change) item {
	it := item{Change: c, raw: c.RawPath(), made: -1, pinned: -1}
	var ok bool
	if it.names, ok = split(it.raw); !ok || !knownWords(c) || len(it.names) == 0 && (c.Change != workspace.Mode || c.Type != "dir") {
		return it
	}
	it.pinned, it.made = j.protection(it.names)
	switch {
	case isSpecial(c):
		it.fate = special
	case len(it.names) == 0 && closes(c):
		it.fate = closing
	case len(it.names) == 0 && !j.policy.dot && j.opened(c):
		it.fate = refused
	case j.policy.permits(it.names, it.pinned):
		it.fate = permitted
	case it.pinned < 0:
		it.fate = refused
	case refreshed(it.names):
		it.fate = dropped
	default:
		it.fate = guarded
	}
	return it
}

// opened says whether others can write to the workspace's own folder now and
// could not before: whoever can may put another .git there.
func (j *judging) opened(c workspace.Change) bool {
	const others = 0o022
	mode, err := strconv.ParseUint(c.Mode, 8, 32)
	if err != nil {
		return true
	}
	before, err := j.env.before(".")
	return err != nil || uint32(mode)&others&^before.Mode != 0
}

// closes says whether the workspace's own folder would keep its owner from reading,
// writing or entering it: one step would end this run and all later ones. A mode
// that cannot be read is judged elsewhere.
func closes(c workspace.Change) bool {
	const owner = 0o700
	mode, err := strconv.ParseUint(c.Mode, 8, 32)
	return err == nil && mode&owner != owner
}

// isSpecial: what is deleted is not there any more, so there is nothing special
// about deleting it.
func isSpecial(c workspace.Change) bool {
	switch c.Type {
	case "fifo", "socket", "device":
		return c.Change != workspace.Deleted
	}
	return false
}

func knownWords(c workspace.Change) bool {
	switch c.Type {
	case "file", "dir", "symlink", "fifo", "socket", "device":
	default:
		return false
	}
	switch c.Change {
	case workspace.Created, workspace.Modified, workspace.Deleted, workspace.Mode, workspace.Retyped:
		return true
	}
	return false
}

// folders decides about folders that only came to be for what lies in them: one
// is permitted if something permitted was made below it, and goes with what git
// refreshes if there is nothing else below it. A folder that was there before
// is not made by what is made in it: to change its mode is a change of its own.
func (j *judging) folders(items []item) {
	wanted, hasDropped, hasOther := folderSet{}, folderSet{}, folderSet{}
	for _, it := range items {
		if it.Change.Change == workspace.Created && (it.fate == permitted || it.fate == special && j.policy.permits(it.names, it.pinned)) {
			wanted.addAbove(it.raw)
		}
		if it.fate == dropped {
			hasDropped.addAbove(it.raw)
		}
	}
	for i, it := range items {
		if wanted[it.raw] && made(it) {
			items[i].fate = permitted
		}
	}
	// What is special is not committed either, so it holds up no folder.
	only := func(it item) bool { return it.fate == guarded && made(it) && hasDropped[it.raw] }
	for _, it := range items {
		if it.fate != dropped && it.fate != special && !only(it) {
			hasOther.addAbove(it.raw)
		}
	}
	for i, it := range items {
		if only(it) && !hasOther[it.raw] {
			items[i].fate = dropped
		}
	}
}

// folderSet is a set of folders that has, with each, all above it.
type folderSet map[string]bool

// addAbove adds every folder above a path; the workspace itself is none of them.
// It stops at one that is known, or a very deep tree would take hours.
func (s folderSet) addAbove(raw string) {
	for {
		i := strings.LastIndexByte(raw, '/')
		if i < 0 {
			return
		}
		if raw = raw[:i]; s[raw] {
			return
		}
		s[raw] = true
	}
}

// made says whether a change is a new folder that nothing permits so far.
func made(it item) bool {
	return (it.fate == refused || it.fate == guarded) && it.Change.Change == workspace.Created && it.Type == "dir"
}

// escapes notes a link that leaves the workspace.
func (j *judging) escapes(it item, t *tally) bool {
	if it.Type != "symlink" || it.Change.Change == workspace.Deleted {
		return false
	}
	target := it.Target
	// A list made for a report may not hold the exact bytes.
	if f, err := j.env.after(it.raw); err == nil && f.Type == "symlink" {
		target = f.Target
	}
	why := j.leaves(it.names, target)
	if why != "" {
		t.add(LinkEscape, func() string { return linkMessage(it, target, why) })
	}
	return why != ""
}

// armed notes set-id bits.
func (j *judging) armed(it item, t *tally) bool {
	if it.Change.Change == workspace.Deleted {
		return false
	}
	why := j.setID(it.names, it.Change)
	if why != "" {
		t.add(SetID, func() string { return setIDMessage(it, why) })
	}
	return why != ""
}

// first picks what a reviewer sees before all others.
func first(items []item) []string {
	gone := map[string]bool{}
	for _, it := range items {
		if it.Change.Change == workspace.Deleted {
			gone[it.raw] = true
		}
	}
	type ranked struct {
		rank int
		raw  string
	}
	var list []ranked
	packages, few := map[string]int{}, map[string][]ranked{} // by folder
	for _, it := range items {
		if it.fate == dropped || it.fate == special || len(it.names) == 0 {
			continue
		}
		folder, installed := Installed(it.raw)
		switch {
		case it.pinned >= 0:
			list = append(list, ranked{0, it.raw})
		case it.made >= 0:
			if it.made == len(it.names)-1 { // the repository, not all that is in it
				list = append(list, ranked{1, it.raw})
			}
		case installed && it.Change.Change == workspace.Deleted && gone[path.Dir(it.raw)]: // the folder is told of
		case installed && isOneOfMany(it):
			switch packages[folder]++; {
			case packages[folder] < minPackages:
				few[folder] = append(few[folder], ranked{4, it.raw})
			case packages[folder] == minPackages:
				few[folder] = []ranked{{4, folder}}
			}
		case Why(it.raw) != "":
			rank := 2
			if installed {
				rank = 4
			}
			list = append(list, ranked{rank, it.raw})
		case it.Change.Change == workspace.Deleted && !gone[path.Dir(it.raw)]:
			list = append(list, ranked{3, it.raw})
		}
	}
	for _, some := range few {
		list = append(list, some...)
	}
	slices.SortStableFunc(list, func(a, b ranked) int {
		if a.rank != b.rank {
			return a.rank - b.rank
		}
		return strings.Compare(a.raw, b.raw)
	})
	var out []string
	for _, r := range list {
		out = append(out, r.raw)
	}
	return out
}

// minPackages is how many changes in a folder of installed packages are one line.
// An install makes thousands, and none of them is anybody's own.
const minPackages = 4

// isOneOfMany says whether a change of what is installed is one that would be told
// by itself, were there not thousands of them. What every start of python runs is
// always told.
func isOneOfMany(it item) bool {
	why := Why(it.raw)
	return why != whyPython && (why != "" || it.Change.Change == workspace.Deleted)
}

// isDependencies: folders that package managers fill.
func isDependencies(name string) bool {
	switch name {
	case "node_modules", "site-packages", "vendor", ".venv", "venv", ".deps":
		return true
	}
	return false
}
