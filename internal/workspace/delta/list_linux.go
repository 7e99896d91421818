package delta

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// Layout of struct linux_dirent64.
const (
	direntLen  = 16
	direntType = 18
	direntName = 19
)

// listed is a name in a folder, with the type that each side's list gives it,
// as the type bits of a mode; 0 where it is in no list of that side.
type listed struct {
	name          string
	before, after uint16
}

// count is what one side has been counted to have.
type count struct{ entries, text int64 }

// tally adds to what the limits bound.
func (w *walk) tally(c *count, entries, text int64) error {
	c.entries += entries
	c.text += text
	if c.entries > w.opt.MaxEntries {
		return fmt.Errorf("%w: more than %d entries", workspace.ErrLimit, w.opt.MaxEntries)
	}
	if c.text > w.opt.MaxText {
		return fmt.Errorf("%w: names and link targets of more than %d bytes", workspace.ErrLimit, w.opt.MaxText)
	}
	return nil
}

// names lists what has to be looked at in a folder, sorted: where what the upper
// does not name is as it was, that is what the upper names.
func (w *walk) names(f *frame, through bool) ([]listed, error) {
	var list []listed
	if f.after.fd >= 0 {
		err := w.list(f.after.fd, &w.counts[1], func(name string, kind uint16) {
			list = append(list, listed{name: name, after: kind})
		})
		if err != nil {
			return nil, err
		}
	}
	if !through || f.after.fd < 0 {
		for _, s := range f.before {
			if s.fd < 0 || !s.listable {
				continue
			}
			err := w.list(s.fd, &w.counts[0], func(name string, kind uint16) {
				list = append(list, listed{name: name, before: kind})
			})
			if err != nil {
				return nil, err
			}
		}
	}
	slices.SortStableFunc(list, func(a, b listed) int { return strings.Compare(a.name, b.name) })
	// One line for each name; the topmost layer says which type it is.
	var out []listed
	for _, l := range list {
		if n := len(out) - 1; n >= 0 && out[n].name == l.name {
			out[n].before, out[n].after = cmp.Or(out[n].before, l.before), cmp.Or(out[n].after, l.after)
			continue
		}
		out = append(out, l)
	}
	return out, nil
}

func (w *walk) list(fd int, c *count, each func(name string, kind uint16)) error {
	if _, err := unix.Seek(fd, 0, unix.SEEK_SET); err != nil {
		return err
	}
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
			return nil
		}
		var entries, text int64
		for rest := w.buf[:got]; len(rest) > 0; {
			size := int(binary.NativeEndian.Uint16(rest[direntLen:]))
			if size < direntName || size > len(rest) {
				return errors.New("the kernel's list of a folder does not parse")
			}
			name, _, _ := bytes.Cut(rest[direntName:size], []byte{0})
			if s := string(name); s != "." && s != ".." && s != "" {
				each(s, uint16(rest[direntType])<<12)
				entries, text = entries+1, text+int64(len(s))
			}
			rest = rest[size:]
		}
		// Before the next batch: a folder may have more than memory holds.
		if err := w.tally(c, entries, text); err != nil {
			return err
		}
		if err := w.halted(); err != nil {
			return err
		}
	}
}
