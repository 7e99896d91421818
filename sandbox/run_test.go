package sandbox

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// A call that was judged has its result, whatever became of its context since: what
// it wrote is there.
func TestAResultOutlivesItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := &Sandbox{out: t.TempDir()}
	for status, want := range map[string]error{steps.StatusPassed: nil, steps.StatusFailed: nil, steps.StatusCancelled: context.Canceled, steps.StatusError: context.Canceled} {
		r, err := s.result(ctx, &steps.StepResult{Status: status})
		if !errors.Is(err, want) || (r != nil) != (want == nil) {
			t.Errorf("%s: %+v %v", status, r, err)
		}
	}
	var none *NoVerdict
	if _, err := s.result(t.Context(), &steps.StepResult{Status: steps.StatusError}); !errors.As(err, &none) {
		t.Error(err)
	}
}

// What came before the end is handed over, in order; what comes after it goes nowhere.
func TestFeedsEnd(t *testing.T) {
	var out bytes.Buffer
	f := newFeeds(&out, nil)
	for _, p := range []string{"a", "b", "c"} {
		if _, err := f.stdout.Write([]byte(p)); err != nil {
			t.Fatal(err)
		}
	}
	f.end()
	if _, err := f.stdout.Write([]byte("late")); err != nil {
		t.Fatal(err)
	}
	if out.String() != "abc" {
		t.Errorf("%q", out.String())
	}
	if f.stderr != nil {
		t.Error("a stream that nobody watches is watched")
	}
}
