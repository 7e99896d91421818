package archive

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// stagePrefix begins the name of the folder in the workspace that holds all
// content until the last of it is there.
const stagePrefix = ".untrusted-steps-restore-"

// Restore puts an archive's files and folders into the workspace. What is there
// is replaced; what the archive does not name stays. Nobody may write to the
// workspace meanwhile.
func Restore(ctx context.Context, workspace string, r io.ReadSeeker, o Options) (Summary, error) {
	root, err := openAt(unix.AT_FDCWD, workspace, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Summary{}, fmt.Errorf("restore: open %s: %w", workspace, err)
	}
	defer unix.Close(root)
	st, err := fstat(root)
	if err != nil {
		return Summary{}, fmt.Errorf("restore: %w", err)
	}
	s := &restorer{root: root, o: o.withDefaults(), uid: -1, gid: -1, free: map[string]bool{}, opened: map[string]uint32{}}
	if os.Geteuid() == 0 {
		// What root puts there belongs to whom the workspace belongs to.
		s.uid, s.gid = int(st.Uid), int(st.Gid)
	}
	err = read(ctx, r, s.o, func(m member, content io.Reader) error {
		if err := s.fits(m); err != nil {
			return err
		}
		s.members = append(s.members, m)
		_, err := io.Copy(io.Discard, content)
		return err
	})
	if err != nil {
		return Summary{}, fmt.Errorf("restore: %w", err)
	}
	if _, err := r.Seek(0, io.SeekStart); err != nil {
		return Summary{}, fmt.Errorf("restore: %w", err)
	}
	if err := s.stage(ctx, r); err != nil {
		return Summary{}, fmt.Errorf("restore: nothing was changed: %w", err)
	}
	err = s.move()
	if e := s.clear(); err == nil {
		err = e
	}
	if err != nil {
		return Summary{}, fmt.Errorf("restore: %d of %d entries are in place, run it again when the cause is gone: %w", s.done, len(s.members), err)
	}
	return s.sum, nil
}

type restorer struct {
	root     int
	o        Options
	uid, gid int
	members  []member
	free     map[string]bool   // folders that are known to be there, or to be missing below one that is
	opened   map[string]uint32 // folders that were made writable, with the mode they had
	stageFD  int
	stageDir string
	done     int
	sum      Summary
}

// fits looks at what stands in the workspace where an entry is to go.
func (s *restorer) fits(m member) error {
	folder, name := split(m.path)
	if err := s.way(folder, m.path); err != nil {
		return err
	}
	fd, err := folderAt(s.root, folder)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%q: %w", m.path, err)
	}
	defer unix.Close(fd)
	st, err := lstatAt(fd, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%q: %w", m.path, err)
	}
	kind := st.Mode & unix.S_IFMT
	switch {
	case kind == unix.S_IFLNK:
		return refuse(m.path, "a link stands there in the workspace, and is not followed")
	case m.folder && kind != unix.S_IFDIR:
		return refuse(m.path, "what stands there in the workspace is no folder")
	case !m.folder && kind != unix.S_IFREG:
		return refuse(m.path, "what stands there in the workspace is no regular file")
	}
	return nil
}

// way holds that the folders above an entry are folders, as far as they are there.
func (s *restorer) way(folder, entry string) error {
	for up := folder; up != "" && !s.free[up]; up, _ = split(up) {
		fd, err := folderAt(s.root, up)
		switch {
		case err == nil:
			unix.Close(fd)
			// So are those above it.
			for ; up != ""; up, _ = split(up) {
				s.free[up] = true
			}
			return nil
		case errors.Is(err, unix.ENOENT):
			s.free[up] = true
			continue
		case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
			return refuse(entry, "a link, or what is no folder, stands on the way in the workspace, at or above %q", up)
		}
		return fmt.Errorf("%q: %w", entry, err)
	}
	return nil
}

// stage writes all content into a folder of its own. Whatever goes wrong, the
// rest of the workspace was not touched.
func (s *restorer) stage(ctx context.Context, r io.Reader) (err error) {
	s.stageDir = stagePrefix + strings.ToLower(rand.Text()[:12])
	if err := again(func() error { return unix.Mkdirat(s.root, s.stageDir, 0o700) }); err != nil {
		return err
	}
	if s.stageFD, err = openAt(s.root, s.stageDir, openDir, 0); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.clear())
		}
	}()
	at := 0
	err = read(ctx, r, s.o, func(m member, content io.Reader) error {
		// What was judged is what is written: somebody may be writing to the
		// archive, and the second reading must not be of another.
		if at >= len(s.members) || m != s.members[at] {
			return errChanged
		}
		at++
		if m.folder {
			return nil
		}
		return s.content(strconv.Itoa(at-1), m, content)
	})
	if err == nil && at != len(s.members) {
		err = errChanged
	}
	return err
}

func (s *restorer) content(name string, m member, content io.Reader) error {
	fd, err := openAt(s.stageFD, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if _, err := io.Copy(f, content); err != nil {
		return err
	}
	if err := s.finish(fd, m); err != nil {
		return err
	}
	return f.Close()
}

func (s *restorer) finish(fd int, m member) error {
	if s.uid >= 0 {
		if err := again(func() error { return unix.Fchown(fd, s.uid, s.gid) }); err != nil {
			return err
		}
	}
	if err := again(func() error { return unix.Fchmod(fd, m.mode) }); err != nil {
		return err
	}
	// Times that no file system keeps are brought to ones that it does.
	sec := min(max(m.modified.Unix(), 0), 1<<33)
	ts := unix.NsecToTimespec(time.Unix(sec, int64(m.modified.Nanosecond())).UnixNano())
	return again(func() error { return unix.UtimesNanoAt(fd, "", []unix.Timespec{ts, ts}, unix.AT_EMPTY_PATH) })
}

// move brings everything into its place. The files are there already, so that
// what is left is to make folders and to rename.
func (s *restorer) move() error {
	for i, m := range s.members {
		if m.folder {
			if err := s.folder(m.path); err != nil {
				return fmt.Errorf("%q: %w", m.path, err)
			}
			s.sum.Folders++
			s.done++
			continue
		}
		folder, name := split(m.path)
		if err := s.folder(folder); err != nil {
			return fmt.Errorf("%q: %w", m.path, err)
		}
		fd, err := folderAt(s.root, folder)
		if err != nil {
			return fmt.Errorf("%q: %w", m.path, err)
		}
		err = again(func() error { return unix.Renameat(s.stageFD, strconv.Itoa(i), fd, name) })
		unix.Close(fd)
		if err != nil {
			return fmt.Errorf("%q: %w", m.path, err)
		}
		s.sum.Files++
		s.sum.Bytes += m.size
		s.done++
	}
	return s.folders()
}

// folder makes a folder and those above it, where they are missing, and lets us
// write to it.
func (s *restorer) folder(path string) error {
	if path == "" {
		return nil
	}
	if _, known := s.opened[path]; known {
		return nil
	}
	up, name := split(path)
	if err := s.folder(up); err != nil {
		return err
	}
	fd, err := folderAt(s.root, up)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	st, err := lstatAt(fd, name)
	if errors.Is(err, unix.ENOENT) {
		if err := again(func() error { return unix.Mkdirat(fd, name, 0o755) }); err != nil {
			return err
		}
		if st, err = lstatAt(fd, name); err != nil {
			return err
		}
		st.Mode = unix.S_IFDIR | 0o755 // whatever the umask
		if s.uid >= 0 {
			if err := again(func() error { return unix.Fchownat(fd, name, s.uid, s.gid, unix.AT_SYMLINK_NOFOLLOW) }); err != nil {
				return err
			}
		}
	} else if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return unix.ENOTDIR
	}
	if st.Mode&0o700 != 0o700 {
		if err := again(func() error { return unix.Fchmodat(fd, name, st.Mode&0o7777|0o700, 0) }); err != nil {
			return err
		}
	}
	s.opened[path] = st.Mode & 0o7777
	return nil
}

// folders gives every folder its mode and time, the deepest first: writing to
// one changes its time, and a mode may forbid it.
func (s *restorer) folders() error {
	last := map[string]member{}
	for _, m := range s.members {
		if m.folder {
			last[m.path] = m
		}
	}
	for _, path := range deepestFirst(s.opened) {
		fd, err := folderAt(s.root, path)
		if err != nil {
			return fmt.Errorf("%q: %w", path, err)
		}
		dir, err := openAt(fd, ".", openDir, 0)
		unix.Close(fd)
		if err != nil {
			return fmt.Errorf("%q: %w", path, err)
		}
		if m, named := last[path]; named {
			err = s.finish(dir, m)
		} else {
			s.sum.Unnamed = append(s.sum.Unnamed, path)
			err = setMode(dir, s.opened[path])
		}
		unix.Close(dir)
		if err != nil {
			return fmt.Errorf("%q: %w", path, err)
		}
	}
	return nil
}

// setMode leaves alone what is right: a folder may be somebody else's.
func setMode(fd int, mode uint32) error {
	st, err := fstat(fd)
	if err != nil || st.Mode&0o7777 == mode {
		return err
	}
	return again(func() error { return unix.Fchmod(fd, mode) })
}

// clear removes the folder of what was staged, with what is left in it: plain
// files with our own names.
func (s *restorer) clear() error {
	defer unix.Close(s.stageFD)
	for i, m := range s.members {
		if m.folder {
			continue
		}
		if err := again(func() error { return unix.Unlinkat(s.stageFD, strconv.Itoa(i), 0) }); err != nil && err != unix.ENOENT {
			return fmt.Errorf("remove %s: %w", s.stageDir, err)
		}
	}
	if err := again(func() error { return unix.Unlinkat(s.root, s.stageDir, unix.AT_REMOVEDIR) }); err != nil {
		return fmt.Errorf("remove %s: %w", s.stageDir, err)
	}
	return nil
}
