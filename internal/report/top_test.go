package report

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/egress"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

func TestTopSaysOfAllStepsTogether(t *testing.T) {
	ask := func(host string, port int, verdict, reason string, n uint64) steps.EgressRecord {
		return steps.EgressRecord{Host: host, Port: port, Protocol: "https", Verdict: verdict, Reason: reason, Count: n}
	}
	a, b := exited("a", steps.StatusPassed, 0), exited("b", steps.StatusFailed, 1)
	a.Network, b.Network = "allowlist", "allowlist"
	a.Egress = []steps.EgressRecord{ask("one.example", 443, egress.Allowed, "", 2), ask("no.example", 443, "denied", "no_rule", 1)}
	b.Egress = []steps.EgressRecord{
		ask("one.example", 443, egress.Allowed, "", 3), ask("one.example", 80, egress.Allowed, "", 1),
		ask("no.example", 443, "denied", "no_rule", 9), ask("gone.example", 443, "failed", "resolve", 1),
	}
	a.Workspace, a.First = "committed", []string{"go.sum"}
	b.Workspace, b.First = "discarded", []string{"Makefile", "go.sum"}
	got := asReadTop(top(result(steps.VerdictFail, a, b)))
	want := []string{
		"- Talked to: one.example (5), one.example:80 (1)",
		"- Refused: no.example (no_rule)",
		"- Asked for, and not reached or broken off: gone.example (resolve)",
		"- Look first: go.sum (says which packages are installed next time), Makefile (commands of the next build; not in the workspace), " +
			"go.sum (says which packages are installed next time; not in the workspace)",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func asReadTop(md string) []string {
	return strings.Split(strings.TrimSpace(strings.NewReplacer("<code>", "", "</code>", "", "&#95;", "_", "&#45;", "-").Replace(md)), "\n")
}

func TestTopIsShortHoweverMuchThereIs(t *testing.T) {
	s := exited("a", steps.StatusPassed, 0)
	s.Network, s.Workspace = "allowlist", "committed"
	for i := range 5000 {
		s.Egress = append(s.Egress, steps.EgressRecord{Host: strings.Repeat("`", 5000) + fmt.Sprint(i), Port: i, Verdict: egress.Allowed, Count: 1},
			steps.EgressRecord{Host: fmt.Sprintf("h%d.example", i), Port: 443, Verdict: "denied", Reason: strings.Repeat("<", 5000), Count: 1})
		s.First = append(s.First, strings.Repeat("*", 5000)+fmt.Sprint(i))
	}
	text := top(result(steps.VerdictPass, s))
	if len(text) > 3*maxTop*8*maxTopItem {
		t.Errorf("%d bytes", len(text))
	}
	if n := strings.Count(text, " and 4990 more\n"); n < 1 {
		t.Errorf("what is not named is not counted:\n%.2000s", text)
	}
	outside(t, text)
}

func TestTopSaysThatNobodyWasTalkedToOnlyWhereItIsKnown(t *testing.T) {
	for name, c := range map[string]struct {
		step steps.StepResult
		want string
	}{
		"a step without a network": {exited("a", steps.StatusPassed, 0), "- Talked to: <code>nobody</code>\n\n"},
		"a step that never began":  {waiting("a", steps.StatusSkipped, "x"), ""},
		"the host's own network": {func() steps.StepResult {
			s := exited("a", steps.StatusPassed, 0)
			s.Network = "host"
			return s
		}(), "- Talked to: <code>whatever a asked for (network: true, not recorded)</code>\n\n"},
	} {
		if got := top(result(steps.VerdictPass, c.step)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestARequestNamesItsRuleAsTheRule(t *testing.T) {
	for want, e := range map[string]steps.EgressRecord{
		" (rule *.example)":           {Verdict: egress.Allowed, Rule: "*.example"},
		" (rule db.example; private)": {Verdict: egress.Allowed, Rule: "db.example", Reason: egress.ReasonPrivate},
		" (no rule; audit)":           {Verdict: egress.Allowed, Reason: egress.ReasonAudit},
		"":                            {Verdict: egress.Allowed},
		" (resolve)":                  {Verdict: "failed", Reason: egress.ReasonResolve, Rule: "gone.example"},
	} {
		if got := ruled(e); got != want {
			t.Errorf("%+v: %q, want %q", e, got, want)
		}
	}
}
