package steps

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
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
	// NewProxy makes the proxy of one step.
	NewProxy func(allow []egress.Rule) *egress.Proxy
	Now      func() time.Time
}

// Run runs every step of the plan and fills in what happened. It returns when
// nothing of any step is alive. Cancelling the context ends the running box;
// the steps not begun are then cancelled too.
func (r *Runner) Run(ctx context.Context, p *Plan, res *Result) {
	begun := r.Now()
	res.StartedAt = begun.UTC().Format(time.RFC3339)
	t := &tracker{root: r.Workspace}
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
		sr.Status, sr.Reason = StatusCancelled, "the run was cancelled before this step began"
		return sr
	}
	for _, n := range s.Needs {
		if d := done[n]; d == nil || d.Status != StatusPassed {
			sr.Status, sr.Reason = StatusSkipped, fmt.Sprintf("it needs %s, which did not pass", n)
			sr.Excused = s.ContinueOnErr
			return sr
		}
	}
	if s.TrackFiles {
		if err := t.before(ctx); err != nil {
			return noVerdict(sr, fmt.Errorf("list the workspace before the step: %w", err))
		}
	} else {
		t.stale()
	}
	if why := r.recheck(&s); why != "" {
		judge(sr, s, box.Evidence{StartupFailure: why})
		return sr
	}
	out, proxy, err := r.box(ctx, s, sr)
	if err != nil {
		noVerdict(sr, err)
		if out.Evidence.Cancelled { // told to stop: that comes before what went wrong
			sr.Status, sr.Reason = StatusCancelled, "the run was cancelled while this step ran; "+err.Error()
		}
		return sr
	}
	sr.DurationMs, sr.StartupMs = out.Duration.Milliseconds(), out.Startup.Milliseconds()
	sr.Usage = Usage{PeakMemoryBytes: out.Stats.PeakMemory, CPUMs: out.Stats.CPU.Milliseconds(), PeakPids: out.Stats.PeakPids}
	sr.EngineNote = out.Note
	if proxy != nil {
		for _, rec := range proxy.Ledger.Records() {
			sr.Egress = append(sr.Egress, EgressRecord(rec))
		}
	}
	if s.TrackFiles {
		// Not the caller's context: what a cancelled step changed is still told.
		err := t.after(context.WithoutCancel(ctx), sr)
		switch {
		case errors.Is(err, workspace.ErrLimit):
			// The step made so much that it cannot be listed. That is its doing.
			sr.Violations = append(sr.Violations, Violation{Type: "workspace_limit", Message: err.Error()})
		case err != nil:
			return noVerdict(sr, fmt.Errorf("list the workspace after the step: %w", err))
		}
	}
	judge(sr, s, out.Evidence)
	return sr
}

// recheck judges the host paths of a step once more, just before its box is
// built. An earlier step can have put a link, or what was missing when the file
// was checked, in the place of a mount's source or of a root folder that lies in
// the workspace. No step is running now, so what is judged is what is mounted.
func (r *Runner) recheck(s *PlanStep) (why string) {
	mounts := make([]box.Mount, len(s.Mounts))
	copy(mounts, s.Mounts)
	for i := range mounts {
		real, why := r.Guard.Source(mounts[i].Source)
		if why != "" {
			return fmt.Sprintf("mounts: %s %s", mounts[i].Source, why)
		}
		mounts[i].Source = real
	}
	s.Mounts = mounts
	if s.Root.Kind == box.RootDir {
		real, why := r.Guard.Source(s.Root.Dir)
		if why != "" {
			return fmt.Sprintf("image: rootfs:%s %s", s.Root.Dir, why)
		}
		s.Root.Dir = real
	}
	return ""
}

// box runs the step in its box and keeps its output.
func (r *Runner) box(ctx context.Context, s PlanStep, sr *StepResult) (out box.Outcome, proxy *egress.Proxy, err error) {
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
	if s.RequireLimits && !enforced(sr.Limits.Enforced, "memory", "pids") {
		return out, nil, fmt.Errorf("requireLimits: of memory and pids only %v are in force", sr.Limits.Enforced)
	}
	if len(s.EgressAllow) > 0 {
		rules := make([]egress.Rule, 0, len(s.EgressAllow))
		for _, text := range s.EgressAllow {
			rule, err := egress.ParseRule(text)
			if err != nil {
				return out, nil, fmt.Errorf("steps: bug: rule %q passed the check: %w", text, err)
			}
			rules = append(rules, rule)
		}
		proxy = r.NewProxy(rules)
	}
	logs, err := openLogs(r.Out, s.ID, s.MaxOutput, r.Masker, r.Log)
	if err != nil {
		return out, nil, err
	}
	sr.Stdout.Path, sr.Stderr.Path = logs.paths()
	out = box.Run(ctx, box.Job{
		Spec: r.spec(s, sr), Engine: r.Engine, Group: group, Proxy: proxy,
		Stdout: logs.stdout(), Stderr: logs.stderr(), MaxOutput: s.MaxOutput, Slack: int64(r.Masker.Longest()),
	})
	sr.Tail, err = logs.close()
	sr.Stdout.Bytes, sr.Stdout.Truncated = min(out.Stdout.Bytes, s.MaxOutput), out.Stdout.Truncated
	sr.Stderr.Bytes, sr.Stderr.Truncated = min(out.Stderr.Bytes, s.MaxOutput), out.Stderr.Truncated
	return out, proxy, err
}

// spec is what the engine builds for a step.
func (r *Runner) spec(s PlanStep, sr *StepResult) box.Spec {
	b := box.Spec{
		ID: s.ID, Argv: s.Command, Workdir: s.Workdir, Root: s.Root, Workspace: r.Workspace,
		Mounts: s.Mounts, Tmpfs: s.Tmpfs, ShmBytes: min(box.DefaultShmBytes, max(1<<20, s.MemoryMb<<20/2)),
		CapDrop: s.CapDrop, Profile: s.Profile,
		MemoryBytes: s.MemoryMb << 20, Pids: s.Pids, CPUs: s.CPUs, TimeoutS: s.TimeoutS, RequireLimits: s.RequireLimits,
	}
	if s.MemoryMb == 0 {
		b.ShmBytes = box.DefaultShmBytes
	}
	if l, ok := languages[s.Language]; ok && len(s.Command) == 0 {
		b.Script = &box.Script{Name: "script" + l.suffix, Text: s.Script}
		b.Argv = append(append([]string{}, l.argv...), box.StepDir+"/"+b.Script.Name)
	}
	env := box.Environment{Path: r.BoxPath, CABundle: r.CABundle}
	if s.Root.Kind == box.RootDir {
		env.CABundle = ""
	}
	switch {
	case s.Network:
		b.Network = box.NetworkHost
	case len(s.EgressAllow) > 0:
		b.Network = box.NetworkAllowlist
		env.Egress = egress.Environ(box.ProxyPort)
	}
	for _, e := range s.Env {
		env.Step = append(env.Step, e.Name+"="+e.Value)
	}
	for _, name := range s.PassEnv {
		if v, ok := r.Getenv(name); ok {
			env.Step = append(env.Step, name+"="+v)
			sr.PassedEnv = append(sr.PassedEnv, name)
		}
	}
	b.Env = env.List()
	return b
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

func enforced(have []string, want ...string) bool {
	for _, w := range want {
		found := false
		for _, h := range have {
			found = found || h == w
		}
		if !found {
			return false
		}
	}
	return true
}

// tracker keeps the last known state of the workspace, so that each step costs
// one walk.
type tracker struct {
	root  string
	last  *workspace.Tree
	fresh bool // last is the state as it is now
}

func (t *tracker) stale() { t.fresh = false }

func (t *tracker) before(ctx context.Context) error {
	if t.fresh {
		return nil
	}
	tree, err := workspace.Snapshot(ctx, t.root, t.last, workspace.Options{})
	if err != nil {
		return err
	}
	t.last, t.fresh = tree, true
	return nil
}

// maxChangeBytes bounds what one step's list keeps in memory and in the report, in
// bytes of paths. filesTotal counts on past it.
const maxChangeBytes = 256 << 20

// after lists what changed since before into the result.
func (t *tracker) after(ctx context.Context, sr *StepResult) error {
	t.fresh = false
	tree, err := workspace.Snapshot(ctx, t.root, t.last, workspace.Options{})
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
