package kern

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// sweepAge keeps a sweep away from a folder that is being made and not yet
	// locked.
	sweepAge = time.Minute
	// maxSweep bounds how much one start takes upon itself.
	maxSweep = 256
)

// lock marks a folder as in use. It goes with the process, however that ends.
func lock(dir string) (*os.File, error) {
	f, err := openFolder(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, &fs.PathError{Op: "lock", Path: dir, Err: err}
	}
	return f, nil
}

// openFolder opens a folder, never what a link points to.
func openFolder(dir string) (*os.File, error) {
	return os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}

// sweep removes the folders of boxes whose program was killed and could not do
// so: a step's script lies in them. Only folders that are ours and that nobody
// holds are touched; in a folder that all may write, such as /tmp, others can
// put what they like under such a name. What cannot be removed is left for
// another time.
func sweep(temp string, now time.Time) {
	list, err := os.ReadDir(temp)
	if err != nil {
		return
	}
	swept := 0
	for _, e := range list {
		if swept == maxSweep {
			return
		}
		dir := filepath.Join(temp, e.Name())
		if !strings.HasPrefix(e.Name(), folderPrefix) || !e.IsDir() || !ours(dir, now) {
			continue
		}
		l, err := lock(dir)
		if err != nil {
			continue
		}
		_ = folder{dir: dir, lock: l}.remove()
		swept++
	}
}

func ours(dir string, now time.Time) bool {
	st, err := os.Lstat(dir)
	if err != nil || !st.IsDir() || now.Sub(st.ModTime()) < sweepAge {
		return false
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && int(sys.Uid) == os.Geteuid() && st.Mode().Perm() == 0o700
}
