package main

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/session"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// loadPolicy reads the policy that a steps file is to be held to. ok is false
// when code is the exit status.
func (a *app) loadPolicy(o *options, lo *steps.Options) (code int, ok bool) {
	if o.policy == "" {
		return 0, true
	}
	src, err := a.readNamed(o, o.policy)
	if err != nil {
		return a.next(a.wrong("--policy: %v", err), "name the file of a policy; "+toolName+" schema policy prints what it may say"), false
	}
	o.ceiling, err = steps.LoadPolicy(o.policy, src, *lo)
	if err != nil {
		return a.wrongFile(o.policy, err), false
	}
	lo.Policy = o.ceiling
	if !o.merges && inWorkspace(o.policy, o.workspace) {
		a.warn(o, fmt.Sprintf("the policy %s lies in the workspace, so whoever changed that may have written it; "+
			"read it from the base branch into another folder, as examples/workflows/pull-request.yml does", o.policy))
	}
	return 0, true
}

// inWorkspace says whether a file lies in the workspace, by its name or by where
// that leads to.
func inWorkspace(file, workspace string) bool {
	abs, err := filepath.Abs(file)
	if err != nil {
		return true // unknown is not safe
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return true
	}
	real, err := filepath.EvalSymlinks(abs)
	return err != nil || session.Within(real, workspace) || session.Within(filepath.Join(dir, filepath.Base(abs)), workspace)
}

// warn says something now and in the report.
func (a *app) warn(o *options, text string) {
	a.say(a.stderr, a.stderr, warning(text))
	o.warnings = append(o.warnings, text)
}

// engineAllowed refuses an engine that was asked for by name and that the policy
// does not have. auto leaves the choice, and takes no other.
func (a *app) engineAllowed(o *options) (code int, ok bool) {
	if o.engine == "auto" || o.engine == "" { // check has no such flag
		return 0, true
	}
	if why := o.ceiling.NotAllowed(o.engine); why != "" {
		return a.next(a.wrong("--engine %s: %s", o.engine, gha.Inert(why)), "take auto, or one that the policy allows"), false
	}
	return 0, true
}

// notRun are notes about steps that a policy requires and that were not asked
// for. It is the caller's choice, and the report must not look complete. What
// another shard runs was asked for.
func notRun(p *steps.Policy, plan *steps.Plan) (notes []string) {
	asked := plan.IDs()
	if plan.Shard != nil {
		asked = plan.Shard.All
	}
	for _, id := range p.Required() {
		if !slices.Contains(asked, id) {
			notes = append(notes, fmt.Sprintf("the policy requires the step %s, which --only leaves out of this run", id))
		}
	}
	return notes
}
