package steps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

const (
	// depsFolder is where pip of a setup installs to, within the workspace.
	depsFolder = ".deps"
	depsTarget = box.WorkspaceTarget + "/" + depsFolder
	// setupFolder is where the files of a setup are, within its step's folder of
	// the report.
	setupFolder = "setup"
)

// SetupFolder is where the files of a step's setup are, within the report folder.
func SetupFolder(id string) string { return path.Join("steps", id, setupFolder) }

// Ways a step came to what its setup made.
const (
	SetupRan    = "run"    // its own box ran it
	SetupShared = "shared" // another step's did, in the same run
	SetupCached = "cache"  // it was kept from an earlier run
)

// SetupResult is what became of a step's setup.
type SetupResult struct {
	Status string `json:"status" jsonschema:"enum=passed,enum=failed,enum=cancelled,enum=error"`
	// By is run where this step's own box ran it, and shared where one of another
	// step did; that is then Step, whose result has the rest. With cache none did:
	// what it made was kept from an earlier run.
	By         string      `json:"by" jsonschema:"enum=run,enum=shared,enum=cache"`
	Step       string      `json:"step,omitempty"`
	Reason     string      `json:"reason,omitempty"`
	ExitCode   *int        `json:"exitCode,omitempty"`
	Signal     *string     `json:"signal,omitempty"`
	Fault      *box.Fault  `json:"fault,omitempty"`
	Events     []box.Event `json:"events,omitempty"`
	DurationMs int64       `json:"durationMs,omitempty"`
	StartupMs  int64       `json:"startupMs,omitempty"`
	Stdout     Output      `json:"stdout"`
	Stderr     Output      `json:"stderr"`
	Usage      Usage       `json:"usage"`
	Network    string      `json:"network,omitempty" jsonschema:"enum=none,enum=allowlist,enum=host"`
	EgressMode string      `json:"egressMode,omitempty" jsonschema:"enum=enforce,enum=audit"`
	// Files are what it changed in the workspace as the step sees it. None of it is
	// committed.
	Files      []FileChange `json:"files,omitempty"`
	FilesTotal int          `json:"filesTotal,omitempty"`
	// DepsReadonly: the step could not change the .deps that the setup made.
	DepsReadonly bool `json:"depsReadonly,omitempty"`
}

// setupStep is the setup of a step, as a step: the same box but for the network
// and the deadline.
func (p *PlanStep) setupStep() PlanStep {
	s := *p
	s.InSetup, s.Setup, s.DepsReadonly = true, "", false
	s.Language, s.Script, s.Command, s.Code, s.Kernel = "sh", p.Setup, nil, "", ""
	s.Workdir, s.TimeoutS = box.WorkspaceTarget, p.SetupTimeoutS
	zero := 0
	s.Expect, s.Tolerate, s.ContinueOnErr, s.Retries, s.TrackFiles = Expect{ExitCode: &zero}, nil, false, 0, true
	s.OnFailure, s.AllowChanges = OnFailureDiscard, []string{"**"}
	switch {
	case !p.SetupWatched:
		s.Network, s.EgressMode, s.EgressAllow = false, ModeEnforce, own(p.SetupEgress)
	case !p.Network:
		// All that is public, and what the step names besides: what is not public
		// stays closed, the host's own loopback above all.
		s.EgressMode = ModeAudit
	}
	// What is unpacked lies in memory, and counts as it: the sizes of a step that
	// does nothing but run would only be in the way.
	if p.MemoryMb > 0 {
		s.Tmpfs = slices.Clone(p.Tmpfs)
		for i, t := range s.Tmpfs {
			if t.Target == "/tmp" && t.Bytes == box.DefaultTmpBytes || t.Target == box.HomeTarget && t.Bytes == box.DefaultHomeBytes {
				s.Tmpfs[i].Bytes = max(t.Bytes, p.MemoryMb<<20/2)
			}
		}
	}
	return s
}

// setupKey is the same for two setups only if their boxes are.
func (r *Runner) setupKey(s PlanStep) string {
	s.ID, s.Name, s.Line, s.Keys, s.Needs, s.NeedsLeftOut, s.SHA256 = "", "", 0, nil, nil, nil, ""
	// What builds the box, whether the step names it or the run took it.
	s.Engine, s.BoxKernel = r.EngineOf(s).Info().Name, ""
	b, err := json.Marshal(s)
	if err != nil {
		return "" // no two are then the same: see setup
	}
	return string(b) + "\n" + s.Origin.String() + "\n" + r.digest(s)
}

// setups are those of one run.
type setups struct {
	mu   sync.Mutex
	list map[string]*setup
}

// setup is one that ran or is running. Whoever holds mu makes it; once done it
// does not change.
type setup struct {
	mu    sync.Mutex
	done  bool
	step  string // whose box it was
	why   string // it failed; "" if it did not
	layer *layer
	deps  bool // it made a .deps, which is a folder
	// enforced and by are the caps of its box.
	enforced []string
	by       string
}

func (r *Runner) setupOf(key string) *setup {
	r.gotMu.Lock()
	if r.made == nil {
		r.made = &setups{}
	}
	all := r.made
	r.gotMu.Unlock()
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.list == nil {
		all.list = map[string]*setup{}
	}
	if key == "" {
		return &setup{}
	}
	if all.list[key] == nil {
		all.list[key] = &setup{}
	}
	return all.list[key]
}

// prepare runs a step's setup, if it has one that did not run yet. The setup is
// nil where there is none. why says that it failed, which is the step's failure.
func (r *Runner) prepare(ctx context.Context, s PlanStep, sr *StepResult) (made *setup, why string, err error) {
	return r.prepareWithin(ctx, s, s.EgressMaxBytes, sr)
}

// prepareWithin is prepare for a try of a step of whose egressMaxBytes so many are left.
// What was made is found by the bound as it is written: that less of it is left makes
// another setup of none. One that failed, and is tried again, gets what is left.
func (r *Runner) prepareWithin(ctx context.Context, s PlanStep, bytes int64, sr *StepResult) (made *setup, why string, err error) {
	if s.Setup == "" {
		return nil, "", nil
	}
	one := s.setupStep()
	made = r.setupOf(r.setupKey(one))
	made.mu.Lock()
	defer made.mu.Unlock()
	if made.done && made.step != s.ID { // its own failed: this is another try
		sr.Setup = &SetupResult{Status: StatusPassed, By: SetupShared, Step: made.step, DepsReadonly: s.DepsReadonly && made.deps}
		if made.why != "" {
			sr.Setup.Status, sr.Setup.Reason, sr.Setup.DepsReadonly = StatusFailed, made.why, false
			sr.Limits.Enforced, sr.Limits.By = made.enforced, made.by
			return nil, made.why + " (in the box of step " + inert(made.step) + ", which has the same setup)", nil
		}
		sr.Notes = append(sr.Notes, "setup: what it made in step "+inert(made.step)+" is there in this one")
		return made, "", nil
	}
	if made.done && made.why == "" {
		sr.Setup = &SetupResult{Status: StatusPassed, By: SetupShared, Step: made.step, DepsReadonly: s.DepsReadonly && made.deps}
		return made, "", nil
	}
	made.step, made.why, made.done = s.ID, "", false
	if err := r.makeSetup(ctx, one, bytes, sr, made); err != nil {
		return nil, "", err
	}
	sr.Setup.DepsReadonly = s.DepsReadonly && made.deps
	if made.why != "" {
		return nil, made.why, nil
	}
	return made, "", nil
}

// makeSetup runs a setup in a box of its own, and keeps what it wrote as a layer
// for the steps that have it. Nothing of it gets into the workspace.
func (r *Runner) makeSetup(ctx context.Context, s PlanStep, bytes int64, sr *StepResult, made *setup) error {
	ss := newStepResult(s, r.EngineOf(s).Info())
	cached := false
	defer func() {
		sr.Setup = setupResult(ss)
		if cached {
			sr.Setup.By = SetupCached
		}
		for _, e := range ss.Egress {
			e.Setup = true
			sr.Egress = append(sr.Egress, e)
		}
	}()
	v, err := r.Tree.view(ctx, s, nil)
	if err != nil {
		return fmt.Errorf("give the setup a workspace of its own: %w", err)
	}
	if why := r.recheck(ctx, s); why != "" {
		v.drop()
		judge(ss, s, box.Evidence{StartupFailure: why})
		made.done, made.why = true, "setup: "+why
		return nil
	}
	key := ""
	if s.SetupKept {
		if key, err = r.kept(ctx, v, s, sr, made); err != nil || made.done {
			v.drop()
			if errors.As(err, new(unfit)) {
				judge(ss, s, box.Evidence{StartupFailure: err.Error()})
				made.done, made.why = true, "setup: "+err.Error()
				return nil
			}
			if err != nil {
				return fmt.Errorf("setup: %w", err)
			}
			cached = true
			r.boundSetups(ctx, sr)
			ss.Status = StatusPassed
			list(ss, made.layer.changes)
			return nil
		}
	}
	r.Log.Say(fmt.Sprintf("%s: setup", s.ID))
	s.EgressMaxBytes = bytes
	out, way, err := r.box(ctx, s, ss, v)
	ss.DurationMs, ss.StartupMs = out.Duration.Milliseconds(), out.Startup.Milliseconds()
	ss.Usage = Usage{PeakMemoryBytes: out.Stats.PeakMemory, CPUMs: out.Stats.CPU.Milliseconds(), PeakPids: out.Stats.PeakPids}
	if way != nil {
		way.report(ss, s)
	}
	use, uerr := v.used(ctx)
	out.Evidence.Disk = use
	ss.Usage.DiskBytes, ss.Usage.DiskInodes = max(use.UsedBytes, 0), max(use.UsedInodes, 0)
	d, derr := r.changes(ctx, v)
	var changes []workspace.Change
	switch {
	case errors.Is(derr, workspace.ErrLimit):
		ss.Violations = append(ss.Violations, Violation{Type: "workspace_limit", Message: derr.Error()})
		derr = nil
	case derr == nil:
		changes = v.present(d.Changes())
		list(ss, changes)
	}
	if err = errors.Join(err, uerr, derr); err != nil && out.Evidence.Lost == "" {
		out.Evidence.Lost = err.Error()
	}
	judge(ss, s, out.Evidence)
	switch ss.Status {
	case StatusPassed:
	case StatusFailed:
		v.drop()
		made.enforced, made.by = ss.Limits.Enforced, ss.Limits.By
		sr.Limits.Enforced, sr.Limits.By = made.enforced, made.by // what did run was under these
		made.done, made.why = true, setupFailed(ss)
		return nil
	default: // no verdict, or cancelled: not to be remembered
		v.drop()
		if ss.Status == StatusCancelled {
			return context.Cause(ctx)
		}
		return errors.New("setup: " + strings.TrimPrefix(ss.Reason, "no verdict: "))
	}
	if at, err := d.After(depsFolder); err == nil && at.Type == "dir" {
		made.deps = slices.ContainsFunc(changes, func(c workspace.Change) bool { return within(c.RawPath(), depsFolder) })
	}
	if made.layer, err = v.retain(ctx, changes); err != nil {
		return fmt.Errorf("keep what the setup wrote: %w", err)
	}
	made.done = true
	sr.Notes = append(sr.Notes, fmt.Sprintf("setup: it took %.1f s and changed %s, none of which is committed", float64(ss.DurationMs)/1000, count(len(changes), "path")))
	if s.EgressMode == ModeAudit {
		note := "setup: every public host answered it; setupEgress bounds that"
		if p := ss.EgressProposal; len(p) > 0 {
			note += ", and what it used would be [" + strings.Join(p, ", ") + "]"
		}
		sr.Notes = append(sr.Notes, note)
	}
	if key != "" {
		if err := r.keepSetup(ctx, key, made.layer, made.deps); err != nil {
			sr.Notes = append(sr.Notes, "setup: what it made is not kept for later runs: "+inertWords(err.Error()))
		}
		r.boundSetups(ctx, sr)
	}
	return nil
}

// kept looks for what a setup made in an earlier run, and shows it no more of the
// workspace than what it is kept by. The key is empty where nothing is kept.
func (r *Runner) kept(ctx context.Context, v *view, s PlanStep, sr *StepResult, made *setup) (key string, err error) {
	why := ""
	switch {
	case v.why != "":
		why = "steps get copies of the workspace here"
	case r.SetupStore == "":
		why = "there is no folder for that which is ours alone"
	}
	if why != "" {
		sr.Notes = append(sr.Notes, "setup: what it makes is not kept for later runs: "+why)
	}
	if v.why != "" {
		return "", nil
	}
	files, missing, err := v.shown(ctx, s.SetupCache)
	if len(missing) > 0 {
		sr.Notes = append(sr.Notes, "setup: setupCache lists "+inertWords(strings.Join(missing, ", "))+", and the workspace has no such file: it is missing for the setup, too")
	}
	if err != nil || why != "" {
		return "", err
	}
	key = r.keptKey(s, files)
	l, rec, err := r.keptLayer(key)
	switch {
	case err != nil: // not believed, and nothing is put beside it
		sr.Notes = append(sr.Notes, "setup: what earlier runs kept is not used: "+inertWords(err.Error()))
		return "", nil
	case l == nil:
		return key, nil
	}
	made.layer, made.deps, made.done = l, rec.Deps, true
	sr.Notes = append(sr.Notes, fmt.Sprintf("setup: not run; what it made in an earlier run is there (%s, none of which is committed)", count(len(l.changes), "path")))
	return key, nil
}

// setupFailed says how a setup ended, in our own words but for what a fault names.
func setupFailed(ss *StepResult) string {
	why := "setup: " + ss.Reason
	if ss.Fault != nil { // whose advice is for a step
		switch ss.Fault.Type {
		case box.Timeout:
			why = strings.ReplaceAll(why, "timeoutS", "setupTimeoutS")
		case box.EgressDenied:
			why = strings.ReplaceAll(why, "egressAllow", "setupEgress")
		}
	}
	if ss.Fault == nil && ss.ExitCode != nil {
		why = fmt.Sprintf("setup: it ended with exit code %d", *ss.ExitCode)
	}
	if ss.Stderr.Bytes+ss.Stdout.Bytes > 0 {
		why += "; what it printed is in " + path.Dir(ss.Stderr.Path)
	}
	return why
}

// setupResult is what a report keeps of a setup that ran as a step.
func setupResult(ss *StepResult) *SetupResult {
	return &SetupResult{
		Status: ss.Status, By: SetupRan, Reason: ss.Reason, ExitCode: ss.ExitCode, Signal: ss.Signal, Fault: ss.Fault, Events: ss.Events,
		DurationMs: ss.DurationMs, StartupMs: ss.StartupMs, Stdout: ss.Stdout, Stderr: ss.Stderr, Usage: ss.Usage,
		Network: ss.Network, EgressMode: ss.EgressMode, Files: ss.Files, FilesTotal: ss.FilesTotal,
	}
}

// retain keeps what a setup wrote for steps to see below what they write, until
// the run is over. The view is closed in any case.
func (v *view) retain(ctx context.Context, changes []workspace.Change) (*layer, error) {
	t := v.t
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.flush(context.WithoutCancel(ctx))
	l := &layer{id: v.id, changes: changes, after: v.room.Named(), held: v.room.Upper(), txn: v.txn}
	if v.why == "" {
		if err := v.settle(ctx, l); err != nil {
			v.size = roomSize{}
			v.close()
			return nil, err
		}
	}
	l.room = v.room
	t.setups = append(t.setups, l)
	v.leave()
	return l, nil
}

// closeSetups takes away what setups wrote.
func (t *Tree) closeSetups() (err error) {
	for _, l := range t.setups {
		err = errors.Join(err, closeRoom(l.room), l.txn.Drop())
	}
	t.setups = nil
	return err
}

// split takes out of a step's changes those that lie in what its setup made:
// they are listed and nobody judges them, because none of them is committed. A
// copy of the workspace has what the setup wrote, too, which is no change of the
// step's.
func (v *view) split(all []workspace.Change) (listed, own []workspace.Change) {
	if v.over == nil {
		return all, all
	}
	made := map[string]workspace.Change{}
	for _, c := range v.over.changes {
		made[c.RawPath()] = c
	}
	for _, c := range all {
		at := c.RawPath()
		if m, ok := made[at]; ok && v.why != "" && m == c {
			continue
		}
		listed = append(listed, c)
		if !inMade(made, at) {
			own = append(own, c)
		}
	}
	return listed, own
}

// inMade says whether a path is one that a setup changed, or lies in a folder
// that it made or removed.
func inMade(made map[string]workspace.Change, at string) bool {
	if _, ok := made[at]; ok && at != "." {
		return true
	}
	for dir := path.Dir(at); dir != "." && dir != "/"; dir = path.Dir(dir) {
		if c, ok := made[dir]; ok && c.Change != workspace.Mode {
			return true
		}
	}
	return false
}

// setupEnviron is what a step with a setup finds, and what the setup itself does.
func setupEnviron(s PlanStep) []string {
	var env []string
	if s.Setup != "" || s.InSetup {
		env = append(env, "PYTHONPATH="+depsTarget)
	}
	if s.InSetup {
		env = append(env, "PIP_TARGET="+depsTarget, "PIP_NO_CACHE_DIR=1", "PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_NO_INPUT=1")
	}
	return env
}
