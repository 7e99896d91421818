package workspace

import (
	"bytes"
	"iter"
)

// Diff lists what differs between two trees of the same folder, sorted by the
// bytes of the path. Paths in a deep tree are long and the list holds them all:
// where a step chose the tree, range over Changes and stop at a limit.
func Diff(before, after *Tree) []Change {
	var list []Change
	for c := range Changes(before, after) {
		list = append(list, c)
	}
	return list
}

// Changes yields what Diff lists, one at a time. Folders that the two trees
// share are not looked at, so the cost goes by what changed.
func Changes(before, after *Tree) iter.Seq[Change] {
	return func(yield func(Change) bool) {
		d := differ{before: before, after: after, yield: yield}
		// The folder itself is a path like any other and has its place in the
		// order: "." comes after "-" and before "a".
		if kind := d.compare(&dir{}, &dir{}, &before.root, &after.root); kind != "" {
			c := newChange(kind, []byte("."), &dir{}, &after.root)
			d.root = &c
		}
		if d.unknown(&after.root) || d.folder(before.top, after.top) {
			d.flushRoot()
		}
	}
}

type differ struct {
	before, after *Tree
	yield         func(Change) bool
	path          []byte
	root          *Change // the change of "." until its turn comes
}

func (d *differ) flushRoot() bool {
	if d.root == nil {
		return true
	}
	c := *d.root
	d.root = nil
	return d.yield(c)
}

func (d *differ) emit(kind string, of *dir, e *entry) bool {
	if d.root != nil && bytes.Compare(d.path, []byte(".")) > 0 && !d.flushRoot() {
		return false
	}
	return d.yield(newChange(kind, d.path, of, e))
}

// later is a folder whose content comes after some of its siblings: "a-b"
// sorts before "a/b".
type later struct {
	name []byte
	a, b *dir
}

// comesBefore says whether the paths in the folder sort before name, given that
// the folder's own name does.
func (l later) comesBefore(name []byte) bool {
	if !bytes.HasPrefix(name, l.name) {
		return true
	}
	return name[len(l.name)] > '/'
}

// folder compares the contents of a folder; nil is a folder that is not there.
// It answers false once the caller wants no more.
func (d *differ) folder(a, b *dir) bool {
	if a == b {
		return true
	}
	if a == nil {
		a = &dir{}
	}
	if b == nil {
		b = &dir{}
	}
	base := len(d.path)
	var waiting []later
	flush := func() bool {
		l := waiting[len(waiting)-1]
		waiting = waiting[:len(waiting)-1]
		d.path = append(append(d.path[:base], l.name...), '/')
		ok := d.folder(l.a, l.b)
		d.path = d.path[:base]
		return ok
	}
	for i, j := 0, 0; i < len(a.entries) || j < len(b.entries); {
		var ea, eb *entry
		var name []byte
		switch order := nextOf(a, b, i, j); {
		case order < 0:
			ea = &a.entries[i]
			name = a.name(ea)
			i++
		case order > 0:
			eb = &b.entries[j]
			name = b.name(eb)
			j++
		default:
			ea, eb = &a.entries[i], &b.entries[j]
			name = b.name(eb)
			i++
			j++
		}
		for len(waiting) > 0 && waiting[len(waiting)-1].comesBefore(name) {
			if !flush() {
				return false
			}
		}
		d.path = append(d.path[:base], name...)
		if !d.one(a, b, ea, eb) {
			return false
		}
		if l := (later{name, a.sub(ea), b.sub(eb)}); l.a != l.b && !d.unknown(eb) {
			waiting = append(waiting, l)
		}
	}
	for len(waiting) > 0 {
		if !flush() {
			return false
		}
	}
	d.path = d.path[:base]
	return true
}

// unknown is a folder that cannot be read now: to list what was in it as
// deleted would be a guess.
func (d *differ) unknown(e *entry) bool {
	return e != nil && e.mode&modeType == modeDir && e.flags&flagUnreadable != 0
}

func nextOf(a, b *dir, i, j int) int {
	switch {
	case i == len(a.entries):
		return 1
	case j == len(b.entries):
		return -1
	}
	return bytes.Compare(a.name(&a.entries[i]), b.name(&b.entries[j]))
}

// one compares what is at one path.
func (d *differ) one(a, b *dir, ea, eb *entry) bool {
	switch {
	case eb == nil:
		return d.emit(Deleted, a, ea)
	case ea == nil:
		return d.emit(Created, b, eb)
	}
	if kind := d.compare(a, b, ea, eb); kind != "" {
		return d.emit(kind, b, eb)
	}
	return true
}

// compare names the change between two states of one path, "" for none.
func (d *differ) compare(a, b *dir, ea, eb *entry) string {
	switch {
	case ea.mode&modeType != eb.mode&modeType:
		return Retyped
	case (ea.flags|eb.flags)&flagUnreadable != 0:
		if d.untouched(ea, eb) {
			return ""
		}
		// A folder's own mode is known even if its content is not.
		if eb.mode&modeType == modeDir && ea.mode != eb.mode {
			return Mode
		}
		return Modified
	case !sameContent(a, b, ea, eb):
		return Modified
	case ea.mode != eb.mode:
		return Mode
	}
	return ""
}

// untouched says whether an inode whose content we cannot read is provably in
// the state it was in. A box runs as the owner of what it wrote: it can open up
// a folder, change it and close it again, but not without moving the change
// time.
func (d *differ) untouched(ea, eb *entry) bool {
	return ea.flags&eb.flags&flagUnreadable != 0 && ea.ino == eb.ino && ea.ctime == eb.ctime &&
		ea.mode == eb.mode && ea.size == eb.size &&
		d.before.places[ea.place] == d.after.places[eb.place] && ea.ctime < d.before.settled[ea.place]
}

func sameContent(a, b *dir, ea, eb *entry) bool {
	switch eb.mode & modeType {
	case modeFile:
		return ea.size == eb.size && ea.sum == eb.sum && (ea.flags^eb.flags)&flagSparse == 0
	case modeLink:
		return bytes.Equal(a.target(ea), b.target(eb))
	case modeChar, modeBlock:
		return ea.size == eb.size
	}
	return true
}
