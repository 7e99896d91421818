package steps

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/delta"
)

// A step can leave a workspace that takes for ever to list. Whoever cancels the
// run then waits 5 s and no more.
func TestCancelDuringTheListingOfChanges(t *testing.T) {
	const whole = 5 * time.Second
	// What a listing does first; whether it then takes for ever.
	type call = func(cancel func()) bool
	never := func(func()) bool { return false }
	blocks := func(func()) bool { return true }
	cancels := func(cancel func()) bool { cancel(); return true }
	atOnce := func(cancel func()) { cancel() }
	for _, tc := range []struct {
		sentence    string
		inBox       func(cancel func()) // while the box is built
		after       call
		status, why string
		listed      int
	}{
		{
			"a cancel while the step ran leaves the listing some time, not for ever",
			atOnce, blocks,
			StatusCancelled, "the run was cancelled while this step ran; what it changed is not listed", 0,
		},
		{
			"a cancel while the changes are listed does too",
			func(func()) {}, cancels,
			StatusCancelled, "the run was cancelled when this step had ended; what it changed is not listed", 0,
		},
		{
			"a listing that is done in that time is told",
			atOnce, never,
			StatusCancelled, "the run was cancelled while this step ran", 1,
		},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			dir, err := filepath.EvalSymlinks(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			var cancelled time.Time
			mark := func() {
				if cancelled.IsZero() {
					cancelled = time.Now()
				}
				cancel()
			}
			e := &refuser{err: &box.StartupError{Why: "none"}}
			e.hook = func() {
				if err := os.WriteFile(filepath.Join(e.last.Overlay.Base, box.UpperName, "made"), nil, 0o600); err != nil {
					t.Error(err)
				}
				tc.inBox(mark)
			}
			r := &Runner{
				Engine: e, Guard: NewGuard(testOptions(t)), Workspace: dir, Out: t.TempDir(),
				Log: gha.NewLog(io.Discard, gha.LogOptions{}), Masker: gha.NewMasker(),
				Getenv: func(string) (string, bool) { return "", false }, Now: time.Now,
				read: func(ctx context.Context, v *view) (*delta.Delta, error) {
					if !tc.after(mark) {
						return v.read(ctx)
					}
					select {
					case <-ctx.Done():
						return nil, ctx.Err()
					case <-time.After(4 * whole): // for ever
						return nil, errors.New("nobody ended the listing")
					}
				},
			}
			step := PlanStep{ID: "a", DiskMb: 4, AllowChanges: []string{"**"}, TrackFiles: true, Expect: Expect{Fault: box.StartupFailed}}
			var res Result
			r.Run(ctx, &Plan{Steps: []PlanStep{step, {ID: "b"}}}, &res)
			if took := time.Since(cancelled); took > whole {
				t.Errorf("the run ended %v after the cancel, want at most %v", took, whole)
			}
			if res.Verdict != VerdictCancelled {
				t.Errorf("verdict %s, want %s", res.Verdict, VerdictCancelled)
			}
			if got := res.Steps[0]; got.Status != tc.status || got.Reason != tc.why {
				t.Errorf("the step is %s (%q), want %s (%q)", got.Status, got.Reason, tc.status, tc.why)
			}
			if got := res.Steps[0].FilesTotal; got != tc.listed {
				t.Errorf("%d changes are listed, want %d", got, tc.listed)
			}
			if got := res.Steps[1].Status; got != StatusCancelled {
				t.Errorf("the step after it is %s", got)
			}
		})
	}
}
