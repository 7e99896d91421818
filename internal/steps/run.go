package steps

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/cell"
	"github.com/untrusted-steps/untrusted-steps/internal/egress"
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/commit"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/delta"
)

// Runner runs a plan: one box after the other, each judged as it ends.
type Runner struct {
	// Engine builds the boxes of steps that name none; nil where each names one.
	Engine box.Engine
	// Engines are those that steps name.
	Engines map[string]box.Engine
	// Limits makes control groups; nil where this host has none to give, which
	// the caller has found out to be acceptable to every step.
	Limits *limits.Manager
	// Guard judges host paths that a box wants to see.
	Guard     *Guard
	Workspace string // real path
	// Tree is that workspace as steps see and change it; nil opens it for one run.
	Tree *Tree
	// Jobs is how many steps may run at once; 0 is one.
	Jobs int
	// OnlyReport: Tree keeps nothing, and results say so.
	OnlyReport bool
	// Tools are the folders of the host that boxes with image host see read-only;
	// a link into one may be committed. Real follows links of the host.
	Tools  []string
	Real   func(path string) string
	Out    string // report folder, prepared, outside the workspace
	Log    *gha.Log
	Masker *gha.Masker
	// Getenv looks up the caller's variables for passEnv.
	Getenv func(string) (string, bool)
	// BoxPath and CABundle describe image host as boxes see it.
	BoxPath  []string
	CABundle string
	// ImageCABundle is what other images trust besides their own; usually "".
	ImageCABundle string
	// Images gives OCI images; nil where no step has one.
	Images Images
	// SetupStore is a folder of the caller's own in which what setups made is kept
	// from run to run; empty keeps nothing.
	SetupStore string
	got        map[string]gotten // by origin
	gotMu      sync.Mutex
	// NewProxy makes the proxy of one step; tests give it a network of their own.
	NewProxy func(egress.Policy, *egress.Ledger) *egress.Proxy
	// Calls: each run is one call of a program's, and the log counts no steps.
	Calls bool
	// Tee gives writers for a step's output as it comes, masked and cut like its logs;
	// nil, or a nil writer, is nobody. They must not hold anything up for long: the
	// step waits for them.
	Tee func(id string) (stdout, stderr io.Writer)
	// Unmasked: what a step prints on its stdout is in the file of its log as it is. It
	// is nowhere else so, Tee has none of it, and whoever asks for it shows it to nobody.
	Unmasked bool
	// Warm has boxes of cells ready; nil has none. It is closed before Tree.
	Warm *Warm
	// EgressLog takes a line of JSON for every request of every step.
	EgressLog io.Writer
	Now       func() time.Time
	// read says what a step changed; nil is the view's own. A test cannot make a
	// folder that takes as long to read as an attacker can.
	read func(ctx context.Context, v *view) (*delta.Delta, error)
	made *setups // nil until there is one
	// inlined and told bound what the results of cells have in the report of this run.
	inlined, told atomic.Int64
}

// Again is a runner for another plan on the same host and workspace, which may run
// at the same time.
func (r *Runner) Again() *Runner {
	r.gotMu.Lock()
	defer r.gotMu.Unlock()
	if r.made == nil {
		r.made = &setups{}
	}
	return &Runner{
		made: r.made, SetupStore: r.SetupStore, Engine: r.Engine, Engines: r.Engines, Limits: r.Limits, Guard: r.Guard, Workspace: r.Workspace, Tree: r.Tree, Jobs: r.Jobs, OnlyReport: r.OnlyReport,
		Tools: r.Tools, Real: r.Real, Out: r.Out, Log: r.Log, Masker: r.Masker, Getenv: r.Getenv, BoxPath: r.BoxPath, CABundle: r.CABundle,
		ImageCABundle: r.ImageCABundle, Images: r.Images, got: maps.Clone(r.got), NewProxy: r.NewProxy, Calls: r.Calls, Tee: r.Tee, Unmasked: r.Unmasked, Warm: r.Warm, EgressLog: r.EgressLog,
		Now: r.Now, read: r.read,
	}
}

// Run runs every step of the plan and fills in what happened. It returns when
// nothing of any step is alive. Cancelling the context ends the running box;
// the steps not begun are then cancelled too.
func (r *Runner) Run(ctx context.Context, p *Plan, res *Result) {
	begun := r.Now()
	res.StartedAt = begun.UTC().Format(time.RFC3339)
	done := map[string]*StepResult{}
	if r.Tree == nil {
		t, notes, err := OpenTree(context.WithoutCancel(ctx), r.Workspace, TreeOptions{OnlyShow: r.OnlyReport})
		if err != nil {
			res.Verdict = VerdictError
			res.Notes = append(res.Notes, err.Error())
			return
		}
		res.Notes = append(res.Notes, notes...)
		r.Tree = t
		defer t.Close()
	}
	r.all(ctx, p.Steps, done, begun)
	for _, s := range p.Steps {
		res.Steps = append(res.Steps, *done[s.ID])
	}
	r.Log.Progress(len(p.Steps), len(p.Steps), "")
	res.DurationMs = r.Now().Sub(begun).Milliseconds()
	res.Verdict = VerdictOf(res.Steps)
	if ctx.Err() != nil { // however far the steps had come
		res.Verdict = VerdictCancelled
	}
}

// all runs the steps, at most Jobs at once. A step begins when all it needs has
// ended, in the order of the list.
func (r *Runner) all(ctx context.Context, list []PlanStep, done map[string]*StepResult, begun time.Time) {
	total := len(list)
	units, kernels := together(list)
	todo := newSchedule(units)
	ended := make(chan []*StepResult)
	running := 0
	finish := func(srs ...*StepResult) {
		for _, sr := range srs {
			mask(r.Masker, sr)
			done[sr.ID] = sr
			of := total
			if r.Calls {
				of = 0
			}
			r.Log.Show(oneLine(sr, len(done), of))
		}
		todo.finish(srs[0].ID)
	}
	for len(done) < total {
		// What is kept below running steps grows until none runs.
		for running < max(r.Jobs, 1) && !(running > 0 && r.Tree.full()) {
			s := todo.next()
			if s == nil {
				break
			}
			if cells := kernels[s.ID]; len(cells) > 0 {
				srs, unmetBy := make([]*StepResult, len(cells)), make([]string, len(cells))
				for i, c := range cells {
					srs[i] = r.begin(c, begun)
					unmetBy[i] = unmetOutside(c, cells, done)
				}
				r.Log.Progress(len(done), total, s.ID)
				running++
				if n := todo.peek(); n != nil {
					r.Tree.Prepare(*n)
				}
				go func() {
					r.kernelStep(ctx, cells, srs, unmetBy, begun)
					ended <- srs
				}()
				continue
			}
			sr := r.begin(*s, begun)
			if ctx.Err() != nil {
				finish(notBegun(sr))
				continue
			}
			if why := unmet(*s, done); why != "" {
				finish(skip(sr, *s, why))
				continue
			}
			r.Log.Progress(len(done), total, s.ID)
			running++
			if n := todo.peek(); n != nil {
				r.Tree.Prepare(*n)
			}
			go func() {
				r.tries(ctx, *s, sr, begun)
				ended <- []*StepResult{sr}
			}()
		}
		if running > 0 {
			srs := <-ended
			running--
			r.undo(done, srs)
			finish(srs...)
		}
	}
}

// undo takes back what results say of steps whose changes did not get into the
// workspace after all.
func (r *Runner) undo(done map[string]*StepResult, last []*StepResult) {
	for id, err := range r.Tree.failures() {
		sr := done[id]
		for _, l := range last {
			if l.ID == id {
				sr = l
			}
		}
		if sr == nil { // it was a call's, whose result is told
			r.Tree.lose(err)
		} else {
			noVerdict(sr, err)
			if sr.Excused = false; !errors.Is(err, commit.ErrIncomplete) {
				sr.Workspace = "discarded"
			}
			sr.Reason = r.Masker.Lasting(sr.Reason)
		}
	}
}

// unmet says what is wrong with the first need of a step that is not met; "" if
// all are.
func unmet(s PlanStep, done map[string]*StepResult) (why string) {
	for _, n := range s.Needs {
		switch d := done[n]; {
		case d == nil || d.Status != StatusPassed:
			return fmt.Sprintf("it needs %s, which did not pass", n)
		case d.dropped:
			return fmt.Sprintf("it needs %s, which passed, and what its kernel wrote was dropped since another cell did not", n)
		}
	}
	return ""
}

// skip is the result of a step that is not to run.
func skip(sr *StepResult, s PlanStep, why string) *StepResult {
	sr.Status, sr.Reason, sr.Excused = StatusSkipped, why, s.ContinueOnErr
	return sr
}

// unmetOutside is that of a cell, of what it needs that is no cell of its kernel.
func unmetOutside(s PlanStep, cells []PlanStep, done map[string]*StepResult) string {
	s.Needs = slices.DeleteFunc(slices.Clone(s.Needs), func(id string) bool {
		return slices.ContainsFunc(cells, func(c PlanStep) bool { return c.ID == id })
	})
	return unmet(s, done)
}

// order is the order of the list, except that a step waits for what it needs:
// always the first of the list whose needs have all been run. Load has refused
// cycles and unknown ids.
func order(list []PlanStep) (out []*PlanStep) {
	units, kernels := together(list)
	todo := newSchedule(units)
	for s := todo.next(); s != nil; s = todo.next() {
		if cells := kernels[s.ID]; len(cells) > 0 {
			for i := range cells {
				out = append(out, &cells[i])
			}
		} else {
			out = append(out, s)
		}
		todo.finish(s.ID)
	}
	return out
}

// schedule hands out steps whose needs have ended.
type schedule struct {
	list   []PlanStep
	at     map[string]int
	waits  []int   // how many needs are still to end
	wanted [][]int // who needs this one
	ready  indexHeap
}

func newSchedule(list []PlanStep) *schedule {
	t := &schedule{list: list, at: make(map[string]int, len(list)), waits: make([]int, len(list)), wanted: make([][]int, len(list))}
	for i := range list {
		t.at[list[i].ID] = i
	}
	for i := range list {
		for _, n := range list[i].Needs {
			t.waits[i]++
			t.wanted[t.at[n]] = append(t.wanted[t.at[n]], i)
		}
		if t.waits[i] == 0 {
			heap.Push(&t.ready, i)
		}
	}
	return t
}

// next is the first of the list that can begin, nil if none can now.
func (t *schedule) next() *PlanStep {
	if t.ready.Len() == 0 {
		return nil
	}
	return &t.list[heap.Pop(&t.ready).(int)]
}

// peek is the step that will most likely begin after this one: the next one that
// can, or else the first that waits.
func (t *schedule) peek() *PlanStep {
	if t.ready.Len() > 0 {
		return &t.list[t.ready[0]]
	}
	for i, n := range t.waits {
		if n > 0 {
			return &t.list[i]
		}
	}
	return nil
}

// finish lets what needs a step begin.
func (t *schedule) finish(id string) {
	for _, w := range t.wanted[t.at[id]] {
		if t.waits[w]--; t.waits[w] == 0 {
			heap.Push(&t.ready, w)
		}
	}
}

// indexHeap gives the smallest index first.
type indexHeap []int

func (h indexHeap) Len() int           { return len(h) }
func (h indexHeap) Less(i, j int) bool { return h[i] < h[j] }
func (h indexHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *indexHeap) Push(x any)        { *h = append(*h, x.(int)) }
func (h *indexHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// begin is the result of a step that has not run.
func (r *Runner) begin(s PlanStep, begun time.Time) *StepResult {
	sr := newStepResult(s, r.EngineOf(s).Info())
	sr.ImageDigest = r.digest(s)
	if r.Limits != nil {
		sr.Unobserved = append(sr.Unobserved, r.Limits.Unseen()...)
	}
	sr.StartedMs = r.Now().Sub(begun).Milliseconds()
	return sr
}

// step runs one step once and fills in its result. Where more tries are left it
// says whether this one should be followed by another; then nothing of it is kept.
// bytes are what is left of the step's egressMaxBytes.
func (r *Runner) step(ctx context.Context, s PlanStep, bytes int64, sr *StepResult, more bool) (retry bool) {
	if s.Setup != "" {
		if why := r.Unbuildable(s); why != "" {
			judge(sr, s, box.Evidence{StartupFailure: why})
			return more && ctx.Err() == nil && again(sr)
		}
	}
	made, failed, err := r.prepareWithin(ctx, s, bytes, sr)
	s.EgressMaxBytes = bytes
	switch {
	case err != nil && ctx.Err() != nil:
		judge(sr, s, box.Evidence{Cancelled: true})
		return false
	case err != nil:
		noVerdict(sr, err)
		return false
	case failed != "":
		judge(sr, s, box.Evidence{StartupFailure: failed})
		return more && ctx.Err() == nil && again(sr)
	}
	var over *layer
	if made != nil {
		over = made.layer
	}
	var v *view
	k := r.warm(s, made)
	if k != nil {
		v = k.v
	} else {
		v, err = r.Tree.view(ctx, s, over)
	}
	if err != nil && ctx.Err() != nil {
		notBegun(sr)
		return false
	}
	if err != nil {
		noVerdict(sr, fmt.Errorf("give the step a workspace of its own: %w", err))
		return false
	}
	why := r.recheck(ctx, s)
	if why == "" {
		why = r.Unbuildable(s)
	}
	if why != "" {
		if k != nil {
			_ = k.away()
		} else {
			v.drop()
		}
		if ctx.Err() != nil { // and what is wrong may be that it could not be looked at
			notBegun(sr)
			return false
		}
		judge(sr, s, box.Evidence{StartupFailure: why})
		return more && ctx.Err() == nil && again(sr)
	}
	if made != nil && made.deps && s.DepsReadonly {
		v.protect = []string{depsTarget}
	}
	var out box.Outcome
	var way *way
	if k != nil {
		out, err = r.boxWarm(ctx, k, s, sr)
	} else {
		out, way, err = r.box(ctx, s, sr, v)
	}
	// Whatever went wrong, what was measured is told.
	sr.DurationMs, sr.StartupMs = out.Duration.Milliseconds(), out.Startup.Milliseconds()
	sr.Usage = Usage{PeakMemoryBytes: out.Stats.PeakMemory, CPUMs: out.Stats.CPU.Milliseconds(), PeakPids: out.Stats.PeakPids}
	sr.EngineNote = out.Note
	if way != nil {
		way.report(sr, s)
	}
	use, derr := v.used(ctx)
	if derr != nil {
		err = errors.Join(err, derr)
	}
	out.Evidence.Disk = use
	sr.Usage.DiskBytes, sr.Usage.DiskInodes, sr.Limits.DiskBy = max(use.UsedBytes, 0), max(use.UsedInodes, 0), use.By
	w, unlisted, rerr := r.review(ctx, v, s, sr)
	err = errors.Join(err, rerr)
	if err != nil && out.Evidence.Lost == "" {
		out.Evidence.Lost = err.Error()
	}
	judge(sr, s, out.Evidence)
	if unlisted != "" {
		if sr.Status == StatusPassed { // nothing of it can be committed
			sr.Status, sr.Reason = StatusCancelled, "the run was cancelled when this step had ended"
		}
		sr.Reason += "; " + unlisted
	}
	if more && ctx.Err() == nil && again(sr) {
		if sr.WorkspaceBy = v.how(); w.changes > 0 {
			sr.Workspace = "discarded"
		}
		v.drop()
		return true
	}
	sr.Notes = append(sr.Notes, r.hints(s, sr, way, out)...)
	if note := depsPrograms(s, sr, v.over); note != "" {
		sr.Notes = append(sr.Notes, note)
	}
	r.conclude(ctx, v, s, sr, w)
	return false
}

// hints adds to what is known of a step what is known of the caller's machine.
func (r *Runner) hints(s PlanStep, sr *StepResult, w *way, out box.Outcome) []string {
	notes := hints(s, sr, out)
	if name := missing(s, sr); name != "" {
		path, _ := r.Getenv("PATH")
		spec, _ := r.spec(s, w)
		if hint := box.NotFound(spec, name, path); hint != "" {
			notes = append(notes, hint)
		}
	}
	return notes
}

func notBegun(sr *StepResult) *StepResult {
	sr.Status, sr.Reason = StatusCancelled, "the run was cancelled before this step began"
	return sr
}

// recheck judges the host paths of a step once more, just before its box is
// built. An earlier step can have put a link, or what was missing when the file
// was checked, in the place of a mount's source or of a root folder that lies in
// the workspace. The step's view is open: until it is closed no other step's
// changes get into the workspace, so what is judged is what is mounted. Where
// steps have copies they do, and engines open what is named here past no link. What a
// step could write to is searched for what it must not.
func (r *Runner) recheck(ctx context.Context, s PlanStep) (why string) {
	// A step that can write the folder above could have put another in its place.
	if real, err := filepath.EvalSymlinks(r.Workspace); err != nil || real != r.Workspace {
		return fmt.Sprintf("the workspace %s is no longer the folder it was when the run began", r.Workspace)
	}
	for _, m := range s.Mounts {
		if why := r.same(m.Source); why != "" {
			return "mounts: " + why
		}
		if !m.ReadOnly {
			if why := anySetID(ctx, m.Source, mountBounds); why != "" {
				return "mounts: " + why
			}
		}
		if r.Tree == nil {
			continue
		}
		if why := r.Tree.shows(m.Source, m.ReadOnly); why != "" {
			return "mounts: " + m.Source + " " + why
		}
	}
	if s.Root.Kind == box.RootDir && s.Origin.None() {
		if why := r.same(s.Root.Dir); why != "" {
			return "image: rootfs: " + why
		}
		if r.Tree != nil {
			if why := r.Tree.shows(s.Root.Dir, true); why != "" {
				return "image: rootfs: " + s.Root.Dir + " " + why
			}
		}
	}
	return ""
}

// same says why a path is not, or no longer, what the plan means. The plan has
// real paths: one that now leads elsewhere was replaced by a step, and to follow
// it would give the next step whatever folder the first one chose.
func (r *Runner) same(path string) (why string) {
	real, why := r.Guard.Mount(path)
	switch {
	case why != "":
		return path + " " + why
	case real != path:
		return fmt.Sprintf("%s now leads to %s; it did not when the file was checked", path, real)
	}
	return ""
}

// box runs the step in its box and keeps its output.
func (r *Runner) box(ctx context.Context, s PlanStep, sr *StepResult, v *view) (out box.Outcome, w *way, err error) {
	group := limits.None()
	if r.Limits != nil {
		group, err = r.Limits.New(s.ID, limits.Caps{MemoryBytes: s.MemoryMb << 20, Pids: s.Pids, CPUs: s.CPUs})
		if err != nil {
			return out, nil, fmt.Errorf("make the step's control group: %w", err)
		}
		defer func() { err = errors.Join(err, group.Close()) }()
	}
	sr.Limits.Enforced, sr.Limits.By = group.Enforced(), group.By()
	if sr.Limits.Enforced == nil {
		sr.Limits.Enforced = []string{}
	}
	if in := sr.Limits.Enforced; s.RequireLimits && !(slices.Contains(in, "memory") && slices.Contains(in, "pids")) {
		return out, nil, fmt.Errorf("requireLimits: of memory and pids only %v are in force", sr.Limits.Enforced)
	}
	if w, err = r.openWay(s); err != nil {
		return out, nil, err
	}
	// The files are made while the box is built: a disk can take its time.
	name := s.ID
	if s.InSetup {
		name += "/" + setupFolder
	}
	logs := newLogs(name, s.MaxOutput, r.Masker, r.Log)
	switch {
	case s.InSetup:
	case r.Unmasked:
		logs.masks[0] = gha.NewMaskWriter(logs.files[0], nil)
	case r.Tee != nil:
		logs.files[0].also, logs.files[1].also = r.Tee(s.ID)
	}
	opened := make(chan error, 1)
	go func() { opened <- logs.open(r.Out) }()
	await := sync.OnceValue(func() error { return <-opened })
	sr.Stdout.Path, sr.Stderr.Path = logs.paths()
	job := box.Job{
		Engine: r.EngineOf(s), Group: group,
		Ready: await, Stdout: logs.stdout(), Stderr: logs.stderr(), MaxOutput: s.MaxOutput, Slack: int64(r.Masker.Slack()),
	}
	job.Spec, sr.PassedEnv = r.spec(s, w)
	v.show(&job.Spec)
	watched, stop := context.WithCancel(ctx)
	defer stop()
	v.full = v.room.Watch(watched)
	job.Full = v.full
	job.CallerPath, _ = r.Getenv("PATH")
	if w != nil {
		job.Proxy, job.Forwards, job.ExpectDenied = w.proxy, w.forwards, w.expected
	}
	var wire *cell.Wire
	if s.Code != "" {
		if wire, err = cell.OpenWire(); err != nil {
			return out, w, errors.Join(err, await())
		}
		job.Files = wire.Files()
		err = wire.Send(cell.Cell{Name: s.ID, Code: s.Code, Last: true})
	}
	if err == nil {
		out = box.Run(ctx, job)
	}
	err = errors.Join(err, await())
	tail, cerr := logs.close()
	sr.Tail, err = tail, errors.Join(err, cerr)
	if wire != nil {
		err = errors.Join(err, r.results(sr, wire.Close()))
	}
	sr.Stdout.Bytes, sr.Stdout.Truncated = min(out.Stdout.Bytes, s.MaxOutput), out.Stdout.Truncated
	sr.Stderr.Bytes, sr.Stderr.Truncated = min(out.Stderr.Bytes, s.MaxOutput), out.Stderr.Truncated
	return out, w, err
}

// Spec is what the engine will be asked to build for a step, so that it can be
// asked first whether it can. Nothing of the engine's is needed for it.
func (r *Runner) Spec(s PlanStep) (box.Spec, error) {
	w, _, err := wayOf(s)
	if err != nil {
		return box.Spec{}, err
	}
	b, _ := r.spec(s, w)
	return b, nil
}

// SetupSpec is the same for the setup of a step; false where it has none.
func (r *Runner) SetupSpec(s PlanStep) (b box.Spec, has bool, err error) {
	if s.Setup == "" {
		return b, false, nil
	}
	b, err = r.Spec(s.setupStep())
	return b, true, err
}

// spec also gives the names of the variables that were there to be passed.
func (r *Runner) spec(s PlanStep, w *way) (b box.Spec, passed []string) {
	b = box.Spec{
		ID: s.ID, Argv: s.Command, Workdir: s.Workdir, Workspace: r.Workspace,
		Mounts: s.Mounts, Tmpfs: s.Tmpfs, ShmBytes: s.ShmBytes,
		CapDrop: s.CapDrop, Profile: s.Profile, AppArmor: s.AppArmor, KernProfiles: s.KernProfiles,
		MemoryBytes: s.MemoryMb << 20, Pids: s.Pids, CPUs: s.CPUs, TimeoutS: s.TimeoutS, RequireLimits: s.RequireLimits,
	}
	if s.Code != "" {
		b.Script, b.Argv = cell.Script(), cell.Argv()
	} else if l, ok := languages[s.Language]; ok && len(s.Command) == 0 {
		b.Script = &box.Script{Name: "script" + l.suffix, Text: s.Script}
		b.Argv = append(append([]string{}, l.argv...), box.StepDir+"/"+b.Script.Name)
	}
	env := box.Environment{Path: r.BoxPath, CABundle: r.CABundle}
	if s.Root.Kind == box.RootDir {
		env.CABundle = r.ImageCABundle
	}
	b.Root = r.rooted(s, &env)
	if s.Workdir == workdirOfImage {
		b.Workdir = r.imageWorkdir(s)
	}
	switch {
	case s.Network:
		b.Network = box.NetworkHost
	case s.hasWay():
		b.Network = box.NetworkAllowlist
		env.Egress = egress.Environ(box.ProxyPort)
	}
	env.Step = setupEnviron(s)
	for _, e := range s.Env {
		env.Step = append(env.Step, e.Name+"="+e.Value)
	}
	for _, name := range s.PassEnv {
		if v, ok := r.Getenv(name); ok {
			env.Step = append(env.Step, name+"="+v)
			passed = append(passed, name)
		}
	}
	b.Env = env.List()
	w.show(&b)
	return b, passed
}

// languages are the interpreters of run, each looked up on the box's PATH.
var languages = map[string]struct {
	argv   []string
	suffix string
}{
	"sh":     {[]string{"sh", "-e"}, ".sh"},
	"bash":   {[]string{"bash", "-eo", "pipefail"}, ".sh"},
	"python": {[]string{"python3"}, ".py"},
	"node":   {[]string{"node"}, ".js"},
}
