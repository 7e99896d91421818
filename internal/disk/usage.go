package disk

// nearlyFull is how little free room counts as none. A program that writes in
// larger pieces stops before the last block.
const nearlyFull = 64 << 10

// Usage is what a step has written to its room. What the room itself needs is
// not in it.
type Usage struct {
	Bytes  int64 // blocks in use, not the sizes that files claim
	Inodes int64
	// Full: nothing more can be written, or no more files made.
	Full bool
	// AtLeast: there may be more; what was seen was enough, or took too long.
	AtLeast bool
}

// Over says whether more was written than there was room for. A file system can
// be a little larger than was asked for, and what is watched from outside can
// grow between two looks.
func (u Usage) Over(bytes, inodes int64) bool { return u.Bytes > bytes || u.Inodes > inodes }

// full is what Full means for a room that no file system bounds: the same
// distance from the bound.
func (u Usage) full(bytes, inodes int64) bool {
	return u.Bytes > bytes-nearlyFull || u.Inodes >= inodes
}
