package archive

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// member is an entry of an archive that was judged.
type member struct {
	path     string
	folder   bool
	size     int64
	mode     uint32
	modified time.Time
}

// read goes through an archive and gives every entry that is not refused, with
// its content. It reads to the very end: a sum that is wrong, or a part that is
// missing, shows only there.
func read(ctx context.Context, r io.Reader, o Options, each func(m member, content io.Reader) error) error {
	// Headers and padding count too: a million empty entries are no small thing.
	limit := o.MaxBytes + int64(o.MaxEntries)*4096
	z, err := gzip.NewReader(r)
	if err != nil {
		return refuse("", "no gzip archive: %v", err)
	}
	all := &counted{r: z, left: limit}
	t := tar.NewReader(all)
	kinds := map[string]bool{} // by path, whether it is a folder
	var total int64
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		// With some settings of Go's, names that leave are an error there. They
		// are judged below in any case.
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return broken(err)
		}
		m, err := judge(h)
		if err != nil {
			return err
		}
		if m.path == "" {
			continue
		}
		if len(kinds) >= o.MaxEntries {
			return refuse(h.Name, "more than %d entries", o.MaxEntries)
		}
		if total += m.size; m.size > o.MaxBytes || total > o.MaxBytes {
			return refuse(h.Name, "more than %d bytes in all", o.MaxBytes)
		}
		if err := place(kinds, m); err != nil {
			return err
		}
		if err := each(m, t); err != nil {
			return broken(err)
		}
	}
	if _, err := io.Copy(io.Discard, all); err != nil {
		return broken(err)
	}
	return nil
}

// broken tells an archive that cannot be read from a host that cannot write.
func broken(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, gzip.ErrChecksum) || errors.Is(err, gzip.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, tar.ErrFieldTooLong) || strings.HasPrefix(err.Error(), "flate: ") {
		return refuse("", "a broken archive: %v", err)
	}
	return err
}

// counted ends a stream that is longer than anything that would be taken.
type counted struct {
	r    io.Reader
	left int64
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	if c.left -= int64(n); c.left < 0 {
		return 0, refuse("", "the archive unpacks to more than is taken")
	}
	return n, err
}

// judge takes regular files and folders, and nothing else.
func judge(h *tar.Header) (member, error) {
	path, err := cleanName(h.Name)
	if err != nil {
		return member{}, err
	}
	m := member{path: path, size: h.Size, mode: uint32(h.Mode & 0o777), modified: h.ModTime}
	switch h.Typeflag {
	case tar.TypeReg:
		if path == "" {
			return member{}, refuse(h.Name, "a file in the place of the workspace")
		}
	case tar.TypeDir:
		m.folder = true
		if h.Size != 0 {
			return member{}, refuse(h.Name, "a folder with content")
		}
	case tar.TypeSymlink:
		return member{}, refuse(h.Name, "a symbolic link")
	case tar.TypeLink:
		return member{}, refuse(h.Name, "a hard link")
	case tar.TypeChar, tar.TypeBlock:
		return member{}, refuse(h.Name, "a device")
	case tar.TypeFifo:
		return member{}, refuse(h.Name, "a FIFO")
	default:
		return member{}, refuse(h.Name, "an entry of type %q; only files and folders are restored", string(rune(h.Typeflag)))
	}
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return member{}, refuse(h.Name, "a sparse file")
		}
	}
	if h.Size < 0 {
		return member{}, refuse(h.Name, "a size below zero")
	}
	return m, nil
}

// place holds that no path is two things. A folder may be named twice.
func place(kinds map[string]bool, m member) error {
	for up := m.path; ; {
		i := strings.LastIndexByte(up, '/')
		if i < 0 {
			break
		}
		up = up[:i]
		folder, known := kinds[up]
		if known && !folder {
			return refuse(m.path, "it lies in %q, which the archive says is a file", up)
		}
		if known {
			break // what is above was held before
		}
		kinds[up] = true
	}
	folder, known := kinds[m.path]
	switch {
	case known && folder != m.folder:
		return refuse(m.path, "the archive says that it is a file and that it is a folder")
	case known && !folder:
		return refuse(m.path, "the archive has it twice")
	}
	kinds[m.path] = m.folder
	return nil
}

var errChanged = fmt.Errorf("the archive changed while it was read")
