package report

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// tried is a run with a step that passed at its third try, and one that never did.
func tried() *steps.Result {
	late, never := exited("late", steps.StatusPassed, 0), exited("never", steps.StatusFailed, 7)
	late.Tail = "done\n"
	again(&late, "startup_failed: image: there is none", "the step ended\n::error::with exit code 7")
	late.Tries[0].Stdout.Path, late.Tries[0].Patch = "", nil // its box was never started
	late.Notes = append(late.Notes, "a note of its own")
	again(&never, "the step ended with exit code 7")
	return result(steps.VerdictFail, late, never)
}

func TestEarlierTriesAreToldOnce(t *testing.T) {
	want := []string{
		"try 1 of 3: startup_failed: image: there is none",
		"try 2 of 3: the step ended ::error::with exit code 7; steps/late/try-2/stdout.log (6 bytes), steps/late/try-2/changes.patch",
	}
	s := &tried().Steps[0]
	if diff := cmp.Diff(want, tries(s)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got := notes(s); !slices.Equal(got, []string{"a note of its own"}) {
		t.Errorf("notes %q", got)
	}
	// A report of an older version has nothing but the notes.
	s.Tries = nil
	if got := notes(s); len(got) != 3 || len(tries(s)) > 0 {
		t.Errorf("notes %q", got)
	}
	s.Tries = []steps.Try{{Reason: strings.Repeat("x", 1000), Stdout: steps.Output{Path: "steps/late/try-1/stdout.log", Bytes: 1}}}
	if got := tries(s)[0]; !strings.HasSuffix(got, "; steps/late/try-1/stdout.log (1 bytes)") || len(got) > maxTextLine {
		t.Errorf("a long reason hides the log: %q", got)
	}
}

func TestEveryFormTellsOfTries(t *testing.T) {
	for _, f := range Formats {
		text := asRead(t, f, tried())
		for _, want := range []string{"late", "never", "startup_failed: image: there is none", "a note of its own"} {
			if f.Name == "sarif" && want == "a note of its own" || f.Name == "junit" && want == "a note of its own" {
				continue // of a step that passed they have what is a finding, and its output
			}
			if !strings.Contains(text, want) {
				t.Errorf("%s does not say %q", f.Name, want)
			}
		}
		if f.Name == "table" {
			continue // which names no files
		}
		logs := []string{"steps/late/try-2/stdout.log", "steps/late/try-2/changes.patch", "steps/never/try-1/stdout.log"}
		if f.Name == "sarif" {
			logs = logs[:2] // what failed is a finding for how it ended
		}
		for _, want := range logs {
			if !strings.Contains(text, want) {
				t.Errorf("%s does not name %s", f.Name, want)
			}
		}
	}
}

func TestJUnitOfTries(t *testing.T) {
	s := readJUnit(t, tried())
	late, never := s.Cases[0], s.Cases[1]
	if late.Failure != nil || late.Error != nil || late.Skipped != nil {
		t.Errorf("a flaky pass is %+v", late)
	}
	want := "flaky: passed at try 3 only\ntry 1 of 3: startup_failed: image: there is none\n" +
		"try 2 of 3: the step ended ::error::with exit code 7; steps/late/try-2/stdout.log (6 bytes), steps/late/try-2/changes.patch\n| done"
	if diff := cmp.Diff(want, late.Out); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if !strings.Contains(never.Failure.Body, "\nearlier: try 1 of 2: the step ended with exit code 7; steps/never/try-1/stdout.log") || strings.Contains(never.Failure.Body, "note: try") {
		t.Errorf("details: %q", never.Failure.Body)
	}
	if p := (junitProperty{"flaky", "1: late (try 3)"}); !slices.Contains(s.Properties, p) {
		t.Errorf("properties %v", s.Properties)
	}
	if s := readJUnit(t, pass()); slices.ContainsFunc(s.Properties, func(p junitProperty) bool { return p.Name == "flaky" }) {
		t.Error("a run without any has the property")
	}
}

func TestSARIFOfTries(t *testing.T) {
	find := func(r *steps.Result) (out []sarifResult) {
		for _, f := range readSARIF(t, r).Results {
			if f.RuleID == ruleFlaky {
				out = append(out, f)
			}
		}
		return out
	}
	got := find(tried())
	if len(got) != 1 || got[0].Level != "note" || !strings.HasPrefix(got[0].Message.Text, "step late passed at try 3 only; try 1 of 3: startup_failed") {
		t.Fatalf("%+v", got)
	}
	// It is the same finding however the tries ended.
	other := tried()
	again(&other.Steps[0], "another reason")
	if a, b := got[0].Fingerprints, find(other)[0].Fingerprints; !cmp.Equal(a, b) {
		t.Errorf("fingerprints %v and %v", a, b)
	}
}
