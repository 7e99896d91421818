package box

import (
	"io"
	"testing"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/limits"
)

// A deadline is the clock's to keep, not the timer's: where this program gets no
// processor when both the timer and the word of the step's end are due, either
// is seen first, and a step must not win by that.
func TestADeadlineThatPassedWhileWeWereLate(t *testing.T) {
	for _, tc := range []struct {
		sentence string
		took     time.Duration // on our clock, when the step's end is heard of
		fault    FaultType
	}{
		{"an end within the deadline is the step's own", 29 * time.Second, ""},
		{"an end just before it is too", 30*time.Second - 1, ""},
		{"an end at the deadline is a timeout, though the timer said nothing", 30 * time.Second, Timeout},
		{"an end long after it is one", time.Hour, Timeout},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			begun := time.Now()
			clock := make(chan time.Time, 1)
			clock <- begun
			set := make(chan time.Duration, 1) // what the timer was set to
			r := &runner{
				job: Job{
					Engine: &script{t: t, before: func() {
						if d := <-set; d != 30*time.Second {
							t.Errorf("the timer is set to %v, want 30s", d)
						}
						<-clock
						clock <- begun.Add(tc.took)
					}},
					Group: limits.None(), Stdout: io.Discard, Stderr: io.Discard,
					Spec: Spec{ID: "late", Argv: []string{"true"}, TimeoutS: 30},
				},
				now: func() time.Time { now := <-clock; clock <- now; return now },
				timer: func(d time.Duration) (<-chan time.Time, func() bool) {
					set <- d
					return nil, func() bool { return true }
				},
			}
			r.run(t.Context())
			v := Classify(r.out.Evidence, nil)
			if v.NoVerdict != "" || v.ExitCode == nil || *v.ExitCode != 0 {
				t.Errorf("%+v, want exit code 0", v)
			}
			var got FaultType
			if v.Fault != nil {
				got = v.Fault.Type
			}
			if got != tc.fault || r.out.Duration != tc.took {
				t.Errorf("fault %q after %v, want %q after %v", got, r.out.Duration, tc.fault, tc.took)
			}
		})
	}
}
