package image

// Limits bound what one image may cost. An image of a gigabyte is large; one of ten
// is for machines that learn.
type Limits struct {
	Layers     int   // that it is made of
	Compressed int64 // bytes to fetch
	Unpacked   int64 // bytes of its layers as tar
	Entries    int64 // of all layers
	Names      int64 // bytes of the paths of all entries, which are kept in memory
}

// DefaultLimits are those where none are given.
var DefaultLimits = Limits{Layers: 512, Compressed: 20 << 30, Unpacked: 60 << 30, Entries: 4 << 20, Names: 256 << 20}

const (
	maxJSON      = 8 << 20 // of a manifest, an index or a configuration
	maxDepth     = 128     // folders in the path of an entry
	maxPath      = 4095
	maxPart      = 255 // bytes in one name of a path
	maxManifests = 1024
	// maxWindow is what a zstd frame may have us keep in memory.
	maxWindow = 128 << 20
)

func (l Limits) orDefault() Limits {
	d := DefaultLimits
	if l.Layers > 0 {
		d.Layers = l.Layers
	}
	if l.Compressed > 0 {
		d.Compressed = l.Compressed
	}
	if l.Unpacked > 0 {
		d.Unpacked = l.Unpacked
	}
	if l.Entries > 0 {
		d.Entries = l.Entries
	}
	if l.Names > 0 {
		d.Names = l.Names
	}
	return d
}
