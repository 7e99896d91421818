package workspace

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// A sparse file of a terabyte takes no disk and a second to make, and ten
// minutes to hash. One that is preallocated (fallocate) takes disk and is made
// as fast: nothing was written to it, so its zeros are a hole too, which shows
// in no count of blocks. So every file of some size is asked for its holes, and
// zeros from holes are read only as far as MaxHoleBytes, for all files of a
// snapshot together, reaches. Beyond it a file's content is known by a digest
// of its own: SHA-256 over the size and over every block that is not all zeros,
// each after its offset. It depends on content alone, so a hole that is filled
// with zeros is no change; and it is never shown as the file's SHA-256.
//
// A file keeps the kind of digest it had in prev, so that the two can be
// compared; otherwise a touched file could look modified.

const (
	// holesFrom is the size from which a file is asked: two calls, a hundredth
	// of what reading as much takes.
	holesFrom = 64 << 10
	// sparseBlock is the unit of the digest.
	sparseBlock = 4096
)

// extent is a run of bytes that may be other than zero.
type extent struct{ from, to int64 }

// extents calls each for every run of data below size.
func extents(fd int, size int64, each func(extent) error) error {
	for off := int64(0); off < size; {
		from, err := unix.Seek(fd, off, unix.SEEK_DATA)
		if err == unix.ENXIO {
			return nil // nothing but a hole from here on
		}
		if err != nil {
			return err
		}
		if from >= size {
			return nil
		}
		to, err := unix.Seek(fd, from, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		if to <= from {
			return ErrMoved
		}
		if err := each(extent{from, min(to, size)}); err != nil {
			return err
		}
		off = to
	}
	return nil
}

// readHoles reads a file that may have holes.
func (w *walker) readHoles(fd int, e, was *entry) error {
	data := int64(0)
	err := extents(fd, e.size, func(x extent) error {
		data += x.to - x.from
		return w.s.halted()
	})
	if err == unix.EINVAL {
		return w.readAll(fd, e) // no such notion on this file system
	}
	if err != nil {
		return err
	}
	switch sameSize := was.sameSize(e); {
	case sameSize && was.flags&flagSparse == 0:
		return w.readAll(fd, e)
	case sameSize:
		return w.readBlocks(fd, e)
	case w.s.spend(e.size - data):
		return w.readAll(fd, e)
	}
	return w.readBlocks(fd, e)
}

// spend takes bytes from what is left of MaxHoleBytes, all or nothing.
func (s *scan) spend(n int64) bool {
	for {
		left := s.holes.Load()
		if n > left {
			return false
		}
		if s.holes.CompareAndSwap(left, left-n) {
			return true
		}
	}
}

// readBlocks is the digest of the blocks that are not zero.
func (w *walker) readBlocks(fd int, e *entry) error {
	h := w.hash.fresh()
	var number [8]byte
	put := func(v int64) {
		binary.BigEndian.PutUint64(number[:], uint64(v))
		h.Write(number[:])
	}
	put(e.size)
	next := int64(0) // the first byte not yet looked at
	err := extents(fd, e.size, func(x extent) error {
		// Blocks, whatever the file system's own unit is.
		for off := max(next, x.from/sparseBlock*sparseBlock); off < x.to; {
			n, err := w.fill(fd, w.buf[:min(int64(len(w.buf)), e.size-off, roundUp(x.to-off))], off)
			if err != nil {
				return err
			}
			if n == 0 {
				return nil // it shrank; the look afterwards tells
			}
			for at := 0; at < n; at += sparseBlock {
				if block := w.buf[at:min(at+sparseBlock, n)]; !allZero(block) {
					put(off + int64(at))
					h.Write(block)
				}
			}
			off += int64(n)
			next = off
			if err := w.s.halted(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	h.Sum(e.sum[:0])
	e.flags |= flagSparse
	return nil
}

func roundUp(n int64) int64 { return (n + sparseBlock - 1) / sparseBlock * sparseBlock }

func allZero(b []byte) bool {
	for len(b) >= 8 {
		if binary.NativeEndian.Uint64(b) != 0 {
			return false
		}
		b = b[8:]
	}
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
