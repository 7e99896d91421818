package session

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/egress"
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/host"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
	"github.com/untrusted-steps/untrusted-steps/internal/rootfs"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// Options are what a session is opened with.
type Options struct {
	// Version is the program's; engine native's too.
	Version string
	// Getenv and LookupEnv are the caller's environment, and Environ all of it, for
	// helpers of docker login; nil gives them nothing.
	Getenv    func(string) string
	LookupEnv func(string) (string, bool)
	Environ   func() []string

	Workspace string // real path
	Out       string // report folder, prepared, outside the workspace
	// Load is what the plan was loaded with: it has the places that no box may see.
	Load steps.Options
	// Plan is what will be run, or a plan with the same boxes in it: limits, images
	// and the engine are found out for it.
	Plan *steps.Plan
	// Result takes what is found out about the host, and notes.
	Result *steps.Result

	// Engines are those to choose from; nil is all there are.
	Engines []Candidate
	// Engine is one of EngineNames, for steps that name none. The plan was loaded with
	// it, so that no step names another than one that was asked for by name.
	Engine string
	// NotAllowed is why a policy lets no box be built by an engine, "" if it does;
	// nil allows all.
	NotAllowed func(engine string) (why string)
	KernSHA256 string // of a kern that this version does not know; "" for none
	// RunscSHA256 is that of a runsc.
	RunscSHA256 string
	FreshProof  bool
	OnlyReport  bool
	Jobs        int
	// Command is what to type to do this once more, for advice.
	Command string
	// SetupCommand is Command with the word by which it adds to the host what it
	// lacks; "" where that is not to be proposed.
	SetupCommand string

	Log    *gha.Log
	Masker *gha.Masker
	// Warn tells what must not be missed; nil where the notes of Result are enough.
	Warn func(text string)
}

// Session is what plans are run on: control groups, the workspace, images, and an
// engine that was seen to hold its promises on this host.
type Session struct {
	Options
	// Runner runs plans, once Open has found no reason not to.
	Runner *steps.Runner

	viewsMu sync.Mutex
	views   map[bool]rootfs.View // by whether the network is the host's
	undo    []func(context.Context)
}

// New is a session that has not begun.
func New(o Options) *Session {
	if o.Engines == nil {
		o.Engines = Candidates()
	}
	return &Session{Options: o}
}

// Open finds out whether this host can do what the plan asks, and makes all ready
// for it, or says why it cannot. It must be closed in both cases.
func (s *Session) Open(ctx context.Context) *steps.Refusal {
	if refusal := RefuseTemp(); refusal != nil {
		return refusal
	}
	if refusal := refuseTempIn(s.Workspace); refusal != nil {
		return refusal
	}
	Sweep(s.Getenv, s.Workspace)
	mgr, refusal := s.limits(ctx)
	if refusal != nil {
		return refusal
	}
	if mgr != nil {
		s.later(func(context.Context) {
			if err := mgr.Close(); err != nil {
				s.Log.Say(fmt.Sprintf("control groups of this run could not be removed: %v", err))
			}
		})
		removed, err := mgr.Sweep()
		if err != nil {
			s.Log.Say(fmt.Sprintf("control groups left by a killed run could not be removed: %v", err))
		}
		for _, name := range removed {
			s.Log.Say("removed what a killed run had left: " + name)
		}
		s.Result.Host.Cgroup = cgroupWord(mgr.Kind())
	}
	tree, refusal := s.tree(ctx)
	if refusal != nil {
		return refusal
	}
	s.later(func(ctx context.Context) { s.closeTree(ctx, tree) })
	sr := s.runner(mgr)
	sr.Tree = tree
	images, refusal := s.images(ctx, sr)
	if refusal != nil {
		return refusal
	}
	s.later(func(context.Context) { images.close() })
	if refusal := s.engines(ctx, mgr, sr); refusal != nil {
		return refusal
	}
	s.Runner = sr
	return nil
}

func (s *Session) later(do func(context.Context)) { s.undo = append(s.undo, do) }

// Close takes away all that Open made, the last first. What steps wrote and nobody
// kept is waited for only as long as the context lets it.
func (s *Session) Close(ctx context.Context) {
	for i := len(s.undo) - 1; i >= 0; i-- {
		s.undo[i](ctx)
	}
	s.undo, s.Runner = nil, nil
}

// tree makes the workspace ready for steps. What it says is in the report too.
func (s *Session) tree(ctx context.Context) (*steps.Tree, *steps.Refusal) {
	t, notes, err := steps.OpenTree(ctx, s.Workspace, steps.TreeOptions{
		Home: s.Getenv("HOME"), StateDirs: StateDirs(s.Getenv, s.Workspace), OnlyShow: s.OnlyReport,
	})
	if err != nil {
		ref := &steps.Refusal{Cause: fmt.Sprintf("the workspace cannot be kept from what steps do to it: %v", err)}
		var folder *steps.FolderError
		if errors.As(err, &folder) {
			ref = &steps.Refusal{Cause: "no step can work in this workspace: " + err.Error(), Fix: folder.Fix()}
		}
		return nil, ref
	}
	if s.OnlyReport {
		notes = append(notes, "--only-report: nothing that a step changed is in the workspace")
	}
	if why := t.Copies(); why != "" {
		notes = append(notes, "each step gets a copy of the workspace: "+why)
	}
	for _, n := range notes {
		s.Log.Say(n)
	}
	if list := t.Persisted(); len(list) > 0 {
		notes = append(notes, persisted(list))
		if s.Warn != nil {
			s.Warn(persisted(list))
		}
	}
	s.Result.Notes = append(s.Result.Notes, notes...)
	return t, nil
}

// closeAfterCancel bounds the removal of what steps wrote once a run is cancelled.
// What is left then, the next run removes.
const closeAfterCancel = time.Second

// closeTree takes away what steps wrote and nobody kept.
func (s *Session) closeTree(ctx context.Context, t *steps.Tree) {
	done := make(chan error, 1)
	go func() { done <- t.Close() }()
	cancelled := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		time.Sleep(closeAfterCancel)
		close(cancelled)
	})
	defer stop()
	select {
	case err := <-done:
		if err != nil {
			s.Log.Say(fmt.Sprintf("what steps wrote and nobody kept could not be removed: %v", err))
		}
	case <-cancelled:
		s.Log.Say("what steps wrote and nobody kept is left for the next run to remove: a cancel does not wait for it")
	}
}

// runner has all but the engine and the list of requests.
func (s *Session) runner(mgr *limits.Manager) *steps.Runner {
	view := s.view("box", false)
	imageCA := ""
	if view.CABundle == rootfs.ExtraCA {
		imageCA = rootfs.ExtraCA
	}
	return &steps.Runner{
		ImageCABundle: imageCA, SetupStore: setupStore(s.Getenv, s.Workspace),
		Limits: mgr, Guard: steps.NewGuard(s.Load), Workspace: s.Workspace, Out: s.Out, Log: s.Log, Masker: s.Masker,
		Getenv: s.LookupEnv, BoxPath: view.Path, CABundle: view.CABundle,
		NewProxy: egress.NewProxy, Now: time.Now,
		Jobs: s.Jobs, OnlyReport: s.OnlyReport, Tools: toolsOf(view), Real: Real,
	}
}

// limits finds out whether caps can be enforced here, by enforcing one. They
// must be unless no step requires them.
func (s *Session) limits(ctx context.Context) (*limits.Manager, *steps.Refusal) {
	id := make([]byte, 8)
	if _, err := rand.Read(id); err != nil {
		return nil, &steps.Refusal{Cause: fmt.Sprintf("no random bytes: %v", err)}
	}
	mgr, err := limits.Open(limits.Config{
		RunID: hex.EncodeToString(id), XDGRuntimeDir: s.Getenv("XDG_RUNTIME_DIR"), Pod: s.Getenv("KUBERNETES_PORT") != "",
		Command: s.Command,
	})
	if err == nil {
		return mgr, nil
	}
	var no *limits.Refusal
	if errors.As(err, &no) {
		s.Result.Host.CgroupFound = cgroupWord(no.Found)
	}
	var requires []string
	for _, step := range s.Plan.Steps {
		if step.RequireLimits {
			requires = append(requires, step.ID)
		}
	}
	if len(requires) == 0 {
		note := fmt.Sprintf("limits are NOT enforced in this run, which no step requires: %v", err)
		s.Result.Notes = append(s.Result.Notes, note)
		s.Log.Say(note)
		return nil, nil
	}
	ref := &steps.Refusal{Cause: fmt.Sprintf("the caps on memory and processes that %s %s cannot be enforced here: %v",
		few(requires), requireWord(requires), err)}
	if no != nil {
		ref.Cause = fmt.Sprintf("the caps on memory and processes that %s %s cannot be enforced here: %s",
			few(requires), requireWord(requires), no.Cause)
		ref.Fix = append(no.Fix, s.byItself(ctx)...)
	}
	return nil, ref
}

// byItself is the command by which a run would add to the host what it lacks, where
// that would do.
func (s *Session) byItself(ctx context.Context) []string {
	if s.SetupCommand == "" {
		return nil
	}
	p := &host.Preparer{Setup: host.SetupAuto, Getenv: s.Getenv, Args: []string{}}
	if !p.Helps(ctx) {
		return nil
	}
	return []string{"# or let the run add what is missing, and take it away at its end:", s.SetupCommand}
}

// cgroupWord is a kind of control groups as a report has it; empty for none.
func cgroupWord(kind string) string {
	return map[string]string{limits.Kind2: "v2", limits.Kind1: "v1"}[kind]
}

// persisted is the warning about credentials that a checkout left in the
// workspace. No step sees them, but what runs after us does.
func persisted(list []string) string {
	more := ""
	if len(list) > 1 {
		more = fmt.Sprintf(" and %d more", len(list)-1)
	}
	return fmt.Sprintf("the checkout left its token in %s%s; no step sees it, and what runs later in this job does: "+
		"give actions/checkout persist-credentials: false", list[0], more)
}

// few names some of many.
func few(ids []string) string {
	const most = 5
	if len(ids) > most {
		return strings.Join(ids[:most], ", ") + fmt.Sprintf(" and %d more", len(ids)-most)
	}
	return strings.Join(ids, ", ")
}

func requireWord(ids []string) string {
	if len(ids) == 1 {
		return "requires"
	}
	return "require"
}
