package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/gha/checks"
	"github.com/untrusted-steps/untrusted-steps/internal/host"
	"github.com/untrusted-steps/untrusted-steps/internal/report"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// fromInputs is a run inside GitHub Actions: the same flow, asked for by the
// inputs of action.yml.
func (a *app) fromInputs() int {
	var o options
	return a.unstarted(&o, a.runInputs(&o))
}

func (a *app) runInputs(o *options) int {
	in, err := gha.Env{Getenv: a.getenv, Out: a.stdout}.Inputs()
	*o = options{
		file: in.File, text: in.Steps, workspace: in.Workspace, out: in.Out, engine: in.Engine, jobs: 1, token: in.Token,
		policy: in.Policy, allowEvents: in.AllowEvents, hostSetup: in.HostSetup,
	}
	// Whatever is wrong, a workflow that asked to be told is told of it.
	var wantErr error
	o.tell, wantErr = checks.ParseWant(in)
	if err := a.hideToken(); err != nil {
		return a.next(a.wrong("inputs: token: %v", err), "this is not your doing; please report it")
	}
	if err != nil {
		return a.misused(o, "inputs: %v", err)
	}
	if wantErr != nil {
		return a.misused(o, "inputs: %v", wantErr)
	}
	if in.File == "-" {
		return a.next(a.wrong("inputs: file: an action has no standard input to read"), "write the steps themselves in the input steps")
	}
	if o.engine == "" {
		o.engine = "auto"
	}
	if o.hostSetup == "" {
		o.hostSetup = string(host.SetupAuto)
	}
	if o.workspace == "" {
		o.workspace = a.getenv("GITHUB_WORKSPACE")
	}
	if in.Jobs != "" {
		n, err := strconv.Atoi(in.Jobs)
		if err != nil {
			return a.next(a.wrong("inputs: jobs: %q is no number", in.Jobs), fmt.Sprintf("write one from 1 to %d", maxJobs))
		}
		o.jobs = n
	}
	o.shard, o.durations = in.Shard, in.Durations
	if in.Merge != "" {
		if o.shard != "" || o.durations != "" {
			return a.next(a.wrong("inputs: merge and shard: a merge runs nothing"), "take shard and durations out of the step that merges")
		}
		return a.mergeInput(o, in.Merge)
	}
	return a.runFile(o)
}

// decorate writes the summary, the outputs and the annotations. None of it is
// the gate: a step that reaches the runner's commands could change all of it,
// and cannot change our exit status.
func (r *run) decorate() {
	env := gha.Env{Getenv: r.app.getenv, Out: io.Discard}
	var md strings.Builder
	if err := report.WriteSummary(&md, r.result, report.SummaryBudget); err != nil {
		r.log.Say(fmt.Sprintf("the job summary could not be made: %v", err))
	} else if err := env.WriteSummary(md.String()); err != nil {
		r.log.Say(fmt.Sprintf("the job summary could not be written: %v", err))
	}
	err := r.log.Commands(func(w io.Writer) error {
		env.Out = w
		return errors.Join(env.WriteOutputs(r.outputs()), env.Annotate(r.annotations()))
	})
	if err != nil {
		r.log.Say(fmt.Sprintf("the outputs or annotations could not be written: %v", err))
	}
}

// annotations are a line for everything that closes the gate or would have,
// the worst first: no verdict, then faults, then violations, then exit codes.
func (r *run) annotations() []gha.Annotation {
	var out []gha.Annotation
	if ref := r.result.Refusal; ref != nil {
		title := "refused: nothing ran"
		if r.result.Merged != nil {
			title = "refused: a shard ran nothing"
		}
		out = append(out, gha.Annotation{Kind: gha.Error, Rank: 1000, Title: title, Message: ref.Cause})
	}
	if m := r.result.Merged; m != nil {
		for _, p := range m.Problems {
			out = append(out, gha.Annotation{Kind: gha.Error, Rank: 600, Title: "shards", Message: p})
		}
	}
	for _, s := range r.result.Steps {
		a := gha.Annotation{Kind: gha.Error, Title: s.ID + " " + s.Status, Message: s.Reason, Rank: 100}
		switch {
		case s.Status == steps.StatusError:
			a.Rank = 500
		case s.Fault != nil && s.Status == steps.StatusFailed:
			a.Title, a.Rank = s.ID+": "+string(s.Fault.Type), 300
		case s.Status == steps.StatusFailed && len(s.Violations) > 0:
			a.Title, a.Rank = s.ID+": "+report.Outcome(&s), 250
		case s.Status == steps.StatusFailed:
		case s.Status == steps.StatusSkipped:
			a.Rank = 50
		default:
			continue
		}
		if s.Excused {
			a.Kind = gha.Warning
		}
		if file := r.result.File; file != "" {
			a.File, a.Line = file, s.Line
		}
		out = append(out, a)
	}
	return out
}

// annotated is the steps file as an annotation names it.
func (r *run) annotated() string { return r.app.annotatedFile(r.opt.file) }

func (r *run) outputs() gha.Outputs {
	out := gha.Outputs{Verdict: r.result.Verdict}
	if r.written {
		out.Report = filepath.Join(r.opt.out, "report.json")
	}
	for _, s := range r.result.Steps {
		if s.Fault != nil {
			out.Faults = append(out.Faults, s.ID+":"+string(s.Fault.Type))
		}
		if s.Status == steps.StatusFailed || s.Status == steps.StatusError {
			out.FailedSteps = append(out.FailedSteps, s.ID)
		}
		out.ChangedFiles += s.FilesTotal
	}
	return out
}
