package workspace

import "runtime"

// Limits on a tree, where Options does not say otherwise.
const (
	// DefaultMaxEntries bounds memory: about 200 MB with short names.
	DefaultMaxEntries = 2_000_000
	// DefaultMaxText is how many bytes names and link targets may have together.
	DefaultMaxText = 512 << 20
	// DefaultMaxDepth is how many folders may lie within one another. A path
	// may be longer than the kernel's PATH_MAX.
	DefaultMaxDepth = 16_384
	// MaxHoleBytes is how many bytes of holes one snapshot reads as zeros to
	// give sparse and preallocated files their true SHA-256: a fifth of a
	// second. Beyond it SHA256 is empty.
	MaxHoleBytes = 64 << 20
)

// Options of a snapshot. The zero value means the defaults.
type Options struct {
	Workers    int   // default: one per CPU
	MaxEntries int64 // default: DefaultMaxEntries
	MaxText    int64 // default: DefaultMaxText
	MaxDepth   int   // default: DefaultMaxDepth
}

// WithDefaults is o with every limit filled in.
func (o Options) WithDefaults() Options {
	if o.Workers <= 0 {
		o.Workers = runtime.NumCPU()
	}
	if o.MaxEntries <= 0 {
		o.MaxEntries = DefaultMaxEntries
	}
	// Offsets into a folder's text have 32 bits.
	if o.MaxText <= 0 || o.MaxText > 4<<30-1 {
		o.MaxText = DefaultMaxText
	}
	if o.MaxDepth <= 0 {
		o.MaxDepth = DefaultMaxDepth
	}
	return o
}
