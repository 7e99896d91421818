package steps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/egress"
)

// tries runs a step, and runs it again for as long as it may and what went wrong
// is not its code's doing.
func (r *Runner) tries(ctx context.Context, s PlanStep, sr *StepResult, begun time.Time) {
	var before []StepResult
	bytes := s.EgressMaxBytes
	for n := 1; ; n++ {
		again := r.step(ctx, s, bytes, sr, int64(n) <= s.Retries)
		if again {
			bytes, again = left(s.EgressMaxBytes, sr.Egress, before)
		}
		if s.Retries > 0 {
			sr.Attempts = n
		}
		if !again {
			break
		}
		r.Log.Say(fmt.Sprintf("%s: try %d of at most %d: %s; trying again", sr.ID, n, s.Retries+1, sr.Reason))
		if err := setAside(r.Out, sr, n); err != nil {
			noVerdict(sr, err)
			break
		}
		before = append(before, *sr)
		*sr = *r.begin(s, begun)
		r.askAgain(ctx, s, sr)
	}
	sum(sr, before)
}

// again says whether what a try ended with is no doing of the code's. All that
// is known of it has to be of that kind: whatever a step was refused, or was
// stopped for, it would only get a second chance at.
func again(sr *StepResult) bool {
	if sr.Status != StatusFailed || len(sr.Violations) > 0 {
		return false
	}
	if sr.Setup != nil && sr.Setup.Status == StatusFailed {
		b := sr.Setup
		return b.By == SetupRan && again(&StepResult{Status: b.Status, ExitCode: b.ExitCode, Signal: b.Signal, Fault: b.Fault, Events: b.Events, Egress: sr.Egress})
	}
	if sr.Fault != nil {
		return sr.Fault.Type == box.StartupFailed && !slices.ContainsFunc(sr.Events, func(e box.Event) bool { return e.Type != box.StartupFailed })
	}
	if sr.ExitCode == nil || *sr.ExitCode == 0 || sr.Signal != nil || len(sr.Events) > 0 {
		return false
	}
	failed := false
	for _, e := range sr.Egress {
		switch {
		case e.Verdict == egress.Denied:
			return false
		case e.Verdict == egress.Failed && upstream(e.Reason):
			failed = true
		}
	}
	return failed
}

// upstream says whether a request failed for what lies beyond our proxy. A
// client that hangs up, or opens too many connections, does so itself.
func upstream(reason string) bool {
	return reason == egress.ReasonResolve || reason == egress.ReasonDial || reason == egress.ReasonUpstream
}

// left is what of a step's bytes is there for another try, so that a step cannot
// have more of them by failing. Without a bound there is always more.
func left(budget int64, now []EgressRecord, before []StepResult) (bytes int64, more bool) {
	if budget == 0 {
		return 0, true
	}
	used := moved(now)
	for i := range before {
		used += moved(before[i].Egress)
	}
	if used >= uint64(budget) {
		return budget, false
	}
	return budget - int64(used), true
}

func moved(list []EgressRecord) (n uint64) {
	for _, e := range list {
		n += e.BytesIn + e.BytesOut
	}
	return n
}

// setAside makes place in the report for another try's files, and lets the result
// of this one name where its own are now.
func setAside(out string, sr *StepResult, n int) error {
	root, err := os.OpenRoot(out)
	if err != nil {
		return fmt.Errorf("open the report folder: %w", err)
	}
	defer root.Close()
	var none Patch
	patch := &none
	if sr.Patch != nil {
		patch = sr.Patch
	}
	dir, aside := filepath.Join("steps", sr.ID), TryFolder(sr.ID, n)
	for _, f := range []struct {
		name string
		at   *string
	}{{"stdout.log", &sr.Stdout.Path}, {"stderr.log", &sr.Stderr.Path}, {"changes.patch", &patch.Path}, {resultsFolder, new(string)}, {setupFolder, new(string)}} {
		if _, err := root.Lstat(filepath.Join(dir, f.name)); errors.Is(err, fs.ErrNotExist) {
			*f.at = ""
			continue
		}
		if err := root.MkdirAll(aside, 0o755); err != nil {
			return fmt.Errorf("make a folder for what the step's earlier try wrote: %w", err)
		}
		if err := root.Rename(filepath.Join(dir, f.name), filepath.Join(aside, f.name)); err != nil {
			return fmt.Errorf("set aside what the step's earlier try wrote: %w", err)
		}
		*f.at = filepath.Join(aside, f.name)
	}
	return nil
}

// sum adds to a result what its earlier tries did: to whom they talked is part of
// what the step did, however it ended.
func sum(sr *StepResult, before []StepResult) {
	if len(before) == 0 {
		return
	}
	sr.Flaky = sr.Status == StatusPassed
	var notes []string
	for i := range before {
		b := &before[i]
		sr.Tries = append(sr.Tries, Try{Reason: b.Reason, DurationMs: b.DurationMs, Stdout: b.Stdout, Stderr: b.Stderr, Patch: b.Patch})
		notes = append(notes, sr.TrySays(i))
		for _, e := range b.Egress {
			sr.Egress = merge(sr.Egress, e)
		}
		for _, p := range b.EgressProposal {
			if !slices.Contains(sr.EgressProposal, p) {
				sr.EgressProposal = append(sr.EgressProposal, p)
			}
		}
		if b.Fault == nil { // its box ran, so what it used was used
			sr.EgressUnused = slices.DeleteFunc(sr.EgressUnused, func(rule string) bool { return !slices.Contains(b.EgressUnused, rule) })
		}
	}
	sr.Notes = append(notes, sr.Notes...)
}

// merge adds a record to a list, or to the record of the same in it.
func merge(list []EgressRecord, e EgressRecord) []EgressRecord {
	for i := range list {
		same := list[i]
		same.Count, same.BytesIn, same.BytesOut = e.Count, e.BytesIn, e.BytesOut
		if same == e {
			list[i].Count += e.Count
			list[i].BytesIn += e.BytesIn
			list[i].BytesOut += e.BytesOut
			return list
		}
	}
	return append(list, e)
}
