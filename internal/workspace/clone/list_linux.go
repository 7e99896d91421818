package clone

import (
	"bytes"
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// Layout of struct linux_dirent64.
const (
	direntLen  = 16
	direntName = 19
)

// list reads the names in a folder, in the order it has them.
func (w *worker) list(fd int) ([]string, error) {
	var raw []byte
	var ends []int
	for {
		var got int
		err := again(func() (err error) {
			got, err = unix.Getdents(fd, w.buf)
			return err
		})
		if err != nil {
			return nil, err
		}
		if got == 0 {
			break
		}
		had := len(ends)
		for rest := w.buf[:got]; len(rest) > 0; {
			size := 0
			if len(rest) >= direntName {
				size = int(binary.NativeEndian.Uint16(rest[direntLen:]))
			}
			if size < direntName || size > len(rest) {
				return nil, errors.New("clone: the kernel's list of a folder does not parse")
			}
			name, _, _ := bytes.Cut(rest[direntName:size], []byte{0})
			if s := string(name); s != "." && s != ".." && s != "" {
				raw = append(raw, name...)
				ends = append(ends, len(raw))
			}
			rest = rest[size:]
		}
		// Before the next batch: a folder may have more than memory holds.
		if err := w.c.count(int64(len(ends) - had)); err != nil {
			return nil, err
		}
		if err := w.c.halted(); err != nil {
			return nil, err
		}
	}
	all, from := string(raw), 0
	names := make([]string, len(ends))
	for i, to := range ends {
		names[i], from = all[from:to], to
	}
	return names, nil
}
