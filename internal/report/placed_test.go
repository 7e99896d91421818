package report

import (
	"html"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// placed is a run whose steps file is known, with something of each kind that
// the reports for other programs tell apart.
func placed() *steps.Result {
	fine := exited("fine", steps.StatusPassed, 0)
	fine.Tail = "all \x1b[32mgreen\x1b[0m\n"
	fine.Network = "allowlist"
	fine.Egress = []steps.EgressRecord{{Host: "metrics.example", Port: 443, Protocol: "connect", Verdict: "denied", Reason: "no_rule", Count: 1, Expected: true}}
	code := exited("code", steps.StatusFailed, 3)
	code.Name, code.Reason = "Unit tests", "the step ended with exit code 3"
	code.Tail = "one\n]]></system-out><testcase name=\"forged\"/>\n::error::forged\n\x00\x08\ufffe\xff\xfe\n"
	code.EngineNote = "kern: warning: <something> & more\n"
	links := exited("links", steps.StatusFailed, 0)
	links.Violations = []steps.Violation{
		{Type: "link_escape", Message: `"x" is a link out of the workspace`},
		{Type: "set_id", Message: `"tool" has a set-id bit`},
	}
	links.Reason, links.Workspace = links.Violations[0].Message, "discarded"
	calls := exited("calls", steps.StatusFailed, 0)
	calls.Network = "allowlist"
	calls.Fault = &box.Fault{Type: box.EgressDenied, Message: "evil.example:443 refused (no_rule)"}
	calls.Events = []box.Event{{Type: box.EgressDenied, Message: calls.Fault.Message, Count: 3}}
	calls.Reason = "egress_denied: " + calls.Fault.Message
	calls.Egress = []steps.EgressRecord{
		{Host: "evil.example", Port: 443, Protocol: "connect", Verdict: "denied", Reason: "no_rule", Count: 2},
		{Host: "evil.example", Port: 443, Protocol: "connect", Verdict: "denied", Reason: "wrong_sni", Count: 1},
		{Host: "ok.example", Port: 443, Protocol: "https", Verdict: "allowed", Rule: "ok.example", Count: 1},
	}
	flaky := exited("flaky", steps.StatusFailed, 1)
	flaky.Excused, flaky.Reason = true, "the step ended with exit code 1"
	other := exited("other", steps.StatusFailed, 0)
	other.Expected = &steps.Expect{Fault: box.Timeout}
	other.Reason = "expected the fault timeout, the step ended with exit code 0"
	tolerant := exited("tolerant", steps.StatusPassed, 0)
	tolerant.Network = "allowlist"
	tolerant.Egress = []steps.EgressRecord{{Host: "10.0.0.1", Port: 80, Protocol: "http", Verdict: "denied", Reason: "not_public", Count: 7}}
	r := result(steps.VerdictFail, fine, code, links, calls, flaky, other, tolerant,
		waiting("after", steps.StatusSkipped, "it needs code, which did not pass"))
	r.File = "ci/steps of [this] repo.yml"
	for i := range r.Steps {
		r.Steps[i].Line = 3 + 10*i
	}
	return r
}

// elsewhere is a report that somebody made to do harm: odd numbers, an odd file.
func elsewhere() *steps.Result {
	r := hostile(1)
	r.Verdict, r.File = steps.VerdictPass, "::error::/../[x](javascript:PWN) {0}\u202e##[error]\xff"
	r.DurationMs, r.StartedAt = -1<<63, "2026-11-30T08:00:00+14:00"
	for i := range r.Steps {
		s := &r.Steps[i]
		s.Line, s.DurationMs, s.Tail = -i, int64(1<<63-1), strings.Repeat("]]>PWN\x0b", 3)
		s.Egress[0].Verdict = "denied"
	}
	return r
}

// asRead is a report as whoever opens it gets to see its texts.
func asRead(t testing.TB, f Format, r *steps.Result) string {
	text := render(t, f, r)
	if f.Name == "junit" || f.Name == "html" {
		return html.UnescapeString(text)
	}
	return text
}
