// Package delta says what a step changed, from what the overlay kept of it.
//
// A step writes to the upper folder of an overlay over read-only layers. Read
// walks that folder alone, so its cost goes by what the step did and not by the
// size of the workspace, and looks up in the layers what was there before.
// Compare does the same for a plain copy of the workspace, where no overlay can
// be mounted, and looks at everything. Both give the list that workspace.Diff
// gives for snapshots of before and after.
//
//	d, err := delta.Read(ctx, []delta.Layer{{Dir: workspace}}, upper, delta.Options{})
//	for _, c := range d.Changes() { ... }
//	was, err := d.Before("go.mod")
//
// # What it believes
//
// A device 0:0 and the attribute user.overlay.opaque mean what they mean to the
// kernel in an upper folder and in the layers whose Marks says so. Anywhere else
// they are data: whoever wrote the workspace may have put them there.
//
// # What it refuses
//
// It follows no link, in the middle of a path or at its end: where a layer has a
// link or a file, nothing lies below. It opens no FIFO, socket or device, and
// changes nothing but, for a moment, the mode of what the step itself closed to
// its owner. What a layer does not let us look at is listed as such, and what is
// beyond the limits is workspace.ErrLimit and not a short list.
//
// # Where it differs from workspace.Diff
//
// What the step closed to its owner is read, since it is ours. Below a folder of
// a layer that we may not look into, everything the step wrote is "modified" and
// Unreadable, as nobody can say what it replaced. The SHA-256 of deleted files
// is left empty beyond MaxDeletedBytes, and so is that of files with very large
// holes, also where they are not new.
package delta
