// Package clone copies a folder as it is.
//
// It serves two ends: a step's own copy of the workspace where no overlay can be
// mounted, and moving an overlay's upper layer to another file system.
//
//	if err := os.Mkdir(to, 0o700); err != nil { ... }
//	got, err := clone.Tree(ctx, workspace, to, clone.Options{MaxBytes: 10 << 30})
//	// got.Absent: what the copy lacks and the caller must not call deleted
//
// # What is kept
//
// Content with its holes, types, link targets, all twelve bits of modes, times
// of modification, hard links among the files copied (as far as memory allows),
// and as root the owners. Content is shared with the original where the file
// system can. The folder `to` itself gets mode, owner and time of `from`.
//
// # What is not
//
// Extended attributes, and so access lists and file capabilities; times of
// access; hard links of anything but files, or to files outside. A set-id bit is
// left out where the copy has another owner than the original: a program that
// ran as its author would run as us.
//
// # What it refuses
//
// To follow a link, to open a FIFO, a socket or a device, to copy into a folder
// that is not empty or that lies in what is copied, and to be silent about what
// it could not read. After an error `to` holds part of a copy, for the caller to
// remove. Nobody else may write to `to` meanwhile; whoever writes to `from` gets
// a copy of no single moment, or workspace.ErrMoved, but never anything from
// outside of it.
package clone
