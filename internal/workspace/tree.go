package workspace

import (
	"bytes"
	"iter"
	"math"
)

// Tree is the state of a folder at one moment. It never changes.
type Tree struct {
	root   entry
	top    *dir // nil if the folder itself could not be read
	places []place
	// settled holds, for every place, the moment before which a change time
	// proves that a file read by this snapshot has not changed since.
	settled []int64
	proven  map[uint64]bool // mounts on which change times can be relied on
	count   int64
}

// place is where an inode number means something: a device, seen through one
// mount.
type place struct{ dev, mount uint64 }

// never is a moment that no change time is older than.
const never = math.MinInt64

// Entry is one path of a tree.
type Entry struct {
	Path   string // raw bytes, relative to the folder, which itself is "."
	Type   string // file, dir, symlink, fifo, socket or device
	Mode   uint32 // twelve bits
	Size   int64  // of a file's content or a link's target
	SHA256 string // hex; empty if it is no file, unreadable or very sparse
	Target string // raw bytes, of a symlink
	Device uint64
	Inode  uint64
	// Unreadable: the kernel did not let us look at the content.
	Unreadable bool
}

// Len is the number of entries below the folder.
func (t *Tree) Len() int64 { return t.count }

// All yields the folder itself and then every entry below it, each folder
// before what is in it.
func (t *Tree) All() iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		var path []byte
		var walk func(d *dir) bool
		give := func(d *dir, e *entry, p []byte) bool {
			return yield(Entry{
				Path: string(p), Type: TypeWord(e.mode), Mode: uint32(e.mode & modePerm),
				Size: e.length(), SHA256: e.sha256(), Target: string(d.target(e)),
				Device: t.places[e.place].dev, Inode: e.ino, Unreadable: e.flags&flagUnreadable != 0,
			})
		}
		walk = func(d *dir) bool {
			if d == nil {
				return true
			}
			base := len(path)
			for i := range d.entries {
				e := &d.entries[i]
				path = append(path[:base], d.name(e)...)
				if !give(d, e, path) {
					return false
				}
				if s := d.sub(e); s != nil {
					path = append(path, '/')
					if !walk(s) {
						return false
					}
				}
			}
			path = path[:base]
			return true
		}
		if give(&dir{}, &t.root, []byte(".")) {
			walk(t.top)
		}
	}
}

// find gives the entry of a name. hint is where it was if nothing in the
// folder moved, which is nearly always.
func (d *dir) find(name []byte, hint int) *entry {
	if d == nil {
		return nil
	}
	if hint < len(d.entries) && bytes.Equal(d.name(&d.entries[hint]), name) {
		return &d.entries[hint]
	}
	lo, hi := 0, len(d.entries)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		switch c := bytes.Compare(d.name(&d.entries[mid]), name); {
		case c == 0:
			return &d.entries[mid]
		case c < 0:
			lo = mid + 1
		default:
			hi = mid
		}
	}
	return nil
}
