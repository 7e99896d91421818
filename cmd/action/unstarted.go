package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/gha/checks"
	"github.com/untrusted-steps/untrusted-steps/internal/report"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// problem is one thing that kept a run from being begun, as it was said on
// stderr. The place is there where it stands in a file: the steps, or a policy.
type problem struct {
	text         string
	file         string
	line, column int
}

// unstarted tells a runner why nothing was begun: an annotation where the problem
// stands, a summary and the outputs, and whatever a pull request was to be told of
// the run. Without them whoever opened it sees a red cross and nothing else, and a
// check that is required waits for ever. There is no report, since nothing ran, and
// the verdict is error, since there is none about any step; refused where the
// host is what is wrong. The exit status is what was decided before.
func (a *app) unstarted(o *options, code int) int {
	if len(a.problems) == 0 || a.getenv("GITHUB_ACTIONS") != "true" {
		return code
	}
	verdict := steps.VerdictError
	if code == exitRefused {
		verdict = steps.VerdictRefused
	}
	// A steps file may quote the token: its text is what is said to be wrong.
	mask := func(text string) string { return text }
	if o.token != "" {
		mask = gha.NewMasker(o.token).Mask
	}
	var texts []string
	var notes []gha.Annotation
	for i, p := range a.problems {
		text := mask(p.text)
		texts = append(texts, text)
		n := gha.Annotation{Kind: gha.Error, Rank: len(a.problems) - i, Title: "nothing ran", Message: text}
		if f := a.annotatedFile(p.file); f != "" && p.line > 0 {
			n.File, n.Line, n.Column = f, p.line, p.column
		}
		notes = append(notes, n)
	}
	env := gha.Env{Getenv: a.getenv, Out: a.stdout}
	if o.json { // where a program reads stdout, nothing else is on it
		env.Out = a.stderr
	}
	var md strings.Builder
	err := report.WriteUnstarted(&md, verdict, texts, report.SummaryBudget)
	if err == nil {
		err = env.WriteSummary(md.String())
	}
	if err := errors.Join(err, env.Annotate(notes), env.WriteOutputs(gha.Outputs{Verdict: verdict})); err != nil {
		fmt.Fprintf(a.stderr, "untrusted-steps: what is wrong could not be told to the runner: %s\n", gha.Inert(err.Error()))
	}
	// There is nothing to end, so a signal ends us as it always would.
	for _, note := range a.tell(context.Background(), o, checks.Input{Unstarted: &checks.Unstarted{Verdict: verdict, Problems: texts}, Annotations: notes, Mask: mask}) {
		fmt.Fprintf(a.stderr, "untrusted-steps: %s\n", gha.Inert(mask(note)))
	}
	return code
}

// wrongFile says what is wrong with a steps file or a policy, each thing at its
// place. Steps that are no file have none.
func (a *app) wrongFile(file string, err error) int {
	_, _ = io.WriteString(a.stderr, strings.TrimRight(err.Error(), "\n")+"\n")
	var list steps.Errors
	if !errors.As(err, &list) {
		a.problems = append(a.problems, problem{text: err.Error()})
	}
	for _, e := range list {
		a.problems = append(a.problems, problem{text: e.Error(), file: file, line: e.Line, column: e.Column})
	}
	return exitUsage
}

// unread says why there are no steps to read. That a gate has no file is what the
// pull request that brings it meets first: its steps come from the base branch,
// and nothing in the change itself could mend that.
func (a *app) unread(o *options, err error) int {
	if !errors.Is(err, fs.ErrNotExist) {
		return a.next(a.wrong("%v", err), "name a steps file that can be read, or - for standard input")
	}
	base := a.getenv("GITHUB_BASE_REF")
	if base == "" {
		return a.next(a.wrong("there is no %s; nothing ran", o.file), o.seeHelp())
	}
	return a.next(a.wrong("there is no %s. If the workflow reads it from the base branch, there is no such file on %s; the pull request that first adds it needs "+
		"to be read by somebody and merged without this gate, which holds from the next one on", o.file, base), "elsewhere, name the file where it is")
}
