package steps

import (
	"fmt"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
)

// newStepResult is a result with nothing but what the plan says. Its status is
// the one that never passes.
func newStepResult(s PlanStep, info box.Info) *StepResult {
	sr := &StepResult{
		ID: s.ID, Name: s.Name, Engine: info.Name, EngineVersion: info.Version, EngineDigest: info.Digest, Kernel: info.Kernel.String(),
		Status: StatusError, Line: s.Line, Events: []box.Event{}, Unobserved: []string{},
		Limits:  Limits{MemoryMb: s.MemoryMb, Pids: s.Pids, CPUs: s.CPUs, DiskMb: s.DiskMb, Enforced: []string{}},
		Network: s.networkWord(), Egress: []EgressRecord{},
		EgressProposal: []string{}, EgressUnused: []string{}, Results: []CellResult{},
		Files: []FileChange{}, Workspace: "unchanged", Violations: []Violation{},
	}
	sr.Unobserved = append(sr.Unobserved, info.Unobserved...)
	sr.EgressMode = s.EgressMode
	for _, p := range s.EgressPresets {
		p.Rules = own(p.Rules) // masked one by one later
		sr.EgressPresets = append(sr.EgressPresets, p)
	}
	if s.Expect.Fault != "" || (s.Expect.ExitCode != nil && *s.Expect.ExitCode != 0) {
		e := s.Expect
		sr.Expected = &e
	}
	return sr
}

func noVerdict(sr *StepResult, err error) *StepResult {
	sr.Status, sr.Reason = StatusError, "no verdict: "+err.Error()
	return sr
}

// judge sets the status of a step that ran from what was measured.
func judge(sr *StepResult, s PlanStep, e box.Evidence) {
	e.Wanted = s.Expect.Fault
	v := box.Classify(e, s.Tolerate)
	sr.ExitCode, sr.Fault = v.ExitCode, v.Fault
	if v.Signal != "" {
		sig := v.Signal
		sr.Signal = &sig
	}
	if v.Events != nil {
		sr.Events = v.Events
	}
	switch {
	case e.Cancelled:
		sr.Status, sr.Reason = StatusCancelled, "the run was cancelled while this step ran"
		if v.NoVerdict != "" {
			sr.Reason += "; " + v.NoVerdict
		}
	case v.NoVerdict != "":
		sr.Status, sr.Reason = StatusError, "no verdict: "+v.NoVerdict
	default:
		var met bool
		met, sr.Reason = meets(s.Expect, v)
		if len(sr.Violations) > 0 {
			met, sr.Reason = false, sr.Violations[0].Message
		}
		sr.Status = StatusFailed
		if met {
			sr.Status = StatusPassed
		}
	}
	sr.Excused = s.ContinueOnErr && sr.Status == StatusFailed
}

// meets compares a verdict with what the step must end with.
func meets(want Expect, v box.Verdict) (bool, string) {
	if want.Fault != "" {
		switch {
		case v.Fault != nil && v.Fault.Type == want.Fault:
			return true, fmt.Sprintf("%s, as expected: %s", v.Fault.Type, v.Fault.Message)
		case v.Fault != nil:
			return false, fmt.Sprintf("expected the fault %s, got %s: %s", want.Fault, v.Fault.Type, v.Fault.Message)
		}
		return false, fmt.Sprintf("expected the fault %s, %s", want.Fault, ended(v))
	}
	code := 0
	if want.ExitCode != nil {
		code = *want.ExitCode
	}
	switch {
	case v.Fault != nil:
		return false, fmt.Sprintf("%s: %s", v.Fault.Type, v.Fault.Message)
	case v.ExitCode != nil && *v.ExitCode == code:
		if code == 0 {
			return true, ""
		}
		return true, fmt.Sprintf("exit code %d, as expected", code)
	case code != 0:
		return false, fmt.Sprintf("expected exit code %d, %s", code, ended(v))
	}
	return false, ended(v)
}

func ended(v box.Verdict) string {
	switch {
	case v.ExitCode != nil:
		return fmt.Sprintf("the step ended with exit code %d", *v.ExitCode)
	case v.Signal != "":
		return "the step was ended by its own " + v.Signal
	case len(v.Events) > 0:
		return fmt.Sprintf("the step has no exit code: %s", v.Events[0].Message)
	}
	return "the step has no exit code"
}

// VerdictOf is the run's, from its steps: the first of cancelled, error, fail
// that applies.
func VerdictOf(steps []StepResult) string {
	out := VerdictPass
	for _, s := range steps {
		if s.Status == StatusCancelled {
			return VerdictCancelled
		}
	}
	for _, s := range steps {
		switch s.Status {
		case StatusError:
			out = VerdictError
		case StatusFailed, StatusSkipped:
			if !s.Excused && out == VerdictPass {
				out = VerdictFail
			}
		case StatusPassed:
		default: // no word of ours: nothing is known
			out = VerdictError
		}
	}
	return out
}

// oneLine is what the log says when a step has ended, the kth of n; of 0 they are
// not counted.
func oneLine(sr *StepResult, k, n int) gha.Line {
	line := gha.Line{{Text: sr.ID + " "}, {Text: sr.Status, Style: sr.Style()}}
	if n > 0 {
		line = append(gha.Line{{Text: fmt.Sprintf("[%d/%d] ", k, n), Style: gha.Faint}}, line...)
	}
	if sr.Reason != "" {
		line = append(line, gha.Span{Text: ": " + strings.ReplaceAll(sr.Reason, "\n", `\n`)}) // one line, whatever it quotes
	}
	return line
}

// mask takes secret values out of every text of a result that the step could
// have put there: a file name, a host name, a program's name. Our own words,
// such as the status, are left alone, or a secret that happens to be one of
// them would change the verdict.
func mask(m *gha.Masker, sr *StepResult) {
	if m == nil {
		return
	}
	sr.Reason, sr.Tail, sr.EngineNote = m.Lasting(sr.Reason), m.Lasting(sr.Tail), m.Lasting(sr.EngineNote)
	if sr.Fault != nil {
		sr.Fault = &box.Fault{Type: sr.Fault.Type, Message: m.Lasting(sr.Fault.Message)}
	}
	for i := range sr.Events {
		sr.Events[i].Message = m.Lasting(sr.Events[i].Message)
	}
	if b := sr.Setup; b != nil {
		b.Reason = m.Lasting(b.Reason)
		if b.Fault != nil {
			b.Fault = &box.Fault{Type: b.Fault.Type, Message: m.Lasting(b.Fault.Message)}
		}
		for i := range b.Events {
			b.Events[i].Message = m.Lasting(b.Events[i].Message)
		}
		maskFiles(m, b.Files)
	}
	for i := range sr.Egress {
		sr.Egress[i].Host = m.Lasting(sr.Egress[i].Host)
	}
	for i := range sr.EgressProposal {
		sr.EgressProposal[i] = m.Lasting(sr.EgressProposal[i])
	}
	for _, p := range sr.EgressPresets {
		for i := range p.Rules {
			p.Rules[i].Rule, p.Rules[i].From = m.Lasting(p.Rules[i].Rule), m.Lasting(p.Rules[i].From)
		}
	}
	for _, f := range sr.EgressTooWide {
		for i := range f.Narrower {
			f.Narrower[i] = m.Lasting(f.Narrower[i])
		}
	}
	for i := range sr.Violations {
		sr.Violations[i].Message = m.Lasting(sr.Violations[i].Message)
	}
	for i := range sr.Notes {
		sr.Notes[i] = m.Lasting(sr.Notes[i])
	}
	patches := []*Patch{sr.Patch}
	for i := range sr.Tries {
		sr.Tries[i].Reason = m.Lasting(sr.Tries[i].Reason)
		patches = append(patches, sr.Tries[i].Patch)
	}
	for _, p := range patches {
		if p == nil {
			continue
		}
		for i := range p.MaskedFiles {
			p.MaskedFiles[i] = m.Lasting(p.MaskedFiles[i])
		}
	}
	for i := range sr.First {
		sr.First[i] = m.Lasting(sr.First[i])
	}
	maskFiles(m, sr.Files)
}

func maskFiles(m *gha.Masker, files []FileChange) {
	for i := range files {
		f := &files[i]
		if p := m.Lasting(f.Path); p != f.Path {
			f.Path, f.PathBytes = p, "" // the bytes would tell what the name hides
		}
		f.Target, f.From = m.Lasting(f.Target), m.Lasting(f.From)
	}
}
