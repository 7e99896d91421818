package image

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// root is a root file system that is being made. Everything in it is ours, and what
// its owner may do with a folder or file we always may: a box's one user is the owner
// of all that it sees. Set-id bits and extended attributes are left out.
type root struct {
	fd    int
	deep  int             // how many folders lie above it
	made  map[string]bool // by the layer at hand, with the folders above
	times []folderTime
	// near is the folder of the last entry, which the next is often in too.
	near   string
	nearFD int
}

type folderTime struct {
	path string
	at   unix.Timespec
}

// applyError is what the kernel said to an entry.
type applyError struct {
	what string
	err  error
}

func (e *applyError) Error() string { return e.what + ": " + e.err.Error() }
func (e *applyError) Unwrap() error { return e.err }

// applied tells what the image does wrong from what the host lacks.
func applied(what string, err error) error {
	for _, e := range []error{unix.ENOTDIR, unix.ELOOP, unix.EEXIST, unix.ENAMETOOLONG, unix.EXDEV, unix.EISDIR, unix.ENOENT, unix.ENOTEMPTY, unix.EMLINK, unix.EINVAL} {
		if errors.Is(err, e) {
			return refused("%s: %w", what, err)
		}
	}
	return &applyError{what, err}
}

func openRoot(dir string) (*root, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
	real, err := realPath(fd)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &root{fd: fd, deep: strings.Count(real, "/"), nearFD: -1}, nil
}

// realPath is where an open folder is.
func realPath(fd int) (string, error) { return os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)) }

// mkdir makes a folder, but not one that is deeper than any path of a layer: through
// links, each of which leads to the end of the last, a tree can grow that nobody could
// remove again.
func (r *root) mkdir(at int, name string, perm uint32) error {
	real, err := realPath(at)
	if err != nil {
		return err
	}
	if strings.Count(real, "/")-r.deep >= maxDepth {
		return unix.ENAMETOOLONG
	}
	return unix.Mkdirat(at, name, perm)
}

func (r *root) close() {
	r.forget()
	unix.Close(r.fd)
}

func (r *root) forget() {
	if r.nearFD >= 0 {
		unix.Close(r.nearFD)
	}
	r.near, r.nearFD = "", -1
}

// nextLayer begins another layer: what is there now is below it.
func (r *root) nextLayer() { r.made = map[string]bool{} }

// look opens a folder. Links are followed as they will be in the box: within the root.
// strict follows none.
func (r *root) look(dir string, strict bool) (int, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	if strict {
		how.Resolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS
	}
	for {
		fd, err := unix.Openat2(r.fd, dir, &how)
		// EAGAIN: something was renamed while a .. was followed.
		if err != unix.EINTR && err != unix.EAGAIN {
			return fd, err
		}
	}
}

// folder opens a folder, and makes what is missing on the way to it. It stays r's.
func (r *root) folder(dir string) (int, error) {
	if r.nearFD >= 0 && r.near == dir {
		return r.nearFD, nil
	}
	fd, err := r.look(dir, false)
	if errors.Is(err, unix.ENOENT) && dir != "." {
		var up int
		if up, err = r.folder(path.Dir(dir)); err != nil {
			return -1, err
		}
		if err = r.mkdir(up, path.Base(dir), 0o755); err != nil {
			return -1, err // EEXIST: a link to nowhere
		}
		fd, err = r.look(dir, false)
	}
	if err != nil {
		return -1, err
	}
	r.forget()
	r.near, r.nearFD = dir, fd
	return fd, nil
}

// apply does what an entry says. Paths were judged; links in the root were not.
func (r *root) apply(e entry, content io.Reader) error {
	what := fmt.Sprintf("the entry %q", e.Path)
	switch e.Kind {
	case isWhiteout, isOpaque:
		if err := r.hide(e); err != nil {
			return applied(fmt.Sprintf("the whiteout of %q", e.Path), err)
		}
		return nil
	}
	dir, name := path.Dir(e.Path), path.Base(e.Path)
	at, err := r.folder(dir)
	if err != nil {
		return applied(what, err)
	}
	for p := e.Path; p != "." && !r.made[p]; p = path.Dir(p) {
		r.made[p] = true
	}
	var st unix.Stat_t
	switch err := unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW); {
	case err == nil && e.Kind == isDir && st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return r.dress(at, name, e)
	case err == nil:
		if e.Kind == isHardlink { // its target may be this very file
			if same, err := r.linked(e, st); err != nil || same {
				return err
			}
		}
		if err := remove(at, name, st.Mode&unix.S_IFMT == unix.S_IFDIR); err != nil {
			return applied(what, err)
		}
		r.forget()
		if at, err = r.folder(dir); err != nil {
			return applied(what, err)
		}
	case !errors.Is(err, unix.ENOENT):
		return applied(what, err)
	}
	switch e.Kind {
	case isFile:
		return r.file(at, name, e, content)
	case isDir:
		err = r.mkdir(at, name, 0o700)
		if err == nil {
			return r.dress(at, name, e)
		}
	case isFIFO:
		if err = unix.Mknodat(at, name, unix.S_IFIFO|0o600, 0); err == nil {
			return r.dress(at, name, e)
		}
	case isSymlink:
		if err = unix.Symlinkat(e.Target, at, name); err == nil {
			err = unix.UtimesNanoAt(at, name, stamps(e.Header.ModTime), unix.AT_SYMLINK_NOFOLLOW)
		}
	case isHardlink:
		err = r.link(at, name, e)
	default:
		err = fmt.Errorf("image: bug: entry of kind %d", e.Kind)
	}
	if err != nil {
		return applied(what, err)
	}
	return nil
}

// target opens the folder of a hard link's target.
func (r *root) target(e entry) (dir int, name string, st unix.Stat_t, err error) {
	dir, err = r.look(path.Dir(e.Target), false)
	if err != nil {
		return -1, "", st, err
	}
	name = path.Base(e.Target)
	if err = unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		err = unix.EISDIR
	}
	if err != nil {
		unix.Close(dir)
		return -1, "", st, err
	}
	return dir, name, st, nil
}

func (r *root) linked(e entry, st unix.Stat_t) (bool, error) {
	dir, _, to, err := r.target(e)
	if err != nil {
		return false, applied(fmt.Sprintf("the hard link %q", e.Path), err)
	}
	unix.Close(dir)
	return to.Ino == st.Ino && to.Dev == st.Dev, nil
}

func (r *root) link(at int, name string, e entry) error {
	dir, target, _, err := r.target(e)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return unix.Linkat(dir, target, at, name, 0) // no flag: a symlink is linked itself
}

func (r *root) file(at int, name string, e entry, content io.Reader) error {
	fd, err := unix.Openat(at, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return applied(fmt.Sprintf("the file %q", e.Path), err)
	}
	f := os.NewFile(uintptr(fd), e.Path)
	defer f.Close()
	// What the reader says is of the archive; what the file says, of the host.
	var from source
	from.r = content
	if _, err := io.Copy(f, &from); err != nil {
		if from.err != nil {
			return from.err
		}
		return &applyError{fmt.Sprintf("write %q", e.Path), err}
	}
	if err := unix.Fchmod(fd, mode(e)); err != nil {
		return &applyError{fmt.Sprintf("set the mode of %q", e.Path), err}
	}
	if err := unix.UtimesNanoAt(at, name, stamps(e.Header.ModTime), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &applyError{fmt.Sprintf("set the time of %q", e.Path), err}
	}
	if err := f.Close(); err != nil {
		return &applyError{fmt.Sprintf("write %q", e.Path), err}
	}
	return nil
}

// source remembers that it was the reading that failed.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

// dress gives a folder or FIFO its mode, and notes its time.
func (r *root) dress(at int, name string, e entry) error {
	if err := unix.Fchmodat(at, name, mode(e), 0); err != nil {
		return &applyError{fmt.Sprintf("set the mode of %q", e.Path), err}
	}
	if e.Kind == isDir {
		r.times = append(r.times, folderTime{e.Path, stamps(e.Header.ModTime)[1]})
	}
	return nil
}

// finish gives folders their times, which unpacking has changed.
func (r *root) finish() error {
	for _, t := range r.times {
		fd, err := r.look(t.path, true)
		if err != nil {
			continue // a later layer has put something else there
		}
		err = unix.UtimesNanoAt(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), []unix.Timespec{t.at, t.at}, 0)
		unix.Close(fd)
		if err != nil {
			return &applyError{fmt.Sprintf("set the time of %q", t.path), err}
		}
	}
	return nil
}

func mode(e entry) uint32 {
	m := uint32(e.Header.Mode) & 0o777
	if e.Kind == isDir {
		return m | 0o700 | uint32(e.Header.Mode)&unix.S_ISVTX
	}
	return m | 0o400
}

// stamps are a time as the kernel takes it, if it is one that a file can have.
func stamps(t time.Time) []unix.Timespec {
	s := max(0, min(t.Unix(), 1<<33))
	ts := unix.Timespec{Sec: s}
	return []unix.Timespec{ts, ts}
}

// hide takes away what layers below have.
func (r *root) hide(e entry) error {
	dir := e.Path
	if e.Kind == isWhiteout {
		dir = path.Dir(e.Path)
	}
	at, err := r.look(dir, true)
	if errors.Is(err, unix.ENOENT) {
		return nil // there is nothing to hide
	}
	if err != nil {
		return err
	}
	defer unix.Close(at)
	r.forget()
	if e.Kind == isOpaque {
		return r.empty(at, dir)
	}
	return r.hideOne(at, e.Path)
}

// hideOne removes a name, but for what this layer has put there.
func (r *root) hideOne(at int, p string) error {
	name := path.Base(p)
	var st unix.Stat_t
	err := unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	dir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	switch {
	case !r.made[p]:
		return remove(at, name, dir)
	case dir:
		fd, err := unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return r.empty(fd, p)
	}
	return nil
}

func (r *root) empty(at int, dir string) error {
	list, err := names(at)
	if err != nil {
		return err
	}
	for _, n := range list {
		if err := r.hideOne(at, path.Join(dir, n)); err != nil {
			return err
		}
	}
	return nil
}

func names(at int) ([]string, error) {
	fd, err := unix.Openat(at, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "folder")
	defer f.Close()
	return f.Readdirnames(-1)
}

// remove takes a name away with all below it, through no link.
func remove(at int, name string, dir bool) error {
	if !dir {
		return unix.Unlinkat(at, name, 0)
	}
	here, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", at))
	if err != nil {
		return err
	}
	defer here.Close()
	return here.RemoveAll(name)
}
