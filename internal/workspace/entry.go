package workspace

import "encoding/hex"

// Type bits of a mode, as the kernel has them.
const (
	modeType   = 0o170000
	modeFifo   = 0o010000
	modeChar   = 0o020000
	modeDir    = 0o040000
	modeBlock  = 0o060000
	modeFile   = 0o100000
	modeLink   = 0o120000
	modeSocket = 0o140000
	modePerm   = 0o007777
)

// Flags of an entry.
const (
	// flagUnreadable: the kernel did not let us look at the content.
	flagUnreadable uint16 = 1 << iota
	// flagSparse: sum is the block digest of sparse_linux.go, not a SHA-256.
	flagSparse
	// flagUnsettled: the file kept changing while it was read.
	flagUnsettled
	// flagGone: the name went away between listing and looking.
	flagGone
)

// noDir is the aux of a folder whose content is not known.
const noDir = ^uint32(0)

// entry is one path, kept small: a tree may have millions. Names and link
// targets lie in the text of the folder. Two entries that are == are the same
// inode in the same state.
type entry struct {
	ino     uint64
	size    int64 // file: bytes; link: length of the target; device: its number
	ctime   int64 // nanoseconds
	name    uint32
	aux     uint32 // link: where the target lies; folder: index into dirs
	mode    uint16 // type and twelve bits
	nameLen uint16
	place   uint16 // index into Tree.places
	flags   uint16
	sum     [32]byte
}

// dir is the content of one folder, sorted by name. It is never changed once
// it is part of a tree, so trees share it.
type dir struct {
	text    []byte
	entries []entry
	dirs    []*dir
}

func (d *dir) name(e *entry) []byte { return d.text[e.name : e.name+uint32(e.nameLen)] }

// target is where a symlink points.
func (d *dir) target(e *entry) []byte {
	if e.mode&modeType != modeLink || e.flags&flagUnreadable != 0 {
		return nil
	}
	return d.text[e.aux : e.aux+uint32(e.size)]
}

// sub is the content of a folder in d, nil for everything else.
func (d *dir) sub(e *entry) *dir {
	if e == nil || e.mode&modeType != modeDir || e.aux == noDir {
		return nil
	}
	return d.dirs[e.aux]
}

// sameSize says whether was is a file whose content can be compared with e's.
// was may be nil.
func (was *entry) sameSize(e *entry) bool {
	return was != nil && was.mode&modeType == modeFile && was.flags&flagUnreadable == 0 && was.size == e.size
}

// TypeWord is the report's word for the type bits of a mode.
func TypeWord(mode uint16) string {
	switch mode & modeType {
	case modeDir:
		return "dir"
	case modeLink:
		return "symlink"
	case modeFifo:
		return "fifo"
	case modeSocket:
		return "socket"
	case modeChar, modeBlock:
		return "device"
	}
	return "file"
}

// length is the size a report shows: of a file's content or a link's target.
func (e *entry) length() int64 {
	if t := e.mode & modeType; t == modeFile || t == modeLink {
		return e.size
	}
	return 0
}

// sha256 is the SHA-256 of a file's content in hex, empty where it is unknown.
func (e *entry) sha256() string {
	if e.mode&modeType != modeFile || e.flags&(flagUnreadable|flagSparse|flagUnsettled) != 0 {
		return ""
	}
	return hex.EncodeToString(e.sum[:])
}
