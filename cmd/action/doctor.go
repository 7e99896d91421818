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
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/host"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
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
	if code, ok := a.doctorsPlace(&o); !ok {
		return code
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r := host.Examine(ctx, host.Here(a.getenv), host.Options{
		Workspace: o.workspace, Places: keptIn(a.getenv, o.workspace), Temp: os.TempDir(),
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

// keptIn are the folders that what steps write may be kept in, the best first:
// the one that holds the workspace, then those that exist of the caller's own.
func keptIn(getenv func(string) string, workspace string) []string {
	places := []string{filepath.Dir(workspace)}
	for _, dir := range stateDirs(getenv, workspace) {
		for dir != "/" {
			if _, err := os.Stat(dir); err == nil {
				places = append(places, dir)
				break
			}
			dir = filepath.Dir(dir)
		}
	}
	return slices.Compact(places)
}

// boxes are the engines that were asked for, each with a full box to run.
func (a *app) boxes(o *options) (list []host.Engine) {
	for _, c := range candidates {
		if o.engine == "auto" || o.engine == c.name {
			list = append(list, host.Engine{Name: c.name, Get: c.get, Box: func(ctx context.Context) (string, error) {
				return a.box(ctx, o, c)
			}})
		}
	}
	return list
}

// box runs a full box: capped, and with a workspace as steps have it. The
// caller's own workspace is left alone; a folder beside it stands for it, which
// is on the same file system as a rule.
func (a *app) box(ctx context.Context, o *options, c candidate) (by string, err error) {
	r := &run{app: a, opt: o, plan: &steps.Plan{}, result: &steps.Result{}, log: gha.NewLog(gha.NewOutlet(io.Discard), gha.LogOptions{Now: time.Now})}
	e, closeIt, err := c.open(ctx, r)
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
	dir, err := os.MkdirTemp(filepath.Dir(o.workspace), ".untrusted-steps-doctor-")
	if err != nil {
		dir, err = os.MkdirTemp("", "untrusted-steps-doctor-")
	}
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	ws := filepath.Join(dir, "workspace")
	if err := os.Mkdir(ws, 0o755); err != nil {
		return "", err
	}
	tree, _, err := steps.OpenTree(ctx, ws, steps.TreeOptions{Home: a.getenv("HOME"), StateDirs: stateDirs(a.getenv, ws)})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, tree.Close()) }()
	if err := r.probe(ctx, e, mgr, tree); err != nil {
		return "", err
	}
	// What an earlier run saw is no answer to what is so now.
	if _, err := r.proveNow(ctx, e, mgr); err != nil {
		return "", err
	}
	info := e.Info()
	by = info.Name + " " + info.Version
	if at, ok := e.(interface{ Path() string }); ok {
		by += " at " + at.Path()
	}
	for _, n := range r.result.Notes {
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
		if err := p.Undo(ctx); err != nil {
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
		if err != nil {
			fmt.Fprintf(a.stderr, "untrusted-steps: %s\n", gha.Inert(err.Error()))
			return exitRefused
		}
		return a.print(plan.Text())
	}
	done := p.Begin(ctx)
	if !done.Complete {
		return exitRefused
	}
	if len(done.Notes) == 0 {
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
// and then does not return. The steps file is looked at first: a host is not
// changed for one that is wrong.
func (a *app) hostSetup(o *options) (undo func(), code int, ok bool) {
	undo = func() {}
	if o.hostSetup == "" {
		o.hostSetup = string(host.SetupOff)
	}
	setup, err := host.ParseSetup(o.hostSetup)
	if err != nil {
		return undo, a.misused(o, "--host-setup: %v", err), false
	}
	defer func() { _ = a.unsetenv(host.Marker) }() // for this program alone
	if setup == host.SetupOff || !a.wouldRun(o) {
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
