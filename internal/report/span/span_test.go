package span

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

func ran(started, startup, took int64) steps.StepResult {
	return steps.StepResult{Status: steps.StatusPassed, StartedMs: started, StartupMs: startup, DurationMs: took}
}

func TestHowManyStepsRanAtATime(t *testing.T) {
	skipped := steps.StepResult{Status: steps.StatusSkipped, DurationMs: 100}
	for sentence, c := range map[string]struct {
		list []steps.StepResult
		most int
	}{
		"none":                              {nil, 0},
		"one":                               {[]steps.StepResult{ran(0, 1, 10)}, 1},
		"one after the other":               {[]steps.StepResult{ran(0, 0, 10), ran(10, 0, 5)}, 1},
		"and with the start of the command": {[]steps.StepResult{ran(0, 4, 10), ran(12, 4, 10)}, 1}, // 2 of the 4 ms are in the 10
		"side by side":                      {[]steps.StepResult{ran(0, 0, 10), ran(9, 0, 5)}, 2},
		"while the other was starting":      {[]steps.StepResult{ran(0, 200, 1), ran(50, 0, 5)}, 2},
		"three, of which two at a time":     {[]steps.StepResult{ran(0, 0, 10), ran(0, 0, 30), ran(10, 0, 10)}, 2},
		"a step that never ran counts not":  {[]steps.StepResult{ran(0, 0, 10), ran(5, 0, 0), skipped}, 1},
		"numbers that cannot be":            {[]steps.StepResult{ran(math.MinInt64, -5, math.MaxInt64), ran(math.MaxInt64, math.MaxInt64, math.MaxInt64)}, 1},
	} {
		list, total := Of(&steps.Result{Steps: c.list})
		if got := Most(list); got != c.most {
			t.Errorf("%s: %d at a time, want %d", sentence, got, c.most)
		}
		for _, x := range list {
			if !(0 <= x.Start && x.Start <= x.End && x.End <= total) {
				t.Errorf("%s: %+v of %f", sentence, x, total)
			}
		}
	}
}

func TestSpans(t *testing.T) {
	r := &steps.Result{DurationMs: 7, Steps: []steps.StepResult{ran(-3, 1, 2), ran(5, 0, 0), ran(4, 2, 9)}}
	list, total := Of(r)
	want := []Span{{Step: 0, Start: 0, End: 3}, {Step: 2, Start: 4, End: 15}}
	if diff := cmp.Diff(want, list, cmpopts.IgnoreUnexported(Span{})); diff != "" || total != 15 {
		t.Errorf("total %f (-want +got)\n%s", total, diff)
	}
	if _, total := Of(&steps.Result{}); total != 1 {
		t.Errorf("of nothing the scale is %f long", total)
	}
}
