package shard

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/lazy"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// maxMs is the longest time that is believed: sums of it cannot overflow.
const maxMs = int64(366 * 24 * time.Hour / time.Millisecond)

// Words of a report that other parts of it, or other programs, go by.
var (
	verdicts   = []string{steps.VerdictPass, steps.VerdictFail, steps.VerdictRefused, steps.VerdictError, steps.VerdictCancelled}
	statuses   = []string{steps.StatusPassed, steps.StatusFailed, steps.StatusSkipped, steps.StatusCancelled, steps.StatusError}
	networks   = []string{"", "none", "allowlist", "host"}
	modes      = []string{"", "enforce", "audit"}
	workspaces = []string{"committed", "discarded", "kept", "unchanged"}
	ways       = []string{"", "overlay", "copy"}
	disks      = []string{"", "loop", "tmpfs", "sampler"}
	changes    = []string{"created", "modified", "deleted", "mode", "retyped"}
	types      = []string{"file", "dir", "symlink", "fifo", "socket", "device"}
	// Of setups.
	setupStatuses = []string{steps.StatusPassed, steps.StatusFailed, steps.StatusCancelled, steps.StatusError}
	setupWays     = []string{steps.SetupRan, steps.SetupShared, steps.SetupCached}
	outcomes      = []string{"allowed", "denied", "failed"}
)

// Check says what in a report is such that no run of ours has written it. Ids
// name folders and are printed by workflows; words choose what a reader is
// shown; paths are opened.
func Check(r *steps.Result) error {
	if !slices.Contains(verdicts, r.Verdict) {
		return wrong("its verdict is %s", r.Verdict)
	}
	if r.DurationMs < 0 || r.DurationMs > maxMs {
		return errors.New("its duration cannot be")
	}
	if len(r.Steps) > steps.MaxSteps {
		return fmt.Errorf("it has more than %d steps", steps.MaxSteps)
	}
	if r.Shard != nil {
		if err := checkShard(r.Shard); err != nil {
			return err
		}
	}
	if r.Policy != nil && !sumShape().MatchString(r.Policy.SHA256) {
		return wrong("the sum of its policy is %s", r.Policy.SHA256)
	}
	seen, own := map[string]bool{}, map[string]bool{}
	if r.Shard != nil {
		for _, id := range r.Shard.Steps {
			own[id] = true
		}
	}
	for i := range r.Steps {
		s := &r.Steps[i]
		if !steps.IsID(s.ID) {
			return wrong("the id of a step is %s", s.ID)
		}
		if seen[s.ID] {
			return fmt.Errorf("it has step %s twice", s.ID)
		}
		seen[s.ID] = true
		if err := checkStep(s); err != nil {
			return fmt.Errorf("step %s: %w", s.ID, err)
		}
		if r.Shard != nil && !own[s.ID] {
			return fmt.Errorf("it has step %s, which is not one of its shard", s.ID)
		}
	}
	return nil
}

func checkShard(s *steps.Shard) error {
	switch {
	case s.Of < 1 || s.Of > steps.MaxShards || s.Index < 1 || s.Index > s.Of:
		return fmt.Errorf("it says to be shard %d of %d", s.Index, s.Of)
	case !sumShape().MatchString(s.Plan):
		return wrong("the sum of its plan is %s", s.Plan)
	case len(s.All) > steps.MaxSteps:
		return fmt.Errorf("its plan has more than %d steps", steps.MaxSteps)
	}
	all := map[string]bool{}
	for _, id := range s.All {
		if !steps.IsID(id) || all[id] {
			return wrong("in the list of its plan, twice or no id, is %s", id)
		}
		all[id] = true
	}
	for _, id := range s.Steps {
		if !all[id] {
			return wrong("its shard has a step twice, or one that is not in the plan: %s", id)
		}
		all[id] = false
	}
	return nil
}

func checkStep(s *steps.StepResult) error {
	for _, w := range []struct {
		what, word string
		allowed    []string
	}{
		{"status", s.Status, statuses},
		{"network", s.Network, networks},
		{"egressMode", s.EgressMode, modes},
		{"workspace", s.Workspace, workspaces},
		{"workspaceBy", s.WorkspaceBy, ways},
		{"diskBy", s.Limits.DiskBy, disks},
	} {
		if !slices.Contains(w.allowed, w.word) {
			return wrong("its "+w.what+" is %s", w.word)
		}
	}
	if s.Excused && s.Status != steps.StatusFailed && s.Status != steps.StatusSkipped {
		return fmt.Errorf("it is excused and %s", s.Status)
	}
	if s.Fault != nil {
		if _, ok := box.Kind(s.Fault.Type); !ok {
			return wrong("its fault is %s", string(s.Fault.Type))
		}
	}
	if err := checkTries(s); err != nil {
		return err
	}
	times := []int64{s.DurationMs, s.StartupMs, s.StartedMs}
	counts := []int64{s.Stdout.Bytes, s.Stderr.Bytes, int64(s.FilesTotal), int64(s.Line), s.Usage.PeakMemoryBytes, s.Usage.CPUMs, s.Usage.PeakPids}
	for _, t := range s.Tries {
		times, counts = append(times, t.DurationMs), append(counts, t.Stdout.Bytes, t.Stderr.Bytes)
	}
	for _, n := range times {
		if n < 0 || n > maxMs {
			return errors.New("its times cannot be")
		}
	}
	for _, n := range counts {
		if n < 0 {
			return errors.New("it has a count below zero")
		}
	}
	for _, p := range Files(s) {
		if *p.Path != "" && *p.Path != p.want {
			return wrong("a file of it is at %s, and not where a run writes it", *p.Path)
		}
	}
	if err := checkChanges(s.Files); err != nil {
		return err
	}
	if err := checkResults(s); err != nil {
		return err
	}
	if err := checkSetup(s.Setup); err != nil {
		return err
	}
	for _, e := range s.Egress {
		if !slices.Contains(outcomes, e.Verdict) {
			return wrong("a request was %s", e.Verdict)
		}
	}
	return nil
}

func checkChanges(list []steps.FileChange) error {
	for _, f := range list {
		if !slices.Contains(changes, f.Change) || !slices.Contains(types, f.Type) {
			return wrong("a file was %s", f.Change+" as "+f.Type)
		}
	}
	return nil
}

// checkResults holds the files of results to the results: each is that of a form that
// is there, and of no other.
func checkResults(s *steps.StepResult) error {
	type form struct {
		result int
		mime   string
	}
	of, at := map[form]bool{}, map[string]bool{}
	for _, f := range s.ResultFiles {
		if f.Result < 0 || f.Result >= len(s.Results) || f.Bytes < 0 {
			return errors.New("a file of its results is of none of them")
		}
		one := form{f.Result, f.MIME}
		if _, ok := s.Results[f.Result][f.MIME]; !ok || of[one] {
			return wrong("a file of its results is of a form that the result has not, or twice: %s", f.MIME)
		}
		if at[f.Path] || !steps.IsResultPath(f.Path, s.ID, f.Result, f.MIME) {
			return wrong("a result of it is at %s, and not where a run writes it", f.Path)
		}
		of[one], at[f.Path] = true, true
	}
	return nil
}

func checkSetup(b *steps.SetupResult) error {
	if b == nil {
		return nil
	}
	for _, w := range []struct {
		what, word string
		allowed    []string
	}{
		{"status", b.Status, setupStatuses},
		{"way", b.By, setupWays},
		{"network", b.Network, networks},
		{"egressMode", b.EgressMode, modes},
	} {
		if !slices.Contains(w.allowed, w.word) {
			return wrong("the "+w.what+" of its setup is %s", w.word)
		}
	}
	if b.Step != "" && !steps.IsID(b.Step) {
		return wrong("its setup was that of step %s", b.Step)
	}
	if b.Fault != nil {
		if _, ok := box.Kind(b.Fault.Type); !ok {
			return wrong("the fault of its setup is %s", string(b.Fault.Type))
		}
	}
	if min(b.DurationMs, b.StartupMs) < 0 || max(b.DurationMs, b.StartupMs) > maxMs {
		return errors.New("the times of its setup cannot be")
	}
	if min(b.Stdout.Bytes, b.Stderr.Bytes, int64(b.FilesTotal), b.Usage.PeakMemoryBytes, b.Usage.CPUMs, b.Usage.PeakPids) < 0 {
		return errors.New("its setup has a count below zero")
	}
	return checkChanges(b.Files)
}

// checkTries holds what is said of earlier tries together. Reports of older
// versions only count them.
func checkTries(s *steps.StepResult) error {
	switch {
	case s.Attempts < 0 || s.Attempts > steps.MaxTries:
		return fmt.Errorf("it was tried %d times", s.Attempts)
	case len(s.Tries) > 0 && len(s.Tries) != s.Attempts-1:
		return fmt.Errorf("it was tried %d times, and %d of them are told", s.Attempts, len(s.Tries)+1)
	case s.Flaky && (s.Status != steps.StatusPassed || s.Attempts < 2):
		return errors.New("it is flaky, and did not pass at a later try")
	}
	return nil
}

// File is a file of a step in the report folder.
type File struct {
	Path *string // in the result; empty: there is none
	want string
}

// Files are those that a step's result names, but for those of its results: ResultFiles
// has them, with what they are files of.
func Files(s *steps.StepResult) []File {
	out := files(path.Join("steps", s.ID), &s.Stdout, &s.Stderr, s.Patch)
	if b := s.Setup; b != nil {
		out = append(out, files(steps.SetupFolder(s.ID), &b.Stdout, &b.Stderr, nil)...)
	}
	for i := range s.Tries {
		t := &s.Tries[i]
		out = append(out, files(steps.TryFolder(s.ID, i+1), &t.Stdout, &t.Stderr, t.Patch)...)
	}
	return out
}

func files(dir string, stdout, stderr *steps.Output, patch *steps.Patch) []File {
	out := []File{{&stdout.Path, path.Join(dir, "stdout.log")}, {&stderr.Path, path.Join(dir, "stderr.log")}}
	if patch != nil {
		out = append(out, File{&patch.Path, path.Join(dir, "changes.patch")})
	}
	return out
}

var sumShape = lazy.Regexp(`^[0-9a-f]{64}$`)

// wrong quotes a text of the report, a little of it and inert.
func wrong(format, text string) error {
	const most = 60
	short := []rune(text)
	if len(short) > most {
		short = short[:most]
	}
	return fmt.Errorf(format, fmt.Sprintf("%q", gha.Inert(string(short))))
}
