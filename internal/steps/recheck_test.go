package steps

import (
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
		if why := r.recheck(s); why != "" {
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
		if why := r.recheck(s); !strings.Contains(why, "now leads to") {
			t.Errorf("%s that became a link: %q", name, why)
		}
	}
	if err := os.Rename(r.Workspace, filepath.Join(dir, "old")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "elsewhere"), r.Workspace); err != nil {
		t.Fatal(err)
	}
	if why := r.recheck(PlanStep{}); !strings.Contains(why, "no longer the folder") {
		t.Errorf("a workspace that became a link: %q", why)
	}
}
