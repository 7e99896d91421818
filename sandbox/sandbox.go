package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/report"
	"github.com/untrusted-steps/untrusted-steps/internal/scratch"
	"github.com/untrusted-steps/untrusted-steps/internal/session"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// Sandbox is a workspace and the boxes that work on it. Its methods may be called
// at the same time: each call has a box of its own and sees the workspace as it was
// when it began.
type Sandbox struct {
	options Options
	load    steps.Options
	// defaults begin every call's document; nil is none.
	defaults []byte
	dir      *scratch.Folder // ours: reports, and the workspace where it is ours too
	reports  *report.Folder
	out      string // it, by its descriptor
	work     string
	log      *gha.Log
	masker   *gha.Masker
	given    map[string]*string // of passEnv, as New found it; nil is not there
	on       *session.Session
	calls    atomic.Int64
	cell     steps.PlanStep // what boxes are made ready for
	setupS   float64        // the deadline of the setup; 0 where there is none

	mu      sync.Mutex
	closed  bool
	active  sync.WaitGroup
	kernels map[*Kernel]struct{} // that are open
	engine  string
	notes   []string
}

// New finds out whether this host can do what is asked for, with a probe box that
// shows every control at work, and makes a workspace ready. The error is a
// *BadOptions, a *Refusal, or one of the file system.
func New(ctx context.Context, o Options) (_ *Sandbox, err error) {
	s := &Sandbox{options: o}
	defer func() {
		if err != nil {
			s.remove()
		}
	}()
	if o.Prewarm < 0 || o.Prewarm > maxPrewarm {
		return nil, &BadOptions{[]string{fmt.Sprintf("prewarm is %d; allowed: 0 to %d", o.Prewarm, maxPrewarm)}}
	}
	if err := s.places(); err != nil {
		return nil, err
	}
	s.load = session.LoadOptions(os.Getenv, os.LookupEnv, os.Environ, s.work)
	policy, err := s.files()
	if err != nil {
		return nil, err
	}
	engine := o.Engine
	if engine == "" {
		engine = "auto"
	}
	if !known(engine) {
		return nil, &BadOptions{[]string{fmt.Sprintf("engine: there is no %q; allowed: %s", engine, strings.Join(session.EngineNames(), ", "))}}
	}
	if why := policy.NotAllowed(engine); why != "" && engine != "auto" {
		return nil, &BadOptions{[]string{"engine: " + why}}
	}
	// One that is named here is what the caller asked for: the defaults may not name
	// another.
	s.load.Engine, s.load.EngineBy = engine, "the option engine, "+engine
	// The boxes of all calls are alike but for what runs in them.
	p, err := s.plan("probe", &Call{Command: []string{"true"}})
	if err != nil {
		return nil, err
	}
	s.setupS = p.Steps[0].SetupTimeoutS
	s.passed(p.Steps[0].PassEnv)
	to := o.Log
	if to == nil {
		to = io.Discard
	}
	// Whoever does not read the log holds no call up, and misses lines: an agent may
	// never look at the standard error of its server.
	read := gha.NewOutlet(to)
	read.Abandon()
	s.log = gha.NewLog(read, gha.LogOptions{Banner: "untrusted-steps sandbox", Masker: s.masker})
	res := &steps.Result{}
	s.on = session.New(session.Options{
		Version: version(), Getenv: os.Getenv, LookupEnv: s.lookupEnv, Environ: os.Environ,
		Workspace: s.work, Out: s.out, Load: s.load, Plan: p, Result: res,
		NotAllowed: policy.NotAllowed,
		Engine:     engine, KernSHA256: o.KernSHA256, RunscSHA256: o.RunscSHA256, FreshProof: o.FreshProof, Jobs: 1, Command: "the call of sandbox.New",
		Log: s.log, Masker: s.masker,
	})
	if refusal := s.on.Open(ctx); refusal != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, &Refusal{Cause: refusal.Cause, Fix: refusal.Fix}
	}
	s.on.Runner.Calls = true
	if why := s.on.Runner.Unbuildable(p.Steps[0]); why != "" {
		return nil, &Refusal{Cause: why}
	}
	if o.Prewarm > 0 {
		s.on.Runner.Warm = steps.NewWarm(o.Prewarm)
		cell, err := s.plan("ready", &Call{Code: "0"})
		if err != nil {
			return nil, err
		}
		s.cell = cell.Steps[0]
		s.refill()
	}
	info := s.on.Runner.EngineOf(p.Steps[0]).Info()
	s.engine, s.notes = info.Name+" "+info.Version, res.Notes
	return s, nil
}

// passed takes the values of variables that every box is given, whether the options
// name them or the file of defaults does. They are taken once: what a box is given
// is what is masked, also where the program changes its environment later.
func (s *Sandbox) passed(names []string) {
	s.given = map[string]*string{}
	var secrets []string
	for _, name := range names {
		s.given[name] = nil
		if v, ok := os.LookupEnv(name); ok {
			s.given[name] = &v
			secrets = append(secrets, v)
		}
	}
	s.masker = gha.NewMasker(secrets...)
}

// lookupEnv is the environment of which calls are given variables.
func (s *Sandbox) lookupEnv(name string) (string, bool) {
	if v, ok := s.given[name]; ok {
		if v == nil {
			return "", false
		}
		return *v, true
	}
	return os.LookupEnv(name)
}

// files reads the defaults and the policy.
func (s *Sandbox) files() (*steps.Policy, error) {
	if name := s.options.DefaultsFile; name != "" {
		src, err := readAtMost(name)
		if err != nil {
			return nil, err
		}
		if line, column, has := steps.StepsAt(name, src); has {
			return nil, &BadOptions{[]string{fmt.Sprintf("%s:%d:%d: a file of defaults has no steps of its own; take them out", name, line, column)}}
		}
		s.defaults = append(src, '\n')
	}
	name := s.options.PolicyFile
	if name == "" {
		return nil, nil
	}
	src, err := readAtMost(name)
	if err != nil {
		return nil, err
	}
	p, err := steps.LoadPolicy(name, src, s.load)
	if err != nil {
		return nil, &BadOptions{[]string{err.Error()}}
	}
	s.load.Policy = p
	return p, nil
}

// maxFile bounds a file of options.
const maxFile = 1 << 20

func readAtMost(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("sandbox: %w", err)
	}
	defer f.Close()
	src, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(src) > maxFile {
		err = &os.PathError{Op: "read", Path: name, Err: ErrTooLarge}
	}
	if err != nil {
		return nil, fmt.Errorf("sandbox: %w", err)
	}
	return src, nil
}

// maxPrewarm bounds how many boxes wait for nothing.
const maxPrewarm = 64

// Ready is how many boxes of Prewarm are ready now.
func (s *Sandbox) Ready() int {
	if s.enter() != nil {
		return 0
	}
	defer s.active.Done()
	if s.on.Runner.Warm == nil {
		return 0
	}
	return s.on.Runner.Warm.Ready()
}

// changing is called before the workspace is changed by other means than a call:
// boxes that are ready show it as it was. What it gives is called afterwards, and
// ends those that a call had made meanwhile.
func (s *Sandbox) changing() (changed func()) {
	s.on.Runner.Warm.Drop()
	return func() {
		s.on.Runner.Warm.Drop()
		s.refill()
	}
}

// refill has boxes made of the workspace as it is now.
func (s *Sandbox) refill() { s.on.Runner.Prewarm(s.cell) }

func known(engine string) bool {
	for _, name := range session.EngineNames() {
		if engine == name {
			return true
		}
	}
	return false
}

// version is that of the module that this package is in.
func version() string {
	if b, ok := debug.ReadBuildInfo(); ok {
		for _, m := range append(b.Deps, &b.Main) {
			if m.Path == "github.com/untrusted-steps/untrusted-steps" && m.Version != "" && m.Version != "(devel)" {
				return m.Version
			}
		}
	}
	return "dev"
}

// places makes our own folder, and the workspace if nobody named one.
func (s *Sandbox) places() error {
	if runtime.GOOS != "linux" {
		return &Refusal{Cause: "boxes are made of Linux, and this is " + runtime.GOOS}
	}
	var dir string
	own, err := scratch.Make("", scratch.Sandbox)
	if err == nil {
		s.dir = own
		dir, err = filepath.EvalSymlinks(own.Path)
	}
	if err != nil {
		return fmt.Errorf("sandbox: make a folder for reports: %w", err)
	}
	s.work = s.options.Workspace
	if s.work == "" {
		s.work = filepath.Join(dir, "place", "workspace")
		if err := os.MkdirAll(s.work, 0o755); err != nil {
			return fmt.Errorf("sandbox: make the workspace: %w", err)
		}
	} else {
		if s.work, err = filepath.Abs(s.work); err == nil {
			s.work, err = filepath.EvalSymlinks(s.work)
		}
		if err != nil {
			return fmt.Errorf("sandbox: find the workspace: %w", err)
		}
		load := session.LoadOptions(os.Getenv, os.LookupEnv, os.Environ, s.work)
		if _, why := steps.NewGuard(load).Workspace(s.work); why != "" {
			return &BadOptions{[]string{fmt.Sprintf("the workspace %s %s", s.work, why)}}
		}
		if st, err := os.Stat(s.work); err != nil || !st.IsDir() {
			return &BadOptions{[]string{fmt.Sprintf("the workspace %s is not a folder", s.work)}}
		}
	}
	if s.reports, err = report.Prepare(filepath.Join(dir, "out"), s.work); err != nil {
		return fmt.Errorf("sandbox: %w", err)
	}
	s.out = s.reports.At()
	return nil
}

// Workspace is the folder that calls share, by its real path.
func (s *Sandbox) Workspace() string { return s.work }

// Engine is the engine that builds the boxes, with its version.
func (s *Sandbox) Engine() string { return s.engine }

// Notes are sentences about this host and workspace that its user should know.
func (s *Sandbox) Notes() []string { return append([]string(nil), s.notes...) }

// ErrClosed is the error of every call after Close.
var ErrClosed = errors.New("sandbox: closed")

// ErrNotKept: what WriteFile, Restore or a call that has ended wrote while another call
// ran could not be brought into the folder on the host when that was over. The text has
// a line for each with paths and the cause. Whichever method of the sandbox or of a kernel is called
// next has this error, once, and does nothing else; if none is, Close has it.
var ErrNotKept = errors.New("sandbox: a change could not be kept")

// begin says that something is about to use the workspace.
func (s *Sandbox) begin() error {
	if err := s.enter(); err != nil {
		return err
	}
	if err := s.lost(false); err != nil {
		s.active.Done()
		return err
	}
	return nil
}

// enter is begin for what is done whatever was lost before.
func (s *Sandbox) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	s.active.Add(1)
	return nil
}

// lost is what could not be kept of what the host wrote, if that was not told yet.
func (s *Sandbox) lost(last bool) error {
	if s.on == nil || s.on.Runner == nil || s.on.Runner.Tree == nil {
		return nil
	}
	if err := s.on.Runner.Tree.Lost(last); err != nil {
		return fmt.Errorf("%w: %w", ErrNotKept, err)
	}
	return nil
}

// Close waits for the calls that are running and takes away all that is ours, and
// the workspace if New made it. Whoever is not to wait cancels their contexts.
func (s *Sandbox) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	kernels := s.kernels
	s.kernels = nil
	s.mu.Unlock()
	for k := range kernels {
		_, _ = k.close(context.Background())
	}
	s.active.Wait()
	return errors.Join(s.lost(true), s.remove())
}

func (s *Sandbox) remove() error {
	if s.on != nil {
		if s.on.Runner != nil {
			s.on.Runner.Warm.Close()
		}
		s.on.Close(context.Background())
	}
	if s.log != nil {
		_ = s.log.Close()
	}
	if s.reports != nil {
		_ = s.reports.Close()
	}
	if s.dir == nil {
		return nil
	}
	return s.dir.Remove()
}

func (s *Sandbox) nextID() string { return "call-" + strconv.FormatInt(s.calls.Add(1), 10) }
