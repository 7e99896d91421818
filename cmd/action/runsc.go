package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/gvisor"
	"github.com/untrusted-steps/untrusted-steps/internal/pinned"
	"github.com/untrusted-steps/untrusted-steps/internal/session"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// runsc builds the runsc binary, or says which one a run would use.
func (a *app) runsc(args []string) int {
	o, code, ok := a.parse("runsc", args)
	if !ok {
		return code
	}
	build := o.operands[0] == "build"
	if build && o.runscSHA256 != "" {
		return a.misused(&o, "runsc build builds what this version knows the sum of; --runsc-sha256 is for runsc path and run")
	}
	if build && a.tempRefused() {
		return exitRefused
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var path string
	var err error
	if build {
		var environ []string
		if a.environ != nil {
			environ = a.environ()
		}
		path, err = gvisor.Build(ctx, gvisor.BuildOptions{
			Getenv: a.getenv, Environ: environ, Avoid: a.notOurs(), Log: func(line string) { fmt.Fprintln(a.stderr, gha.Inert(line)) },
		})
	} else {
		path, err = gvisor.Find(ctx, gvisor.Options{Getenv: a.getenv, SHA256: o.runscSHA256})
	}
	if err != nil {
		a.note("%v", err)
		return exitRefused
	}
	return a.print(path + "\n")
}

// notOurs are the folders whose code nobody has read, and none of which is to run out
// here: the job's workspace, and where we stand, unless the caller's own home lies in
// that.
func (a *app) notOurs() []string {
	dirs := []string{a.getenv("GITHUB_WORKSPACE")}
	if here, err := os.Getwd(); err == nil && !pinned.In(a.getenv("HOME"), here) {
		dirs = append(dirs, here)
	}
	return dirs
}

// needsRunsc says whether a step has a box of gvisor: because it names it, or the run
// does, or the policy leaves auto no other.
func (r *run) needsRunsc() bool {
	rest := r.opt.engine == "gvisor"
	if r.opt.engine == "auto" {
		k := session.ChoiceKernel(r.opt.ceiling.NotAllowed)
		rest = k != nil && *k == box.OwnKernel
	}
	return slices.ContainsFunc(r.plan.Steps, func(s steps.PlanStep) bool { return s.Engine == "gvisor" || s.Engine == "" && rest })
}

// makeRunsc builds what gvisor needs where a job of the action asks for it and has
// none, as the action fetches kern. If it cannot, the run is refused as it would have
// been, with the cause. A command line builds nothing that nobody asked for: it takes
// minutes.
func (r *run) makeRunsc(ctx context.Context) {
	if len(r.app.args) > 0 || !r.needsRunsc() {
		return
	}
	var none *pinned.NotFoundError
	if _, err := gvisor.Find(ctx, gvisor.Options{Getenv: r.app.getenv, SHA256: r.opt.runscSHA256}); !errors.As(err, &none) {
		return // there is one, or one that may not be taken, which the run says
	}
	var environ []string
	if r.app.environ != nil {
		environ = r.app.environ()
	}
	_, err := gvisor.Build(ctx, gvisor.BuildOptions{Getenv: r.app.getenv, Environ: environ, Avoid: append(r.app.notOurs(), r.opt.workspace), Log: r.log.Say})
	if err != nil {
		r.log.Say(fmt.Sprintf("runsc cannot be built: %v", err))
	}
}
