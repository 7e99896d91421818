package scrub

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Refresh is Find for a workspace that was masked while steps changed it: it
// looks at the paths of the mask and at no others, and so costs nothing for the
// size of the workspace. That is enough as long as nobody but steps behind this
// mask wrote there: they saw none of the secrets, so they put none elsewhere. A
// path that is gone, or whose folder is, is in the new mask no more.
func (m Mask) Refresh(ctx context.Context, dir string, o Options) (Mask, error) {
	o = o.withDefaults()
	root, err := openAt(unix.AT_FDCWD, dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Mask{}, fmt.Errorf("look for secrets: open %s: %w", dir, err)
	}
	defer unix.Close(root)
	f := newFinder(dir, root, o)
	f.mask.Notes = slices.Clone(m.Notes)
	in := func(path string, do func(fd int, name string) error) error {
		folder, name := split(path)
		fd, err := folderAt(root, folder)
		switch err {
		case nil:
		case unix.ENOENT, unix.ENOTDIR, unix.ELOOP:
			// Nothing that was there is there now: a link stands for what a step
			// made, and where it leads is masked under its own path.
			return nil
		default:
			return fmt.Errorf("look for secrets: %s: %w", shown(folder), err)
		}
		defer unix.Close(fd)
		return do(fd, name)
	}
	for _, p := range m.Hidden {
		err := in(p, func(fd int, name string) error {
			if _, err := lstatAt(fd, name); err != unix.ENOENT {
				f.hidden[p] = true
			}
			return nil
		})
		if err != nil {
			return Mask{}, err
		}
	}
	for _, file := range m.Files {
		err := in(file.Path, func(fd int, name string) error { return f.judge(fd, file.Path, name, file.kind) })
		if err != nil {
			return Mask{}, err
		}
	}
	if err := f.follow(ctx); err != nil {
		return Mask{}, err
	}
	return f.done()
}
