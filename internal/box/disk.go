package box

import "fmt"

// DiskUse is what a step wrote to its writable layer, and what held it back.
// The zero value is a layer that nobody bounded, and no fault.
type DiskUse struct {
	// By is what bound the layer: "loop", "tmpfs" or "sampler".
	By                      string
	BoundBytes, UsedBytes   int64
	BoundInodes, UsedInodes int64
	// Full: nothing more could be written, at a sample or at the end.
	Full bool
	// Over: more was written than the bound, at a sample or at the end.
	Over bool
}

// inodesPerMiB is how many files and folders a step gets with each MiB.
const inodesPerMiB = 256

// message names the key, its cap, what was used and what held it; advice is the
// line to write.
func (d DiskUse) message() (what, advice string) {
	mb := ceilMiB(d.BoundBytes)
	if d.hostFull() {
		return fmt.Sprintf("the host's file system ran full when the step had written %d MiB, and diskMb is %d; so room ran out outside the step's own cap: more diskMb would not help",
			ceilMiB(d.UsedBytes), mb), ""
	}
	wrote := fmt.Sprintf("the step wrote %d MiB", ceilMiB(d.UsedBytes))
	if d.ofItsOwn() && d.BoundInodes > 0 {
		d.UsedInodes = min(d.UsedInodes, d.BoundInodes)
	}
	inodes := d.BoundInodes > 0 && d.UsedInodes >= d.BoundInodes
	if inodes {
		wrote = fmt.Sprintf("the step made %d files and folders, of %d that diskMb gives (%d per MiB), and wrote %d MiB",
			d.UsedInodes, d.BoundInodes, inodesPerMiB, ceilMiB(d.UsedBytes))
	}
	if d.ofItsOwn() {
		// It is a little larger than its bound, and what it needs for itself counts
		// as used: neither is anything that the step did.
		if !inodes {
			wrote = fmt.Sprintf("the step filled its %d MiB", mb)
		}
		return fmt.Sprintf("%s: diskMb is %d%s", wrote, mb, d.heldBy()), fmt.Sprintf("write diskMb: %d to allow more", 2*mb)
	}
	msg := fmt.Sprintf("%s: diskMb is %d%s", wrote, mb, d.heldBy())
	if over := d.UsedBytes - d.BoundBytes; over > 0 && d.BoundBytes > 0 {
		msg += fmt.Sprintf("; it was over by %s", amount(over))
	}
	if over := d.UsedInodes - d.BoundInodes; over > 0 && d.BoundInodes > 0 {
		msg += fmt.Sprintf("; it was over by %d files and folders", over)
	}
	// Twice the cap, or what is known to be too little.
	want := max(2*mb, ceilMiB(d.UsedBytes)+1)
	if inodes {
		want = max(want, d.UsedInodes/inodesPerMiB+1)
	}
	return msg, fmt.Sprintf("write diskMb: %d to allow more", want)
}

// nearlyFull is how far below its bound a layer counts as full.
const nearlyFull = 64 << 10

// hostFull says whether it was not the step's own bound that was reached. Only a
// layer on the host's own file system can meet that; one of its own is as large
// as its bound, whatever the host has.
func (d DiskUse) hostFull() bool {
	return d.By == "sampler" && d.Full && !d.Over && d.UsedBytes <= d.BoundBytes-nearlyFull && d.UsedInodes < d.BoundInodes
}

// ofItsOwn says whether the layer is a file system as large as its bound.
func (d DiskUse) ofItsOwn() bool { return d.By == "loop" || d.By == "tmpfs" }

func (d DiskUse) heldBy() string {
	switch d.By {
	case "loop":
		return ", held by a file system of that size"
	case "tmpfs":
		return ", held by a file system of that size in the step's memory"
	case "sampler":
		return ", watched from outside (sampler), which lets a step go over before it is ended"
	}
	return ""
}

func ceilMiB(bytes int64) int64 { return (bytes + (1<<20 - 1)) >> 20 }

// amount is a number of bytes in a unit in which it is not nothing.
func amount(bytes int64) string {
	if bytes < 1<<20 {
		return fmt.Sprintf("%d KiB", (bytes+1023)>>10)
	}
	return fmt.Sprintf("%d MiB", ceilMiB(bytes))
}
