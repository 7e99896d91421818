package archive

import (
	"fmt"
	"strings"
)

// Limits on an archive, where Options does not say otherwise.
const (
	// DefaultMaxBytes is how much an archive may hold, unpacked.
	DefaultMaxBytes = 1 << 30
	// DefaultMaxEntries is how many files and folders it may name.
	DefaultMaxEntries = 500_000
	// MaxPath is what the kernel takes as one path.
	MaxPath = 4095
	// MaxDepth is how many folders may lie in one another: each is a descriptor.
	MaxDepth = 512
	// maxNamed is how many paths that were left out are named.
	maxNamed = 10
)

// Options of both ways. The zero value means the defaults.
type Options struct {
	MaxBytes   int64
	MaxEntries int
	// Look says that a path is packed with another text, or not at all.
	Look func(path string) (text []byte, replaced, hidden bool)
	// Ignore leaves out a file by what it is: the archive that is being written.
	Ignore func(dev, ino uint64) bool
}

func (o Options) withDefaults() Options {
	if o.MaxBytes <= 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.MaxEntries <= 0 {
		o.MaxEntries = DefaultMaxEntries
	}
	return o
}

// Summary is what was done.
type Summary struct {
	Files, Folders int
	Bytes          int64
	// Unnamed are the folders that were opened or made for what is in them, and that
	// the archive does not name.
	Unnamed []string
	// LeftOut are the first paths that no archive can hold, and OutOf how many
	// there were. They are untrusted text.
	LeftOut []string
	OutOf   int
}

func (s *Summary) leave(path string) {
	if s.OutOf++; len(s.LeftOut) < maxNamed {
		s.LeftOut = append(s.LeftOut, path)
	}
}

// RefusedError is an archive, or a workspace, that asks for what is never done.
// Entry is untrusted text.
type RefusedError struct {
	Entry string // "" if it is the whole
	Why   string
}

func (e *RefusedError) Error() string {
	if e.Entry == "" {
		return e.Why
	}
	return fmt.Sprintf("%q: %s", e.Entry, e.Why)
}

func refuse(entry, format string, args ...any) error {
	return &RefusedError{Entry: entry, Why: fmt.Sprintf(format, args...)}
}

// cleanName gives the path that an entry's name means in a workspace, "" for
// the workspace itself. Nothing is put right: a name that is not plainly below
// the workspace is refused.
func cleanName(name string) (string, error) {
	switch {
	case name == "":
		return "", refuse(name, "an entry without a name")
	case strings.HasPrefix(name, "/"):
		return "", refuse(name, "an absolute path")
	case strings.IndexByte(name, 0) >= 0:
		return "", refuse(name, "a NUL byte in a path")
	}
	var parts []string
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "..":
			return "", refuse(name, "a path with .. in it")
		case len(part) > 255:
			return "", refuse(name[:64]+"...", "a name of more than 255 bytes")
		case part != "" && part != ".":
			parts = append(parts, part)
		}
	}
	path := strings.Join(parts, "/")
	if len(path) > MaxPath || len(parts) > MaxDepth {
		return "", refuse(path[:64]+"...", "a path of more than %d bytes or %d folders", MaxPath, MaxDepth)
	}
	return path, nil
}
