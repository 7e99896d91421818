package clone

import (
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	// bufferSize is what a worker reads at once, of a file or a folder.
	bufferSize = 256 << 10
	// rangeSize is what the kernel is asked to copy at once: as long as that
	// takes, a cancelled copy goes on.
	rangeSize = 4 << 20
	// holesFrom is the size from which every file is asked for its holes: one
	// that is preallocated has holes and shows none.
	holesFrom = 64 << 10
	// block is the size up to which no file is asked.
	block = 4096
)

// file copies the file that was looked at. It answers false if the name is
// another file's now.
func (w *worker) file(n *node, name string) (steady bool, err error) {
	if w.st.Nlink > 1 {
		return w.linked(n, name)
	}
	made, steady, err := w.plain(n, name)
	if made {
		w.c.made.Add(1)
	}
	return steady, err
}

// plain copies a file as one of its own.
func (w *worker) plain(n *node, name string) (made, steady bool, err error) {
	id := identityOf(&w.st)
	src, err := quietly(w.top().src, name, readFile)
	switch {
	case denied(err):
		return false, true, w.c.lacks(n, name)
	case moved(err):
		return false, false, nil
	case err != nil:
		return false, false, err
	}
	defer unix.Close(src)
	if err := lookAt(src, "", &w.st); err != nil {
		return false, false, err
	}
	if identityOf(&w.st) != id || w.st.Mode&unix.S_IFMT != unix.S_IFREG {
		return false, false, nil
	}
	m, size, blocks := metaOf(&w.st), int64(w.st.Size), int64(w.st.Blocks)
	dst := -1
	err = again(func() (err error) {
		dst, err = unix.Openat(w.top().dst, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		return err
	})
	if err != nil {
		return false, false, making(err)
	}
	err = w.content(src, dst, id.dev, size, blocks)
	if err == nil {
		err = w.keep(dst, m, false)
	}
	// A file system over a network may say only now that it is full.
	if e := unix.Close(dst); err == nil && e != nil && e != unix.EINTR {
		err = e
	}
	return err == nil, err == nil, err
}

// content fills dst with the first size bytes of src.
func (w *worker) content(src, dst int, dev uint64, size, blocks int64) error {
	if size == 0 {
		return nil
	}
	shared, err := w.share(src, dst, dev, min(size, blocks*512))
	if err != nil {
		return err
	}
	if shared {
		w.c.shared.Add(1)
		return nil
	}
	w.c.copied.Add(1)
	if size < holesFrom && (size <= block || blocks*512 >= size) {
		_, err := w.extent(src, dst, dev, 0, size)
		return err
	}
	return w.extents(src, dst, dev, size)
}

// share lets dst have the content of src without copying it.
func (w *worker) share(src, dst int, dev uint64, bytes int64) (bool, error) {
	if w.noShare[dev] {
		return false, nil
	}
	switch err := again(func() error { return unix.IoctlFileClone(dst, src) }); err {
	case nil:
		return true, w.c.spend(bytes)
	case unix.EXDEV, unix.EOPNOTSUPP, unix.ENOTTY, unix.ENOSYS:
		w.noShare[dev] = true // not these two file systems
		return false, nil
	default:
		// Not this file. Whatever came of it must not show through the holes.
		return false, again(func() error { return unix.Ftruncate(dst, 0) })
	}
}

// extents copies what of a file is no hole. A sparse terabyte is made in no
// time and must be copied in none.
func (w *worker) extents(src, dst int, dev uint64, size int64) error {
	end := int64(0) // of what was written
	for off := int64(0); off < size; {
		from, err := unix.Seek(src, off, unix.SEEK_DATA)
		if err == unix.ENXIO {
			break // nothing but a hole from here on
		}
		if err == unix.EINVAL && off == 0 {
			_, err := w.extent(src, dst, dev, 0, size) // no such notion here
			return err
		}
		if err != nil {
			return err
		}
		if from >= size {
			break
		}
		to, err := unix.Seek(src, from, unix.SEEK_HOLE)
		if err == unix.ENXIO {
			break // it shrank
		}
		if err != nil {
			return err
		}
		if to <= from {
			return fmt.Errorf("find the holes: the file system names a hole at %d for data at %d", to, from)
		}
		to = min(to, size)
		whole, err := w.extent(src, dst, dev, from, to)
		if err != nil || !whole {
			return err
		}
		end, off = to, to
		// A file may have as many extents as blocks.
		if err := w.c.halted(); err != nil {
			return err
		}
	}
	if end == size {
		return nil
	}
	return again(func() error { return unix.Ftruncate(dst, size) })
}

// extent copies the bytes from off to end. It answers false if the file turned
// out to be shorter.
func (w *worker) extent(src, dst int, dev uint64, off, end int64) (whole bool, err error) {
	for off < end {
		if err := w.c.halted(); err != nil {
			return false, err
		}
		got, err := w.piece(src, dst, dev, off, end)
		if err != nil {
			return false, err
		}
		if got == 0 {
			return false, nil
		}
		off += got
		if err := w.c.spend(got); err != nil {
			return false, err
		}
	}
	return true, nil
}

// piece copies some bytes, in the kernel if it can.
func (w *worker) piece(src, dst int, dev uint64, off, end int64) (int64, error) {
	if !w.noRange[dev] {
		var got int
		err := again(func() (err error) {
			in, out := off, off
			got, err = unix.CopyFileRange(src, &in, dst, &out, int(min(end-off, rangeSize)), 0)
			return err
		})
		switch err {
		case nil:
			if got > 0 {
				return int64(got), nil
			}
			// The end, or a file system that makes content up as it is read.
		case unix.EXDEV, unix.EOPNOTSUPP, unix.ENOSYS:
			w.noRange[dev] = true
		case unix.EINVAL, unix.EPERM, unix.ETXTBSY:
		default:
			return 0, err
		}
	}
	var got int
	err := again(func() (err error) {
		got, err = unix.Pread(src, w.buf[:min(end-off, int64(len(w.buf)))], off)
		return err
	})
	if err != nil {
		return 0, err
	}
	for done := 0; done < got; {
		err := again(func() error {
			n, err := unix.Pwrite(dst, w.buf[done:got], off+int64(done))
			if err == nil {
				done += n
			}
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	return int64(got), nil
}
