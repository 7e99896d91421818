// Package scratch makes folders for temporary files that nobody forgets: each is
// locked by the process that made it, and a process that is killed lets go of its
// locks. What it left, the next one finds by that and removes.
//
// A folder for temporary files is one that all may write. So a name alone is never
// enough: what is removed is a folder, ours, closed to everybody else, not held by
// anybody, and not made just now.
package scratch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Kind is what a folder is for; it is in its name.
type Kind string

// All kinds there are. A name with none of them is not ours.
const (
	Kern   Kind = "kern"   // what one box of engine kern is made of
	Probe  Kind = "probe"  // what a probe box is shown
	Client Kind = "client" // what a package client is asked in
	Wheel  Kind = "wheel"  // what kern comes in
	Doctor Kind = "doctor" // what doctor tries things in
	Image  Kind = "image"  // what an image is unpacked in, in the folder for images
	Runsc  Kind = "runsc"  // what runsc is built in, beside where it is kept and in the folder for temporary files
	Setup  Kind = "setup"  // what goes into, or out of, the folder of kept setups
	// Sandbox is what a program that uses package sandbox works with.
	Sandbox Kind = "sandbox"
)

var kinds = []Kind{Kern, Probe, Client, Wheel, Doctor, Image, Runsc, Setup, Sandbox}

// prefix begins all names. It is short: sockets are made in such folders, and the
// address of one holds 107 bytes.
const prefix = "us-"

const (
	// age keeps a sweep away from a folder that is being made and not yet locked.
	age = time.Minute
	// most bounds how much one sweep takes upon itself.
	most = 256
)

// Folder is one folder. Remove takes it away.
type Folder struct {
	Path string
	lock *os.File
}

// Make makes a folder in temp, which may be empty for os.TempDir. Nobody but its
// owner can look inside.
func Make(temp string, kind Kind) (*Folder, error) {
	if !slices.Contains(kinds, kind) {
		return nil, fmt.Errorf("scratch: bug: no kind is called %q", kind)
	}
	dir, err := os.MkdirTemp(temp, prefix+string(kind)+"-")
	if err != nil {
		return nil, err
	}
	f := &Folder{Path: dir}
	if f.lock, err = lock(dir); err != nil {
		return nil, errors.Join(err, f.Remove())
	}
	// In a folder of somebody else's, that may be another one by now.
	if err := OursAlone(f.lock, unix.S_IFDIR); err != nil {
		f.lock.Close()
		return nil, fmt.Errorf("what was made in %s is not what is there: %w", filepath.Dir(dir), err)
	}
	return f, nil
}

// At is a path of the folder for this process alone, as long as it is not removed.
// Whoever may change the folder that it lies in can put another in the place of
// Path, but not of this.
func (f *Folder) At() string { return fmt.Sprintf("/proc/self/fd/%d", f.lock.Fd()) }

// File is the folder, to be handed to a program that is started.
func (f *Folder) File() *os.File { return f.lock }

// Remove takes the folder away, with all that is in it. A folder in it may have
// no permissions at all, as an overlay's work folder has, which stops anybody but
// root. What is in it is never looked for by the folder's name, which may lead
// somewhere else by now.
func (f *Folder) Remove() error {
	if f.lock == nil {
		return os.Remove(f.Path)
	}
	defer f.lock.Close()
	if err := f.empty(); err != nil {
		return err
	}
	return os.Remove(f.Path)
}

func (f *Folder) empty() error {
	root, err := os.OpenRoot(f.At())
	if err != nil {
		return err
	}
	defer root.Close()
	if err = removeIn(root); err == nil {
		return nil
	}
	_ = fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() { // before it is read
			_ = root.Chmod(path, 0o700)
		}
		return nil
	})
	return removeIn(root)
}

func removeIn(root *os.Root) error {
	list, err := fs.ReadDir(root.FS(), ".")
	for _, e := range list {
		err = errors.Join(err, root.RemoveAll(e.Name()))
	}
	return err
}

// Sweep removes the folders in temp whose process is gone. What cannot be removed
// is left for another time.
func Sweep(temp string, now time.Time) {
	if temp == "" {
		temp = os.TempDir()
	}
	list, err := os.ReadDir(temp)
	if err != nil {
		return
	}
	swept := 0
	for _, e := range list {
		if swept == most {
			return
		}
		dir := filepath.Join(temp, e.Name())
		if !Named(e.Name()) || !e.IsDir() || !ours(dir, now) {
			continue
		}
		l, err := lock(dir)
		if err != nil {
			continue
		}
		// In a folder of somebody else's, that may be another one by now.
		if OursAlone(l, unix.S_IFDIR) != nil {
			l.Close()
			continue
		}
		_ = (&Folder{dir, l}).Remove()
		swept++
	}
}

// Named says whether a name is one that Make gives: of a kind, and a number.
func Named(name string) bool {
	rest, ok := strings.CutPrefix(name, prefix)
	kind, number, found := strings.Cut(rest, "-")
	return ok && found && slices.Contains(kinds, Kind(kind)) && number != "" && strings.Trim(number, "0123456789") == ""
}

func ours(dir string, now time.Time) bool {
	st, err := os.Lstat(dir)
	if err != nil || !st.IsDir() || now.Sub(st.ModTime()) < age {
		return false
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && int(sys.Uid) == os.Geteuid() && st.Mode().Perm() == 0o700
}

// lock marks a folder as in use, and never what a link points to. It goes with
// the process, however that ends.
func lock(dir string) (*os.File, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, &fs.PathError{Op: "lock", Path: dir, Err: err}
	}
	return f, nil
}

// OursAlone says why an open file or folder is not to be believed: it is somebody
// else's, or somebody else may write it. kind is one of S_IFMT.
func OursAlone(f *os.File, kind uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("look at %s: %w", f.Name(), err)
	}
	if st.Mode&unix.S_IFMT != kind || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return fmt.Errorf("%s is not ours alone (owner %d, mode %o)", f.Name(), st.Uid, st.Mode&0o7777)
	}
	return nil
}
