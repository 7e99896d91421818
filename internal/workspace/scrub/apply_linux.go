package scrub

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Apply does to a plain copy of the workspace what the layer does to an
// overlay: it writes the files and removes what is hidden. It follows no link,
// and writes into no file that is there: the copy may share one with something
// else by a second name.
func (m Mask) Apply(dir string) error {
	root, err := openAt(unix.AT_FDCWD, dir, openDir, 0)
	if err != nil {
		return fmt.Errorf("scrub the copy: open %s: %w", dir, err)
	}
	defer unix.Close(root)
	for _, p := range m.Hidden {
		if err := changeIn(root, p, removeAll); err != nil {
			return fmt.Errorf("scrub the copy: %s: %w", shown(p), err)
		}
	}
	for _, f := range m.Files {
		err := changeIn(root, f.Path, func(fd int, name string) error {
			uid, gid := -1, -1
			if st, err := lstatAt(fd, name); err == nil {
				uid, gid = int(st.Uid), int(st.Gid)
			}
			if err := removeAll(fd, name); err != nil {
				return err
			}
			return writeFile(fd, name, f, uid, gid)
		})
		if err != nil {
			return fmt.Errorf("scrub the copy: %s: %w", shown(f.Path), err)
		}
	}
	return nil
}

// changeIn changes something in the folder of a path, which is then as it was:
// writable only meanwhile, and with its time. A folder that is not in the copy
// has nothing to hide in it.
func changeIn(root int, path string, do func(fd int, name string) error) error {
	folder, name := split(path)
	at, err := folderAt(root, folder)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(at)
	var st unix.Stat_t
	if err := again(func() error { return unix.Fstat(at, &st) }); err != nil {
		return err
	}
	fd, err := openAt(at, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if st.Mode&0o200 == 0 {
		if err := again(func() error { return unix.Fchmod(fd, st.Mode&0o7777|0o700) }); err != nil {
			return err
		}
	}
	if err := do(fd, name); err != nil {
		return err
	}
	return look(fd, st.Mode&0o7777, modified(st))
}

// deepest is how many folders removeAll holds open at once.
const deepest = 64

// removeAll removes a name and all below it, by descriptors. A folder deeper
// than deepest is moved up first: a step may have made a tree that has more
// levels than we may open files.
func removeAll(dir int, name string) error {
	err := again(func() error { return unix.Unlinkat(dir, name, 0) })
	if err == nil || err == unix.ENOENT {
		return nil
	}
	if err != unix.EISDIR && err != unix.EPERM {
		return err
	}
	for {
		moved := 0
		if err := empty(dir, name, dir, name, 0, &moved); err != nil {
			return err
		}
		if moved == 0 {
			break
		}
	}
	return again(func() error { return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR) })
}

// empty removes what is in a folder. What lies too deep goes into the folder
// topDir/top, for the next round.
func empty(dir int, name string, topDir int, top string, depth int, moved *int) error {
	fd, err := openAt(dir, name, openDir, 0)
	if err == unix.EACCES {
		if err := again(func() error { return unix.Fchmodat(dir, name, 0o700, 0) }); err != nil {
			return err
		}
		fd, err = openAt(dir, name, openDir, 0)
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_ = again(func() error { return unix.Fchmod(fd, 0o700) })
	buf := make([]byte, bufferSize)
	var names []string
	for {
		var got int
		err := again(func() (err error) {
			got, err = unix.Getdents(fd, buf)
			return err
		})
		if err != nil {
			return err
		}
		if got == 0 {
			break
		}
		_, _, names = unix.ParseDirent(buf[:got], -1, names)
	}
	for _, n := range names {
		err := again(func() error { return unix.Unlinkat(fd, n, 0) })
		switch {
		case err == nil || err == unix.ENOENT:
			continue
		case err != unix.EISDIR && err != unix.EPERM:
			return err
		}
		if depth >= deepest {
			at, err := openAt(topDir, top, openDir, 0)
			if err != nil {
				return err
			}
			for try := 0; ; try++ {
				// Moving a folder writes its "..", for which it must be writable.
				_ = again(func() error { return unix.Fchmodat(fd, n, 0o700, 0) })
				err = again(func() error {
					return unix.Renameat2(fd, n, at, fmt.Sprintf(".deep.%d", *moved+try), unix.RENAME_NOREPLACE)
				})
				if err != unix.EEXIST {
					*moved += try + 1
					break
				}
			}
			unix.Close(at)
			if err != nil {
				return err
			}
			continue
		}
		if err := empty(fd, n, topDir, top, depth+1, moved); err != nil {
			return err
		}
		if err := again(func() error { return unix.Unlinkat(fd, n, unix.AT_REMOVEDIR) }); err != nil {
			return err
		}
	}
	return nil
}
