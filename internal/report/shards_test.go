package report

import (
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// merged is a report of two shards of three, one of which was refused, with the
// words of a third that somebody else wrote.
func merged() *steps.Result {
	r := result(steps.VerdictRefused, step("one", steps.StatusPassed), step("two", steps.StatusSkipped), step("three", steps.StatusSkipped))
	r.Steps[0].Shard, r.Steps[1].Shard = 1, 2
	r.Steps[1].Reason = "shard 2 of 3 was refused, so nothing of it ran"
	r.Steps[2].Reason = "no report says what became of it: shard 3 of 3 is missing"
	for i := range r.Steps[1:] {
		s := &r.Steps[1+i]
		s.DurationMs, s.StartupMs, s.Engine, s.EngineVersion, s.Limits, s.Usage = 0, 0, "", "", steps.Limits{}, steps.Usage{}
	}
	r.Refusal = &steps.Refusal{Cause: "shard 2 of 3: no control group", Fix: []string{"systemd-run --user --scope -p Delegate=yes -- ..."}}
	r.Merged = &steps.Merged{Of: 3, Plan: strings.Repeat("a", 64), Problems: []string{
		"shard 3 of 3 is missing", "r4\n::error::x is of another plan",
	}, Shards: []steps.MergedShard{
		{Index: 1, Verdict: "pass", Steps: 1, Host: r.Host, DurationMs: 1500},
		{Index: 2, Verdict: "refused", Host: steps.Host{OS: "linux", Kernel: "##[error]x", Proof: []steps.Proof{}}},
	}}
	return r
}

// part is the report of one shard.
func part() *steps.Result {
	r := result(steps.VerdictPass, step("one", steps.StatusPassed))
	r.Shard = &steps.Shard{Index: 1, Of: 3, Plan: strings.Repeat("a", 64), Steps: []string{"one"}, All: []string{"one", "two"}}
	return r
}

func TestVerdictOfShards(t *testing.T) {
	missing := merged()
	missing.Verdict, missing.Refusal = steps.VerdictFail, nil
	lost := merged()
	lost.Verdict = steps.VerdictError
	passed := merged()
	passed.Verdict, passed.Steps, passed.Merged.Problems = steps.VerdictPass, passed.Steps[:1], nil
	flaky := merged()
	again(&flaky.Steps[0], "the step ended with exit code 7")
	flakyPass := merged()
	flakyPass.Verdict, flakyPass.Steps, flakyPass.Merged.Problems = steps.VerdictPass, append(flaky.Steps[:1:1], step("b", steps.StatusPassed)), nil
	again(&flakyPass.Steps[1], "startup_failed: x", "startup_failed: x")
	flakyFail := merged()
	flakyFail.Verdict, flakyFail.Refusal, flakyFail.Steps = steps.VerdictFail, nil, flaky.Steps
	for want, r := range map[string]*steps.Result{
		"pass: 2 steps passed in 2 shards; 2 flaky, not passed at the first try: one (try 2), b (try 3)":                                               flakyPass,
		"fail: shard 3 of 3 is missing (and 1 more problem with the shards); 2 skipped: two, three; 1 flaky, not passed at the first try: one (try 2)": flakyFail,
		"refused: 1 of 3 shards ran nothing: 2, because the host cannot enforce what the steps ask; 1 flaky, not passed at the first try: one (try 2)": flaky,
		"pass: 1 step passed (shard 1 of 3)": part(),
		"pass: 1 step passed in 2 shards":    passed,
		"refused: 1 of 3 shards ran nothing: 2, because the host cannot enforce what the steps ask": merged(),
		"fail: shard 3 of 3 is missing (and 1 more problem with the shards); 2 skipped: two, three": missing,
		"error: no verdict of some shard": lost,
	} {
		if got := verdictLine(r); got != want {
			t.Errorf("the verdict is %q, want %q", got, want)
		}
	}
}
