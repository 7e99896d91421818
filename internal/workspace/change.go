package workspace

import (
	"encoding/base64"
	"fmt"
	"strings"
	"unicode/utf8"
)

// What happened to a path.
const (
	Created  = "created"
	Modified = "modified" // content, link target or device number
	Deleted  = "deleted"
	Mode     = "mode" // permission bits and nothing else
	Retyped  = "retyped"
)

// Change is one path that differs between two trees. The fields of a deleted
// path say what was there; all others say what is there now. Path and Target
// are untrusted text and may hold any character.
type Change struct {
	// Path is relative to the workspace, which itself is ".". Bytes that are
	// not UTF-8 are replaced in it; PathBytes is then the exact name, base64.
	Path      string `json:"path"`
	PathBytes string `json:"pathBytes,omitempty"`
	Change    string `json:"change"`
	Type      string `json:"type"`
	Size      int64  `json:"size"`
	Mode      string `json:"mode"` // four octal digits
	// SHA256 of a file's content; empty if it is unreadable or very sparse.
	SHA256 string `json:"sha256,omitempty"`
	Target string `json:"target,omitempty"` // of a symlink
	// From is the path whose content a created file has, where that was deleted
	// in the same step and nothing else had it: most likely it was renamed.
	From string `json:"from,omitempty"`
	// Unreadable: the kernel did not let us look at the content, so that of a
	// folder nothing below it is listed, and of a file no more is known than
	// that its content may have changed.
	Unreadable bool `json:"-"`
}

// RawPath is the exact path, whatever bytes it has.
func (c Change) RawPath() string {
	if c.PathBytes != "" {
		if b, err := base64.StdEncoding.DecodeString(c.PathBytes); err == nil {
			return string(b)
		}
	}
	return c.Path
}

// NewChange is a change of the path of e, which says what is there now, or what
// was there where it is deleted.
func NewChange(kind string, e Entry) Change {
	c := Change{
		Path: e.Path, Change: kind, Type: e.Type, Size: e.Size, Mode: fmt.Sprintf("%04o", e.Mode),
		SHA256: e.SHA256, Target: e.Target, Unreadable: e.Unreadable,
	}
	if !utf8.ValidString(e.Path) {
		c.PathBytes = base64.StdEncoding.EncodeToString([]byte(e.Path))
		c.Path = strings.ToValidUTF8(c.Path, "\uFFFD")
	}
	return c
}

func newChange(kind string, path []byte, d *dir, e *entry) Change {
	return NewChange(kind, Entry{
		Path: string(path), Type: TypeWord(e.mode), Mode: uint32(e.mode & modePerm), Size: e.length(),
		SHA256: e.sha256(), Target: string(d.target(e)), Unreadable: e.flags&flagUnreadable != 0,
	})
}
