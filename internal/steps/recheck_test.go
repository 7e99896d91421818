package steps

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
)

// What was judged when the file was checked may have been replaced by a step
// since. It is never followed to wherever it leads now.
func TestRecheckRefusesWhatWasReplaced(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"ws", "ws/cache", "ws/img", "elsewhere"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r := &Runner{Workspace: filepath.Join(dir, "ws"), Guard: NewGuard(Options{})}
	mount := PlanStep{Mounts: []box.Mount{{Source: filepath.Join(dir, "ws/cache"), Target: "/cache"}}}
	root := PlanStep{Root: box.Root{Kind: box.RootDir, Dir: filepath.Join(dir, "ws/img")}}
	later := PlanStep{Mounts: []box.Mount{{Source: filepath.Join(dir, "ws/later"), Target: "/later"}}}
	for _, s := range []PlanStep{mount, root, later} {
		if why := r.recheck(t.Context(), s); why != "" {
			t.Fatalf("the control is refused: %s", why)
		}
	}
	for _, name := range []string{"cache", "img", "later"} {
		path := filepath.Join(dir, "ws", name)
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(dir, "elsewhere"), path); err != nil {
			t.Fatal(err)
		}
	}
	for name, s := range map[string]PlanStep{"a mount's source": mount, "a root folder": root, "a source that was missing": later} {
		if why := r.recheck(t.Context(), s); !strings.Contains(why, "now leads to") {
			t.Errorf("%s that became a link: %q", name, why)
		}
	}
	if err := os.Rename(r.Workspace, filepath.Join(dir, "old")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "elsewhere"), r.Workspace); err != nil {
		t.Fatal(err)
	}
	if why := r.recheck(t.Context(), PlanStep{}); !strings.Contains(why, "no longer the folder") {
		t.Errorf("a workspace that became a link: %q", why)
	}
}

// Steps side by side are judged while another one's changes may be on their way
// into the workspace: not before nothing can get in any more.
func TestAMountIsJudgedOnceTheWorkspaceStandsStill(t *testing.T) {
	tree, _ := openTree(t, map[string]string{"a": "1"})
	open := -1
	g := NewGuard(Options{})
	g.eval = func(string) (string, error) {
		open = len(tree.open)
		return "", errors.New("not now")
	}
	r := &Runner{Workspace: tree.workspace, Tree: tree, Guard: g}
	sr := &StepResult{ID: "s"}
	r.step(t.Context(), PlanStep{ID: "s", DiskMb: 4, Mounts: []box.Mount{{Source: "/opt", Target: "/opt"}}}, 0, sr, false)
	if open != 1 || len(tree.open) != 0 {
		t.Errorf("%d views were open then, and %d are by now; want 1 and 0", open, len(tree.open))
	}
	if sr.Status != StatusFailed || sr.Fault == nil || sr.Fault.Type != box.StartupFailed || sr.Workspace != "" {
		t.Errorf("%+v", sr)
	}
}
