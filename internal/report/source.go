package report

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

const (
	// MaxCopied bounds the logs and patches that are taken over from other
	// folders, all together.
	MaxCopied = int64(8 << 30)
	// maxRequestLine bounds a line of a list of requests, which is held in memory.
	maxRequestLine = 1 << 20
	// tailKept is how much of the end of each log stands in a summary.
	tailKept = 2 << 10
)

// Source is the report of another run with the folder it lies in. All of it may
// come from anywhere: no link is followed, nothing but plain files is opened, and
// no name in the report leads out of the folder.
type Source struct {
	Folder string // real path
	Result *steps.Result
	Bytes  int64 // of report.json
	root   *os.Root
}

// OpenSource reads a report.json, or that of a folder, of at most room bytes.
func OpenSource(name string, room int64) (s *Source, err error) {
	info, err := os.Lstat(name)
	if err != nil {
		return nil, err
	}
	dir, file := name, "report.json"
	switch {
	case info.IsDir():
	case info.Mode().IsRegular():
		dir, file = filepath.Dir(name), filepath.Base(name)
	default:
		return nil, errors.New("it is neither a folder nor a regular file; links are not followed")
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			root.Close()
		}
	}()
	if now, err := root.Stat("."); err != nil || info.IsDir() && !os.SameFile(info, now) {
		return nil, errors.New("it was replaced while it was opened")
	}
	s = &Source{root: root}
	if s.Folder, err = realPath(dir); err != nil {
		return nil, err
	}
	f, size, err := openPlain(root, file)
	if errors.Is(err, os.ErrNotExist) && info.IsDir() {
		return nil, errors.New("there is no report.json in it")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	defer f.Close()
	if size > min(room, MaxFile) {
		return nil, fmt.Errorf("%s: with it the reports are larger than %d MiB", file, MaxFile>>20)
	}
	s.Bytes = size
	if s.Result, err = Read(io.LimitReader(f, size+1)); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return s, nil
}

// Close lets go of the folder.
func (s *Source) Close() error { return s.root.Close() }

// openPlain opens a regular file of a folder, by a way without links. What is
// opened is what was looked at.
func openPlain(root *os.Root, name string) (*os.File, int64, error) {
	parts := strings.Split(name, "/")
	var info os.FileInfo
	for i := range parts {
		var err error
		if info, err = root.Lstat(path.Join(parts[:i+1]...)); err != nil {
			return nil, 0, err
		}
		if last := i == len(parts)-1; last && !info.Mode().IsRegular() || !last && !info.IsDir() {
			return nil, 0, errors.New("it is not a regular file, or lies behind what is no folder; links are not followed")
		}
	}
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	if now, err := f.Stat(); err != nil || !os.SameFile(info, now) {
		f.Close()
		return nil, 0, errors.New("it was replaced while it was opened")
	}
	return f, info.Size(), nil
}

// plainFiles are the regular files of a folder, each opened as openPlain does: whoever
// owns the folder may put a pipe in the place of a log, which nobody is to wait for.
type plainFiles struct{ root *os.Root }

func (p plainFiles) Open(name string) (fs.File, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	f, _, err := openPlain(p.root, name)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Copier brings logs and patches into a report folder.
type Copier struct {
	root  *os.Root // nil: nothing is written
	room  int64
	jsonl *os.File
}

// NewCopier writes into a folder, at most MaxCopied bytes.
func NewCopier(o *Folder) *Copier { return &Copier{root: o.root, room: MaxCopied} }

// NewLooker is a copier that only finds out whether all can be copied. What it takes,
// another one can refuse: nobody keeps a source from being changed.
func NewLooker() *Copier { return &Copier{room: MaxCopied} }

// Close says whether all that was written is there.
func (c *Copier) Close() error {
	if c.jsonl == nil {
		return nil
	}
	return c.jsonl.Close()
}

// errRoom is about all sources together.
var errRoom = fmt.Errorf("the logs of all reports together are larger than %d GiB", MaxCopied>>30)

// File copies one file under the same name, which must be one below steps/.
// found is false if the source has none.
func (c *Copier) File(from *Source, name string) (found bool, err error) {
	if !filepath.IsLocal(name) || path.Clean(name) != name || !strings.HasPrefix(name, stepsDir+"/") {
		return false, fmt.Errorf("%q is not a place where a run keeps files", gha.Inert(name))
	}
	in, size, err := openPlain(from.root, name)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", name, err)
	}
	defer in.Close()
	if size > c.room {
		return false, errRoom
	}
	if c.root == nil {
		c.room -= size
		return true, nil
	}
	if err := c.root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return false, &WriteError{err}
	}
	out, err := c.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return false, &WriteError{err}
	}
	n, err := io.Copy(out, io.LimitReader(in, size)) // not what is added meanwhile
	c.room -= n
	if err = errors.Join(err, out.Close()); err != nil {
		return false, &WriteError{err}
	}
	return true, nil
}

// Requests adds the list of requests of a source. Each line is JSON again, and
// inert wherever it is printed.
func (c *Copier) Requests(from *Source) error {
	in, size, err := openPlain(from.root, RequestsFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", RequestsFile, err)
	}
	defer in.Close()
	if size > c.room {
		return errRoom
	}
	to := io.Discard
	if c.root != nil && c.jsonl == nil {
		if c.jsonl, err = c.root.OpenFile(RequestsFile, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644); err != nil {
			return &WriteError{err}
		}
	}
	if c.jsonl != nil {
		to = c.jsonl
	}
	out := bufio.NewWriter(to)
	lines := bufio.NewScanner(io.LimitReader(in, size))
	lines.Buffer(nil, maxRequestLine)
	for n := 1; lines.Scan(); n++ {
		var object map[string]any
		if json.Unmarshal(lines.Bytes(), &object) != nil || object == nil {
			return fmt.Errorf("%s: line %d is no request", RequestsFile, n)
		}
		line := append(gha.InertJSON(nil, bytes.TrimSpace(lines.Bytes())), '\n')
		if c.room -= int64(len(line)); c.room < 0 {
			return errRoom
		}
		if _, err := out.Write(line); err != nil {
			return &WriteError{err}
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s: %w", RequestsFile, err)
	}
	if err := out.Flush(); err != nil {
		return &WriteError{err}
	}
	return nil
}

// WriteError is about the folder that is written, and not about what is read.
type WriteError struct{ err error }

func (e *WriteError) Error() string { return "write the merged report: " + e.err.Error() }

// Unwrap gives what the system said.
func (e *WriteError) Unwrap() error { return e.err }

// Tail is the end of a step's output as it was copied: what is not in a
// report.json and stands in a summary.
func (c *Copier) Tail(s *steps.StepResult) string {
	var out []byte
	for _, name := range []string{s.Stdout.Path, s.Stderr.Path} {
		if name == "" || c.root == nil {
			continue
		}
		f, size, err := openPlain(c.root, name)
		if err != nil {
			continue // the log itself says more than a part of it
		}
		b := make([]byte, min(size, tailKept))
		n, _ := f.ReadAt(b, size-int64(len(b)))
		f.Close()
		b = b[:n]
		if _, rest, ok := bytes.Cut(b, []byte{'\n'}); ok && size > tailKept {
			b = rest // begin with a whole line
		}
		if len(out) > 0 && out[len(out)-1] != '\n' {
			out = append(out, '\n')
		}
		out = append(out, b...)
	}
	return string(out)
}
