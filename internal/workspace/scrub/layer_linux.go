package scrub

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Write makes the mask a layer for overlayfs in an empty folder: to be mounted
// right above the workspace, below whatever a step writes. Run by root, all of
// it belongs to uid and gid, who own the workspace; else it is ours, and they
// are not looked at.
//
// A folder of a layer hides the attributes of those below it, so each has the
// mode and the time of the workspace's own. What is hidden is a character device
// 0:0, which the kernel lets anybody make.
func (m Mask) Write(dir string, uid, gid int) error {
	root, err := openAt(unix.AT_FDCWD, dir, openDir, 0)
	if err != nil {
		return fmt.Errorf("write the mask: open %s: %w", dir, err)
	}
	defer unix.Close(root)
	l := layer{root: root, uid: -1, gid: -1}
	if os.Geteuid() == 0 {
		l.uid, l.gid = uid, gid
	}
	for _, f := range m.folders {
		if f.path == "" {
			continue
		}
		if err := l.folder(f.path); err != nil {
			return fmt.Errorf("write the mask: %s: %w", shown(f.path), err)
		}
	}
	for _, f := range m.Files {
		if err := l.file(f); err != nil {
			return fmt.Errorf("write the mask: %s: %w", shown(f.Path), err)
		}
	}
	for _, p := range m.Hidden {
		if err := l.whiteout(p); err != nil {
			return fmt.Errorf("write the mask: %s: %w", shown(p), err)
		}
	}
	// Modes and times last, the deepest first: a folder may be one that even its
	// owner may not write to, and writing changes its time.
	for i := len(m.folders) - 1; i >= 0; i-- {
		if err := l.finish(m.folders[i]); err != nil {
			return fmt.Errorf("write the mask: %s: %w", shown(m.folders[i].path), err)
		}
	}
	return nil
}

type layer struct {
	root     int
	uid, gid int
}

// in calls do with the folder of a path, and the name in it.
func (l layer) in(path string, do func(fd int, name string) error) error {
	folder, name := split(path)
	fd, err := folderAt(l.root, folder)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return do(fd, name)
}

func (l layer) own(fd int, name string) error {
	if l.uid < 0 {
		return nil
	}
	return again(func() error { return unix.Fchownat(fd, name, l.uid, l.gid, unix.AT_SYMLINK_NOFOLLOW) })
}

func (l layer) folder(path string) error {
	return l.in(path, func(fd int, name string) error {
		if err := again(func() error { return unix.Mkdirat(fd, name, 0o700) }); err != nil {
			return err
		}
		return l.own(fd, name)
	})
}

func (l layer) file(f File) error {
	return l.in(f.Path, func(fd int, name string) error { return writeFile(fd, name, f, l.uid, l.gid) })
}

func (l layer) whiteout(path string) error {
	return l.in(path, func(fd int, name string) error {
		if err := again(func() error { return unix.Mknodat(fd, name, unix.S_IFCHR, 0) }); err != nil {
			return err
		}
		return l.own(fd, name)
	})
}

func (l layer) finish(f folderLook) error {
	if f.path == "" {
		if err := l.own(l.root, "."); err != nil {
			return err
		}
		return look(l.root, f.mode, f.modified)
	}
	return l.in(f.path, func(fd int, name string) error {
		at, err := openAt(fd, name, openDir, 0)
		if err != nil {
			return err
		}
		defer unix.Close(at)
		return look(at, f.mode, f.modified)
	})
}

func look(fd int, mode uint32, modified time.Time) error {
	if err := again(func() error { return unix.Fchmod(fd, mode&0o7777) }); err != nil {
		return err
	}
	ts := unix.NsecToTimespec(modified.UnixNano())
	return again(func() error {
		return unix.UtimesNanoAt(fd, "", []unix.Timespec{ts, ts}, unix.AT_EMPTY_PATH)
	})
}

// writeFile makes a file that is not there yet.
func writeFile(dir int, name string, f File, uid, gid int) error {
	fd, err := openAt(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	out := os.NewFile(uintptr(fd), name)
	defer out.Close()
	if _, err := out.Write(f.Text); err != nil {
		return err
	}
	if uid >= 0 {
		if err := again(func() error { return unix.Fchown(fd, uid, gid) }); err != nil {
			return err
		}
	}
	// After the owner: to change that takes set-id bits away.
	if err := look(fd, f.Mode, f.Modified); err != nil {
		return err
	}
	return out.Close()
}
