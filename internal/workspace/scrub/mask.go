package scrub

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Mask is what a box sees otherwise than it is. Paths are relative to the
// workspace and raw: any byte but NUL may be in them.
type Mask struct {
	// Files are shown with another text, sorted by path.
	Files []File
	// Hidden are shown as absent, folders with all that is in them, sorted.
	Hidden []string
	// Notes say what is not in the box, for people. They name files and keys and
	// never say what was there. Bytes that could act on a terminal are escaped.
	Notes []string
	// Checkout are configurations of git in which a checkout left the credentials
	// it fetched with. Find says it; nothing later does.
	Checkout []string

	folders []folderLook // every folder above a path of the mask, parents first
}

// File is a file that is shown with another text.
type File struct {
	Path     string
	Mode     uint32 // twelve bits
	Modified time.Time
	Text     []byte

	kind int
}

type folderLook struct {
	path     string // "" is the workspace
	mode     uint32
	modified time.Time
}

// Empty says that there is nothing to hide, and so no layer to mount.
func (m Mask) Empty() bool { return len(m.Files) == 0 && len(m.Hidden) == 0 }

// Same says whether two masks make the same layer, but for the times of folders.
func (m Mask) Same(o Mask) bool {
	return slices.Equal(m.Hidden, o.Hidden) &&
		slices.EqualFunc(m.Files, o.Files, func(a, b File) bool {
			return a.Path == b.Path && a.Mode == b.Mode && a.Modified.Equal(b.Modified) && bytes.Equal(a.Text, b.Text)
		}) &&
		slices.EqualFunc(m.folders, o.folders, func(a, b folderLook) bool { return a.path == b.path && a.mode == b.mode })
}

// Look says how a path is shown: with another text, as absent, or as it is.
func (m Mask) Look(path string) (text []byte, replaced, hidden bool) {
	if i, ok := slices.BinarySearchFunc(m.Files, path, func(f File, p string) int { return cmp.Compare(f.Path, p) }); ok {
		return m.Files[i].Text, true, false
	}
	return nil, false, under(m.Hidden, path)
}

// Covers says whether what a box did to a path was done to something it did
// not see as it is. To commit such a change would be to lose the secret, or what
// it was there for, on the host.
func (m Mask) Covers(path string) bool {
	_, replaced, hidden := m.Look(path)
	return replaced || hidden
}

// Holds says whether something that a box sees otherwise lies below a path. A
// folder whose only files are hidden looks empty, and goes with a plain rmdir: to
// commit that would take away with it what nobody saw.
func (m Mask) Holds(path string) bool {
	below := path + "/"
	i := sort.SearchStrings(m.Hidden, below)
	if i < len(m.Hidden) && strings.HasPrefix(m.Hidden[i], below) {
		return true
	}
	i, _ = slices.BinarySearchFunc(m.Files, below, func(f File, p string) int { return cmp.Compare(f.Path, p) })
	return i < len(m.Files) && strings.HasPrefix(m.Files[i].Path, below)
}

// Paths are all that a box sees otherwise than it is, as Look would say.
func (m Mask) Paths() []string {
	list := slices.Clone(m.Hidden)
	for _, f := range m.Files {
		list = append(list, f.Path)
	}
	slices.Sort(list)
	return list
}

// under says whether a path is one of a sorted list or lies below one.
func under(list []string, path string) bool {
	for at := len(path); at > 0; at = strings.LastIndexByte(path[:at], '/') {
		if _, ok := slices.BinarySearch(list, path[:at]); ok {
			return true
		}
	}
	return false
}

// cutAt is the part of a path that has so many names, and whether there are more.
func cutAt(path string, names int) (string, bool) {
	for at := range len(path) {
		if path[at] == '/' {
			if names--; names == 0 {
				return path[:at], true
			}
		}
	}
	return path, false
}

// settle puts the mask into its order, each path once: what is hidden is not
// shown, and what lies in a hidden folder needs no line of its own.
func (m *Mask) settle() {
	sort.Strings(m.Hidden)
	m.Hidden = slices.Compact(m.Hidden)
	all := m.Hidden
	m.Hidden = nil
	for _, h := range all {
		if up := strings.LastIndexByte(h, '/'); up < 0 || !under(all, h[:up]) {
			m.Hidden = append(m.Hidden, h)
		}
	}
	slices.SortFunc(m.Files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	m.Files = slices.CompactFunc(m.Files, func(a, b File) bool { return a.Path == b.Path })
	m.Files = slices.DeleteFunc(m.Files, func(f File) bool { return under(m.Hidden, f.Path) })
	sort.Strings(m.Checkout)
	sort.Strings(m.Notes)
	m.Notes = slices.Compact(m.Notes)
	if n := len(m.Notes) - maxNotes; n > 0 {
		m.Notes = append(m.Notes[:maxNotes], fmt.Sprintf("and %d more notes of what is not in the box", n))
	}
}

// maxNotes is how many notes somebody may be expected to read.
const maxNotes = 100

// parents are the folders above all paths of the mask, parents first.
func (m *Mask) parents() []string {
	seen := map[string]bool{"": true}
	add := func(p string) {
		for {
			i := strings.LastIndexByte(p, '/')
			if i < 0 || seen[p[:i]] {
				return
			}
			p = p[:i]
			seen[p] = true
		}
	}
	for _, f := range m.Files {
		add(f.Path)
	}
	for _, h := range m.Hidden {
		add(h)
	}
	out := make([]string, 0, len(seen))
	for p := range seen {
		out = append(out, p)
	}
	sort.Strings(out)
	return out
}

// shown makes a path, or a key, fit for people to read: names in a workspace
// are chosen by whoever is not trusted.
func shown(s string) string {
	const longest = 200
	cut := s
	if len(cut) > longest {
		cut = cut[:longest]
	}
	plain := !strings.ContainsFunc(cut, func(r rune) bool { return r == unicode.ReplacementChar || !unicode.IsPrint(r) })
	if !plain {
		cut = strconv.QuoteToASCII(cut)
	}
	if len(s) > longest {
		cut += "..."
	}
	return cut
}
