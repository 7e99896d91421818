package report

import (
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// Rules beside the fault types, which are rules by their own names.
const (
	ruleNoVerdict  = "no_verdict"
	ruleRefused    = "request_refused"
	ruleExitCode   = "exit_code"
	ruleSignal     = "signal"
	ruleUnexpected = "not_as_expected"
	ruleOther      = "other_failure"
	ruleViolated   = "violation"
	ruleViolation  = "other_violation"
	ruleFlaky      = "flaky"
)

type ruleText struct{ id, title, means, hint string }

// violationRules has a row for each type of violation.
var violationRules = []ruleText{
	{"change_not_allowed", "change not allowed", "The step changed a path that no glob of allowChanges names.",
		"add the path to allowChanges, if the step should change it"},
	{"protected_path", "protected path changed", "The step changed a path that decides what later runs or reviews do.",
		"name the path in allowChanges, if the step should change it"},
	{"link_escape", "link leaves the workspace", "The step made a link that leads out of the workspace.",
		"make the link lead to a place in the workspace"},
	{"set_id", "set-id bit", "The step set a bit that lends its owner's or group's rights to whoever runs the file.",
		"let the step make the file without that bit"},
	{"workspace_limit", "too much to tell", "What the step changed is more than can be listed and judged.",
		"let the step change less"},
	{"conflict", "conflict", "Another step changed the same paths meanwhile.",
		"let one of them need the other"},
}

var otherRules = []ruleText{
	{ruleExitCode, "exit code", "The step ended with an exit code that is not the expected one.",
		"read the step's output"},
	{ruleSignal, "signal", "The step was ended by a signal of its own.",
		"read the step's output"},
	{ruleUnexpected, "not as expected", "The step did not end as its expect says.",
		"read the step's output, or change expect"},
	{ruleViolated, "failed for a violation", "The step ended well and did something to the workspace that it may not.",
		"see its violations"},
	{ruleOther, "other failure", "The step failed in a way that this version has no name for.",
		"read the message"},
	{ruleNoVerdict, "no verdict", "The sandbox itself failed, so nothing can be said about the step.",
		"run again; if it repeats, report it"},
	{ruleRefused, "request refused", "The step asked for a network destination and was refused.",
		"add the rule to egressAllow, if the step should reach it"},
	{ruleViolation, "other violation", "The step did something to the workspace that it may not.",
		"read the message"},
	{ruleFlaky, "flaky", "The step passed, and not at the first try.",
		"see what it waited for in vain before: the earlier tries' logs are in the report folder"},
}

// sarifRules are all rules there are, in the same order in every report.
func sarifRules() []sarifRule {
	var out []sarifRule
	add := func(id, title, means, hint, place string) {
		out = append(out, sarifRule{ID: id, Short: sarifMessage{title}, Full: sarifMessage{means}, Help: sarifMessage{strings.ToUpper(hint[:1]) + hint[1:] + "."},
			HelpURI: projectURL + "/blob/main/" + place})
	}
	for _, k := range box.Kinds {
		add(string(k.Type), k.Title, k.Means, k.Hint, "docs/faults.md#"+string(k.Type))
	}
	for _, list := range [][]ruleText{violationRules, otherRules} {
		for _, t := range list {
			add(t.id, t.title, t.means, t.hint, "docs/report.md#"+t.id)
		}
	}
	return out
}

// failureRule is the rule of a step that failed. A word that is none of ours,
// as in a report from elsewhere, makes no rule of its own.
func failureRule(s *steps.StepResult) string {
	if violated(s) && !unexpected(s) {
		return ruleViolated // each has a finding of its own
	}
	if s.Fault != nil {
		if _, ok := box.Kind(s.Fault.Type); ok {
			return string(s.Fault.Type)
		}
		return ruleOther
	}
	switch {
	case s.Expected != nil:
		return ruleUnexpected
	case s.ExitCode != nil:
		return ruleExitCode
	case s.Signal != nil:
		return ruleSignal
	}
	return ruleOther
}

func violationRule(word string) string {
	for _, t := range violationRules {
		if t.id == word {
			return word
		}
	}
	return ruleViolation
}
