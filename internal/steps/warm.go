package steps

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/cell"
)

// Warm keeps boxes of cells ready before they are asked for: built, capped, with an
// interpreter that has booted and run nothing, each for one cell. One serves a cell
// only if all that shapes its box is the same, what is in the workspace too: a call
// that changes the workspace ends those that were ready.
//
// It is for runners that run the same kind of cell again and again. Between the steps
// of a file the workspace changes, and nothing could be ready.
type Warm struct {
	pool  *cell.Pool[*kernel]
	count atomic.Int64
	said  atomic.Value // string: why none could be made, as it was told last
}

const (
	// warmAge is how long a box stays ready.
	warmAge = 5 * time.Minute
	// bootLimit bounds the boot of its interpreter.
	bootLimit = 30 * time.Second
)

// NewWarm keeps size boxes ready.
func NewWarm(size int) *Warm {
	return &Warm{pool: cell.NewPool(size, warmAge, func(k *kernel) { _ = k.away() })}
}

// Drop ends the boxes that are ready. Whoever changes the workspace past the runner
// calls it first: they show it as it was.
func (w *Warm) Drop() {
	if w != nil {
		w.pool.Drop()
	}
}

// Ready is how many boxes are.
func (w *Warm) Ready() int { return w.pool.Ready() }

// Close ends all of them, before the tree that they show is closed.
func (w *Warm) Close() {
	if w != nil {
		w.pool.Close()
	}
}

// warm gives the box of a cell if one is ready, and sees to it that there are others.
// made is what the step's setup made, nil where it has none.
func (r *Runner) warm(s PlanStep, made *setup) *kernel {
	if r.Warm == nil || s.Code == "" || s.Kernel != "" {
		return nil
	}
	key, err := r.warmKey(s)
	if err != nil {
		return nil // what cannot be compared is not shared
	}
	var k *kernel
	for k == nil {
		var ok bool
		if k, ok = r.Warm.pool.Take(key, r.making(s, made)); !ok {
			return nil
		}
		if k.python.Gone() { // while it waited: that is nothing of this cell's
			k.ended = "its process, which ended by itself when no cell ran"
			if k.shut(); k.idle() {
				_ = k.away()
				k = nil
			}
		}
	}
	k.r = r
	k.v.id = s.ID
	k.v.txn.For(s.ID)
	return k
}

// idle says whether the code in a box that ended before it had a cell did nothing
// there that has to be told. Nobody but the cell that was to have it could be.
func (k *kernel) idle() bool {
	e := k.late.Evidence
	return len(e.Escapes) == 0 && e.EscapesMore == 0 && e.PidsRefused == 0 && (k.way == nil || len(k.way.proxy.Ledger.Records()) == 0)
}

// Prewarm has boxes made ready for cells like this one, before the first is asked
// for, and again where the workspace has changed since. Those of a step with a setup
// lie over what that made. It runs with the first step that has it, which may come when
// more is in the workspace than is now: until it has, none is made.
func (r *Runner) Prewarm(s PlanStep) {
	if r.Warm == nil || s.Code == "" {
		return
	}
	made, ok := r.madeFor(s)
	if !ok {
		return
	}
	if key, err := r.warmKey(s); err == nil {
		r.Warm.pool.Want(key, r.making(s, made))
	}
}

// madeFor is what the setup of a step has made by now, nil where the step has none.
// ok is false where it has not run, runs, or failed.
func (r *Runner) madeFor(s PlanStep) (made *setup, ok bool) {
	if s.Setup == "" {
		return nil, true
	}
	made = r.setupOf(r.setupKey(s.setupStep()))
	if !made.mu.TryLock() {
		return nil, false
	}
	defer made.mu.Unlock()
	return made, made.done && made.why == ""
}

// making makes a box for a cell. Whoever asks for one and finds none makes its own and
// is told why it cannot; that none gets ready is told, too, where it has its own cause.
func (r *Runner) making(s PlanStep, made *setup) func(context.Context) (*kernel, error) {
	return func(ctx context.Context) (*kernel, error) {
		k, err := r.warmUp(ctx, s, made)
		if err != nil && ctx.Err() == nil {
			if why := err.Error(); r.Warm.said.Swap(why) != why {
				r.Log.Say("a box could not be made ready: " + inertWords(why))
			}
		}
		return k, err
	}
}

// warmKey tells boxes apart: it has all of a step but what one cell has for itself,
// the values that it is given, and the state of the workspace.
func (r *Runner) warmKey(s PlanStep) (string, error) {
	s.ID, s.Name, s.Code, s.SHA256, s.Line = "", "", "", "", 0
	s.Needs, s.NeedsLeftOut, s.Keys = nil, nil, nil
	s.TimeoutS, s.MaxOutput, s.Retries = 0, 0, 0
	s.Expect, s.Tolerate, s.ContinueOnErr, s.AllowChanges, s.OnFailure, s.TrackFiles = Expect{}, nil, false, nil, "", false
	text, err := encode(s)
	if err != nil {
		return "", err
	}
	way, _, err := wayOf(s)
	if err != nil {
		return "", err
	}
	spec, _ := r.spec(s, way)
	h := sha256.New()
	fmt.Fprintf(h, "%d %q %+v %q", r.Tree.state(), spec.Env, spec.Root, text)
	return hex.EncodeToString(h.Sum(nil)), nil
}

// state changes whenever what views show does.
func (t *Tree) state() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seq
}

// unflushed says whether changes that are kept wait for views to be closed.
func (t *Tree) unflushed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.kept) > 0
}

// warmUp builds a box and boots its interpreter.
func (r *Runner) warmUp(ctx context.Context, s PlanStep, made *setup) (_ *kernel, err error) {
	s.ID = fmt.Sprintf("ready-%d", r.Warm.count.Add(1))
	var over *layer
	if made != nil {
		over = made.layer
	}
	v, err := r.Tree.view(ctx, s, over)
	if err != nil {
		return nil, err
	}
	if made != nil && made.deps && s.DepsReadonly {
		v.protect = []string{depsTarget}
	}
	k := &kernel{r: r, v: v}
	watched, stop := context.WithCancel(context.Background())
	k.stop = stop
	defer func() {
		if err != nil {
			err = errors.Join(err, k.away())
		}
	}()
	v.full = v.room.Watch(watched)
	if why := r.recheck(ctx, s); why != "" {
		return nil, errors.New(why)
	}
	if why := r.Unbuildable(s); why != "" {
		return nil, errors.New(why)
	}
	sr := newStepResult(s, r.EngineOf(s).Info())
	out, ok, err := k.open(ctx, s, sr)
	if err == nil && !ok {
		zero := 0
		s.Expect, s.Tolerate = Expect{ExitCode: &zero}, nil
		judge(sr, s, out.Evidence)
		err = errors.New(sr.Reason)
	}
	if err != nil {
		return nil, err
	}
	boot, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	select {
	case <-k.python.Booted():
		return k, nil
	case <-boot.Done():
		return nil, fmt.Errorf("its interpreter did not boot within %s: %w", bootLimit, boot.Err())
	}
}

// away ends a box that nobody asked for.
func (k *kernel) away() error {
	err := k.close()
	if lost := k.late.Evidence.Lost; lost != "" {
		err = errors.Join(errors.New(lost), err)
	}
	k.stop()
	k.v.drop()
	return err
}

// boxWarm runs a cell in a box that was ready.
func (r *Runner) boxWarm(ctx context.Context, k *kernel, s PlanStep, sr *StepResult) (out box.Outcome, err error) {
	defer k.stop()
	if k.ended == "" {
		out, _ = k.cell(ctx, s, sr, true)
	} else { // its logs are there all the same, and empty
		logs := newLogs(s.ID, s.MaxOutput, r.Masker, r.Log)
		sr.Stdout.Path, sr.Stderr.Path = logs.paths()
		err = logs.open(r.Out)
		_, cerr := logs.close()
		out.NotBegun, err = true, errors.Join(err, cerr)
	}
	if out.NotBegun {
		idle := k.idle()
		out, k.late = k.late, box.Outcome{}
		// The cell did not run, so what it expects cannot have come of it.
		if v := box.Classify(out.Evidence, s.Tolerate); idle || v.Fault == nil || v.Fault.Type == s.Expect.Fault {
			out.Evidence.Lost = "the box that was kept ready for it had ended by itself"
		}
	}
	err = errors.Join(err, k.close())
	out.Evidence = k.tell(s, sr, out.Evidence)
	if k.way != nil {
		k.way.advise(sr, s, k.seen)
	}
	return out, err
}
