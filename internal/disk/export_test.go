package disk

import "time"

// What tests need of the inside. The tests stand outside, because the package
// that knows what a host lacks must not be one that this one depends on.

// MountDetachedTmpfs mounts a small tmpfs in nobody's table.
func MountDetachedTmpfs() (int, error) { return mountDetached("tmpfs", []option{{"size", "1m"}}) }

// CloneAttached is the way of kernels before 6.15.
func CloneAttached(mount, n int) ([]int, error) { return cloneAttached(mount, n) }

// NextLook is the time to the next look, after one that took so long.
func NextLook(took time.Duration) time.Duration { return nextLook(took) }

// Measure walks a folder. A limit of 0 is none.
func Measure(at int, name string, enough int64) (Usage, error) {
	w := walk{}
	if enough > 0 {
		w.enough = func(u Usage) bool { return u.Inodes > enough }
	}
	return w.run(at, name)
}

// RemoveContents empties a folder.
func RemoveContents(fd int) error { return removeContents(fd) }

// Trimmed says where in the data the pieces lie that are kept of it, in blocks.
func Trimmed(data []byte) (out [][2]int) {
	for _, p := range trim(0, data) {
		out = append(out, [2]int{int(p.at) / block, len(p.data) / block})
	}
	return out
}
