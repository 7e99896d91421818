package clone

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// workers is how many copy at once. Making files is nearly all system time, so
// a second one is of use where a CPU is free, and of no harm where none is.
const workers = 2

// Tree copies the content of the folder from into the empty folder to. from may
// itself be a link; nothing below it is followed.
func Tree(ctx context.Context, from, to string, o Options) (Result, error) {
	r, err := newCopying(ctx, o, workers).run(from, to)
	if err != nil {
		return Result{}, fmt.Errorf("copy %q to %q: %w", from, to, err)
	}
	return r, nil
}

// copying is one copy under way.
type copying struct {
	ctx  context.Context
	opt  Options
	root bool // we are, and keep owners

	slots chan struct{} // one for every worker beyond the first
	wg    sync.WaitGroup
	pool  sync.Pool // of *worker

	to   int // the folder itself, for hard links
	toID identity

	listed, made, bytes, reowned atomic.Int64
	shared, copied               atomic.Int64 // files with content

	failed     atomic.Bool
	mu         sync.Mutex // guards what follows
	err        error
	absent     []string
	absentText int
	links      map[linkKey]*link
}

func newCopying(ctx context.Context, o Options, workers int) *copying {
	c := &copying{
		ctx: ctx, opt: o, root: os.Geteuid() == 0,
		slots: make(chan struct{}, workers-1),
		links: map[linkKey]*link{},
	}
	c.pool.New = func() any {
		return &worker{c: c, buf: make([]byte, bufferSize), noShare: map[uint64]bool{}, noRange: map[uint64]bool{}}
	}
	return c
}

func (c *copying) run(from, to string) (Result, error) {
	if err := c.ctx.Err(); err != nil {
		return Result{}, err
	}
	w := c.pool.Get().(*worker)
	top := &node{c: c}
	top.pending.Store(1)
	src, dst, err := c.open(w, from, to, top)
	if err != nil {
		return Result{}, err
	}
	if src < 0 { // not ours to read
		return Result{Absent: []string{"."}}, nil
	}
	c.to, err = unix.FcntlInt(uintptr(dst), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		unix.Close(src)
		unix.Close(dst)
		return Result{}, err
	}
	defer unix.Close(c.to)
	w.frames = append(w.frames[:0], frame{src, dst, top})
	w.visit(top)
	w.leave()
	c.wg.Wait()
	if err := c.ctx.Err(); err != nil {
		return Result{}, err
	}
	if c.err != nil {
		return Result{}, c.err
	}
	slices.Sort(c.absent)
	return Result{
		Entries: c.made.Load(), Bytes: c.bytes.Load(), Reowned: c.reowned.Load(), Absent: c.absent,
		Reflinked: c.shared.Load() > 0 && c.copied.Load() == 0,
	}, nil
}

// open opens both folders and fills top. src is -1 if from may not be read.
func (c *copying) open(w *worker, from, to string, top *node) (src, dst int, err error) {
	dst, err = unix.Open(to, readDir, 0)
	if err != nil {
		return -1, -1, fmt.Errorf("open the folder to copy to: %w", err)
	}
	ok := false
	defer func() {
		if !ok {
			unix.Close(dst)
			if src >= 0 {
				unix.Close(src)
			}
		}
	}()
	if err := lookAt(dst, "", &w.st); err != nil {
		return -1, -1, err
	}
	c.toID, top.copyID = identityOf(&w.st), identityOf(&w.st)
	// Where openat2 itself is refused, everything would look unreadable.
	probe, err := beneath(dst, ".", holdDir)
	if err != nil {
		return -1, -1, fmt.Errorf("open beneath a folder (openat2): %w", err)
	}
	unix.Close(probe)
	there, err := w.list(dst)
	if err != nil {
		return -1, -1, err
	}
	if len(there) > 0 {
		return -1, -1, fmt.Errorf("the folder to copy to is not empty: it has %q", there[0])
	}
	c.listed.Store(0)
	src, err = unix.Open(from, readDir&^unix.O_NOFOLLOW, 0)
	if denied(err) {
		// Closed to its owner, or is there something above it that we cannot pass?
		if err := unix.Statx(unix.AT_FDCWD, from, 0, statMask, &w.st); err != nil {
			return -1, -1, err
		}
		return -1, -1, nil
	}
	if err != nil {
		return -1, -1, err
	}
	if err := lookAt(src, "", &w.st); err != nil {
		return src, -1, err
	}
	if identityOf(&w.st) == c.toID {
		return src, -1, errInside
	}
	top.id, top.meta = identityOf(&w.st), metaOf(&w.st)
	if top.names, err = w.list(src); err != nil {
		return src, -1, err
	}
	if err := w.keepMark(src, dst); err != nil {
		return src, -1, err
	}
	ok = true
	return src, dst, nil
}

// errInside: the copy would hold itself.
var errInside = errors.New("the folder to copy to lies in the one to copy")

// errHalted: another worker failed first, and its error is the one shown.
var errHalted = errors.New("copy given up")

// lacks notes that the copy has nothing at a path.
func (c *copying) lacks(n *node, name string) error {
	path := n.path(name)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.absentText += len(path); c.absentText > maxAbsentText {
		return fmt.Errorf("%w: the paths that cannot be copied have more than %d bytes", workspace.ErrLimit, maxAbsentText)
	}
	c.absent = append(c.absent, path)
	return nil
}

// count counts against MaxEntries what a folder names, so that a folder of more
// names than memory holds ends in time.
func (c *copying) count(entries int64) error {
	if n := c.listed.Add(entries); c.opt.MaxEntries > 0 && n > c.opt.MaxEntries {
		return fmt.Errorf("%w: more than %d entries", workspace.ErrLimit, c.opt.MaxEntries)
	}
	return nil
}

// spend counts content before it is copied.
func (c *copying) spend(n int64) error {
	if all := c.bytes.Add(n); c.opt.MaxBytes > 0 && all > c.opt.MaxBytes {
		return fmt.Errorf("%w: more than %d bytes of content", workspace.ErrLimit, c.opt.MaxBytes)
	}
	return nil
}

// fail keeps the first error and ends the copy.
func (c *copying) fail(n *node, name string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		if !errors.Is(err, workspace.ErrLimit) {
			err = fmt.Errorf("%s: %w", n.where(name), err)
		}
		c.err = err
	}
	c.failed.Store(true)
}

func (c *copying) stopped() bool { return c.failed.Load() || c.ctx.Err() != nil }

// halted is why what is under way should not be finished, nil if it should.
func (c *copying) halted() error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	if c.failed.Load() {
		return errHalted
	}
	return nil
}
