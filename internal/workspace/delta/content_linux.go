package delta

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

const (
	// bufferSize is what is read at once, of a file or a folder.
	bufferSize = 256 << 10
	// holesFrom is the size from which a file is asked for its holes: a sparse
	// or preallocated file of a terabyte costs a step nothing to make.
	holesFrom = 64 << 10
	// block is the unit in which zeros are passed over.
	block = 4096
)

// file is an open file whose content is wanted.
type file struct {
	fd    int
	size  int64
	inode inode
	links uint32
}

// known is what was read of an inode that has several names: a step can give one
// large file a hundred thousand of them.
type known struct {
	mu     sync.Mutex
	sum    *string
	blocks *[32]byte
}

// contents is what all readers share.
type contents struct {
	ctx   context.Context
	holes atomic.Int64 // what is left of workspace.MaxHoleBytes
	mu    sync.Mutex
	seen  map[inode]*known
}

func (c *contents) known(f file) *known {
	if f.links < 2 {
		return &known{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.seen[f.inode]
	if k == nil {
		k = &known{}
		c.seen[f.inode] = k
	}
	return k
}

// spend takes bytes from what is left of MaxHoleBytes, all or nothing.
func (c *contents) spend(n int64) bool {
	for {
		left := c.holes.Load()
		if n > left {
			return false
		}
		if c.holes.CompareAndSwap(left, left-n) {
			return true
		}
	}
}

// reader is one of those that read content side by side.
type reader struct {
	c    *contents
	h    hash.Hash
	a, b []byte
}

func newReader(c *contents) *reader {
	return &reader{c: c, h: sha256.New(), a: make([]byte, bufferSize), b: make([]byte, bufferSize)}
}

// sum is the SHA-256 of a file in hex, empty if its holes are too large.
func (r *reader) sum(f file) (string, error) {
	k := r.c.known(f)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sum != nil {
		return *k.sum, nil
	}
	if f.size > holesFrom {
		data := int64(0)
		err := extents(f.fd, f.size, func(from, to int64) error {
			data += to - from
			return r.c.ctx.Err()
		})
		if err != nil {
			return "", err
		}
		if !r.c.spend(f.size - data) {
			k.sum = new(string)
			return "", nil
		}
	}
	r.h.Reset()
	for off := int64(0); off < f.size; {
		n, err := r.fill(f, r.a, off)
		if err != nil {
			return "", err
		}
		if n == 0 {
			return "", workspace.ErrMoved // it shrank
		}
		r.h.Write(r.a[:n])
		off += int64(n)
	}
	sum := hex.EncodeToString(r.h.Sum(nil))
	k.sum = &sum
	return sum, nil
}

// same says whether two files of one size have the same content.
func (r *reader) same(a, b file) (bool, error) {
	if a.inode == b.inode {
		return true, nil
	}
	if a.links < 2 && b.links < 2 {
		return r.sameBytes(a, b)
	}
	x, err := r.blocks(a)
	if err != nil {
		return false, err
	}
	y, err := r.blocks(b)
	return x == y, err
}

// sameBytes reads both side by side, but for what is a hole in both.
func (r *reader) sameBytes(a, b file) (bool, error) {
	for off := int64(0); off < a.size; {
		if a.size > holesFrom {
			x, err := nextData(a, off)
			if err != nil {
				return false, err
			}
			y, err := nextData(b, off)
			if err != nil {
				return false, err
			}
			if off = min(x, y); off >= a.size {
				break
			}
		}
		n, err := r.fill(a, r.a, off)
		if err != nil {
			return false, err
		}
		m, err := r.fill(b, r.b, off)
		if err != nil {
			return false, err
		}
		if n == 0 || !bytes.Equal(r.a[:n], r.b[:m]) {
			return false, nil
		}
		off += int64(n)
	}
	return true, nil
}

// blocks is a digest of what is not zero and where it lies. It depends on the
// content alone: a hole is the same as zeros that were written.
func (r *reader) blocks(f file) ([32]byte, error) {
	k := r.c.known(f)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.blocks != nil {
		return *k.blocks, nil
	}
	r.h.Reset()
	var number [8]byte
	next := int64(0) // the first byte not yet looked at
	err := extents(f.fd, f.size, func(from, to int64) error {
		for off := max(next, from/block*block); off < to; {
			n, err := r.fill(f, r.a, off)
			if err != nil || n == 0 {
				return err
			}
			for at := 0; at < n; at += block {
				if b := r.a[at:min(at+block, n)]; !allZero(b) {
					binary.BigEndian.PutUint64(number[:], uint64(off)+uint64(at))
					r.h.Write(number[:])
					r.h.Write(b)
				}
			}
			off += int64(n)
			next = off
		}
		return nil
	})
	if err != nil {
		return [32]byte{}, err
	}
	k.blocks = (*[32]byte)(r.h.Sum(nil))
	return *k.blocks, nil
}

var zeros [block]byte

func allZero(b []byte) bool { return bytes.Equal(b, zeros[:len(b)]) }

// fill reads until buf is full or the first size bytes of the file have ended,
// so a file that grows cannot keep us.
func (r *reader) fill(f file, buf []byte, off int64) (n int, err error) {
	if err := r.c.ctx.Err(); err != nil {
		return 0, err
	}
	buf = buf[:min(int64(len(buf)), f.size-off)]
	for n < len(buf) {
		var got int
		err := again(func() (err error) {
			got, err = unix.Pread(f.fd, buf[n:], off+int64(n))
			return err
		})
		if err != nil {
			return n, err
		}
		if got == 0 {
			break
		}
		n += got
	}
	return n, nil
}

// nextData is the first place from off on that may be other than zero, the size
// if there is none.
func nextData(f file, off int64) (int64, error) {
	at, err := unix.Seek(f.fd, off, unix.SEEK_DATA)
	switch err {
	case unix.ENXIO:
		return f.size, nil
	case unix.EINVAL: // no such notion on this file system
		return off, nil
	}
	return at, err
}

// extents calls each for every run below size that may be other than zero.
func extents(fd int, size int64, each func(from, to int64) error) error {
	for off := int64(0); off < size; {
		from, err := unix.Seek(fd, off, unix.SEEK_DATA)
		if err == unix.ENXIO {
			return nil
		}
		if err == unix.EINVAL {
			return each(off, size)
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
			return workspace.ErrMoved
		}
		if err := each(from, min(to, size)); err != nil {
			return err
		}
		off = to
	}
	return nil
}
