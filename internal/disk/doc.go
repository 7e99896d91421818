// Package disk gives a step room for what it writes, and holds it to that room
// in bytes and in files.
//
// A Room is a pair of folders, upper and work, for one overlay. Which kind it
// is depends on what the host has, and Why says what stood against the better
// ones:
//
//	loop     a file system of its own on an image file; the kernel holds the
//	         bound. Root only.
//	tmpfs    a file system in memory, where the bound is at most half of the
//	         step's memory, which it is charged to; the kernel holds the bound.
//	sampler  a plain folder, walked again and again from outside. The kernel
//	         holds single files (FileSize); the sum is seen after the fact, and
//	         a file that is open and has no name any more is not seen at all.
//	         A host that runs full ends the step, too.
//
// Nothing of a room shows in the host's table of mounts, and nothing of loop
// and tmpfs outlives this program, however it ends: the mounts are held by
// descriptors alone, the image has no name, and the kernel frees the loop
// device with its last user. What a sampler's room leaves behind after a kill
// lies in Options.Dir, which is the caller's to remove.
//
// The package does not mount overlays, and decides no verdict: it measures. It
// never follows a link of a step, never opens what is no folder, and believes
// no size but the blocks that a file really has.
//
//	r, err := disk.Open(disk.Options{Dir: dir, Bytes: 1 << 30, Inodes: 256 << 10, Root: true, Images: &images})
//	// An engine moves r.Tree() into a box and lays an overlay over its upper and work.
//	over := r.Watch(ctx)  // closed when the step is to be ended
//	use, err := r.Used()  // once nobody writes any more
//	err = r.Close()
package disk
