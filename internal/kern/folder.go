package kern

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/idmap"
	"github.com/untrusted-steps/untrusted-steps/internal/scratch"
)

// folder is a box's private folder on disk: what the box is shown at
// box.StepDir, and for a normal user all that kern needs besides.
type folder struct {
	dir string
	// scratch is kept as long as the box may use the folder. Of whoever is killed
	// the next run sweeps it away.
	scratch *scratch.Folder
}

func (f folder) step() string    { return filepath.Join(f.dir, stepName) }
func (f folder) control() string { return filepath.Join(f.step(), filepath.Base(box.ControlTarget)) }
func (f folder) runtime() string { return filepath.Join(f.dir, runtimeName) }

const (
	// maxSocketPath is what fits into a socket's address.
	maxSocketPath = 107
	// maxTemp is how long a folder's path may be to leave room for that.
	maxTemp = 50
)

// tempFolder is where folders are made.
func tempFolder(asked string) string {
	if asked != "" {
		return asked
	}
	return place(os.TempDir(), "/tmp", "/dev/shm", fmt.Sprintf("/run/user/%d", os.Geteuid()))
}

// makeFolder makes it. Nobody but the caller and, through a mount, the box can
// look inside.
func makeFolder(temp string, id idmap.Ids, script *box.Script) (folder, error) {
	own, err := scratch.Make(tempFolder(temp), scratch.Kern)
	if err != nil {
		return folder{}, fmt.Errorf("make the box's folder: %w", err)
	}
	f := folder{dir: own.Path, scratch: own}
	if err := f.fill(id, script); err != nil {
		return folder{}, errors.Join(fmt.Errorf("make the box's folder: %w", err), f.remove())
	}
	return f, nil
}

func (f folder) fill(id idmap.Ids, script *box.Script) error {
	// As root kern's runtime folder is on the stage, where paths are short.
	staged := id.UID != os.Geteuid()
	if len(f.control()) > maxSocketPath || len(f.runtime()) > maxRuntimeDir && !staged {
		return fmt.Errorf("%s: too long a path for kern's sockets; set TMPDIR to a shorter one", f.dir)
	}
	p := parts{
		Dirs:  []string{stepName, filepath.Join(stepName, filepath.Base(box.HomeTarget))},
		Empty: []string{filepath.Join(stepName, filepath.Base(box.InitTarget))},
		Files: map[string]string{},
	}
	if script != nil {
		name := script.Name
		if name == "" || name != filepath.Base(name) || name == "." || name == ".." {
			return fmt.Errorf("script name %q is not a file name", name)
		}
		p.Files[filepath.Join(stepName, name)] = script.Text
	}
	if err := p.make(f.dir, func(string) error { return nil }); err != nil {
		return err
	}
	if !staged {
		return nil
	}
	return filepath.WalkDir(f.step(), func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, id.UID, id.GID)
	})
}

// remove takes the folder away, with what kern left in it.
func (f folder) remove() error {
	if err := f.scratch.Remove(); err != nil {
		return fmt.Errorf("remove the box's folder: %w", err)
	}
	return nil
}

// overlayMagic is the type of an overlay file system, which cannot hold the
// upper layer of another one. A container's /tmp often is one.
const overlayMagic = 0x794c7630

// place picks the first folder that can hold kern's layers.
func place(first string, others ...string) string {
	for _, dir := range append([]string{first}, others...) {
		var st unix.Statfs_t
		if len(dir) <= maxTemp && unix.Statfs(dir, &st) == nil && int64(st.Type) != overlayMagic && unix.Access(dir, unix.W_OK|unix.X_OK) == nil {
			return dir
		}
	}
	return first
}
