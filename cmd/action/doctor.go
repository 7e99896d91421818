package main

import (
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
	if code, ok := a.workspace(&o); !ok {
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
	var b strings.Builder
	write := r.WriteText
	if o.json {
		write = r.WriteJSON
	}
	if err := write(&b); err != nil {
		fmt.Fprintf(a.stderr, "untrusted-steps: %v\n", err)
		return exitNoVerdict
	}
	if code := a.print(b.String()); code != exitPass {
		return code
	}
	if !r.Ready {
		return exitRefused
	}
	return exitPass
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
