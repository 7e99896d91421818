package steps

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
)

func TestHints(t *testing.T) {
	code := func(n int) *int { return &n }
	timeout, oom := &box.Fault{Type: box.Timeout}, &box.Fault{Type: box.OOM}
	unresolved := func(hosts ...string) (list []EgressRecord) {
		for _, h := range hosts {
			list = append(list, EgressRecord{Host: h, Port: 443, Verdict: "failed", Reason: "resolve", Count: 1})
		}
		return list
	}
	for _, tc := range []struct {
		sentence string
		step     PlanStep
		result   StepResult
		want     []string
	}{
		{"a step that passed gets none", PlanStep{}, StepResult{Status: StatusPassed, Network: "none", ExitCode: code(0)}, nil},
		{"an exit code without a network", PlanStep{}, StepResult{Status: StatusFailed, Network: "none", ExitCode: code(1)}, []string{hintNoNetwork}},
		{"a deadline without a network", PlanStep{}, StepResult{Status: StatusFailed, Network: "none", Fault: timeout}, []string{hintNoNetwork}},
		{"another fault has another cause", PlanStep{}, StepResult{Status: StatusFailed, Network: "none", Fault: oom, ExitCode: code(1)}, nil},
		{"a violation too", PlanStep{}, StepResult{Status: StatusFailed, Network: "none", ExitCode: code(1), Violations: []Violation{{}}}, nil},
		{"a command that is not there too", PlanStep{}, StepResult{Status: StatusFailed, Network: "none", ExitCode: code(127)}, nil},
		{"exit code 0 where another was expected needed none", PlanStep{}, StepResult{Status: StatusFailed, Network: "none", ExitCode: code(0)}, nil},
		{"an expected failure is none", PlanStep{}, StepResult{Status: StatusPassed, Network: "none", ExitCode: code(1)}, nil},
		{"what has no verdict has no cause we know", PlanStep{}, StepResult{Status: StatusError, Network: "none", ExitCode: code(1)}, nil},
		{"the host's own network is one", PlanStep{}, StepResult{Status: StatusFailed, Network: "host", ExitCode: code(1)}, nil},
		{"rules that nothing asked", PlanStep{}, StepResult{Status: StatusFailed, Network: "allowlist", ExitCode: code(1)}, []string{hintNoProxy}},
		{"and a deadline", PlanStep{}, StepResult{Status: StatusFailed, Network: "allowlist", Fault: timeout}, []string{hintNoProxy}},
		{"rules that nothing had to ask", PlanStep{}, StepResult{Status: StatusPassed, Network: "allowlist", ExitCode: code(0)}, nil},
		{"a proxy that was reached", PlanStep{}, StepResult{Status: StatusFailed, Network: "allowlist", ExitCode: code(1), Egress: []EgressRecord{{Host: "a.b", Verdict: "allowed"}}}, nil},
		{"names that did not resolve, each once, whatever became of the step", PlanStep{}, StepResult{Status: StatusPassed, Network: "allowlist", ExitCode: code(0), Egress: unresolved("a.b", "a.b", "c.d")}, []string{"a.b, c.d did not resolve on this host"}},
		{"a few of many", PlanStep{}, StepResult{Status: StatusPassed, Egress: unresolved("a", "b", "c", "d", "e", "f", "g", "(others)")}, []string{"a, b, c, d, e and 2 more did not resolve on this host"}},
		{"a name that would pass for words of ours", PlanStep{}, StepResult{Status: StatusPassed, Egress: unresolved("a\n::error::b")}, []string{inert("a\n::error::b") + " did not resolve on this host"}},
		{"variables that the caller does not have", PlanStep{PassEnv: []string{"A", "B", "C"}}, StepResult{Status: StatusPassed, PassedEnv: []string{"B"}}, []string{"passEnv: not in the caller's environment, so the step did not have it: A, C"}},
		{"variables that are all there", PlanStep{PassEnv: []string{"A"}}, StepResult{Status: StatusPassed, PassedEnv: []string{"A"}}, nil},
	} {
		if diff := cmp.Diff(tc.want, hints(tc.step, &tc.result)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tc.sentence, diff)
		}
	}
}

func TestTheCommandThatAShellDidNotFind(t *testing.T) {
	for tail, want := range map[string]string{
		"hello\n/step/script.sh: 1: node: not found\n":       "node",
		"/step/script.sh: line 12: go: command not found\n":  "go",
		"/step/script.sh: line 1: x: y: command not found\n": "",
		"node: not found, said the program\n":                "",
		"/step/script.sh: 1: node: not found\nbye\n":         "",
		"": "",
	} {
		n := 127
		sr := &StepResult{Status: StatusFailed, ExitCode: &n, Tail: tail}
		if got := missing(PlanStep{Language: "sh"}, sr); got != want {
			t.Errorf("%q: %q, want %q", tail, got, want)
		}
		for _, s := range []PlanStep{{Language: "python"}, {}} {
			if got := missing(s, sr); got != "" {
				t.Errorf("%+v: %q", s, got)
			}
		}
		for _, sr := range []*StepResult{{Status: StatusPassed, ExitCode: &n, Tail: tail}, {Status: StatusFailed, Tail: tail}, {Status: StatusFailed, ExitCode: &n, Fault: &box.Fault{}, Tail: tail}} {
			if got := missing(PlanStep{Language: "sh"}, sr); got != "" {
				t.Errorf("%+v: %q", sr, got)
			}
		}
	}
}
