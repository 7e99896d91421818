package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// tries says of each earlier try of a step how it ended, and which files have
// what it wrote.
func tries(s *steps.StepResult) []string {
	var out []string
	for i := range s.Tries {
		t := &s.Tries[i]
		line := clip(strings.Join(lines(s.TrySays(i)), " "), maxCell)
		var files []string
		for _, o := range []steps.Output{t.Stdout, t.Stderr} {
			if o.Path != "" && o.Bytes > 0 {
				files = append(files, fmt.Sprintf("%s (%d bytes)", o.Path, o.Bytes))
			}
		}
		if t.Patch != nil && t.Patch.Path != "" {
			files = append(files, t.Patch.Path)
		}
		if len(files) > 0 {
			line += "; " + strings.Join(files, ", ")
		}
		out = append(out, line)
	}
	return out
}

// notes are those of a step that say more than its tries do.
func notes(s *steps.StepResult) []string {
	if len(s.Tries) == 0 {
		return s.Notes
	}
	said := map[string]bool{}
	for i := range s.Tries {
		said[s.TrySays(i)] = true
	}
	return slices.DeleteFunc(slices.Clone(s.Notes), func(n string) bool { return said[n] })
}

// isFlaky says whether a step passed at a later try only. A report from elsewhere
// may call anything flaky.
func isFlaky(s *steps.StepResult) bool { return s.Flaky && passed(s) }

// flaky marks a step that passed at a later try, with which one that was.
func flaky(s *steps.StepResult) string { return fmt.Sprintf("flaky, try %d", s.Attempts) }

// lateWord is the same in a sentence.
func lateWord(s *steps.StepResult) string { return fmt.Sprintf("passed at try %d only", s.Attempts) }

// flakySteps names those of a run.
func flakySteps(r *steps.Result) []string {
	var out []string
	for i := range r.Steps {
		if s := &r.Steps[i]; isFlaky(s) {
			out = append(out, fmt.Sprintf("%s (try %d)", clip(s.ID, maxID), s.Attempts))
		}
	}
	return out
}
