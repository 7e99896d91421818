package steps

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
)

// tailBytes is how much of the end of a step's output the summary can show.
const tailBytes = 4 << 10

// logs are the places a step's output goes to: a file for each stream, masked;
// the live log, masked and inert; and its last bytes, for the summary.
type logs struct {
	dir   string
	files [2]*upTo
	masks [2]*gha.MaskWriter
	live  *gha.StepLog
	tail  tail
	// tailMasks stand before the tail, one for each stream: a secret is found
	// before the tail cuts it or the other stream's bytes come between.
	tailMasks [2]*gha.MaskWriter
}

// newLogs makes the writers of a step's output. Nothing may be written before
// open has returned.
func newLogs(id string, limit int64, m *gha.Masker, live *gha.Log) *logs {
	l := &logs{dir: filepath.Join("steps", id), live: live.Step(id)}
	for i := range l.files {
		// Cut after masking: the start of a secret is a secret.
		l.files[i] = &upTo{room: limit}
		l.masks[i] = gha.NewMaskWriter(l.files[i], m)
		l.tailMasks[i] = gha.NewMaskWriter(&l.tail, m)
	}
	return l
}

// open makes the files in the report folder.
func (l *logs) open(out string) error {
	// Inside the report folder and nowhere else, whatever links stand in it.
	root, err := os.OpenRoot(out)
	if err != nil {
		return fmt.Errorf("open the report folder: %w", err)
	}
	defer root.Close()
	if err := root.MkdirAll(l.dir, 0o755); err != nil {
		return fmt.Errorf("make the step's log folder: %w", err)
	}
	for i, name := range []string{"stdout.log", "stderr.log"} {
		f, err := root.OpenFile(filepath.Join(l.dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err != nil {
			return fmt.Errorf("make the step's log: %w", err)
		}
		l.files[i].w = f
	}
	return nil
}

func (l *logs) paths() (stdout, stderr string) {
	return filepath.Join(l.dir, "stdout.log"), filepath.Join(l.dir, "stderr.log")
}

func (l *logs) stdout() io.Writer { return each{l.masks[0], l.live.Stdout(), l.tailMasks[0]} }
func (l *logs) stderr() io.Writer { return each{l.masks[1], l.live.Stderr(), l.tailMasks[1]} }

// close writes what was held back and gives the end of the output, masked. Its
// error is that of any write: a log on disk that is not whole is not passed off
// as one.
func (l *logs) close() (string, error) {
	l.live.End()
	var errs []error
	for i := range l.files {
		errs = append(errs, l.masks[i].Close(), l.files[i].Close(), l.tailMasks[i].Close())
	}
	if err := errors.Join(errs...); err != nil {
		return l.tail.String(), fmt.Errorf("write the step's log: %w", err)
	}
	return l.tail.String(), nil
}

// each writes to all its writers, whatever becomes of the others: a full disk
// must not silence the live log.
type each []io.Writer

func (e each) Write(p []byte) (int, error) {
	var errs []error
	for _, w := range e {
		if _, err := w.Write(p); err != nil {
			errs = append(errs, err)
		}
	}
	return len(p), errors.Join(errs...)
}

// upTo lets so many bytes through to a file and drops the rest.
type upTo struct {
	w    *os.File // nil until the file is made, and if it cannot be
	also io.Writer
	room int64
}

func (u *upTo) Close() error {
	if u.w == nil {
		return nil
	}
	return u.w.Close()
}

func (u *upTo) Write(p []byte) (int, error) {
	keep := p[:min(int64(len(p)), u.room)]
	u.room -= int64(len(keep))
	if u.also != nil && len(keep) > 0 {
		_, _ = u.also.Write(keep) // what becomes of it there is no matter of the log's
	}
	if len(keep) > 0 {
		if _, err := u.w.Write(keep); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// tail keeps the last bytes of both streams in the order they came.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - 2*tailBytes; over > 0 {
		t.buf = append(t.buf[:0], t.buf[len(t.buf)-tailBytes:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.buf
	if len(b) > tailBytes {
		b = b[len(b)-tailBytes:]
	}
	return string(b)
}
