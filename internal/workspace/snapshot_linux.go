package workspace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Snapshot reads the tree below root. With prev, an earlier tree of the same
// folder, files that provably have not changed are not opened. root itself may
// be a link; nothing below it is followed. No process of a step may be alive.
func Snapshot(ctx context.Context, root string, prev *Tree, opt Options) (*Tree, error) {
	t, err := snapshot(ctx, root, prev, opt.WithDefaults())
	if err != nil {
		return nil, fmt.Errorf("read workspace %q: %w", root, err)
	}
	return t, nil
}

// scan is one snapshot under way.
type scan struct {
	ctx  context.Context
	opt  Options
	prev *Tree // never nil

	slots chan struct{} // one for every worker beyond the first
	wg    sync.WaitGroup
	pool  sync.Pool // of *walker

	entries, text, holes atomic.Int64
	opened               atomic.Int64 // files whose content was read

	failed atomic.Bool
	mu     sync.Mutex // guards what follows
	err    error
	places []place
	mounts map[uint64]*mount
	links  map[linkKey]*link
}

// linkKey is an inode in one state; place is an index.
type linkKey struct {
	ino         uint64
	size, ctime int64
	place       uint16
}

// link is the content of an inode that has several names.
type link struct {
	mu   sync.Mutex
	done bool
	sum  [32]byte
	flag uint16
}

func newScan(ctx context.Context, prev *Tree, opt Options) *scan {
	if prev == nil {
		prev = &Tree{}
	}
	s := &scan{
		ctx: ctx, opt: opt, prev: prev,
		slots:  make(chan struct{}, opt.Workers-1),
		places: slices.Clone(prev.places),
		mounts: map[uint64]*mount{},
		links:  map[linkKey]*link{},
	}
	s.holes.Store(MaxHoleBytes)
	s.pool.New = func() any { return &walker{s: s, buf: make([]byte, bufferSize)} }
	return s
}

func snapshot(ctx context.Context, root string, prev *Tree, opt Options) (*Tree, error) {
	return newScan(ctx, prev, opt).run(root)
}

func (s *scan) run(root string) (*Tree, error) {
	defer func() {
		for _, m := range s.mounts {
			m.close()
		}
	}()
	var st unix.Statx_t
	fd, err := openAt(unix.AT_FDCWD, root, openDir&^unix.O_NOFOLLOW, 0)
	switch {
	case denied(err):
		// A step may close the workspace itself to its owner.
		err = again(func() error { return unix.Statx(unix.AT_FDCWD, root, 0, statMask, &st) })
	case err == nil:
		err = lookAt(fd, "", &st)
	}
	if err != nil {
		return nil, err
	}
	at, err := s.placeIndex(placeOf(&st))
	if err != nil {
		return nil, err
	}
	t := &Tree{}
	t.root.fill(&st, at)
	if fd < 0 {
		t.root.flags |= flagUnreadable
		return s.finish(t), nil
	}
	top := &node{s: s, place: at, ino: st.Ino, prev: s.prev.top}
	top.pending.Store(1)
	w := s.pool.Get().(*walker)
	w.frames = append(w.frames[:0], frame{fd, top})
	w.visit(top)
	w.release()
	s.wg.Wait()
	if err := s.ctx.Err(); err != nil {
		return nil, err
	}
	if s.err != nil {
		return nil, s.err
	}
	t.top = top.d
	if top.unreadable {
		t.root.flags |= flagUnreadable
	}
	return s.finish(t), nil
}

// finish decides which change times the next snapshot can rely on.
func (s *scan) finish(t *Tree) *Tree {
	t.places, t.count, t.proven = s.places, s.entries.Load(), maps.Clone(s.prev.proven)
	if t.proven == nil {
		t.proven = map[uint64]bool{}
	}
	for id, m := range s.mounts {
		m.proven = m.proven || s.prev.proven[id]
		m.prove()
		t.proven[id] = m.proven
	}
	t.settled = make([]int64, len(t.places))
	for i, p := range t.places {
		t.settled[i] = never
		if m := s.mounts[p.mount]; p.mount != 0 && m != nil && m.proven {
			t.settled[i] = m.clock
		}
	}
	return t
}

// placeIndex gives a place its number in this tree, the same as in prev.
func (s *scan) placeIndex(p place) (uint16, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.places, p); i >= 0 {
		return uint16(i), nil
	}
	if len(s.places) > math.MaxUint16 {
		return 0, fmt.Errorf("%w: more than %d devices and mounts", ErrLimit, math.MaxUint16)
	}
	s.places = append(s.places, p)
	return uint16(len(s.places) - 1), nil
}

// enter reads the clock of the mount a folder is on, before anything on it is
// looked at. One try: a clock read later would vouch for files read earlier.
func (s *scan) enter(fd int, at uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := s.places[at].mount
	if _, seen := s.mounts[id]; !seen {
		m := readClock(fd)
		s.mounts[id] = &m
	}
}

// linked gives the one record of an inode in one state.
func (s *scan) linked(e *entry) *link {
	k := linkKey{e.ino, e.size, e.ctime, e.place}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.links[k]
	if l == nil {
		l = &link{}
		s.links[k] = l
	}
	return l
}

// count adds to what the limits bound.
func (s *scan) count(entries, text int64) error {
	if n := s.entries.Add(entries); n > s.opt.MaxEntries {
		return fmt.Errorf("%w: more than %d entries", ErrLimit, s.opt.MaxEntries)
	}
	if n := s.text.Add(text); n > s.opt.MaxText {
		return fmt.Errorf("%w: names and link targets of more than %d bytes", ErrLimit, s.opt.MaxText)
	}
	return nil
}

// fail keeps the first error and ends the scan.
func (s *scan) fail(n *node, name string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		if errors.Is(err, ErrLimit) {
			s.err = err
		} else {
			s.err = fmt.Errorf("%s: %w", n.where(name), err)
		}
	}
	s.failed.Store(true)
}

func (s *scan) stopped() bool { return s.failed.Load() || s.ctx.Err() != nil }

// halted is why what is under way should not be finished, nil if it should.
func (s *scan) halted() error {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	if s.failed.Load() {
		return errHalted
	}
	return nil
}

// spawn runs work on a worker of its own if one is free. The work owns fd, and
// fd is only made if there is a worker.
func (s *scan) spawn(open func() (int, error), n *node, work func(*walker)) bool {
	select {
	case s.slots <- struct{}{}:
	default:
		return false
	}
	fd, err := open()
	if err != nil {
		<-s.slots
		return false // the caller does it itself and meets the same error
	}
	s.wg.Go(func() {
		w := s.pool.Get().(*walker)
		w.frames = append(w.frames[:0], frame{fd, n})
		work(w)
		w.release()
		<-s.slots
	})
	return true
}
