package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/kern"
)

// kern fetches the kern binary, or says which one a run would use.
func (a *app) kern(args []string) int {
	fs := flag.NewFlagSet("kern", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	sum := fs.String("kern-sha256", "", "")
	if len(args) == 0 || (args[0] != "install" && args[0] != "path") {
		return a.misused("kern takes one of the words install and path")
	}
	if err := fs.Parse(args[1:]); err != nil || fs.NArg() > 0 {
		return a.misused("kern %s takes no more than --kern-sha256 HEX", args[0])
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var path string
	var err error
	if args[0] == "install" {
		path, err = kern.Install(ctx, kern.InstallOptions{
			Getenv: a.getenv, Log: func(line string) { fmt.Fprintln(a.stderr, gha.Inert(line)) },
		})
	} else {
		path, err = kern.Find(ctx, kern.Options{Getenv: a.getenv, SHA256: *sum})
	}
	if err != nil {
		fmt.Fprintf(a.stderr, "untrusted-steps: %v\n", err)
		return exitRefused
	}
	return a.print(path + "\n")
}

func openKern(ctx context.Context, r *run) (box.Engine, func(), error) {
	e, err := kern.Open(ctx, kern.Options{
		Getenv: r.app.getenv, SHA256: r.opt.kernSHA256,
		View: r.view,
	})
	if err != nil {
		return nil, nil, err
	}
	return e, e.Close, nil
}
