package report

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/untrusted-steps/untrusted-steps/internal/scratch"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// RequestsFile has a line of JSON for every request of every step.
const RequestsFile = "egress.jsonl"

// PatchFile is what an audit proposes to the steps file.
const PatchFile = "egress-allow.patch"

// stepsDir is where the logs of steps are in a report folder.
const stepsDir = "steps"

// Folder is a report folder, held open from before the run until all is written.
// What has its name meanwhile does not matter: somebody who may change a folder
// above it could put a link there, and have us write where they may not.
type Folder struct {
	Path string // for people
	root *os.Root
	dir  *os.File
}

// At is a path of the folder for this process alone, as long as it is not closed.
func (f *Folder) At() string { return fmt.Sprintf("/proc/self/fd/%d", f.dir.Fd()) }

// Close lets go of it.
func (f *Folder) Close() error { return errors.Join(f.root.Close(), f.dir.Close()) }

// Prepare is Open and Empty.
func Prepare(dir, workspace string) (*Folder, error) {
	f, err := Open(dir, workspace)
	if err == nil {
		if err = f.Empty(); err != nil {
			f.Close()
			return nil, err
		}
	}
	return f, err
}

// Open takes a folder for a report, and makes it if there is none. What lies in it
// stays as it is: whoever opens it may still find that nothing will run.
//
// A folder inside the workspace is refused, however its name leads there: steps
// could write to it, and would find their own logs among the changed files. No
// workspace is "": nothing runs. So is one where something is in the way that is none
// of ours.
func Open(dir, workspace string) (_ *Folder, err error) {
	real, err := realPath(dir)
	if err != nil {
		return nil, fmt.Errorf("report folder %s: %w", dir, err)
	}
	if workspace != "" {
		realWorkspace, err := filepath.EvalSymlinks(workspace)
		if err == nil {
			realWorkspace, err = filepath.Abs(realWorkspace)
		}
		if err != nil {
			return nil, fmt.Errorf("report folder %s: find the workspace: %w", dir, err)
		}
		if within(real, realWorkspace) {
			return nil, fmt.Errorf("report folder %s is inside the workspace %s, where steps write; give --out a folder outside of it", dir, workspace)
		}
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("report folder %s: %w", dir, err)
	}
	open, now, err := scratch.Follow(abs, 0o755)
	if err == nil && now != real {
		open.Close()
		err = errors.New("it was replaced while it was opened")
	}
	if err != nil {
		return nil, fmt.Errorf("report folder %s: %w", dir, err)
	}
	f := &Folder{Path: real, dir: open}
	defer func() {
		if err != nil {
			open.Close()
			if f.root != nil {
				f.root.Close()
			}
		}
	}()
	if f.root, err = os.OpenRoot(f.At()); err != nil {
		return nil, fmt.Errorf("report folder: %w", err)
	}
	for _, name := range ours() {
		if _, err := stale(f.root, name); err != nil {
			return nil, fmt.Errorf("report folder %s: %w", dir, err)
		}
	}
	return f, nil
}

// Empty makes the folder ready for the report of a run that is about to begin. What
// an earlier run left is removed, so that nobody takes an old report for the new one:
// our files by name, and steps/. Nothing else is touched, and no link is followed: a
// link that has one of our names is removed itself.
func (f *Folder) Empty() error {
	for _, name := range ours() {
		there, err := stale(f.root, name)
		if err == nil && there {
			err = f.root.RemoveAll(name)
		}
		if err != nil {
			return fmt.Errorf("report folder %s: remove what an earlier run left: %w", f.Path, err)
		}
	}
	return nil
}

// ours are the names that a run uses in a report folder.
func ours() []string {
	names := []string{RequestsFile, PatchFile, stepsDir}
	for _, f := range Formats {
		if f.File != "" {
			names = append(names, f.File)
		}
	}
	return names
}

// stale says whether something of an earlier run has a name of ours: a file or a link,
// and the folder of the steps. Anything else of that name is someone's own, and in the
// way.
func stale(root *os.Root, name string) (there bool, err error) {
	info, err := root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case info.Mode()&fs.ModeSymlink != 0, info.IsDir() && name == stepsDir, info.Mode().IsRegular() && name != stepsDir:
		return true, nil
	}
	return true, fmt.Errorf("%s is in the way of the report: move it, or give --out another folder", name)
}

// OpenRequests makes the list of requests of a run. Each Write is one line.
func (o *Folder) OpenRequests() (io.WriteCloser, error) {
	f, err := o.root.OpenFile(RequestsFile, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("make the list of requests: %w", err)
	}
	return &lineFile{f: f}, nil
}

// WritePatch keeps what an audit proposes, and returns its path.
func (o *Folder) WritePatch(patch string) (string, error) {
	f, err := o.root.OpenFile(PatchFile, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return "", fmt.Errorf("write the proposal: %w", err)
	}
	_, err = io.WriteString(f, patch)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", fmt.Errorf("write the proposal: %w", err)
	}
	return filepath.Join(o.Path, PatchFile), nil
}

// lineFile is a file that several steps write lines to.
type lineFile struct {
	mu sync.Mutex
	f  *os.File
}

func (l *lineFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.f.Write(p)
}

func (l *lineFile) Close() error { return l.f.Close() }

// Write writes every format that is kept in the report folder: all of them
// or, where one cannot be written, none. Each is written under another name
// first, so that a reader finds a whole report.
func (o *Folder) Write(r *steps.Result) (err error) {
	root := o.root
	var made []string
	defer func() {
		if err == nil {
			return
		}
		for _, name := range made {
			err = errors.Join(err, root.Remove(name))
		}
	}()
	var kept []Format
	for _, f := range Formats {
		if f.File == "" {
			continue
		}
		temp := "." + f.File + "." + rand.Text()
		file, err := root.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err == nil {
			made, kept = append(made, temp), append(kept, f)
			err = writeTo(file, f, r, plainFiles{root})
		}
		if err != nil {
			return fmt.Errorf("write %s: %w", filepath.Join(o.Path, f.File), err)
		}
	}
	for i, f := range kept {
		if err := root.Rename(made[i], f.File); err != nil {
			return fmt.Errorf("write %s: %w", filepath.Join(o.Path, f.File), err)
		}
		made[i] = f.File
	}
	return nil
}

func writeTo(file *os.File, f Format, r *steps.Result, folder fs.FS) error {
	w := bufio.NewWriterSize(file, 64<<10)
	write := f.Write
	if f.Within != nil {
		write = func(w io.Writer, r *steps.Result) error { return f.Within(w, r, folder) }
	}
	err := write(w, r)
	if err == nil {
		err = w.Flush()
	}
	return errors.Join(err, file.Close())
}

// realPath resolves every link in a path whose last parts may not exist yet.
func realPath(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	missing := ""
	for {
		real, err := filepath.EvalSymlinks(path)
		if err == nil {
			return filepath.Join(real, missing), nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		// A link that leads nowhere would be followed once it leads somewhere.
		if _, err := os.Lstat(path); err == nil {
			return "", errors.New("it is, or is under, a link to something that does not exist")
		}
		parent := filepath.Dir(path)
		if parent == path {
			return "", err
		}
		path, missing = parent, filepath.Join(filepath.Base(path), missing)
	}
}

func within(path, folder string) bool {
	rel, err := filepath.Rel(folder, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
}
