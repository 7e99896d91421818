package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/archive"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/scrub"
)

// maxRead bounds what ReadFile takes into memory: code may have made a file of
// any size, of holes even.
const maxRead = 256 << 20

// What bounds ListFiles: paths, the bytes of them all, and folders within each
// other, of which each is open while what is in it is listed.
const (
	maxListed      = 100_000
	maxListedBytes = 64 << 20
	maxDeep        = 512
)

// ErrTooLarge: a file or list is larger than this package takes into memory.
var ErrTooLarge = errors.New("too large")

// WriteFile puts a file into the workspace, in folders that it makes as they are
// needed. The name is relative to the workspace. A link on the way or at the end is
// not followed: code may have put it there. What stood at the name is replaced. A call
// that runs meanwhile does not see it, and if that changes the same name, none of its
// changes is kept. Until no call runs that began before, the file is for ReadFile,
// ListFiles, Snapshot and later calls to see, and not yet in the folder on the host.
// That it could not be brought there is told by the next method, as ErrNotKept.
//
// While something runs that began before, only so many changes can be held back. Files
// that are written one after another are one; past the bound the error says what to
// close.
func (s *Sandbox) WriteFile(name string, data []byte) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.active.Done()
	rel, err := local("write", name)
	if err != nil {
		return err
	}
	defer s.changing()()
	err = s.on.Runner.Tree.Change(context.Background(), "WriteFile "+rel, nil, func(h *steps.Draft) error { return h.File(rel, data) })
	if err != nil {
		return &fs.PathError{Op: "write", Path: name, Err: err}
	}
	return nil
}

// ReadFile gives the content of a regular file of the workspace. Nothing else is
// read: no link is followed, and a FIFO that code has left would never end.
func (s *Sandbox) ReadFile(name string) ([]byte, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.active.Done()
	rel, err := local("read", name)
	if err != nil {
		return nil, err
	}
	var data []byte
	err = s.on.Runner.Tree.Look(rel, func(root string) error {
		dir, err := folder(root, filepath.Dir(rel))
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		fd, err := unix.Openat(dir, filepath.Base(rel), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ELOOP) {
			return errors.New("it is a link, and none is followed")
		}
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), name)
		defer f.Close()
		st, err := f.Stat()
		switch {
		case err != nil:
			return err
		case !st.Mode().IsRegular():
			return fmt.Errorf("it is no regular file but %s", kindOf(st.Mode()))
		case st.Size() > maxRead:
			return fmt.Errorf("%d bytes: %w", st.Size(), ErrTooLarge)
		}
		data, err = io.ReadAll(io.LimitReader(f, maxRead+1))
		if len(data) > maxRead {
			data, err = nil, fmt.Errorf("it grew: %w", ErrTooLarge)
		}
		return err
	})
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: name, Err: err}
	}
	return data, nil
}

func kindOf(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a folder"
	case m&fs.ModeNamedPipe != 0:
		return "a FIFO"
	case m&fs.ModeSocket != 0:
		return "a socket"
	}
	return "a device"
}

// Entry is one path of the workspace.
type Entry struct {
	Path string // relative to the workspace, with slashes
	Type string // file, dir, symlink, fifo, socket, device
	Size int64  // of a file, in bytes
}

// ListFiles lists what is in a folder of the workspace, and below it, sorted by
// path. The empty name is the workspace. No link is followed.
func (s *Sandbox) ListFiles(name string) ([]Entry, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.active.Done()
	rel := "."
	if name != "" && name != "." {
		var err error
		if rel, err = local("list", name); err != nil {
			return nil, err
		}
	}
	l := lister{}
	now := map[string]Entry{}
	err := s.on.Runner.Tree.List(func(root string) error {
		fd, err := folder(root, rel)
		switch { // by now it may be there, or a folder
		case err == nil:
			err = l.folder(fd, rel, 0)
		case errors.Is(err, fs.ErrNotExist):
			l.missing, err = true, nil
		case errors.As(err, new(noFolder)):
			l.noFolder, err = err, nil
		}
		for _, e := range l.list {
			now[e.Path] = e
		}
		return err
	}, func(c workspace.Change) { l.change(now, rel, c) })
	if err == nil && l.missing {
		err = fs.ErrNotExist
	}
	if err == nil {
		err = l.noFolder
	}
	if err != nil {
		return nil, &fs.PathError{Op: "list", Path: name, Err: err}
	}
	list := slices.AppendSeq(make([]Entry, 0, len(now)), maps.Values(now))
	slices.SortFunc(list, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	return list, nil
}

// change does to a list what a call did that is not yet in the folder on the host.
func (l *lister) change(now map[string]Entry, rel string, c workspace.Change) {
	at := c.RawPath()
	gone := c.Change == workspace.Deleted
	if gone || c.Change == workspace.Retyped && c.Type != "dir" {
		maps.DeleteFunc(now, func(p string, _ Entry) bool { return within(p, at) })
	}
	switch {
	case rel != "." && within(rel, at) && (at == rel || gone || c.Type != "dir"): // the folder itself, or one above it
		l.missing, l.noFolder = gone, nil
		if !gone && c.Type != "dir" {
			l.noFolder = noFolder(path.Base(at))
		}
	case rel != "." && within(rel, at) && c.Change == workspace.Retyped: // and empty
		l.missing, l.noFolder = true, nil
	case at != "." && (rel == "." || within(at, rel)) && !gone:
		e := Entry{Path: at, Type: c.Type}
		if c.Type == "file" {
			e.Size = c.Size
		}
		now[at] = e
	}
}

// within says whether a path is another, or lies below it.
func within(p, other string) bool { return p == other || strings.HasPrefix(p, other+"/") }

// lister lists folders. Each is opened by its name in the one above it, which takes
// the same time however deep it is.
type lister struct {
	list  []Entry
	bytes int
	// missing and noFolder are about the folder that is to be listed.
	missing  bool
	noFolder error
}

// noFolder is what stands in the way to a folder.
type noFolder string

func (n noFolder) Error() string { return string(n) + " is a file or a link, and no folder" }

// folder lists what is in a folder, which it takes as a descriptor and closes.
func (l *lister) folder(fd int, at string, deep int) error {
	opened, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	unix.Close(fd)
	switch {
	case err != nil && (deep == 0 || errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)):
		return err
	case err != nil:
		return nil // closed to us: what is above it is told
	}
	// A name by which the type of an entry can be found where the folder does not say it.
	dir := os.NewFile(uintptr(opened), fmt.Sprintf("/proc/self/fd/%d", opened))
	defer dir.Close()
	for {
		some, err := dir.ReadDir(1000)
		for _, d := range some {
			if err := l.entry(opened, path.Join(filepath.ToSlash(at), d.Name()), d, deep); err != nil {
				return err
			}
		}
		if err != nil { // the end, or it is gone
			if deep == 0 && !errors.Is(err, io.EOF) {
				return err
			}
			return nil
		}
	}
}

func (l *lister) entry(dir int, at string, d fs.DirEntry, deep int) error {
	if l.bytes += len(at); len(l.list) == maxListed || l.bytes > maxListedBytes {
		return fmt.Errorf("more than %d paths, or %d MiB of them: %w", maxListed, maxListedBytes>>20, ErrTooLarge)
	}
	e := Entry{Path: at, Type: typeOf(d.Type())}
	if e.Type == "file" {
		var st unix.Stat_t
		if err := unix.Fstatat(dir, d.Name(), &st, unix.AT_SYMLINK_NOFOLLOW); err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
			e.Size = st.Size
		}
	}
	l.list = append(l.list, e)
	if e.Type != "dir" {
		return nil
	}
	if deep == maxDeep {
		return fmt.Errorf("more than %d folders within each other: %w", maxDeep, ErrTooLarge)
	}
	fd, err := unix.Openat(dir, d.Name(), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
			return err
		}
		return nil // gone since, or another thing by now
	}
	return l.folder(fd, at, deep+1)
}

func typeOf(m fs.FileMode) string {
	switch {
	case m.IsRegular():
		return "file"
	case m.IsDir():
		return "dir"
	case m&fs.ModeSymlink != 0:
		return "symlink"
	case m&fs.ModeNamedPipe != 0:
		return "fifo"
	case m&fs.ModeSocket != 0:
		return "socket"
	}
	return "device"
}

// local is a name as a path within the workspace.
func local(op, name string) (string, error) {
	rel := filepath.Clean(name)
	if !filepath.IsLocal(name) || rel == "." || strings.ContainsRune(name, 0) {
		return "", &fs.PathError{Op: op, Path: name, Err: errors.New("it is not the name of something in the workspace")}
	}
	return rel, nil
}

// folder opens a folder below another, past no link.
func folder(root, rel string) (int, error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC
	fd, err := unix.Openat2(unix.AT_FDCWD, root, &unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return -1, err
	}
	if rel == "." {
		return fd, nil
	}
	for name := range strings.SplitSeq(rel, "/") {
		next, err := unix.Openat(fd, name, flags|unix.O_NOFOLLOW, 0)
		unix.Close(fd)
		if errors.Is(err, syscall.ENOTDIR) {
			err = noFolder(name)
		}
		if err != nil {
			return -1, err
		}
		fd = next
	}
	return fd, nil
}

// Snapshot writes the workspace as a .tar.gz of regular files and folders. What is
// secret in it, and no box ever sees, is not in the archive. It gives the paths
// that are left out since they are neither file nor folder.
func (s *Sandbox) Snapshot(ctx context.Context, to io.Writer) (leftOut []string, err error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.active.Done()
	err = s.on.Runner.Tree.Whole(ctx, func(root string) error {
		mask, err := scrub.Find(ctx, root, scrub.Options{Home: os.Getenv("HOME")})
		if err != nil {
			return err
		}
		sum, err := archive.Write(ctx, root, to, archive.Options{Look: mask.Look})
		leftOut = sum.LeftOut
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("sandbox: snapshot: %w", err)
	}
	return leftOut, nil
}

// Restore puts a snapshot into the workspace, or changes nothing: an archive with
// an absolute path, "..", a link or a device in it is refused whole. What it does
// not name stays. It is read twice. What it puts there is there as what WriteFile
// writes is, and ErrNotKept tells that it could not be.
func (s *Sandbox) Restore(ctx context.Context, from io.ReadSeeker) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.active.Done()
	defer s.changing()()
	var sum archive.Summary
	err := s.on.Runner.Tree.Change(ctx, "Restore", func(dir string) (err error) {
		sum, err = archive.Restore(ctx, dir, from, archive.Options{})
		return err
	}, func(h *steps.Draft) error { return h.Fit(sum.Unnamed) })
	if err != nil {
		return fmt.Errorf("sandbox: restore: %w", err)
	}
	return nil
}
