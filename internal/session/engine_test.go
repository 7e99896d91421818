package session

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// What a step can name is what a run can be told to take, but for auto.
func TestEnginesOfStepsAreThoseOfRuns(t *testing.T) {
	if d := cmp.Diff(EngineNames()[1:], steps.EngineWords()); d != "" {
		t.Error(d)
	}
}

func TestChoiceKernel(t *testing.T) {
	host, own := box.HostKernel, box.OwnKernel
	for _, tc := range []struct {
		sentence string
		allowed  []string
		want     *box.Kernel
	}{
		{"auto never takes one with a kernel of its own", []string{"kern", "native", "gvisor"}, &host},
		{"not either where one other is allowed", []string{"native", "gvisor"}, &host},
		{"but where it is the only one", []string{"gvisor"}, &own},
		{"none is none", nil, nil},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			got := ChoiceKernel(func(e string) string {
				if slices.Contains(tc.allowed, e) {
					return ""
				}
				return "it is not allowed"
			})
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Error(d)
			}
		})
	}
	if d := cmp.Diff(&host, ChoiceKernel(nil)); d != "" {
		t.Errorf("without a policy: %s", d)
	}
}
