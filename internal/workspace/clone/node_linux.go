package clone

import (
	"fmt"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// node is a folder being copied. It is closed, that is given its mode and time,
// by whoever finishes the last part of it: no worker waits for another.
type node struct {
	c          *copying
	parent     *node
	name       string
	depth      int
	id, copyID identity
	meta       meta
	names      []string
	pending    atomic.Int32 // parts and folders in it that are not finished
}

// meta is what an entry has beside its content.
type meta struct {
	mode     uint32 // twelve bits
	uid, gid uint32
	mtime    unix.Timespec
}

func metaOf(st *unix.Statx_t) meta {
	return meta{uint32(st.Mode) & 0o7777, st.Uid, st.Gid, unix.Timespec{Sec: st.Mtime.Sec, Nsec: int64(st.Mtime.Nsec)}}
}

// parts are the names from the top down to name, which may be empty.
func (n *node) parts(name string, most int) []string {
	var up []string
	if name != "" {
		up = append(up, name)
	}
	for ; n.parent != nil; n = n.parent {
		if len(up) == most {
			up = append(up, "...")
			break
		}
		up = append(up, n.name)
	}
	for i, j := 0, len(up)-1; i < j; i, j = i+1, j-1 {
		up[i], up[j] = up[j], up[i]
	}
	return up
}

// path is the raw path of a name in the folder, of any length.
func (n *node) path(name string) string { return strings.Join(n.parts(name, -1), "/") }

// where names a path for a message, bounded: a path may be a megabyte long.
func (n *node) where(name string) string {
	if s := strings.Join(n.parts(name, 8), "/"); s != "" {
		return fmt.Sprintf("%q", s)
	}
	return `"."`
}
