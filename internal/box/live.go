package box

import (
	"bytes"
	"context"
	"io"
	"sync"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/egress"
)

// Live is a box whose process lives on and is given its work piece by piece: the
// same box, the same process, and for each piece a clock, output and evidence of
// its own. Whoever runs in the box says when a piece is over and what it ended
// with. That is believed as an exit code is, which it chooses too; everything
// else is measured as it is of a step.
//
// What a piece left running goes on, and what it does then is told of the next one:
// also of one that does not begin, since the process has ended, or else of Close.
// Between two pieces no deadline runs: whoever holds the box ends it.
//
// It is for one caller at a time.
type Live struct {
	r     *runner
	hold  *hold
	begun counts
	over  bool
}

// Piece is one piece of work.
type Piece struct {
	// Stdout, Stderr, MaxOutput and Slack are as in a Job.
	Stdout, Stderr   io.Writer
	MaxOutput, Slack int64
	TimeoutS         float64
	// Full is closed when more was written than may be.
	Full <-chan struct{}
	// Begin hands the work over.
	Begin func() error
	// Done gives what the process says that it ended with. Of one that it ends
	// with itself that is its exit status.
	Done <-chan int
}

// Open builds the box of a job and starts its process, as Run does. Where that
// does not come to an end, there is no Live, and the outcome says why.
func Open(ctx context.Context, j Job) (*Live, Outcome) {
	l := &Live{hold: &hold{}}
	j.Stdout, j.Stderr, j.MaxOutput, j.Slack = l.hold.stream(0), l.hold.stream(1), maxHeld, 0
	l.r = newRunner(j)
	_, ok := l.r.open(ctx)
	if ok {
		return l, l.r.out
	}
	if l.r.built != nil {
		l.r.finish()
	}
	return nil, l.r.out
}

// Run gives the process a piece of work and waits for its end. alive says that
// the box is ready for another one; if it is not, nothing of it is left.
func (l *Live) Run(ctx context.Context, p Piece) (out Outcome, alive bool) {
	if l.over {
		out.Evidence.Lost = "bug: work for a box that is over"
		return out, false
	}
	r := l.r
	gone := r.out.Evidence.EgressLost // it does not come back
	r.out = Outcome{Startup: r.out.Startup}
	r.lives = false
	e := &r.out.Evidence
	e.EgressLost = gone
	e.TimeoutS, e.MemoryMb, e.Pids = p.TimeoutS, r.job.Spec.MemoryBytes>>20, r.job.Spec.Pids
	r.job.Spec.TimeoutS, r.job.Full, r.said = p.TimeoutS, p.Full, p.Done
	if !l.turn([]io.Writer{p.Stdout, p.Stderr}, p.MaxOutput, p.Slack, nil) {
		r.lost("the output of the box could not be followed")
		return l.end(), false
	}
	if l.left() {
		r.out.NotBegun = true
		return l.end(), false
	}
	started := r.now()
	if err := p.Begin(); err != nil {
		r.lost("the work could not be handed over: %v", err)
		return l.end(), false
	}
	r.watch(ctx, started)
	r.out.Duration = r.now().Sub(started)
	if !r.lives {
		return l.end(), false
	}
	if !l.look() {
		return l.end(), false
	}
	return r.out, true
}

// Gone says whether the process has ended by itself, at this moment.
func (l *Live) Gone() bool { return l.over || l.r.gone.Load() }

// Close ends the box. The outcome is what was measured since the last piece, which
// whoever keeps something of the box has to judge; it is nothing where the box was
// over.
func (l *Live) Close() Outcome {
	if l.over {
		return Outcome{}
	}
	r := l.r
	gone := r.out.Evidence.EgressLost
	r.out = Outcome{}
	e := &r.out.Evidence
	e.EgressLost = gone
	e.MemoryMb, e.Pids = r.job.Spec.MemoryBytes>>20, r.job.Spec.Pids
	if !l.left() {
		r.recount("when its work was over")
	}
	return l.end()
}

// left says whether the process ended by itself when nobody had asked it for
// anything, and takes note of how.
func (l *Live) left() bool {
	if !l.r.gone.Load() {
		return false
	}
	f := <-l.r.messages
	closeFDs(f.fds)
	switch {
	case f.err != nil:
		l.r.initGone("when it had no work")
	case f.m.Exited != nil:
		l.r.exited(f.m.Exited)
		select {
		case <-l.r.quiet: // so is the first one, which counts no more
		default:
			l.r.recount("when it had no work")
		}
	default:
		l.r.lost("bug: unexpected word of the box's first process")
	}
	return true
}

// end takes the box away, as after a step, and leaves out what was told before.
func (l *Live) end() Outcome {
	l.over = true
	l.r.finish()
	l.r.out.Evidence = l.begun.since(l.r.out.Evidence)
	l.r.out.Stats.CPU -= l.begun.cpu
	l.r.out.NoRoute -= min(l.begun.noRoute, l.r.out.NoRoute)
	return l.r.out
}

// look measures a piece that is over in a box that is not, as finish does of one
// that is. It says whether the box can go on.
func (l *Live) look() bool {
	r := l.r
	e := &r.out.Evidence
	if r.watcher != nil {
		r.watcher.Drain()
		if err := r.watcher.Err(); err != nil {
			r.lost("the system call filter could not be watched: %v", err)
			return false
		}
	}
	r.job.Group.Sample()
	stats, err := r.job.Group.Stats()
	if err != nil {
		r.lost("the control group's counters cannot be read: %v", err)
		return false
	}
	if !r.recount("when a piece of work was over") {
		return false
	}
	if !l.turn([]io.Writer{l.hold.stream(0), l.hold.stream(1)}, maxHeld, 0, []*Stream{&r.out.Stdout, &r.out.Stderr}) {
		r.lost("the piece's output could not be written within %v of its end: nobody reads it", drainLimit)
		return false
	}
	r.out.Stats, r.out.NoRoute = stats, r.noRoute.count()
	e.OOMKills, e.PeakMemory, e.PeakSampled, e.PidsRefused = stats.OOMKills, stats.PeakMemory, stats.PeakSampled, stats.PidsRefused
	if r.watcher != nil {
		escapes, more := r.watcher.Escapes()
		for _, x := range escapes {
			e.Escapes = append(e.Escapes, Escape{Syscall: x.Syscall, Program: x.Program})
		}
		e.EscapesMore = more
	}
	if r.way != nil {
		e.Denied = r.denied()
	}
	r.addCounted()
	now := counts{oom: e.OOMKills, pids: e.PidsRefused, escapes: len(e.Escapes), more: e.EscapesMore, denied: e.Denied, cpu: r.out.Stats.CPU, noRoute: r.out.NoRoute}
	*e = l.begun.since(*e)
	r.out.Stats.CPU -= l.begun.cpu
	r.out.NoRoute -= min(l.begun.noRoute, r.out.NoRoute)
	l.begun = now
	return true
}

// turn sends both streams elsewhere, and says what became of what went where they
// went so far.
func (l *Live) turn(to []io.Writer, most, slack int64, was []*Stream) bool {
	ctx, cancel := context.WithTimeout(context.Background(), drainLimit)
	defer cancel()
	for i, p := range l.r.pumps {
		s, ok := p.turn(ctx, sink{w: to[i], max: most, through: most + slack})
		if !ok {
			return false
		}
		if was != nil {
			*was[i] = s
		} else {
			// What came while there was no piece belongs to this one.
			l.hold.give(i, p)
		}
	}
	return true
}

// counts are what was counted when a piece began.
type counts struct {
	oom, pids uint64
	escapes   int
	more      uint64
	denied    []Denied
	cpu       time.Duration
	noRoute   uint64
}

// since leaves of evidence what is new.
func (c counts) since(e Evidence) Evidence {
	e.OOMKills -= min(c.oom, e.OOMKills)
	e.PidsRefused -= min(c.pids, e.PidsRefused)
	e.Escapes = e.Escapes[min(c.escapes, len(e.Escapes)):]
	e.EscapesMore -= min(c.more, e.EscapesMore)
	before := map[Denied]uint64{}
	for _, d := range c.denied {
		n := d.Count
		d.Count = 0
		before[d] = n
	}
	var fresh []Denied
	for _, d := range e.Denied {
		key := d
		key.Count = 0
		if d.Count -= min(before[key], d.Count); d.Count > 0 {
			fresh = append(fresh, d)
		}
	}
	e.Denied = fresh
	return e
}

// maxHeld is how much output that belongs to no piece is kept for the next one.
const maxHeld = 64 << 10

// hold keeps that.
type hold struct {
	mu  sync.Mutex
	buf [2]bytes.Buffer
}

func (h *hold) stream(i int) io.Writer { return heldStream{h, i} }

type heldStream struct {
	h *hold
	i int
}

func (s heldStream) Write(p []byte) (int, error) {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	return s.h.buf[s.i].Write(p[:min(len(p), max(0, maxHeld-s.h.buf[s.i].Len()))])
}

// give hands what was kept to a pump, as if it came now.
func (h *hold) give(i int, p *pump) {
	h.mu.Lock()
	b := bytes.Clone(h.buf[i].Bytes())
	h.buf[i].Reset()
	h.mu.Unlock()
	p.take(b)
}

// denied are the requests that were refused so far.
func (r *runner) denied() (out []Denied) {
	for _, rec := range r.job.Proxy.Ledger.Records() {
		if rec.Verdict == egress.Denied && !egress.Expected(r.job.ExpectDenied, rec) {
			out = append(out, Denied{Host: rec.Host, Port: rec.Port, Reason: rec.Reason, Count: rec.Count, Rule: rec.Hint()})
		}
	}
	return out
}
