package steps

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// A commit that stopped half way has changed the workspace, and the next run goes
// on with it. Its report must not say that all was dropped.
func TestACommitThatStoppedHalfWayIsNotCalledDiscarded(t *testing.T) {
	boxtest.Need(t, "root")
	dir := t.TempDir()
	ws := filepath.Join(dir, "ws")
	if err := os.MkdirAll(filepath.Join(ws, "m"), 0o755); err != nil {
		t.Fatal(err)
	}
	tree, _, err := OpenTree(t.Context(), ws, TreeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	v, err := tree.view(t.Context(), PlanStep{ID: "s", DiskMb: 4}, nil)
	if err != nil {
		t.Fatal(err)
	}
	// What the kernel will not remove, and nobody could know of beforehand.
	if err := unix.Mount("x", filepath.Join(ws, "m"), "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(filepath.Join(ws, "m"), 0); err != nil {
			t.Error(err)
		}
	}()
	sr := &StepResult{ID: "s", Status: StatusPassed}
	w := wrote{known: true, changes: 1, commit: []workspace.Change{{Path: "m", Change: workspace.Deleted, Type: "dir"}}}
	(&Runner{Tree: tree}).conclude(t.Context(), v, PlanStep{ID: "s"}, sr, w)
	if sr.Status != StatusError || sr.Workspace != "committed" {
		t.Errorf("%s, %s: %s", sr.Status, sr.Workspace, sr.Reason)
	}
}
