package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/kern"
)

// kern fetches the kern binary, or says which one a run would use.
func (a *app) kern(args []string) int {
	o, code, ok := a.parse("kern", args)
	if !ok {
		return code
	}
	install := o.operands[0] == "install"
	if install && o.kernSHA256 != "" {
		return a.misused(&o, "kern install installs what this version knows the sum of; --kern-sha256 is for kern path and run")
	}
	if install && a.tempRefused() {
		return exitRefused
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var path string
	var err error
	if install {
		path, err = kern.Install(ctx, kern.InstallOptions{
			Getenv: a.getenv, Avoid: a.notOurs(), Log: func(line string) { fmt.Fprintln(a.stderr, gha.Inert(line)) },
		})
	} else {
		path, err = kern.Find(ctx, kern.Options{Getenv: a.getenv, SHA256: o.kernSHA256})
	}
	if err != nil {
		a.note("%v", err)
		return exitRefused
	}
	return a.print(path + "\n")
}
