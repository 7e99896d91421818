package main

import (
	"context"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/gha/checks"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// tell gives a pull request what the workflow asked for: a check run, a comment,
// a commit status. It comes after the report and the summary, which need nobody
// else, and changes no exit status. After a cancel the runner leaves us a few
// seconds, and they are for ending: nothing is sent then.
func (r *run) tell(ctx context.Context) {
	if ctx.Err() != nil || r.result.Verdict == steps.VerdictCancelled {
		return
	}
	for _, note := range r.app.tell(ctx, r.opt, checks.Input{Result: r.result, Annotations: r.annotations(), Mask: r.masker.Mask}) {
		r.log.Say(note)
	}
}

// tell sends what was asked for, and gives a line about each thing that could not
// be sent.
func (a *app) tell(ctx context.Context, o *options, in checks.Input) []string {
	if !o.tell.Anything() {
		return nil
	}
	at, err := checks.Locate(a.getenv)
	if err != nil {
		return []string{"nothing is told to the pull request: " + err.Error()}
	}
	in.Want, in.Place = o.tell, at
	p := checks.Publisher{Token: checks.Token(o.token), Agent: toolName + "/" + toolVersion(), Now: time.Now, Jitter: rand.Float64}
	return p.Publish(ctx, at, checks.Make(in))
}

// hideToken takes the token out of the environment once it is read: what is
// started from here on, package clients and kern included, does not get it.
func (a *app) hideToken() error {
	for _, name := range gha.TokenVariables {
		if err := a.unsetenv(name); err != nil {
			return err
		}
	}
	return nil
}

// tokenInBox says how the token for the API would get into a box. The steps may
// come from the change under test, and then it would be its author who asks.
func (a *app) tokenInBox(o *options, p *steps.Plan) string {
	if o.token == "" {
		return ""
	}
	// An expression in inline steps puts it there, whatever key it stands in.
	if strings.Contains(string(o.source), o.token) {
		return "inputs: the token of the input token stands in the steps themselves; it never enters a box"
	}
	for _, s := range p.Steps {
		for _, n := range s.PassEnv {
			if v, ok := a.lookupEnv(n); ok && strings.Contains(v, o.token) {
				return "step " + s.ID + ": passEnv: " + n + " holds the token of the input token, which never enters a box; give the step one of its own"
			}
		}
	}
	return ""
}
