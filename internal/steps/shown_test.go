package steps

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
)

// A mount is another name for what it shows. What steps are kept from under
// /workspace they must not find, or write, by that name.
func TestAMountShowsNothingThatIsKeptFromSteps(t *testing.T) {
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ws, state := filepath.Join(top, "p", "ws"), filepath.Join(top, "state", "of-ws")
	for _, d := range []string{ws + "/.git", ws + "/src", top + "/p/beside", top + "/state/other"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		".git/HEAD": "ref: refs/heads/main\n", "src/a": "a",
		".git/config": "[http]\n\textraheader = AUTHORIZATION: basic abc\n",
	} {
		if err := os.WriteFile(filepath.Join(ws, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(ws, ".git", "objects"), 0o755); err != nil {
		t.Fatal(err)
	}
	tree, _, err := OpenTree(t.Context(), ws, TreeOptions{StateDirs: []string{state}})
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	r := &Runner{Workspace: ws, Guard: NewGuard(Options{}), Tree: tree}
	const ro, rw = true, false
	for _, tc := range []struct {
		sentence, path string
		readOnly       bool
		why            string // empty: it is shown
	}{
		{"a folder of the workspace with no secret", ws + "/src", ro, ""},
		{"a folder beside the workspace", top + "/p/beside", rw, ""},
		{"a folder beside the state folder", top + "/state/other", rw, ""},
		{"the workspace itself", ws, ro, "what is not secret"},
		{"a folder with a secret", ws + "/.git", ro, ".git/config"},
		{"a file with a secret", ws + "/.git/config", ro, ".git/config"},
		{"the folder of transactions", tree.store.Path(), ro, "is kept"},
		{"what lies in it", tree.store.Path() + "/run-x", ro, "is kept"},
		{"the folder above it", top + "/p", ro, "kept apart"},
		{"the folder of transactions, to write", tree.store.Path(), rw, "is kept"},
		{"where the next run would look for a journal", state, rw, "interrupted"},
		{"the folder in which a step could make that", top + "/state", rw, "interrupted"},
		{"the same to read", top + "/state", ro, ""},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			why := r.recheck(t.Context(), PlanStep{Mounts: []box.Mount{{Source: tc.path, Target: "/x", ReadOnly: tc.readOnly}}})
			if (why == "") != (tc.why == "") || !strings.Contains(why, tc.why) {
				t.Errorf("a mount: %q, want %q", why, tc.why)
			}
			if !tc.readOnly {
				return
			}
			why = r.recheck(t.Context(), PlanStep{Root: box.Root{Kind: box.RootDir, Dir: tc.path}})
			if (why == "") != (tc.why == "") || !strings.Contains(why, tc.why) {
				t.Errorf("a root folder: %q, want %q", why, tc.why)
			}
		})
	}
}
