package steps

import (
	"context"
	"fmt"
	"sync"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
)

// LiveKernel is the kernel of cells that come one by one, where no list of them is
// known before. They are judged as the cells of a file are, and what they wrote is
// one change, judged when it is closed. It is for one caller at a time.
//
// Between two cells no deadline runs, and nobody knows for how long: what a cell has
// left running goes on under the caps, and ends with the next fault or with Close.
type LiveKernel struct {
	// mu is held by whoever uses the box: a cell, or the end of it between two.
	mu     sync.Mutex
	k      *kernel
	why    string      // the box will not be built
	setup  *StepResult // what the setup came to, until it is told
	cells  []PlanStep
	srs    []*StepResult
	last   int // that ran; -1 for none
	ev     box.Evidence
	stop   context.CancelFunc
	life   context.Context
	closed bool
}

// OpenKernel makes the workspace of a kernel ready, whose box is that of a step; the
// box is built for the first cell. The step's setup, if it has one, is run, and told
// of with the first cell.
func (r *Runner) OpenKernel(ctx context.Context, s PlanStep) (*LiveKernel, error) {
	sr := newStepResult(s, r.EngineOf(s).Info())
	v, why, err := r.kernelView(ctx, s, sr)
	if err != nil {
		return nil, fmt.Errorf("give the kernel a workspace of its own: %w", err)
	}
	l := &LiveKernel{k: &kernel{r: r, v: v}, why: why, setup: sr, last: -1}
	l.life, l.stop = context.WithCancel(context.Background())
	v.full = v.room.Watch(l.life)
	if l.why == "" {
		l.why = r.recheck(ctx, s)
	}
	if l.why == "" {
		l.why = r.Unbuildable(s)
	}
	go l.guard(v.full)
	return l, nil
}

// guard ends the box when more is written than may be, also while no cell runs: what
// one has left running could fill the disk until the next one begins.
func (l *LiveKernel) guard(full <-chan struct{}) {
	select {
	case <-full:
	case <-l.life.Done():
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.k.ended != "" || l.k.python == nil {
		return
	}
	l.k.ended = "disk_limit between two cells"
	l.k.shut() // what is to be told of it is told by Close of the kernel
}

// Ended is why no cell runs any more; "" while one can.
func (l *LiveKernel) Ended() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.k.ended
}

// ran says that a cell did, and lets go of all that is not needed of the one before
// it. There can be any number, and what each has shown is large if it likes.
func (l *LiveKernel) ran(at int) {
	if l.last >= 0 {
		was := l.srs[l.last]
		l.srs[l.last] = &StepResult{ID: was.ID, Status: was.Status, Fault: was.Fault}
		l.cells[l.last].Code = ""
	}
	l.last = at
}

// Run runs a cell. One that comes after the end of the kernel is skipped, and its
// reason says what ended it.
func (l *LiveKernel) Run(ctx context.Context, s PlanStep) *StepResult {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.k.r
	sr := newStepResult(s, r.EngineOf(s).Info())
	defer mask(r.Masker, sr)
	switch {
	case l.closed:
		return skip(sr, s, "the kernel was closed")
	case ctx.Err() != nil:
		return notBegun(sr)
	case l.k.ended != "":
		return skip(sr, s, fmt.Sprintf("the kernel ended with %s, and what this cell may need of it is gone", l.k.ended))
	}
	if was := l.setup; was != nil {
		sr.Setup, sr.Egress, sr.Notes, l.setup = was.Setup, was.Egress, was.Notes, nil
		sr.Limits.Enforced, sr.Limits.By = was.Limits.Enforced, was.Limits.By // those of the cell's own box, if there will be one
	}
	l.cells, l.srs = append(l.cells, s), append(l.srs, sr)
	at := len(l.srs) - 1
	if l.why != "" {
		l.ran(at)
		l.ev = box.Evidence{StartupFailure: l.why}
		judge(sr, s, l.ev)
		l.k.ended = s.ID + ": " + sr.Reason
		return sr
	}
	out, alive := l.k.cell(ctx, s, sr, false)
	if out.NotBegun {
		l.k.ended = "its process, which ended by itself when no cell ran"
		if l.last < 0 {
			if ev, ok := l.k.alone(s, sr); ok {
				l.ran(at)
				l.ev = ev
				return sr
			}
		}
		return skip(sr, s, "the kernel ended with "+l.k.ended)
	}
	l.ran(at)
	l.ev = out.Evidence
	judge(sr, s, out.Evidence)
	sr.Notes = append(sr.Notes, r.hints(s, sr, l.k.way, out)...)
	switch {
	case sr.Status == StatusError || sr.Status == StatusCancelled || sr.Fault != nil:
		l.k.ended = s.ID + ": " + sr.Reason
	case !alive:
		l.k.ended = s.ID + ": its code ended the interpreter"
	}
	if l.k.ended != "" {
		l.k.shut() // nothing that a cell has left goes on
	}
	return sr
}

// Close takes the box away and judges what the cells wrote, all of it together. It
// gives the result of the last cell that ran, with that in it, and with what was done
// when no cell ran, which is judged as if that one had done it; nil if none did.
func (l *LiveKernel) Close(ctx context.Context) *StepResult {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	defer l.stop()
	lost := l.k.close()
	if l.last < 0 {
		l.k.v.drop()
		return nil
	}
	l.k.conclude(ctx, l.cells, l.srs, l.last, l.ev, lost)
	sr := l.srs[l.last]
	mask(l.k.r.Masker, sr)
	return sr
}
