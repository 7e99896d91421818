package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/host"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
	"github.com/untrusted-steps/untrusted-steps/internal/scratch"
	"github.com/untrusted-steps/untrusted-steps/internal/session"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// doctor says what this machine can enforce, what it cannot, and what to type.
// Its exit status is that of a run: 0 if a full box ran, else 3.
func (a *app) doctor(args []string) int {
	o, code, ok := a.parse("doctor", args)
	if !ok {
		return code
	}
	o.jobs = 1
	if code, ok := a.possible(&o); !ok {
		return code
	}
	// As a run with that flag would find this host, for as long as it looks.
	undo, code, ok := a.hostSetup(&o, func() bool {
		quiet, copied := *a, o
		quiet.stdout, quiet.stderr = io.Discard, io.Discard
		_, ok := quiet.doctorsPlace(&copied)
		return ok
	})
	if !ok {
		return code
	}
	defer undo()
	if code, ok := a.doctorsPlace(&o); !ok {
		return code
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	places := session.KeptIn(a.getenv, o.workspace)
	session.Sweep(a.getenv, o.workspace)
	r := host.Examine(ctx, host.Here(a.getenv), host.Options{
		Workspace: o.workspace, Places: places, Temp: os.TempDir(),
		Disk: steps.DefaultDiskMb << 20, Engines: a.boxes(&o),
	})
	r.Version = toolVersion()
	if ctx.Err() != nil {
		return exitCancelled
	}
	if code := a.printAs(o.json, r.WriteText, r.WriteJSON); code != exitPass {
		return code
	}
	if !r.Ready {
		return exitRefused
	}
	return exitPass
}

// doctorsPlace is the workspace to look at. Who is in trouble is as likely as not in
// a folder that cannot be one, such as the home: then it is the one for temporary
// files, and that is said. One that was named has to be one.
func (a *app) doctorsPlace(o *options) (code int, ok bool) {
	if o.workspace != "" {
		return a.workspace(o)
	}
	quiet := *a
	quiet.stdout, quiet.stderr = io.Discard, io.Discard
	if _, ok := quiet.workspace(o); ok {
		return 0, true
	}
	o.workspace = filepath.Join(os.TempDir(), "workspace")
	fmt.Fprintf(a.stderr, "untrusted-steps: the current folder cannot be a workspace, so it is asked for one in %s; name another with --workspace DIR\n", gha.Inert(os.TempDir()))
	return 0, true
}

// boxes are the engines that were asked for, each with a full box to run.
func (a *app) boxes(o *options) (list []host.Engine) {
	for _, c := range a.candidates() {
		if o.engine == "auto" || o.engine == c.Name {
			list = append(list, host.Engine{Name: c.Name, Get: c.Get, Named: c.Named, Box: func(ctx context.Context) (string, error) {
				return a.box(ctx, o, c)
			}})
		}
	}
	return list
}

func (a *app) candidates() []session.Candidate {
	if a.engines != nil {
		return a.engines
	}
	return session.Candidates()
}

// box runs a full box: capped, and with a workspace as steps have it. The
// caller's own workspace is left alone; a folder beside it stands for it, which
// is on the same file system as a rule.
func (a *app) box(ctx context.Context, o *options, c session.Candidate) (by string, err error) {
	on := session.New(session.Options{
		Version: toolVersion(), Getenv: a.getenv, LookupEnv: a.lookupEnv, Workspace: o.workspace, KernSHA256: o.kernSHA256, RunscSHA256: o.runscSHA256,
		Plan: &steps.Plan{}, Result: &steps.Result{}, Log: gha.NewLog(gha.NewOutlet(io.Discard), gha.LogOptions{Now: time.Now}),
	})
	e, closeIt, err := c.Open(ctx, on)
	if err != nil {
		return "", fmt.Errorf("%w: %w", host.ErrNoEngine, err)
	}
	defer closeIt()
	id := make([]byte, 8)
	if _, err := rand.Read(id); err != nil {
		return "", err
	}
	mgr, err := limits.Open(limits.Config{RunID: hex.EncodeToString(id), XDGRuntimeDir: a.getenv("XDG_RUNTIME_DIR")})
	if err != nil {
		return "", err
	}
	defer mgr.Close()
	own, err := scratch.Make(filepath.Dir(o.workspace), scratch.Doctor)
	if err != nil {
		own, err = scratch.Make("", scratch.Doctor)
	}
	if err != nil {
		return "", err
	}
	defer own.Remove()
	if err := os.Mkdir(filepath.Join(own.At(), "workspace"), 0o755); err != nil {
		return "", err
	}
	ws := filepath.Join(own.Path, "workspace")
	tree, _, err := steps.OpenTree(ctx, ws, steps.TreeOptions{Home: a.getenv("HOME"), StateDirs: session.StateDirs(a.getenv, ws)})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, tree.Close()) }()
	if err := on.Probe(ctx, e, mgr, tree); err != nil {
		return "", err
	}
	// What an earlier run saw is no answer to what is so now.
	if _, err := on.ProveNow(ctx, e, mgr); err != nil {
		return "", err
	}
	info := e.Info()
	by = info.Name + " " + info.Version
	if at, ok := e.(interface{ Path() string }); ok {
		by += " at " + at.Path()
	}
	for _, n := range on.Result.Notes {
		by += "; " + n
	}
	return by, nil
}

// prepare adds to this host what boxes need and it lacks, until it is undone:
// for runs that may not do it themselves.
func (a *app) prepare(args []string) int {
	o, code, ok := a.parse("prepare", args)
	if !ok {
		return code
	}
	setup, err := host.ParseSetup(o.hostSetup)
	switch {
	case err != nil:
		return a.misused(&o, "prepare: --host-setup: %v", err)
	case setup == host.SetupOff:
		return a.misused(&o, "prepare: --host-setup off adds nothing")
	case o.undo && o.dry:
		return a.misused(&o, "prepare: --undo and --dry-run: one of the two")
	}
	undo, dry := o.undo, o.dry
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	p := &host.Preparer{Setup: setup, Getenv: a.getenv, PID: os.Getppid(), Lasting: true, Say: a.sayHost}
	if undo {
		err := p.Undo(ctx)
		if ctx.Err() != nil {
			return exitCancelled
		}
		if err != nil {
			fmt.Fprintf(a.stderr, "untrusted-steps: not all could be taken away: %s\n", gha.Inert(strings.ReplaceAll(err.Error(), "\n", "; ")))
			return exitRefused
		}
		return exitPass
	}
	if os.Geteuid() == 0 && !dry {
		a.sayHost("root needs nothing of this; run it as the account that runs steps, which sudo then helps")
	}
	if dry {
		plan, err := p.Look(ctx)
		if ctx.Err() != nil {
			return exitCancelled
		}
		if err != nil {
			fmt.Fprintf(a.stderr, "untrusted-steps: %s\n", gha.Inert(err.Error()))
			return exitRefused
		}
		return a.print(plan.Text())
	}
	done := p.Begin(ctx)
	if ctx.Err() != nil {
		return exitCancelled
	}
	if !done.Complete {
		if plan, err := p.Look(ctx); err == nil && len(plan.Actions) > 0 {
			a.sayHost("who may be root here can do it; the commands are printed by: untrusted-steps prepare --dry-run")
		}
		return exitRefused
	}
	if len(done.Notes) == 0 && len(done.Hints) == 0 {
		a.sayHost("nothing is missing")
	}
	return exitPass
}

// sayHost tells what becomes of this host.
func (a *app) sayHost(line string) {
	fmt.Fprintf(a.stderr, "untrusted-steps: host setup: %s\n", gha.Inert(line))
}

// hostSetup adds to this host what a run needs and lacks, as far as it was asked
// to, and says so in the report. It may start this program again in its own place
// and then does not return. would says whether anything would be run at all: a host
// is not changed for a steps file that is wrong.
func (a *app) hostSetup(o *options, would func() bool) (undo func(), code int, ok bool) {
	undo = func() {}
	if o.hostSetup == "" {
		o.hostSetup = string(host.SetupOff)
	}
	setup, err := host.ParseSetup(o.hostSetup)
	if err != nil {
		return undo, a.misused(o, "--host-setup: %v", err), false
	}
	defer func() { _ = a.unsetenv(host.Marker) }() // for this program alone
	if setup == host.SetupOff || !would() {
		return undo, 0, true
	}
	p := &host.Preparer{Setup: setup, Getenv: a.getenv, Args: os.Args[1:], Say: a.sayHost, BeforeExec: func() error { return a.againFrom(o) }}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if notes := p.Begin(ctx).Notes; len(notes) > 0 {
		o.warnings = append(o.warnings, "host setup: "+strings.Join(notes, "; "))
	}
	if ctx.Err() != nil {
		p.End()
		return undo, exitCancelled, false
	}
	return p.End, 0, true
}

// wouldRun says whether a steps file is right, and says nothing else: what is
// wrong with it is said when it is read in earnest. What came from stdin can be
// read once more.
func (a *app) wouldRun(o *options) bool {
	if o.file == "-" {
		b, err := io.ReadAll(io.LimitReader(a.stdin, readAtMost))
		if err != nil {
			return false
		}
		a.stdin, o.stdin = bytes.NewReader(b), b
		defer func() { a.stdin = bytes.NewReader(b) }()
	}
	quiet, copied := *a, *o
	// Nor is any package client asked for its settings twice.
	quiet.stdout, quiet.stderr, quiet.environ = io.Discard, io.Discard, nil
	p, _, ok := quiet.load(&copied)
	return ok && len(p.Steps) > 0
}

// againFrom makes what was read from stdin readable to the program that this one
// becomes.
func (a *app) againFrom(o *options) error {
	if o.token != "" { // it was hidden from what we start, which is now ourselves
		if err := os.Setenv(gha.TokenVariables[0], o.token); err != nil {
			return err
		}
	}
	if o.file != "-" {
		return nil
	}
	fd, err := unix.MemfdCreate("stdin", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "stdin")
	defer f.Close()
	if _, err := f.Write(o.stdin); err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return unix.Dup3(fd, 0, 0)
}
