package workspace

import (
	"crypto/sha256"
	"hash"

	"golang.org/x/sys/unix"
)

// hasher is a worker's SHA-256, made once.
type hasher struct{ h hash.Hash }

func (h *hasher) fresh() hash.Hash {
	if h.h == nil {
		h.h = sha256.New()
	}
	h.h.Reset()
	return h.h
}

// content reads a file once per inode. It answers false if the file is not the
// one that was looked at, or changed while it was read.
func (w *walker) content(name string, e, was *entry, linked bool) (steady bool, err error) {
	if !linked {
		return w.read(name, e, was)
	}
	l := w.s.linked(e)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done {
		e.sum, e.flags = l.sum, l.flag
		return true, nil
	}
	steady, err = w.read(name, e, was)
	if steady && err == nil {
		l.sum, l.flag, l.done = e.sum, e.flags, true
	}
	return steady, err
}

func (w *walker) read(name string, e, was *entry) (steady bool, err error) {
	fd, err := openQuiet(w.fd(), name, openFile)
	switch {
	case denied(err):
		e.flags |= flagUnreadable
		return true, nil
	case err == unix.ENOENT || err == unix.ELOOP || err == unix.ENXIO || err == unix.EAGAIN:
		// Gone, replaced by a link or a socket, or leased to a file server.
		e.flags |= flagUnreadable
		return false, nil
	case err != nil:
		return false, err
	}
	defer unix.Close(fd)
	w.s.opened.Add(1)
	if e.size > holesFrom || was.sameSize(e) && was.flags&flagSparse != 0 {
		err = w.readHoles(fd, e, was)
	} else {
		err = w.readAll(fd, e)
	}
	switch {
	case denied(err):
		e.flags |= flagUnreadable
		return true, nil
	case err == unix.ESPIPE: // it is a FIFO now
		e.flags |= flagUnreadable
		return false, nil
	case err != nil:
		return false, err
	}
	// Looked at afterwards and compared with before: one look covers both that
	// this is the inode meant and that it held still.
	if err := lookAt(fd, "", &w.st); err != nil {
		return false, err
	}
	return w.st.Ino == e.ino && w.st.Mode == e.mode && int64(w.st.Size) == e.size &&
		ctimeOf(&w.st) == e.ctime && placeOf(&w.st).dev == w.placeAt(e.place).dev, nil
}

// readAll is the SHA-256 of the first e.size bytes, so a file that grows cannot
// keep us.
func (w *walker) readAll(fd int, e *entry) error {
	if e.size <= int64(len(w.buf)) {
		n, err := w.fill(fd, w.buf[:e.size], 0)
		if err == nil {
			e.sum = sha256.Sum256(w.buf[:n])
		}
		return err
	}
	h := w.hash.fresh()
	for off := int64(0); off < e.size; {
		n, err := w.fill(fd, w.buf[:min(int64(len(w.buf)), e.size-off)], off)
		if err != nil {
			return err
		}
		if n == 0 {
			break // it shrank; the look afterwards tells
		}
		h.Write(w.buf[:n])
		off += int64(n)
		if err := w.s.halted(); err != nil {
			return err
		}
	}
	h.Sum(e.sum[:0])
	return nil
}

// fill reads until buf is full or the file ends.
func (w *walker) fill(fd int, buf []byte, off int64) (n int, err error) {
	for n < len(buf) {
		var got int
		err := again(func() (err error) {
			got, err = unix.Pread(fd, buf[n:], off+int64(n))
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
