package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/host"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
	"github.com/untrusted-steps/untrusted-steps/internal/native"
	"github.com/untrusted-steps/untrusted-steps/internal/rootfs"
	"github.com/untrusted-steps/untrusted-steps/internal/scratch"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// chosen is the engine of a run and why it is that one.
type chosen struct {
	engine box.Engine
	note   string
	more   bool // the note says more than each step's result does
	close  func()
}

// candidate is one engine that a run can take.
type candidate struct {
	name string
	// open finds the engine; an error says why it is not to be had.
	open func(ctx context.Context, r *run) (box.Engine, func(), error)
	// get is what to type where there is none to be had.
	get []string
}

// candidates are the engines in the order in which auto tries them.
var candidates = []candidate{
	{"kern", openKern, []string{"untrusted-steps kern install   # and leave KERN_BIN unset"}},
	{"native", openNative, nil},
}

// engineNames are what a run can be told to take.
func engineNames() []string {
	names := []string{"auto"}
	for _, c := range candidates {
		names = append(names, c.name)
	}
	return names
}

func openNative(_ context.Context, r *run) (box.Engine, func(), error) {
	e := &native.Engine{Version: toolVersion(), View: r.view}
	return e, e.Close, nil
}

// engine takes the engine that was asked for, or with auto the first that
// passes a probe box on this host and can build every step's. One that was asked
// for by name is never replaced by another.
func (r *run) engine(ctx context.Context, mgr *limits.Manager, runner *steps.Runner) (*chosen, *steps.Refusal) {
	var passed, fixes []string
	for _, c := range candidates {
		if r.opt.engine != "auto" && r.opt.engine != c.name {
			continue
		}
		if why := r.opt.notAllowed(c.name); why != "" {
			passed = append(passed, c.name+", because "+why)
			continue
		}
		e, closeIt, err := c.open(ctx, r)
		if err != nil {
			fixes = append(fixes, c.get...)
		} else {
			if err = r.probe(ctx, e, mgr, runner.Tree); err == nil {
				err = expressible(e, runner, r.plan)
			}
			if err == nil {
				r.result.Host.Proof, err = r.prove(ctx, e, mgr)
			}
			if err != nil {
				closeIt()
				fixes = append(fixes, r.fixesFor(ctx, err)...)
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
			if at, ok := e.(interface{ Path() string }); ok && r.opt.engine == "auto" {
				note += fmt.Sprintf("; the one at %s passed the probe box", at.Path())
				more = true
			}
			if len(passed) > 0 {
				note += "; not " + strings.Join(passed, "; not ")
			}
			return &chosen{engine: e, note: note, more: more, close: closeIt}, nil
		}
		if ctx.Err() != nil {
			return nil, &steps.Refusal{Cause: "cancelled before the first step"}
		}
		passed = append(passed, fmt.Sprintf("%s, because %v", c.name, err))
	}
	if r.opt.engine == "kern" && len(fixes) == 0 {
		fixes = r.hostForbids(ctx, mgr)
	}
	return nil, &steps.Refusal{Cause: "no box can be built here: " + strings.Join(passed, "; "), Fix: fixes}
}

// expressible asks the engine about each box as the run will want it built: what
// it cannot do must be known before the first step runs.
func expressible(e box.Engine, runner *steps.Runner, p *steps.Plan) error {
	for _, s := range p.Steps {
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
	}
	return nil
}

// hostForbids finds out by our own engine whether it is the host that lets no
// box be built: another program's words do not say so for certain.
func (r *run) hostForbids(ctx context.Context, mgr *limits.Manager) []string {
	e, closeIt, err := openNative(ctx, r)
	if err != nil {
		return nil
	}
	defer closeIt()
	if err := r.probe(ctx, e, mgr, nil); err != nil {
		return r.fixesFor(ctx, err)
	}
	return nil
}

// probe builds one box on this host, with caps and the workspace as steps see
// it, and runs nothing of anybody's. Where no overlay can be mounted, steps get
// copies from here on.
func (r *run) probe(ctx context.Context, e box.Engine, mgr *limits.Manager, tree *steps.Tree) error {
	err := r.probeOnce(ctx, e, mgr, tree)
	if err != nil && tree != nil && box.NoOverlay(err) && tree.Copies() == "" {
		tree.UseCopies(err.Error())
		note := "each step gets a copy of the workspace: " + err.Error()
		r.result.Notes = append(r.result.Notes, note)
		r.log.Say(note)
		err = r.probeOnce(ctx, e, mgr, tree)
	}
	return err
}

func (r *run) probeOnce(ctx context.Context, e box.Engine, mgr *limits.Manager, tree *steps.Tree) (err error) {
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
func (r *run) fixesFor(ctx context.Context, err error) []string {
	if errors.Is(err, errNoTemp) {
		return []string{"# name a folder that can be written for temporary files, such as", "export TMPDIR=/tmp"}
	}
	if errors.Is(err, errMissed) {
		return []string{"untrusted-steps doctor   # tries everything, and says what helps"}
	}
	if !native.Restricted(err) {
		return nil
	}
	return host.Fixes(ctx, host.Here(r.app.getenv), keptIn(r.app.getenv, r.opt.workspace))
}

// view is image host for one box. The host is read once for each network.
func (r *run) view(hostname string, network bool) rootfs.View {
	r.viewsMu.Lock()
	defer r.viewsMu.Unlock()
	v, ok := r.views[network]
	if !ok {
		v = hostView(r.app.getenv, network)
		if r.views == nil {
			r.views = map[bool]rootfs.View{}
		}
		r.views[network] = v
	}
	return v.For(hostname)
}

// hostView reads this host for image host. Homes and the runner's own folders
// are never shown, whatever PATH says.
func hostView(getenv func(string) string, network bool) rootfs.View {
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
