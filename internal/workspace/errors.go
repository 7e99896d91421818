package workspace

import "errors"

var (
	// ErrLimit: the tree has more entries, more text or more depth than
	// Options allow. It is the doing of whoever wrote the tree.
	ErrLimit = errors.New("workspace beyond its limits")
	// errHalted: another worker failed first, and its error is the one shown.
	errHalted = errors.New("read of the workspace given up")
	// ErrMoved: the tree was rearranged while it was read.
	ErrMoved = errors.New("workspace changed while it was read; end what still writes there")
)
