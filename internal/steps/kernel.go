package steps

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/cell"
	"github.com/untrusted-steps/untrusted-steps/internal/egress"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
)

// together joins the cells of a kernel, which run one after the other in one box:
// for whoever orders steps they are one step, that of the first cell. It needs what
// any of them needs, and who needs one of them waits for all.
func together(list []PlanStep) (units []PlanStep, cells map[string][]PlanStep) {
	cells = map[string][]PlanStep{}
	first := map[string]string{} // of each kernel
	unit := make(map[string]string, len(list))
	for _, s := range list {
		unit[s.ID] = s.ID
		if s.Kernel == "" {
			continue
		}
		if first[s.Kernel] == "" {
			first[s.Kernel] = s.ID
		}
		unit[s.ID] = first[s.Kernel]
		cells[unit[s.ID]] = append(cells[unit[s.ID]], s)
	}
	at := map[string]int{}
	for _, s := range list {
		id := unit[s.ID]
		i, ok := at[id]
		if !ok {
			i = len(units)
			at[id] = i
			u := s
			u.Needs = nil
			units = append(units, u)
		}
		for _, n := range s.Needs {
			if to := unit[n]; to != "" && to != id && !slices.Contains(units[i].Needs, to) {
				units[i].Needs = append(units[i].Needs, to)
			}
		}
	}
	return units, cells
}

// kernel is cells in one interpreter, as they run.
type kernel struct {
	r     *Runner
	v     *view
	group *limits.Group
	way   *way
	// python is nil before the first cell, and once its box is taken away: then
	// ended is set, or the next cell would have a box of its own.
	python *cell.Interpreter
	// seen are the requests that were told of earlier cells.
	seen []egress.Record
	// late is what was measured when no cell ran, and is told of none so far.
	late box.Outcome
	// stop ends the look at how much is written, of a box that was ready.
	stop context.CancelFunc
	// ended is why no cell runs any more.
	ended string
}

// kernelStep runs the cells of one kernel and fills in their results. unmet says
// what cell i needs, of other steps, and has not.
func (r *Runner) kernelStep(ctx context.Context, cells []PlanStep, srs []*StepResult, unmet []string, begun time.Time) {
	k := &kernel{r: r}
	var why string // the box will not be built
	done := map[string]*StepResult{}
	last := -1 // that ran
	var ev box.Evidence
	var out box.Outcome
	watched, stop := context.WithCancel(ctx)
	defer stop()
	for i, s := range cells {
		sr := srs[i]
		done[s.ID] = sr
		sr.StartedMs = r.Now().Sub(begun).Milliseconds()
		n := unmet[i]
		if n == "" {
			n = unmetInside(s, done)
		}
		switch {
		case ctx.Err() != nil:
			notBegun(sr)
			continue
		case n != "":
			skip(sr, s, n)
			continue
		case k.ended != "":
			skip(sr, s, fmt.Sprintf("the kernel %s ended with %s, and what this cell may need of it is gone", s.Kernel, k.ended))
			continue
		}
		if k.v == nil { // the first that is to run: before it there is no workspace, and no setup
			v, w, err := r.kernelView(ctx, s, sr)
			switch {
			case err == nil:
			case ctx.Err() != nil:
				notBegun(sr)
				continue
			default:
				noVerdict(sr, fmt.Errorf("give the kernel a workspace of its own: %w", err))
				k.ended = s.ID + ": " + sr.Reason
				continue
			}
			k.v, why = v, w
			if why == "" {
				why = r.recheck(ctx, s)
			}
			if why == "" {
				why = r.Unbuildable(s)
			}
			v.full = v.room.Watch(watched)
		}
		if why != "" {
			last, ev = i, box.Evidence{StartupFailure: why}
			judge(sr, s, ev)
			k.ended = s.ID + ": " + sr.Reason
			continue
		}
		var alive bool
		out, alive = k.cell(ctx, s, sr, i == len(cells)-1)
		if out.NotBegun {
			k.ended = "its process, which ended by itself when no cell ran"
			if last >= 0 {
				k.ended = "its process, which ended by itself after " + cells[last].ID
			} else if own, ok := k.alone(s, sr); ok {
				last, ev = i, own
				continue
			}
			skip(sr, s, fmt.Sprintf("the kernel %s ended with %s", s.Kernel, k.ended))
			continue
		}
		last, ev = i, out.Evidence
		judge(sr, s, ev)
		sr.Notes = append(sr.Notes, r.hints(s, sr, k.way, out)...)
		switch {
		case sr.Status == StatusError || sr.Status == StatusCancelled || sr.Fault != nil:
			k.ended = s.ID + ": " + sr.Reason
			if sr.Reason == "" {
				k.ended = s.ID
			}
		case !alive && i < len(cells)-1:
			k.ended = s.ID + ": its code ended the interpreter"
		}
	}
	lost := k.close()
	if last < 0 {
		if k.v != nil {
			k.v.drop()
		}
		return
	}
	k.conclude(ctx, cells, srs, last, ev, lost)
}

// kernelView is the workspace as the cells of a kernel see it, over what their setup
// made. why says that the setup failed, which is the first cell's failure.
func (r *Runner) kernelView(ctx context.Context, s PlanStep, sr *StepResult) (v *view, why string, err error) {
	var made *setup
	if s.Setup != "" {
		if why = r.Unbuildable(s); why == "" {
			made, why, err = r.prepare(ctx, s, sr)
		}
	}
	if err != nil {
		return nil, "", err
	}
	var over *layer
	if made != nil {
		over = made.layer
	}
	if v, err = r.Tree.view(ctx, s, over); err == nil && made != nil && made.deps && s.DepsReadonly {
		v.protect = []string{depsTarget}
	}
	return v, why, err
}

// unmetInside says which cell before it a cell needs that did not pass. What that
// wrote is there, whatever becomes of it in the end.
func unmetInside(s PlanStep, done map[string]*StepResult) string {
	s.Needs = slices.DeleteFunc(slices.Clone(s.Needs), func(id string) bool { return done[id] == nil })
	return unmet(s, done)
}

// open makes the box of a kernel for its first cell.
func (k *kernel) open(ctx context.Context, s PlanStep, sr *StepResult) (out box.Outcome, ok bool, err error) {
	r := k.r
	k.group = limits.None()
	if r.Limits != nil {
		k.group, err = r.Limits.New(s.ID, limits.Caps{MemoryBytes: s.MemoryMb << 20, Pids: s.Pids, CPUs: s.CPUs})
		if err != nil {
			k.group = nil
			return out, false, fmt.Errorf("make the kernel's control group: %w", err)
		}
	}
	if err := k.enforced(s, sr); err != nil {
		return out, false, err
	}
	if k.way, err = r.openWay(s); err != nil {
		return out, false, err
	}
	job := box.Job{Engine: r.EngineOf(s), Group: k.group}
	job.Spec, _ = r.spec(s, k.way)
	k.v.show(&job.Spec)
	job.CallerPath, _ = r.Getenv("PATH")
	if k.way != nil {
		job.Proxy, job.Forwards, job.ExpectDenied = k.way.proxy, k.way.forwards, k.way.expected
	}
	k.python, out = cell.Start(ctx, job)
	return out, k.python != nil, nil
}

// enforced writes down which caps are in force, and refuses to go on without those
// that have to be.
func (k *kernel) enforced(s PlanStep, sr *StepResult) error {
	if in := k.group.Enforced(); in != nil {
		sr.Limits.Enforced = in
	}
	sr.Limits.By = k.group.By()
	if in := sr.Limits.Enforced; s.RequireLimits && !(slices.Contains(in, "memory") && slices.Contains(in, "pids")) {
		return fmt.Errorf("requireLimits: of memory and pids only %v are in force", in)
	}
	return nil
}

// cell runs one cell. alive says that the interpreter can take another one.
func (k *kernel) cell(ctx context.Context, s PlanStep, sr *StepResult, last bool) (out box.Outcome, alive bool) {
	r := k.r
	opened, err := true, error(nil)
	if k.python == nil {
		out, opened, err = k.open(ctx, s, sr)
	} else {
		err = k.enforced(s, sr)
	}
	var got cell.Results
	if k.way != nil && !(k.python != nil && k.python.Gone()) {
		k.way.proxy.Ledger.Name(s.ID)
	}
	_, sr.PassedEnv = r.spec(s, k.way)
	if err == nil && opened {
		logs := newLogs(s.ID, s.MaxOutput, r.Masker, r.Log)
		sr.Stdout.Path, sr.Stderr.Path = logs.paths()
		if r.Tee != nil {
			logs.files[0].also, logs.files[1].also = r.Tee(s.ID)
		}
		if err = logs.open(r.Out); err == nil {
			startup := out.Startup
			out, got, alive = k.python.Run(ctx, cell.Cell{Name: s.ID, Code: s.Code, Last: last}, box.Piece{
				Stdout: logs.stdout(), Stderr: logs.stderr(), MaxOutput: s.MaxOutput, Slack: int64(r.Masker.Slack()), TimeoutS: s.TimeoutS, Full: k.v.full,
			})
			out.Startup = startup
		}
		tail, cerr := logs.close()
		sr.Tail, err = tail, errors.Join(err, cerr)
	}
	if out.NotBegun {
		k.late, k.python = out, nil
		return box.Outcome{NotBegun: true}, false
	}
	err = errors.Join(err, r.results(sr, got))
	if alive {
		use, uerr := k.v.overrun()
		out.Evidence.Disk, err = use, errors.Join(err, uerr)
	}
	if err != nil && out.Evidence.Lost == "" {
		out.Evidence.Lost = err.Error()
	}
	sr.Stdout.Bytes, sr.Stdout.Truncated = min(out.Stdout.Bytes, s.MaxOutput), out.Stdout.Truncated
	sr.Stderr.Bytes, sr.Stderr.Truncated = min(out.Stderr.Bytes, s.MaxOutput), out.Stderr.Truncated
	sr.DurationMs, sr.StartupMs = out.Duration.Milliseconds(), out.Startup.Milliseconds()
	sr.Usage = Usage{PeakMemoryBytes: out.Stats.PeakMemory, CPUMs: out.Stats.CPU.Milliseconds(), PeakPids: out.Stats.PeakPids}
	sr.EngineNote = out.Note
	if k.way != nil {
		now := k.way.proxy.Ledger.Records()
		k.way.told(sr, fresh(k.seen, now))
		k.seen = now
	}
	return out, alive && err == nil
}

// fresh are the requests that were made since some were told.
func fresh(told, now []egress.Record) (out []egress.Record) {
	key := func(r egress.Record) egress.Record { r.Count, r.BytesIn, r.BytesOut = 0, 0, 0; return r }
	before := make(map[egress.Record]egress.Record, len(told))
	for _, r := range told {
		before[key(r)] = r
	}
	for _, r := range now {
		was := before[key(r)]
		// Of one that became another kind of request since there are fewer than there were.
		r.Count -= min(was.Count, r.Count)
		r.BytesIn, r.BytesOut = r.BytesIn-min(was.BytesIn, r.BytesIn), r.BytesOut-min(was.BytesOut, r.BytesOut)
		if r.Count > 0 || r.BytesIn > 0 || r.BytesOut > 0 {
			out = append(out, r)
		}
	}
	return out
}

// shut ends the kernel's box, if it is there still. What went on in it since the
// last cell is told by tell.
func (k *kernel) shut() {
	if k.python != nil {
		k.late, k.python = k.python.Close(), nil
	}
}

// close takes the kernel's box away.
func (k *kernel) close() error {
	k.shut()
	if k.group == nil {
		return nil
	}
	return k.group.Close()
}

// tell tells a cell what went on when none ran, of which it was the last one. What a
// cell left running can do there all that it could do in a cell, so it is judged as
// if it had: ev with that is what there is to judge.
func (k *kernel) tell(s PlanStep, sr *StepResult, ev box.Evidence) box.Evidence {
	more := k.late
	k.late = box.Outcome{}
	if k.way != nil {
		now := k.way.proxy.Ledger.Records()
		var rest StepResult
		k.way.told(&rest, fresh(k.seen, now))
		k.seen = now
		sr.Egress = slices.Clone(sr.Egress)
		for _, e := range rest.Egress {
			sr.Egress = merge(sr.Egress, e)
		}
	}
	u := &sr.Usage
	u.PeakMemoryBytes, u.PeakPids = max(u.PeakMemoryBytes, more.Stats.PeakMemory), max(u.PeakPids, more.Stats.PeakPids)
	u.CPUMs += more.Stats.CPU.Milliseconds()
	if more.Note != "" {
		sr.EngineNote = more.Note
	}
	if more.NoRoute > 0 {
		for _, n := range k.r.hints(s, sr, k.way, box.Outcome{NoRoute: more.NoRoute}) {
			if !slices.Contains(sr.Notes, n) {
				sr.Notes = append(sr.Notes, n)
			}
		}
	}
	return ev.With(more.Evidence)
}

// alone judges the first cell of a kernel, whose process ended before it began: there
// is no other that could be told what that did. It did not run, so it cannot pass;
// where all there is would let it, ok is false.
func (k *kernel) alone(s PlanStep, sr *StepResult) (ev box.Evidence, ok bool) {
	ev, k.late.Evidence = k.late.Evidence, box.Evidence{}
	ev = k.tell(s, sr, ev)
	judge(sr, s, ev)
	return ev, sr.Status != StatusPassed
}

// conclude judges what the cells wrote, all of them together, and keeps or drops
// it. It is listed with the last cell that ran: what they share an interpreter for
// is that one can leave something running that writes while another one runs, so
// nobody can say for certain whose a change is.
func (k *kernel) conclude(ctx context.Context, cells []PlanStep, srs []*StepResult, last int, ev box.Evidence, lost error) {
	r, s, sr := k.r, cells[last], srs[last]
	ev = k.tell(s, sr, ev)
	use, err := k.v.used(ctx)
	err = errors.Join(lost, err)
	ev.Disk = use
	sr.Usage.DiskBytes, sr.Usage.DiskInodes, sr.Limits.DiskBy = max(use.UsedBytes, 0), max(use.UsedInodes, 0), use.By
	w, unlisted, rerr := r.review(ctx, k.v, s, sr)
	if err = errors.Join(err, rerr); err != nil && ev.Lost == "" {
		ev.Lost = err.Error()
	}
	judge(sr, s, ev)
	if unlisted != "" {
		if sr.Status == StatusPassed { // nothing of it can be committed
			sr.Status, sr.Reason = StatusCancelled, "the run was cancelled when this step had ended"
		}
		sr.Reason += "; " + unlisted
	}
	if k.way != nil {
		k.way.advise(sr, s, k.seen)
	}
	whole := StepResult{ID: sr.ID, Status: StatusPassed, Violations: sr.Violations, Workspace: "unchanged"}
	ran := 0
	for _, one := range srs {
		if one.Status == StatusSkipped {
			continue
		}
		ran++
		if one.Fault != nil {
			whole.Fault = one.Fault // of an expected one nothing is committed either
		}
		switch {
		case one.Status == StatusPassed:
		case one.Status != StatusFailed, whole.Status == StatusPassed:
			whole.Status = one.Status // failed can be kept, the others cannot
		}
	}
	k.v.id = sr.ID
	status := whole.Status
	r.conclude(ctx, k.v, s, &whole, w)
	if whole.Status != status {
		sr.Status, sr.Reason, sr.Excused = whole.Status, whole.Reason, whole.Excused
	}
	sr.Violations = whole.Violations
	for i := range srs {
		if srs[i].Status == StatusSkipped {
			continue
		}
		srs[i].WorkspaceBy = whole.WorkspaceBy
		srs[i].dropped = whole.Workspace == "discarded" && w.changes > 0
		if srs[i].Workspace = whole.Workspace; w.changes > 0 && ran > 1 && i != last {
			srs[i].Notes = append(srs[i].Notes, fmt.Sprintf("what the cells of the kernel %s wrote is one change, listed with the last of them that ran: %s", cells[i].Kernel, sr.ID))
		}
	}
}
