package workspace

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Layout of struct linux_dirent64.
const (
	direntLen  = 16
	direntType = 18
	direntName = 19
)

// list reads the names in a folder into a dir, sorted by name, each entry with
// the type the folder says it has.
func (w *walker) list(fd int, n *node) error {
	type ref struct {
		off, ino uint64
		length   uint16
		kind     byte
	}
	var raw []byte
	var refs []ref
	for {
		var got int
		err := again(func() (err error) {
			got, err = unix.Getdents(fd, w.buf)
			return err
		})
		if err != nil {
			return err
		}
		if got == 0 {
			break
		}
		fresh := len(refs)
		for rest := w.buf[:got]; len(rest) > 0; {
			size := int(binary.NativeEndian.Uint16(rest[direntLen:]))
			if size < direntName || size > len(rest) {
				return fmt.Errorf("workspace: the kernel's list of a folder does not parse")
			}
			name, _, _ := bytes.Cut(rest[direntName:size], []byte{0})
			if s := string(name); s != "." && s != ".." && s != "" {
				refs = append(refs, ref{uint64(len(raw)), binary.NativeEndian.Uint64(rest), uint16(len(name)), rest[direntType]})
				raw = append(raw, name...)
			}
			rest = rest[size:]
		}
		// Before the next batch: a folder may have more than memory holds.
		if err := w.s.count(int64(len(refs)-fresh), 0); err != nil {
			return err
		}
		if err := w.s.halted(); err != nil {
			return err
		}
	}
	if err := w.s.count(0, int64(len(raw))); err != nil {
		return err
	}
	nameOf := func(r ref) []byte { return raw[r.off : r.off+uint64(r.length)] }
	refs, err := sorted(refs, func(a, b ref) int { return bytes.Compare(nameOf(a), nameOf(b)) }, w.s.halted)
	if err != nil {
		return err
	}
	// A folder that changes while it is listed can name an entry twice.
	listed := len(refs)
	refs = slices.CompactFunc(refs, func(a, b ref) bool { return bytes.Equal(nameOf(a), nameOf(b)) })
	w.s.entries.Add(int64(len(refs) - listed))
	d := &dir{text: make([]byte, 0, len(raw)), entries: make([]entry, len(refs))}
	for i, r := range refs {
		d.entries[i] = entry{
			ino: r.ino, name: uint32(len(d.text)), nameLen: r.length,
			// DT_ values are the type bits of a mode, shifted.
			mode: uint16(r.kind) << 12, place: n.place,
		}
		d.text = append(d.text, nameOf(r)...)
	}
	n.d = d
	return nil
}
