package report

import (
	"fmt"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// ViolationKind is what there is to say about a type of violation wherever it
// happens.
type ViolationKind struct {
	Type  string
	Means string // one sentence
}

// ViolationKinds lists every type once.
var ViolationKinds = []ViolationKind{
	{"protected_path", "The step changed what git or the forge obeys, which allowChanges has to name."},
	{"change_not_allowed", "The step changed paths that no glob of allowChanges permits."},
	{"link_escape", "The step left a link that leads out of the workspace."},
	{"set_id", "The step left set-id bits: whoever else runs such a file runs it as its owner."},
	{"conflict", "A step that ran beside it changed the same; let one need the other."},
	{"workspace_limit", "The step made more than can be listed, so nobody can say what it did."},
}

// violated says whether a step failed by what it did to the workspace.
func violated(s *steps.StepResult) bool {
	return s.Status == steps.StatusFailed && len(s.Violations) > 0
}

// unexpected says whether a step has a fault that it was not to end with.
func unexpected(s *steps.StepResult) bool {
	return s.Fault != nil && (s.Expected == nil || s.Expected.Fault != s.Fault.Type)
}

// violationTypes are the types of a step's violations, each once.
func violationTypes(s *steps.StepResult) []string {
	var out []string
	seen := map[string]bool{}
	for _, v := range s.Violations {
		if !seen[v.Type] {
			seen[v.Type] = true
			out = append(out, v.Type)
		}
	}
	return out
}

// violationWord is short enough for a table.
func violationWord(s *steps.StepResult) string {
	types := violationTypes(s)
	word := "violation: " + types[0]
	if n := len(types) - 1; n > 0 {
		word += fmt.Sprintf(" +%d", n)
	}
	return word
}

// violationReason says in words why a step failed that violated its policy.
func violationReason(s *steps.StepResult) string {
	var why []string
	if unexpected(s) {
		why = append(why, faultReason(s))
	}
	first := s.Violations[0]
	// Some messages begin with their type.
	text := "violation: " + first.Type + ": " + strings.TrimPrefix(first.Message, first.Type+": ")
	if n := len(s.Violations) - 1; n > 0 {
		text += "; and " + count(n, "more violation", "more violations")
	}
	return strings.Join(append(why, text), "; ")
}

// violations lists at most n of a step's violations, and what their types mean.
func violations(s *steps.StepResult, n int) string {
	all := len(s.Violations)
	if all == 0 {
		return ""
	}
	out := "Violations\n\n"
	var list []string
	for _, v := range s.Violations[:min(all, n)] {
		list = append(list, v.Type+": "+strings.TrimPrefix(v.Message, v.Type+": "))
	}
	out += rest(list, all)
	for _, t := range violationTypes(s) {
		for _, k := range ViolationKinds {
			if k.Type == t {
				out += k.Means + "\n"
			}
		}
	}
	return strings.TrimRight(out, "\n") + "\n\n"
}
