package clone

// Limits that no caller can raise.
const (
	// maxLinks is how many files with several names are remembered at once. The
	// names of those beyond become files of their own.
	maxLinks = 1 << 17
	// maxAbsentText is how many bytes the paths in Absent may have together: in
	// a deep tree each may have a megabyte.
	maxAbsentText = 64 << 20
)

// Options of a copy.
type Options struct {
	// Marks: from is the upper layer of an overlay mounted with userxattr, so
	// the folder attribute user.overlay.opaque is kept, and it is an error if a
	// whiteout cannot be. Without it a character device 0:0 is a device like any
	// other, though one that the kernel lets anybody make.
	Marks bool
	// MaxEntries and MaxBytes bound the copy; 0 is no bound. Bytes are those
	// of content: holes do not count, what is shared with the original does.
	// Beyond either the error is workspace.ErrLimit.
	MaxEntries int64
	MaxBytes   int64
}

// Result is what became of a copy.
type Result struct {
	Entries int64 // made below the folder itself
	Bytes   int64 // of content, without holes
	// Reflinked: the content of every file that has any is shared with the
	// original until either is written to.
	Reflinked bool
	// Reowned counts entries whose owner root could not keep.
	Reowned int64
	// Absent are the paths of the original at which the copy has nothing: what
	// could not be read, with all below it, and devices that could not be made.
	// Raw bytes, relative, sorted; "." if it is the folder itself.
	Absent []string
}
