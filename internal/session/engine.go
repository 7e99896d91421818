package session

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/gvisor"
	"github.com/untrusted-steps/untrusted-steps/internal/host"
	"github.com/untrusted-steps/untrusted-steps/internal/kern"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
	"github.com/untrusted-steps/untrusted-steps/internal/native"
	"github.com/untrusted-steps/untrusted-steps/internal/rootfs"
	"github.com/untrusted-steps/untrusted-steps/internal/scratch"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// chosen is an engine of a run and why it is that one.
type chosen struct {
	name   string
	engine box.Engine
	note   string
	more   bool // the note says more than each step's result does
	close  func()
}

// Candidate is one engine that a run can take.
type Candidate struct {
	Name string
	// Open finds the engine; an error says why it is not to be had.
	Open func(ctx context.Context, s *Session) (box.Engine, func(), error)
	// Get is what to type where there is none to be had.
	Get []string
	// Named: auto does not take it by itself. It has to be asked for, or be the
	// only kind that a policy allows.
	Named bool
	// Kernel is whose kernel its boxes have.
	Kernel box.Kernel
}

// fixes is what to type where it is not to be had for this reason.
func (c Candidate) fixes(err error) []string {
	if f := ownFix(err); f != nil {
		return f
	}
	return c.Get
}

// ownFix is what an error says itself of what to type.
func ownFix(err error) []string {
	var f interface{ Fix() []string }
	if errors.As(err, &f) {
		return f.Fix()
	}
	return nil
}

// candidates are the engines in the order in which auto tries them.
var candidates = []Candidate{
	{"kern", openKern, []string{"untrusted-steps kern install   # and leave KERN_BIN unset"}, false, box.HostKernel},
	{"native", openNative, nil, false, box.HostKernel},
	{"gvisor", openGvisor, []string{"untrusted-steps runsc build   # and leave RUNSC_BIN unset"}, true, box.OwnKernel},
}

// Candidates are the engines there are, in the order in which auto tries them.
func Candidates() []Candidate { return slices.Clone(candidates) }

// EngineNames are what a run can be told to take.
func EngineNames() []string {
	names := []string{"auto"}
	for _, c := range candidates {
		names = append(names, c.Name)
	}
	return names
}

// ChoiceKernel says whose kernel the boxes have whichever engine auto takes of those
// that are allowed; nil where that is not known before.
func ChoiceKernel(notAllowed func(engine string) string) *box.Kernel {
	s := &Session{Options: Options{Engines: candidates, Engine: "auto", NotAllowed: notAllowed}}
	var known *box.Kernel
	for _, c := range candidates {
		switch {
		case !s.asked(c) || s.notAllowed(c.Name) != "":
		case known == nil:
			known = &c.Kernel
		case *known != c.Kernel:
			return nil
		}
	}
	return known
}

// KernelOf says whose kernel the boxes of an engine have.
func KernelOf(name string) box.Kernel {
	for _, c := range candidates {
		if c.Name == name {
			return c.Kernel
		}
	}
	return box.HostKernel
}

func (s *Session) notAllowed(engine string) string {
	if s.NotAllowed == nil {
		return ""
	}
	return s.NotAllowed(engine)
}

func openKern(ctx context.Context, s *Session) (box.Engine, func(), error) {
	e, err := kern.Open(ctx, kern.Options{Getenv: s.Getenv, SHA256: s.KernSHA256, View: s.view})
	if err != nil {
		return nil, nil, err
	}
	return e, e.Close, nil
}

func openGvisor(ctx context.Context, s *Session) (box.Engine, func(), error) {
	e, err := gvisor.Open(ctx, gvisor.Options{Getenv: s.Getenv, SHA256: s.RunscSHA256, View: s.view})
	if err != nil {
		return nil, nil, err
	}
	return e, e.Close, nil
}

// asked says whether an engine is to be tried: the one that was named, or with auto
// one that auto may take.
func (s *Session) asked(c Candidate) bool {
	if s.Engine != "auto" {
		return s.Engine == c.Name
	}
	return !c.Named || !slices.ContainsFunc(s.Engines, func(o Candidate) bool { return !o.Named && s.notAllowed(o.Name) == "" })
}

func openNative(_ context.Context, s *Session) (box.Engine, func(), error) {
	e := &native.Engine{Version: s.Version, View: s.view}
	return e, e.Close, nil
}

// engines makes ready what builds the boxes: the run's own choice for steps that name
// no engine, and each engine that a step names. Nothing runs before all of them were
// seen to hold on this host, and none is opened that no step has.
func (s *Session) engines(ctx context.Context, mgr *limits.Manager, runner *steps.Runner) *steps.Refusal {
	names, of, others := s.Plan.Engines()
	runner.Engines = map[string]box.Engine{}
	probed := map[string]string{} // how the tree was shown to each
	take := func(c *chosen) {
		s.later(func(context.Context) { c.close() })
		if c.more { // the name and version alone are in every step's result
			s.Result.Notes = append(s.Result.Notes, c.note)
		}
		s.Log.Say(c.note)
		runner.Engines[c.name], probed[c.name] = c.engine, runner.Tree.Copies()
	}
	if len(others) > 0 {
		c, refusal := s.engine(ctx, mgr, runner, others)
		if refusal != nil {
			return refusal
		}
		take(c)
		runner.Engine = c.engine
	}
	for _, name := range names {
		if e := runner.Engines[name]; e != nil { // the run's own choice is the same
			if err := expressible(e, runner, of[name]); err != nil {
				return s.notHad(ctx, mgr, name, of[name], err, nil)
			}
			continue
		}
		c, refusal := s.named(ctx, mgr, runner, name, of[name])
		if refusal != nil {
			return refusal
		}
		take(c)
	}
	// One of them may have shown that no overlay can be mounted: from then on steps
	// get copies, which those before it have not been seen to show.
	for name, how := range probed {
		if how == runner.Tree.Copies() {
			continue
		}
		if err := s.Probe(ctx, runner.Engines[name], mgr, runner.Tree); err != nil {
			return s.notHad(ctx, mgr, name, append(of[name], others...), err, nil)
		}
	}
	return nil
}

// named opens an engine that steps name. No other takes its place.
func (s *Session) named(ctx context.Context, mgr *limits.Manager, runner *steps.Runner, name string, list []steps.PlanStep) (*chosen, *steps.Refusal) {
	i := slices.IndexFunc(s.Engines, func(c Candidate) bool { return c.Name == name })
	if i < 0 {
		return nil, s.notHad(ctx, mgr, name, list, errors.New("this program has none of that name"), nil)
	}
	c := s.Engines[i]
	if why := s.notAllowed(name); why != "" {
		return nil, s.notHad(ctx, mgr, name, list, errors.New(why), nil)
	}
	e, closeIt, err := c.Open(ctx, s)
	if err != nil {
		return nil, s.notHad(ctx, mgr, name, list, err, c.fixes(err))
	}
	proof, err := s.ready(ctx, e, mgr, runner, list)
	s.Result.Host.Proof = append(s.Result.Host.Proof, proof...)
	if err != nil {
		closeIt()
		return nil, s.notHad(ctx, mgr, name, list, err, nil)
	}
	info := e.Info()
	note := fmt.Sprintf(steps.EngineNote+"%s %s for %s", info.Name, info.Version, few(idsOf(list)))
	if info.Note != "" {
		note += " (" + info.Note + ")"
	}
	return &chosen{name: name, engine: e, note: note, more: info.Note != "", close: closeIt}, nil
}

// notHad says why an engine that steps name does not build their boxes.
func (s *Session) notHad(ctx context.Context, mgr *limits.Manager, name string, list []steps.PlanStep, err error, fixes []string) *steps.Refusal {
	if ctx.Err() != nil {
		return &steps.Refusal{Cause: "cancelled before the first step"}
	}
	fixes = append(slices.Clone(fixes), s.fixesFor(ctx, err)...)
	if name != "native" && len(fixes) == 0 {
		fixes = s.hostForbids(ctx, mgr)
	}
	who := "step %s names engine %s, and no box can be built with it here: %v"
	if len(list) > 1 {
		who = "steps %s name engine %s, and no box can be built with it here: %v"
	}
	return &steps.Refusal{Cause: fmt.Sprintf(who, few(idsOf(list)), name, err),
		Fix: append(fixes, "# or name another engine in the step, or none, which leaves it to --engine")}
}

func idsOf(list []steps.PlanStep) []string {
	ids := make([]string, len(list))
	for i, s := range list {
		ids[i] = s.ID
	}
	return ids
}

// ready sees an engine build a box, asks it for those of all its steps, and has each
// control shown at work with it.
func (s *Session) ready(ctx context.Context, e box.Engine, mgr *limits.Manager, runner *steps.Runner, list []steps.PlanStep) ([]steps.Proof, error) {
	if err := s.Probe(ctx, e, mgr, runner.Tree); err != nil {
		return nil, err
	}
	if err := expressible(e, runner, list); err != nil {
		return nil, err
	}
	return s.prove(ctx, e, mgr)
}

// engine takes the engine that was asked for, or with auto the first that
// passes a probe box on this host and can build the box of every step that names
// none. One that was asked for by name is never replaced by another.
func (s *Session) engine(ctx context.Context, mgr *limits.Manager, runner *steps.Runner, list []steps.PlanStep) (*chosen, *steps.Refusal) {
	var passed, fixes []string
	for _, c := range s.Engines {
		if !s.asked(c) {
			continue
		}
		if why := s.notAllowed(c.Name); why != "" {
			passed = append(passed, c.Name+", because "+why)
			continue
		}
		e, closeIt, err := c.Open(ctx, s)
		if err != nil {
			fixes = append(fixes, c.fixes(err)...)
		} else {
			var proof []steps.Proof
			if proof, err = s.ready(ctx, e, mgr, runner, list); proof != nil {
				s.Result.Host.Proof = proof
			}
			if err != nil {
				closeIt()
				fixes = append(fixes, s.fixesFor(ctx, err)...)
			}
		}
		if err == nil {
			info := e.Info()
			note := fmt.Sprintf(steps.EngineNote+"%s %s", info.Name, info.Version)
			if info.Note != "" {
				note += " (" + info.Note + ")"
			}
			more := info.Note != "" || len(passed) > 0
			// Why auto takes the first engine is as much a reason as why it takes another.
			if at, ok := e.(interface{ Path() string }); ok && s.Engine == "auto" {
				note += fmt.Sprintf("; the one at %s passed the probe box", at.Path())
				more = true
			}
			if len(passed) > 0 {
				note += "; not " + strings.Join(passed, "; not ")
			}
			return &chosen{name: c.Name, engine: e, note: note, more: more, close: closeIt}, nil
		}
		if ctx.Err() != nil {
			return nil, &steps.Refusal{Cause: "cancelled before the first step"}
		}
		passed = append(passed, fmt.Sprintf("%s, because %v", c.Name, err))
	}
	if s.Engine != "native" && len(fixes) == 0 {
		fixes = s.hostForbids(ctx, mgr)
	}
	return nil, &steps.Refusal{Cause: "no box can be built here: " + strings.Join(passed, "; "), Fix: fixes}
}

// expressible asks the engine about each box as the run will want it built: what
// it cannot do must be known before the first step runs.
func expressible(e box.Engine, runner *steps.Runner, list []steps.PlanStep) error {
	for _, s := range list {
		if runner.Unbuildable(s) != "" { // which is told when it begins
			continue
		}
		spec, err := runner.Spec(s)
		if err == nil {
			err = e.Check(spec)
		}
		if err != nil {
			return fmt.Errorf("step %s: %w", s.ID, err)
		}
		spec, has, err := runner.SetupSpec(s)
		if err == nil && has {
			err = e.Check(spec)
		}
		if err != nil {
			return fmt.Errorf("setup of step %s: %w", s.ID, err)
		}
	}
	return nil
}

// hostForbids finds out by our own engine whether it is the host that lets no
// box be built: another program's words do not say so for certain.
func (s *Session) hostForbids(ctx context.Context, mgr *limits.Manager) []string {
	e, closeIt, err := openNative(ctx, s)
	if err != nil {
		return nil
	}
	defer closeIt()
	if err := s.Probe(ctx, e, mgr, nil); err != nil {
		return s.fixesFor(ctx, err)
	}
	return nil
}

// Probe builds one box on this host, with caps and the workspace as steps see
// it, and runs nothing of anybody's. Where no overlay can be mounted, steps get
// copies from here on.
func (s *Session) Probe(ctx context.Context, e box.Engine, mgr *limits.Manager, tree *steps.Tree) error {
	err := s.probeOnce(ctx, e, mgr, tree)
	if err != nil && tree != nil && box.NoOverlay(err) && tree.Copies() == "" {
		tree.UseCopies(err.Error())
		note := "each step gets a copy of the workspace: " + err.Error()
		s.Result.Notes = append(s.Result.Notes, note)
		s.Log.Say(note)
		err = s.probeOnce(ctx, e, mgr, tree)
	}
	return err
}

func (s *Session) probeOnce(ctx context.Context, e box.Engine, mgr *limits.Manager, tree *steps.Tree) (err error) {
	group := limits.None()
	if mgr != nil {
		if group, err = mgr.New("probe", limits.Caps{MemoryBytes: 256 << 20, Pids: 64}); err != nil {
			return err
		}
		defer group.Close()
	}
	own, err := scratch.Make("", scratch.Probe)
	if err != nil {
		return fmt.Errorf("%w: %w", errNoTemp, err)
	}
	defer own.Remove()
	dir := own.Path
	job := box.Job{
		Engine: e, Group: group, Stdout: io.Discard, Stderr: io.Discard, MaxOutput: 4096,
		Spec: box.Spec{
			ID: "probe", Argv: []string{"true"}, Env: []string{"PATH=/usr/bin:/bin"}, Workdir: box.WorkspaceTarget, Workspace: dir,
			Tmpfs:    []box.Tmpfs{{Target: "/tmp", Bytes: 1 << 20}, {Target: box.HomeTarget, Bytes: 1 << 20}},
			ShmBytes: 1 << 20, CapDrop: []string{"ALL"}, MemoryBytes: 256 << 20, Pids: 64, TimeoutS: 60, RequireLimits: mgr != nil,
		},
	}
	if tree != nil {
		end, err := tree.Probe(ctx, &job.Spec)
		if err != nil {
			return fmt.Errorf("show a box the workspace: %w", err)
		}
		defer end()
	}
	out := box.Run(ctx, job)
	v := box.Classify(out.Evidence, nil)
	switch {
	case v.NoVerdict != "" && out.Cause != nil: // the same words, and what they are about
		return fmt.Errorf("the box could not be built: %w", out.Cause)
	case v.NoVerdict != "":
		return errors.New(v.NoVerdict)
	case v.Fault != nil:
		return fmt.Errorf("a probe box ended with %s: %s", v.Fault.Type, v.Fault.Message)
	case v.ExitCode == nil || *v.ExitCode != 0:
		return fmt.Errorf("a probe box did not run true")
	}
	return nil
}

// errNoTemp: what a box is built from has no place to lie in.
var errNoTemp = errors.New("no temporary folder can be made")

// fixesFor are the commands that help where a probe box could not be built.
// There are some against one cause only, which doctor knows best: others are the
// host's own.
func (s *Session) fixesFor(ctx context.Context, err error) []string {
	if errors.Is(err, errNoTemp) {
		return []string{"# name a folder that can be written for temporary files, such as", "export TMPDIR=/tmp"}
	}
	if errors.Is(err, errMissed) {
		return []string{"untrusted-steps doctor   # tries everything, and says what helps"}
	}
	if f := ownFix(err); f != nil {
		return f
	}
	if !native.Restricted(err) {
		return nil
	}
	return host.Fixes(ctx, host.Here(s.Getenv), KeptIn(s.Getenv, s.Workspace))
}

// view is image host for one box. The host is read once for each network.
func (s *Session) view(hostname string, network bool) rootfs.View {
	s.viewsMu.Lock()
	defer s.viewsMu.Unlock()
	v, ok := s.views[network]
	if !ok {
		v = HostView(s.Getenv, network)
		if s.views == nil {
			s.views = map[bool]rootfs.View{}
		}
		s.views[network] = v
	}
	return v.For(hostname)
}

// HostView reads this host for image host. Homes and the runner's own folders
// are never shown, whatever PATH says.
func HostView(getenv func(string) string, network bool) rootfs.View {
	h := rootfs.Host{Getenv: getenv, Network: network}
	for _, n := range []string{"HOME", "RUNNER_TEMP", "RUNNER_WORKSPACE", "GITHUB_WORKSPACE", "XDG_RUNTIME_DIR"} {
		if d := getenv(n); filepath.IsAbs(d) && d != "/" {
			h.Homes = append(h.Homes, filepath.Clean(d))
		}
	}
	h.Homes = append(h.Homes, accountHomes("/etc/passwd")...)
	return rootfs.HostView(h)
}

// accountHomes lists the homes of this machine's people: root and the ids that
// accounts of people get. Service accounts name /usr/sbin and the like.
func accountHomes(passwd string) []string {
	f, err := os.Open(passwd)
	if err != nil {
		return nil
	}
	defer f.Close()
	var out []string
	for sc := bufio.NewScanner(f); sc.Scan(); {
		p := strings.Split(sc.Text(), ":")
		if len(p) < 7 || !filepath.IsAbs(p[5]) || p[5] == "/" {
			continue
		}
		if p[2] == "0" || (len(p[2]) >= 4 && p[2] != "65534") {
			out = append(out, filepath.Clean(p[5]))
		}
	}
	return out
}
