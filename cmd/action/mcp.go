package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/mcp"
	"github.com/untrusted-steps/untrusted-steps/internal/session"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
	"github.com/untrusted-steps/untrusted-steps/sandbox"
)

// mcp serves tools that run in boxes to an agent, until that closes our input.
func (a *app) mcp(args []string) int {
	o, code, ok := a.parse("mcp", args)
	if ok {
		o.jobs = 1
		code, ok = a.possible(&o)
	}
	if ok {
		code, ok = a.workspace(&o)
	}
	if !ok {
		return code
	}
	for _, named := range [][2]string{{"--policy", o.policy}, {"--defaults", o.defaults}} {
		flag, file := named[0], named[1]
		if file == "" {
			continue
		}
		switch err := canBeRead(file); {
		case errors.Is(err, fs.ErrNotExist):
			return a.next(a.wrong("%s: there is no %s; nothing ran", flag, file), o.seeHelp())
		case err != nil:
			return a.next(a.wrong("%s: %v", flag, err), "name a file that can be read")
		case inWorkspace(file, o.workspace):
			return a.next(a.wrong("%s %s lies in the workspace, where every tool can write", flag, file), "keep it in another folder")
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A client that is gone must not end us in the middle: boxes are to be taken away.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	defer signal.Stop(pipe)
	session.MoveTemp(o.workspace)
	box, err := sandbox.New(ctx, sandbox.Options{
		Workspace: o.workspace, DefaultsFile: o.defaults, PolicyFile: o.policy, Engine: o.engine, KernSHA256: o.kernSHA256, RunscSHA256: o.runscSHA256, FreshProof: o.freshProof,
		Log: a.stderr, // the output is the protocol's
	})
	var bad *sandbox.BadOptions
	var no *sandbox.Refusal
	switch {
	case ctx.Err() != nil:
		return exitCancelled
	case errors.As(err, &bad):
		for i, p := range bad.Problems {
			last := "nothing ran; " + o.seeHelp()
			if i < len(bad.Problems)-1 {
				last = ""
			}
			a.wrongLines(p, o.seeHelp(), last)
		}
		return exitUsage
	case errors.As(err, &no):
		a.refused(&steps.Refusal{Cause: no.Cause, Fix: no.Fix}, a.stderr)
		return exitRefused
	case err != nil:
		return a.next(a.wrong("%v", err), o.seeHelp())
	}
	for _, n := range box.Notes() {
		a.note("%s", gha.Inert(n))
	}
	err = mcp.Serve(ctx, box, toolVersion(), io.NopCloser(a.stdin), nopCloser{a.stdout})
	if cerr := box.Close(); err == nil {
		err = cerr
	}
	switch {
	case ctx.Err() != nil:
		return exitCancelled
	case err != nil:
		a.note("%v", err)
		return exitNoVerdict
	}
	return exitPass
}

// wrongLines says what is wrong in a file that has more lines than one: where it is, and
// below it what may stand there, and then last, if there is that. Where it would have no
// next step it gets one.
func (a *app) wrongLines(text, step, last string) {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	then := lines[1:]
	if last != "" {
		then = append(then, last)
	}
	if len(then) == 0 {
		then = []string{step}
	}
	a.next(a.wrong("%s", lines[0]), strings.TrimSpace(then[0]))
	for _, line := range then[1:] {
		a.next(exitUsage, strings.TrimSpace(line))
	}
}

// nopCloser is a writer that is not ours to close.
type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }
