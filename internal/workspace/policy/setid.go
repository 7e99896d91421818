package policy

import (
	"strconv"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

const (
	setUID = 0o4000
	setGID = 0o2000
)

// setID says why the mode of a change may not be committed; empty: it may. In a
// box the bits do nothing. In the workspace the file belongs to the caller, so
// whoever else runs it runs it as the caller.
func (j *judging) setID(names []string, c workspace.Change) string {
	if c.Type == "symlink" {
		return "" // its mode means nothing
	}
	mode, err := strconv.ParseUint(c.Mode, 8, 16)
	if err != nil {
		return "its mode cannot be read"
	}
	bits := uint32(mode) & (setUID | setGID)
	if bits == 0 {
		return ""
	}
	if c.Type != "dir" {
		return "it has set-id bits"
	}
	if was, err := j.env.before(pathOf(names)); err == nil && was.Type == "dir" {
		bits &^= was.Mode
	}
	if bits&setUID != 0 {
		return "it has the set-user-id bit"
	}
	// A folder made in a folder with the bit gets it from there; the bit says
	// which group new files have, and is nothing the step came up with.
	if bits&setGID != 0 && len(names) > 0 {
		if parent, err := j.env.after(pathOf(names[:len(names)-1])); err == nil && parent.Type == "dir" && parent.Mode&setGID != 0 {
			return ""
		}
	}
	if bits != 0 {
		return "it has the set-group-id bit, which its parent folder does not have"
	}
	return ""
}

func pathOf(names []string) string {
	if len(names) == 0 {
		return "."
	}
	return strings.Join(names, "/")
}
