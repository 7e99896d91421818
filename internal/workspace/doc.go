// Package workspace says what a step changed in the caller's folder.
//
// It takes a snapshot of the tree before a step and one after it, and compares
// the two. Content, type, mode and link target decide; time stamps never do:
// the kernel's change time, which no program can set, only picks which files
// are read again.
//
// It refuses to follow a link, to open a FIFO, socket or device, to skip
// anything by its name, and to guess: what cannot be read is listed as such,
// and a tree beyond the limits is an error, not a short list.
//
//	before, err := workspace.Snapshot(ctx, dir, nil, workspace.Options{})
//	// the step runs and every process of it is dead
//	after, err := workspace.Snapshot(ctx, dir, before, workspace.Options{})
//	for change := range workspace.Changes(before, after) { ... }
//
// # What it costs
//
// A tree keeps 72 bytes and the name for every entry, the target for every
// symlink, and about 150 bytes for every folder. A folder in which nothing
// moved since prev, at any depth, is shared with prev and costs nothing.
//
// # Which files are read again
//
// With prev, a file is read again unless its inode, device, mount, mode, size
// and change time are those of prev, and its change time is older than prev.
// "Older" is measured on the file system's own clock, see clock_linux.go; a
// file system on which that cannot be proved has every file read every time.
//
// # What is not compared
//
// Owners, extended attributes, access lists and time stamps. The content of a
// file with very large holes is compared, but its SHA-256 is left empty, see
// sparse_linux.go.
package workspace
