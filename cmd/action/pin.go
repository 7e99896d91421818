package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/image"
	"github.com/untrusted-steps/untrusted-steps/internal/session"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// pin prints a steps file whose images have the digests that their tags have now.
func (a *app) pin(args []string) int {
	o, code, ok := a.parse("pin", args)
	if !ok {
		return code
	}
	p, code, ok := a.load(&o)
	if !ok {
		return code
	}
	if a.getenv("GITHUB_ACTIONS") == "true" && acts(o.source) {
		return a.next(a.wrong("%s has lines that a runner would take for commands, so it is not printed here", o.file), "pin it on a machine that is no runner")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	digests, err := a.digests(ctx, session.Puller(a.getenv, a.environ, o.workspace, &image.Store{}), p.ImagePlaces)
	switch {
	case ctx.Err() != nil:
		return exitCancelled
	case err != nil:
		a.next(a.wrong("%v", err), "nothing was printed; the file is as it was")
		return exitRefused
	}
	out, left := steps.Pin(o.source, p.ImagePlaces, digests)
	for _, l := range left {
		a.say(a.stderr, a.stderr, warning(fmt.Sprintf("%s:%d:%d: this image is written in a way that no digest can be put behind it; it would be %s",
			o.file, l.Line, l.Column, image.Pin(l.Text, digests[l.Ref.String()]))))
	}
	// As it stands: the file was refused before, where its lines would act.
	if code := a.answer(out); code != exitPass || len(left) == 0 {
		return code
	}
	return exitFail
}

// digests asks for each image once.
func (a *app) digests(ctx context.Context, puller *image.Puller, places []steps.ImagePlace) (map[string]string, error) {
	digests := map[string]string{}
	for _, p := range places {
		name := p.Ref.String()
		if _, asked := digests[name]; asked || p.Ref.Digest != "" {
			continue
		}
		digest, err := puller.Resolve(ctx, p.Ref)
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", name, err)
		}
		digests[name] = digest
		fmt.Fprintf(a.stderr, "%s: %s is %s\n", toolName, gha.Inert(name), digest)
	}
	return digests, nil
}

// acts says whether a runner that reads a text as its log would do more than show it.
func acts(text []byte) bool {
	for line := range bytes.Lines(text) {
		l := strings.TrimSpace(string(line))
		if strings.HasPrefix(l, "::") || strings.Contains(l, "##[") {
			return true
		}
	}
	return false
}
