package steps

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/egress"
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// Runner runs a plan: one box after the other, each judged as it ends.
type Runner struct {
	Engine box.Engine
	// Limits makes control groups; nil where this host has none to give, which
	// the caller has found out to be acceptable to every step.
	Limits *limits.Manager
	// Guard judges host paths that a box wants to see.
	Guard     *Guard
	Workspace string // real path
	Out       string // report folder, prepared, outside the workspace
	Log       *gha.Log
	Masker    *gha.Masker
	// Getenv looks up the caller's variables for passEnv.
	Getenv func(string) (string, bool)
	// BoxPath and CABundle describe image host as boxes see it.
	BoxPath  []string
	CABundle string
	// ImageCABundle is what other images trust besides their own; usually "".
	ImageCABundle string
	// NewProxy makes the proxy of one step; tests give it a network of their own.
	NewProxy func(egress.Policy, *egress.Ledger) *egress.Proxy
	// EgressLog takes a line of JSON for every request of every step.
	EgressLog io.Writer
	Now       func() time.Time
	// snapshot lists the workspace; nil is workspace.Snapshot. A test cannot
	// make a folder that takes as long to list as an attacker can.
	snapshot snapshot
}

type snapshot func(ctx context.Context, root string, prev *workspace.Tree, o workspace.Options) (*workspace.Tree, error)

// Run runs every step of the plan and fills in what happened. It returns when
// nothing of any step is alive. Cancelling the context ends the running box;
// the steps not begun are then cancelled too.
func (r *Runner) Run(ctx context.Context, p *Plan, res *Result) {
	begun := r.Now()
	res.StartedAt = begun.UTC().Format(time.RFC3339)
	t := &tracker{root: r.Workspace, snapshot: r.snapshot}
	if t.snapshot == nil {
		t.snapshot = workspace.Snapshot
	}
	done := map[string]*StepResult{}
	total := len(p.Steps)
	for _, s := range order(p.Steps) {
		r.Log.Progress(len(done), total, s.ID)
		sr := r.step(ctx, *s, t, done, begun)
		mask(r.Masker, sr)
		done[s.ID] = sr
		r.Log.Say(oneLine(sr, len(done), total))
	}
	for _, s := range p.Steps {
		res.Steps = append(res.Steps, *done[s.ID])
	}
	r.Log.Progress(total, total, "")
	res.DurationMs = r.Now().Sub(begun).Milliseconds()
	res.Verdict = verdict(res.Steps)
	if ctx.Err() != nil { // however far the steps had come
		res.Verdict = VerdictCancelled
	}
}

// order is the order of the list, except that a step waits for what it needs:
// always the first of the list whose needs have all been run. Load has refused
// cycles and unknown ids.
func order(list []PlanStep) []*PlanStep {
	at := make(map[string]int, len(list))
	for i := range list {
		at[list[i].ID] = i
	}
	waits := make([]int, len(list))    // how many needs are still to run
	wanted := make([][]int, len(list)) // who needs this one
	var ready indexHeap
	for i := range list {
		for _, n := range list[i].Needs {
			waits[i]++
			wanted[at[n]] = append(wanted[at[n]], i)
		}
		if waits[i] == 0 {
			heap.Push(&ready, i)
		}
	}
	out := make([]*PlanStep, 0, len(list))
	for ready.Len() > 0 {
		i := heap.Pop(&ready).(int)
		out = append(out, &list[i])
		for _, w := range wanted[i] {
			if waits[w]--; waits[w] == 0 {
				heap.Push(&ready, w)
			}
		}
	}
	return out
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

// step runs one step, or says why it does not run.
func (r *Runner) step(ctx context.Context, s PlanStep, t *tracker, done map[string]*StepResult, begun time.Time) *StepResult {
	info := r.Engine.Info()
	sr := newStepResult(s, info)
	if r.Limits != nil {
		sr.Unobserved = append(sr.Unobserved, r.Limits.Unseen()...)
	}
	sr.StartedMs = r.Now().Sub(begun).Milliseconds()
	if ctx.Err() != nil {
		return notBegun(sr)
	}
	for _, n := range s.Needs {
		if d := done[n]; d == nil || d.Status != StatusPassed {
			sr.Status, sr.Reason = StatusSkipped, fmt.Sprintf("it needs %s, which did not pass", n)
			sr.Excused = s.ContinueOnErr
			return sr
		}
	}
	if s.TrackFiles {
		err := t.before(ctx)
		if err != nil && ctx.Err() != nil {
			return notBegun(sr)
		}
		if err != nil {
			return noVerdict(sr, fmt.Errorf("list the workspace before the step: %w", err))
		}
	} else {
		t.stale()
	}
	if why := r.recheck(s); why != "" {
		judge(sr, s, box.Evidence{StartupFailure: why})
		return sr
	}
	out, way, err := r.box(ctx, s, sr)
	// Whatever went wrong, what was measured is told.
	sr.DurationMs, sr.StartupMs = out.Duration.Milliseconds(), out.Startup.Milliseconds()
	sr.Usage = Usage{PeakMemoryBytes: out.Stats.PeakMemory, CPUMs: out.Stats.CPU.Milliseconds(), PeakPids: out.Stats.PeakPids}
	sr.EngineNote = out.Note
	if way != nil {
		way.report(sr, s)
	}
	unlisted := ""
	if s.TrackFiles {
		lerr := r.list(ctx, t, sr)
		switch {
		case errors.Is(lerr, context.DeadlineExceeded):
			unlisted = "what it changed is not listed"
		case errors.Is(lerr, workspace.ErrLimit):
			// The step made so much that it cannot be listed. That is its doing.
			sr.Violations = append(sr.Violations, Violation{Type: "workspace_limit", Message: lerr.Error()})
		case lerr != nil:
			err = errors.Join(err, fmt.Errorf("list the workspace after the step: %w", lerr))
		}
		if derr := disarm(r.Workspace, sr); derr != nil {
			err = errors.Join(err, derr)
		}
		if len(sr.Violations) > 0 {
			t.stale() // what was taken away is no change of the next step
		}
	}
	if err != nil && out.Evidence.Lost == "" {
		out.Evidence.Lost = err.Error()
	}
	judge(sr, s, out.Evidence)
	if unlisted != "" && sr.Reason != "" {
		sr.Reason += "; "
	}
	sr.Reason += unlisted
	return sr
}

func notBegun(sr *StepResult) *StepResult {
	sr.Status, sr.Reason = StatusCancelled, "the run was cancelled before this step began"
	return sr
}

// listAfterCancel bounds the listing of changes once a run is cancelled.
const listAfterCancel = 1500 * time.Millisecond

// list lists what the step changed. Not within the caller's context: what a
// cancelled step changed is still told, if it can be found out in the time that
// a cancel has.
func (r *Runner) list(ctx context.Context, t *tracker, sr *StepResult) error {
	own, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(listAfterCancel):
			end(context.DeadlineExceeded)
		case <-own.Done():
		}
	})
	defer stop()
	if err := t.after(own, sr); err != nil {
		if cause := context.Cause(own); cause != nil {
			return cause
		}
		return err
	}
	return nil
}

// recheck judges the host paths of a step once more, just before its box is
// built. An earlier step can have put a link, or what was missing when the file
// was checked, in the place of a mount's source or of a root folder that lies in
// the workspace. No step is running now, so what is judged is what is mounted.
func (r *Runner) recheck(s PlanStep) (why string) {
	// A step that can write the folder above could have put another in its place.
	if real, err := filepath.EvalSymlinks(r.Workspace); err != nil || real != r.Workspace {
		return fmt.Sprintf("the workspace %s is no longer the folder it was when the run began", r.Workspace)
	}
	for _, m := range s.Mounts {
		if why := r.same(m.Source); why != "" {
			return "mounts: " + why
		}
	}
	if s.Root.Kind == box.RootDir {
		if why := r.same(s.Root.Dir); why != "" {
			return "image: rootfs: " + why
		}
	}
	return ""
}

// same says why a path is not, or no longer, what the plan means. The plan has
// real paths: one that now leads elsewhere was replaced by a step, and to follow
// it would give the next step whatever folder the first one chose.
func (r *Runner) same(path string) (why string) {
	real, why := r.Guard.Source(path)
	switch {
	case why != "":
		return path + " " + why
	case real != path:
		return fmt.Sprintf("%s now leads to %s; it did not when the file was checked", path, real)
	}
	return ""
}

// box runs the step in its box and keeps its output.
func (r *Runner) box(ctx context.Context, s PlanStep, sr *StepResult) (out box.Outcome, w *way, err error) {
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
	logs := newLogs(s.ID, s.MaxOutput, r.Masker, r.Log)
	opened := make(chan error, 1)
	go func() { opened <- logs.open(r.Out) }()
	await := sync.OnceValue(func() error { return <-opened })
	sr.Stdout.Path, sr.Stderr.Path = logs.paths()
	job := box.Job{
		Engine: r.Engine, Group: group,
		Ready: await, Stdout: logs.stdout(), Stderr: logs.stderr(), MaxOutput: s.MaxOutput, Slack: int64(r.Masker.Longest()),
	}
	job.Spec, sr.PassedEnv = r.spec(s, w)
	job.CallerPath, _ = r.Getenv("PATH")
	if w != nil {
		job.Proxy, job.Forwards, job.ExpectDenied = w.proxy, w.forwards, w.expected
	}
	out = box.Run(ctx, job)
	err = await()
	tail, cerr := logs.close()
	sr.Tail, err = tail, errors.Join(err, cerr)
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

// spec also gives the names of the variables that were there to be passed.
func (r *Runner) spec(s PlanStep, w *way) (b box.Spec, passed []string) {
	b = box.Spec{
		ID: s.ID, Argv: s.Command, Workdir: s.Workdir, Root: s.Root, Workspace: r.Workspace,
		Mounts: s.Mounts, Tmpfs: s.Tmpfs, ShmBytes: s.ShmBytes,
		CapDrop: s.CapDrop, Profile: s.Profile,
		MemoryBytes: s.MemoryMb << 20, Pids: s.Pids, CPUs: s.CPUs, TimeoutS: s.TimeoutS, RequireLimits: s.RequireLimits,
	}
	if l, ok := languages[s.Language]; ok && len(s.Command) == 0 {
		b.Script = &box.Script{Name: "script" + l.suffix, Text: s.Script}
		b.Argv = append(append([]string{}, l.argv...), box.StepDir+"/"+b.Script.Name)
	}
	env := box.Environment{Path: r.BoxPath, CABundle: r.CABundle}
	if s.Root.Kind == box.RootDir {
		env.CABundle = r.ImageCABundle
	}
	switch {
	case s.Network:
		b.Network = box.NetworkHost
	case s.hasWay():
		b.Network = box.NetworkAllowlist
		env.Egress = egress.Environ(box.ProxyPort)
	}
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

// tracker keeps the last known state of the workspace, so that each step costs
// one walk.
type tracker struct {
	snapshot snapshot
	root     string
	last     *workspace.Tree
	fresh    bool // last is the state as it is now
}

func (t *tracker) stale() { t.fresh = false }

func (t *tracker) before(ctx context.Context) error {
	if t.fresh {
		return nil
	}
	tree, err := t.snapshot(ctx, t.root, t.last, workspace.Options{})
	if err != nil {
		return err
	}
	t.last, t.fresh = tree, true
	return nil
}

// setID is a file's set-user-id and set-group-id bits.
const setID = 0o6000

// disarm takes set-id bits off what the step made or changed, and says so. On
// disk these files are the caller's own: run by another account of the machine,
// a set-id one would run as the caller. Inside the box the bits do nothing.
func disarm(root string, sr *StepResult) error {
	var dir *os.Root
	for i := range sr.Files {
		f := &sr.Files[i]
		mode, err := strconv.ParseUint(f.Mode, 8, 32)
		if err != nil || f.Type != "file" || f.Change == workspace.Deleted || mode&setID == 0 {
			continue
		}
		sr.Violations = append(sr.Violations, Violation{Type: "set_id",
			Message: fmt.Sprintf("%s was given set-id bits (mode %s); they were taken away again", strconv.Quote(f.Path), f.Mode)})
		if dir == nil {
			if dir, err = os.OpenRoot(root); err != nil {
				return err
			}
			defer dir.Close()
		}
		// The step is dead, so what is looked at is what is changed.
		path := workspace.Change(*f).RawPath()
		info, err := dir.Lstat(path)
		if err == nil && info.Mode().IsRegular() {
			err = dir.Chmod(path, info.Mode().Perm())
		}
		if err != nil {
			return fmt.Errorf("take the set-id bits off %q: %w", f.Path, err)
		}
	}
	return nil
}

// maxChangeBytes bounds what one step's list keeps in memory and in the report, in
// bytes of paths. filesTotal counts on past it.
const maxChangeBytes = 256 << 20

// after lists what changed since before into the result.
func (t *tracker) after(ctx context.Context, sr *StepResult) error {
	t.fresh = false
	tree, err := t.snapshot(ctx, t.root, t.last, workspace.Options{})
	if err != nil {
		return err
	}
	room := maxChangeBytes
	for c := range workspace.Changes(t.last, tree) {
		sr.FilesTotal++
		if room -= len(c.Path) + len(c.Target) + 256; room >= 0 {
			sr.Files = append(sr.Files, FileChange(c))
		}
	}
	t.last, t.fresh = tree, true
	return nil
}
