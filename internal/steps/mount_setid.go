package steps

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
)

// bounds are how much of a folder is looked at before a step has it.
type bounds struct {
	entries int
	time    time.Duration
}

// mountBounds leave room for the caches of package managers. What is larger is not
// known, and so not shown to be written.
var mountBounds = bounds{entries: 1_000_000, time: 20 * time.Second}

// anySetID says why a step may not write to a path of the host: a regular file with
// a set-user-id or set-group-id bit is there. The kernel takes the bits away when
// such a file is written to, but not when it is changed through shared memory, which
// no filter of calls can see. Whoever runs it afterwards on the host runs what the
// step has put there, as the file's owner. Steps can give no file these bits, so what
// is not there before the box is built does not come to be there through a step; what
// others on the host do meanwhile is theirs.
//
// Everything below is looked at, other file systems too: they are in the box as well.
// No link is followed. What is not there is told when the box is built.
func anySetID(ctx context.Context, path string, b bounds) (why string) {
	const smaller = "mount a smaller folder, or this one with [path, ro]"
	at, err := findSetID(ctx, path, b)
	switch {
	case errors.Is(err, errTooMuch):
		return fmt.Sprintf("%s holds more than can be looked at for set-user-id and set-group-id files (%d entries, %v); %s", inert(path), b.entries, b.time, smaller)
	case err != nil:
		return fmt.Sprintf("%s cannot be searched for set-user-id and set-group-id files: %s; %s", inert(path), inertWords(err.Error()), smaller)
	case at != "":
		return fmt.Sprintf("%s is a set-user-id or set-group-id file, which the step could rewrite, and others on this machine would run its code as the file's owner; "+
			"take the bits away (chmod ug-s %s), or mount with [path, ro]", inert(at), gha.Inert(gha.ShellWord(at)))
	}
	return ""
}

var errTooMuch = errors.New("more than can be looked at")

// findSetID gives the first such file; "" if there is none.
func findSetID(ctx context.Context, path string, b bounds) (at string, err error) {
	root, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_NO_SYMLINKS})
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return "", nil // missing, or replaced: no box is built with it
	case err != nil:
		return "", &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(root)
	var st unix.Stat_t
	if err := unix.Fstat(root, &st); err != nil {
		return "", &os.PathError{Op: "look at", Path: path, Err: err}
	}
	if setID(&st) {
		return path, nil
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return "", nil
	}
	until := time.Now().Add(b.time)
	seen := 0
	// The folders that are still to be read, by their names below the root: however
	// deep a step makes them, few are open and nothing is called in itself.
	for left := []string{"."}; len(left) > 0; {
		dir := left[len(left)-1]
		left = left[:len(left)-1]
		err := eachIn(root, dir, func(fd int, name string) (err error) {
			if seen++; seen > b.entries || seen%256 == 0 && time.Now().After(until) {
				return errTooMuch
			}
			if seen%256 == 0 && ctx.Err() != nil {
				return ctx.Err()
			}
			var st unix.Stat_t
			if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
				if errors.Is(err, unix.ENOENT) {
					return nil
				}
				return &os.PathError{Op: "look at", Path: filepath.Join(dir, name), Err: err}
			}
			switch {
			case setID(&st):
				at = filepath.Join(path, dir, name)
				return io.EOF
			case st.Mode&unix.S_IFMT == unix.S_IFDIR:
				left = append(left, filepath.Join(dir, name))
			}
			return nil
		})
		if at != "" {
			return at, nil
		}
		if err != nil {
			return "", err
		}
	}
	return "", nil
}

func setID(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0
}

// eachIn calls do for each name in a folder below root. One that is gone by now, or
// that is closed to us and so to the step, has none.
func eachIn(root int, dir string, do func(fd int, name string) error) error {
	fd, err := unix.Openat2(root, dir, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS})
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return nil
	case errors.Is(err, unix.EACCES) && closedToUs(root, dir):
		return nil
	case err != nil:
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	f := os.NewFile(uintptr(fd), dir)
	defer f.Close()
	for {
		names, err := f.Readdirnames(512)
		for _, name := range names {
			if err := do(fd, name); err != nil {
				return err
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return &os.PathError{Op: "read", Path: dir, Err: err}
		}
	}
}

// closedToUs says whether a folder that cannot be read is nothing to the step either,
// which has no rights that a normal user who started it has not: it is somebody
// else's, who alone can open it, and nothing in it can be reached by its name. For
// root, whose steps are somebody else by their ids, that is not known.
func closedToUs(root int, dir string) bool {
	uid := os.Geteuid()
	if uid == 0 {
		return false
	}
	fd, err := unix.Openat2(root, dir, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && int(st.Uid) != uid && errors.Is(unix.Faccessat(fd, ".", unix.X_OK, 0), unix.EACCES)
}
