package commit

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// What is done to a path.
const (
	doRemove = "remove"
	doFile   = "file" // the staged file of this number goes there
	doLink   = "link" // and so with a staged link
	doDir    = "dir"
	doChmod  = "chmod"
)

// op is one line of a journal: what a path is to be.
type op struct {
	Do   string `json:"do"`
	Path []byte `json:"path"` // raw, so base64 in JSON
	Mode uint32 `json:"mode,omitempty"`
	// Type is the word for what a chmod expects there.
	Type string `json:"type,omitempty"`

	target     string // of a link; staged, and so not in the journal
	unreadable bool
}

// staged says whether the op consumes an entry of the stage.
func (o op) staged() bool { return o.Do == doFile || o.Do == doLink }

// folder says whether the op ends in setting the mode of a folder.
func (o op) folder() bool { return o.Do == doDir || o.Do == doChmod && o.Type == "dir" }

// Bits of a mode. A step gets no set-id bit past us: the file would lend its
// owner's rights to whoever can reach the workspace.
const (
	permBits  = 0o1777
	setIDBits = 0o6000
)

// plan turns changes into ops, every folder directly before all that is below
// it. left are the paths of special files, which are not made.
func plan(changes []workspace.Change) (ops []op, left []string, err error) {
	ops = make([]op, 0, len(changes))
	for _, c := range changes {
		path := c.RawPath()
		o := op{Path: []byte(path), Type: c.Type, target: c.Target, unreadable: c.Unreadable}
		if err := checkPath(path); err != nil {
			return nil, nil, err
		}
		if c.Change != workspace.Deleted {
			mode, err := strconv.ParseUint(c.Mode, 8, 12)
			if err != nil {
				return nil, nil, fmt.Errorf("%w: %q has mode %q", ErrPlan, path, c.Mode)
			}
			o.Mode = uint32(mode)
		}
		switch special, err := o.decide(c); {
		case err != nil:
			return nil, nil, err
		case special:
			left = append(left, path)
		}
		if o.Do != "" {
			ops = append(ops, o)
		}
	}
	slices.SortFunc(ops, func(a, b op) int { return comparePaths(a.Path, b.Path) })
	ops, err = covered(ops)
	return ops, left, err
}

// decide fills in what is done for a change; "" is nothing.
func (o *op) decide(c workspace.Change) (special bool, err error) {
	unknown := fmt.Errorf("%w: %q is a %s that was %s", ErrPlan, c.RawPath(), c.Type, c.Change)
	made := c.Change == workspace.Created || c.Change == workspace.Modified || c.Change == workspace.Retyped
	if !made && c.Change != workspace.Deleted && c.Change != workspace.Mode {
		return false, unknown
	}
	if c.RawPath() == "." && (c.Type != "dir" || c.Change == workspace.Deleted || c.Change == workspace.Retyped) {
		return false, unknown
	}
	switch c.Type {
	case "dir", "file", "symlink", "fifo", "socket", "device":
	default:
		return false, unknown
	}
	if c.Change == workspace.Deleted {
		o.Do = doRemove
		return false, nil
	}
	switch c.Type {
	case "dir":
		o.Do = doDir
		if !made {
			o.Do = doChmod
		}
	case "file":
		o.Do = doFile
		if !made {
			o.Do = doChmod
		}
	case "symlink": // has no mode of its own
		if made {
			if c.Target == "" || strings.IndexByte(c.Target, 0) >= 0 {
				return false, fmt.Errorf("%w: symlink %q has target %q", ErrPlan, c.RawPath(), c.Target)
			}
			o.Do = doLink
		}
	default:
		switch {
		case !made:
			o.Do = doChmod
		case c.Change == workspace.Retyped:
			o.Do = doRemove
			return true, nil
		default:
			return true, nil
		}
	}
	return false, nil
}

// covered leaves out what goes with a folder above it, and refuses a list that
// puts something below what is no folder.
func covered(ops []op) ([]op, error) {
	var gone []byte // the last path that is no folder afterwards
	out := ops[:0]
	for i, o := range ops {
		if i > 0 && bytes.Equal(ops[i-1].Path, o.Path) {
			return nil, fmt.Errorf("%w: %q is named twice", ErrPlan, o.Path)
		}
		if gone != nil && below(o.Path, gone) {
			if o.Do != doRemove {
				return nil, fmt.Errorf("%w: %q lies below %q, which is no folder", ErrPlan, o.Path, gone)
			}
			continue
		}
		if !o.folder() {
			gone = o.Path
		}
		out = append(out, o)
	}
	return out, nil
}

// checkPath refuses what could lead out of the workspace.
func checkPath(path string) error {
	if path == "." {
		return nil
	}
	if strings.IndexByte(path, 0) >= 0 {
		return fmt.Errorf("%w: %q has a byte 0", ErrPlan, path)
	}
	for name := range strings.SplitSeq(path, "/") {
		if name == "" || name == "." || name == ".." {
			return fmt.Errorf("%w: %q is no path below a workspace", ErrPlan, path)
		}
	}
	return nil
}

// comparePaths orders paths so that all that is below a folder follows it at
// once: "/" comes before every byte of a name. "." comes first.
func comparePaths(a, b []byte) int {
	if string(a) == "." || string(b) == "." {
		return rank(b) - rank(a)
	}
	n := min(len(a), len(b))
	i := mismatch(a[:n], b[:n])
	if i == n {
		return len(a) - len(b)
	}
	if a[i] == '/' {
		return -1
	}
	if b[i] == '/' {
		return 1
	}
	return int(a[i]) - int(b[i])
}

func rank(p []byte) int {
	if string(p) == "." {
		return 1
	}
	return 0
}

// mismatch is the first place where two slices of one length differ. Paths are
// long where a step wants them to be, so equal runs are passed at speed.
func mismatch(a, b []byte) int {
	const run = 256
	i := 0
	for len(a)-i >= run && bytes.Equal(a[i:i+run], b[i:i+run]) {
		i += run
	}
	for i < len(a) && a[i] == b[i] {
		i++
	}
	return i
}

// below says whether path lies in the folder.
func below(path, folder []byte) bool {
	return len(path) > len(folder) && path[len(folder)] == '/' && bytes.HasPrefix(path, folder)
}

// split is the folder a path lies in and its name there.
func split(path []byte) (folder []byte, name string) {
	i := bytes.LastIndexByte(path, '/')
	if i < 0 {
		return []byte("."), string(path)
	}
	return path[:i], string(path[i+1:])
}

// shown is a path for a message, quoted and bounded: it may be long, and may
// hold anything.
func shown(path []byte) string {
	const most = 200
	if len(path) <= most {
		return strconv.Quote(string(path))
	}
	return strconv.Quote(string(path[:most/2])) + "..." + strconv.Quote(string(path[len(path)-most/2:]))
}
