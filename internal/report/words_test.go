package report

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

func TestACapOnCPUsThatIsNotInForceIsNamed(t *testing.T) {
	in, out, none := exited("in", steps.StatusPassed, 0), exited("out", steps.StatusPassed, 0), exited("none", steps.StatusPassed, 0)
	in.Limits.CPUs, out.Limits.CPUs = 1, 0.5
	in.Limits.Enforced = append(in.Limits.Enforced, "cpu")
	if got, want := limitations(result(steps.VerdictPass, in, out, none)), []string{"no cpu cap was in force in out"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestOfABoxThatWasNotBuiltNoCapIsMissed(t *testing.T) {
	none := exited("none", steps.StatusFailed, 1)
	none.ExitCode, none.DurationMs, none.StartupMs, none.Limits = nil, 0, 0, steps.Limits{CPUs: 1}
	none.Fault, none.Unobserved = &box.Fault{Type: box.StartupFailed, Message: "image a:1 cannot be had"}, []string{"pids"}
	setup := none
	setup.ID, setup.Setup = "setup", &steps.SetupResult{Status: steps.StatusFailed}
	want := []string{"no memory cap was in force in setup", "no pids cap was in force in setup", "no cpu cap was in force in setup", "not seen in setup: pids"}
	if got := limitations(result(steps.VerdictFail, none, setup)); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestWhatAnEngineCannotSeeIsSaidOnce(t *testing.T) {
	r := faults()
	const what = "escape_blocked: in a process that the step's own process started"
	for i := range r.Steps {
		r.Steps[i].Unobserved = []string{what}
	}
	for _, f := range Formats[1:] {
		text := strings.Join(strings.Fields(asRead(t, f, r)), " ")
		if n := strings.Count(text, what); n != 1 {
			t.Errorf("%s says it %d times", f.Name, n)
		}
		if want := "not seen in step-1, step-2, step-3, step-4, step-5 and 7 more: " + what; !strings.Contains(text, want) {
			t.Errorf("%s does not say %q", f.Name, want)
		}
	}
}

func TestOfARunThatDidNotHappenNothingIsSaid(t *testing.T) {
	md := render(t, Formats[1], refused())
	for _, bad := range []string{"0 steps", "4.3 s", "engine: none", "none in force"} {
		if strings.Contains(md, bad) {
			t.Errorf("the summary of a refused run says %q", bad)
		}
	}
	if !strings.Contains(md, "untrusted-steps 1.2.3 on linux") {
		t.Error("nor does it say who refused, and where")
	}
}

func TestNoLineOfASummaryEndsWithABlank(t *testing.T) {
	for name, r := range saved() {
		for line := range strings.Lines(render(t, Formats[1], r)) {
			if line = strings.TrimSuffix(line, "\n"); strings.HasPrefix(line, "#") && strings.TrimRight(line, " ") != line {
				t.Errorf("%s: %q", name, line)
			}
		}
	}
}

func TestAWordAboutTheNextLineIsNoFix(t *testing.T) {
	r := refused()
	r.Refusal.Fix = []string{"# as root:", "sudo x"}
	got := render(t, Formats[2], r)
	if !strings.Contains(got, "\n# as root:\nfix: sudo x\n") {
		t.Errorf("got\n%s", got)
	}
}

func TestAVerdictThatWasLostWithItsReportNamesNoStep(t *testing.T) {
	if got, want := verdictLine(result(steps.VerdictError, exited("a", steps.StatusPassed, 0))), "error: no verdict, because what the run did could not be written down"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestNamesAreWholeWhereAnyWidthWillDo(t *testing.T) {
	s := exited(strings.Repeat("i", 64), steps.StatusPassed, 0)
	s.Name = "a name that says what the step is for"
	r := result(steps.VerdictPass, s)
	if got := render(t, Formats[2], r); !strings.Contains(got, s.ID+" ("+s.Name+")") {
		t.Errorf("got\n%s", got)
	}
}

func TestAStepThatPassedOnlyLaterIsMarkedInTableSummaryAndVerdict(t *testing.T) {
	zero := 0
	r := &steps.Result{Verdict: steps.VerdictPass, Steps: []steps.StepResult{
		{ID: "steady", Status: steps.StatusPassed, ExitCode: &zero, Attempts: 1},
		{ID: "shaky", Status: steps.StatusPassed, ExitCode: &zero, Attempts: 3, Flaky: true},
	}}
	var table, summary strings.Builder
	if err := errors.Join(WriteTable(&table, r), WriteSummary(&summary, r, SummaryBudget)); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{table.String(), summary.String()} {
		if strings.Count(text, "passed (flaky, try 3)") != 1 || !strings.Contains(text, "1 flaky, not passed at the first try: shaky") {
			t.Error(text)
		}
	}
}

func TestOfAStepThatEndedOtherwiseThanExpectedBothAreSaid(t *testing.T) {
	clean := exited("b", steps.StatusFailed, 0)
	clean.Expected = &steps.Expect{Fault: box.Timeout}
	other := step("c", steps.StatusFailed)
	other.Fault, other.Expected = &box.Fault{Type: box.OOM, Message: "m"}, &steps.Expect{ExitCode: ptr(3)}
	met := exited("d", steps.StatusPassed, 3)
	met.Expected = &steps.Expect{ExitCode: ptr(3)}
	bad := exited("e", steps.StatusFailed, 0)
	bad.Expected, bad.Violations = clean.Expected, []steps.Violation{{Type: "link_escape", Message: "l"}}
	for _, tc := range []struct {
		step steps.StepResult
		want string
	}{
		{clean, "exit 0, expected timeout"}, {other, "oom, expected exit 3"}, {met, "exit 3"}, {bad, "violation: link_escape"},
	} {
		if got := outcome(&tc.step); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.step.ID, got, tc.want)
		}
	}
	r := result(steps.VerdictFail, clean)
	for _, f := range Formats[1:3] {
		if text := render(t, f, r); strings.Count(text, "exit 0, expected timeout") < 2 {
			t.Errorf("%s does not say it in the table and in the verdict:\n%s", f.Name, text)
		}
	}
}

func TestAFileThatTakesNoBlockIsWrittenAllTheSame(t *testing.T) {
	for want, use := range map[string]steps.Usage{"-": {}, "1 of 1024 MiB": {DiskInodes: 1}, "2 of 1024 MiB": {DiskInodes: 1, DiskBytes: 1<<20 + 1}} {
		s := exited("a", steps.StatusPassed, 0)
		s.Usage = use
		if got := disk(&s); got != want {
			t.Errorf("%+v: %q, want %q", use, got, want)
		}
	}
}
