package delta

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	// openFrames is how many folders of one path stay open. Those above are
	// closed and found again through "..", so that a deep tree costs no
	// descriptors. It is at least 2, see push.
	openFrames = 16
)

// frame is a folder on the way to where the walk is: what the stack has there,
// merged, top first, and what the upper or the copy has.
type frame struct {
	before []folder
	after  folder
}

// close closes a frame's folders and gives back the mode of what was opened up.
func (f *frame) close() (err error) {
	for _, b := range f.before {
		if b.fd >= 0 {
			unix.Close(b.fd)
		}
	}
	if f.after.fd >= 0 {
		if f.after.restore != nil {
			if e := unix.Fchmod(f.after.fd, *f.after.restore); e != nil {
				err = fmt.Errorf("give a folder its mode back: %w", e)
			}
		}
		unix.Close(f.after.fd)
	}
	return err
}

// of gives a frame's folder of one layer, nil if it has none; -1 is the upper or
// the copy.
func (f *frame) of(layer int) *folder {
	if layer < 0 {
		if f.after.fd < 0 && f.after.inode == (inode{}) {
			return nil
		}
		return &f.after
	}
	for i := range f.before {
		if f.before[i].layer == layer {
			return &f.before[i]
		}
	}
	return nil
}

func (f *frame) each(do func(*folder, int) error) error {
	for i := range f.before {
		if err := do(&f.before[i], f.before[i].layer); err != nil {
			return err
		}
	}
	return do(&f.after, -1)
}

// push enters a folder and closes what is beyond openFrames above it. A layer's
// folder is closed only if two below it are open: the upper of these was looked
// up in, so ".." can be too. A layer that ends on the way stays open where it
// ends, which is once for each layer.
func (w *walk) push(f *frame) {
	w.frames = append(w.frames, f)
	i := len(w.frames) - 1 - openFrames
	if i < 0 {
		return
	}
	_ = w.frames[i].each(func(part *folder, layer int) error {
		child, grandchild := w.frames[i+1].of(layer), w.frames[i+2].of(layer)
		if part.fd >= 0 && child != nil && child.fd >= 0 && grandchild != nil && grandchild.fd >= 0 {
			unix.Close(part.fd)
			part.fd = closed
		}
		return nil
	})
}

// closed is the descriptor of a folder that has to be found again.
const closed = -2

// pop leaves a folder. What was closed above it is found again, and must be the
// inode that it was: ".." is wherever the folder lies now.
func (w *walk) pop() error {
	f := w.frames[len(w.frames)-1]
	w.frames = w.frames[:len(w.frames)-1]
	err := w.frames[len(w.frames)-1].each(func(part *folder, layer int) error {
		if part.fd != closed {
			return nil
		}
		flags := openDir
		if !part.listable {
			flags = openPath
		}
		fd, err := openAt(f.of(layer).fd, "..", flags)
		if err != nil {
			return err
		}
		part.fd = fd
		return part.check()
	})
	return errors.Join(err, f.close())
}
