package steps

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

func TestWhatAStepKeptIsInTheWorkspaceHoweverTheLastViewEnds(t *testing.T) {
	for _, tc := range []struct {
		sentence string
		end      func(t *testing.T, v *view, changes []workspace.Change)
	}{
		{"the other step is dropped", func(_ *testing.T, v *view, _ []workspace.Change) { v.drop() }},
		{"the other step is in conflict", func(t *testing.T, v *view, changes []workspace.Change) {
			if err := v.keep(t.Context(), changes); !errors.Is(err, errConflict) {
				t.Errorf("two texts in one file are %v", err)
			}
		}},
		{"the other step is in conflict, and the run cancelled", func(t *testing.T, v *view, changes []workspace.Change) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := v.keep(ctx, changes); !errors.Is(err, errConflict) {
				t.Errorf("two texts in one file are %v", err)
			}
		}},
		{"the run is cancelled before the other step is kept", func(t *testing.T, v *view, _ []workspace.Change) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			other := []workspace.Change{{Path: "other", Change: workspace.Created, Type: "file", Mode: "0644"}}
			if err := v.keep(ctx, other); !errors.Is(err, context.Canceled) {
				t.Errorf("to keep it is %v", err)
			}
		}},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			tree, ws := openTree(t, map[string]string{"file": "old"})
			first, changes := written(t, tree, "file", "first")
			second, others := written(t, tree, "file", "second")
			if err := first.keep(t.Context(), changes); err != nil {
				t.Fatal(err)
			}
			// Below a view that is open nothing may move.
			if b, err := os.ReadFile(filepath.Join(ws, "file")); err != nil || string(b) != "old" {
				t.Errorf("while the second step runs the workspace has %q (%v)", b, err)
			}
			tc.end(t, second, others)
			if b, err := os.ReadFile(filepath.Join(ws, "file")); err != nil || string(b) != "first" {
				t.Errorf("the workspace has %q (%v), want what the first step wrote", b, err)
			}
			if failed := tree.failures(); len(failed) > 0 {
				t.Errorf("it was not brought in: %v", failed)
			}
		})
	}
}

// What is left of a patch that a cancel cut short is no patch.
func TestAPatchIsInTheReportWholeOrNotAtAll(t *testing.T) {
	for sentence, cancelled := range map[string]bool{"a patch that was written is there": false, "one that was not is not": true} {
		t.Run(sentence, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			tree, _ := openTree(t, nil)
			v, changes := written(t, tree, "file", "text\n")
			defer v.drop()
			d, err := v.read(ctx)
			if err != nil {
				t.Fatal(err)
			}
			r, sr := &Runner{Out: t.TempDir()}, &StepResult{ID: "s"}
			if err := os.MkdirAll(filepath.Join(r.Out, "steps", sr.ID), 0o755); err != nil {
				t.Fatal(err)
			}
			if cancelled {
				cancel()
			}
			if err := r.patch(ctx, d, changes, sr); err != nil {
				t.Error(err)
			}
			_, err = os.Lstat(filepath.Join(r.Out, "steps", sr.ID, "changes.patch"))
			if there := err == nil; there == cancelled || (sr.Patch != nil) == cancelled {
				t.Errorf("the file is there: %v (%v), and the report names %+v", there, err, sr.Patch)
			}
		})
	}
}
