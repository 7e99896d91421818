package steps

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/scrub"
)

// A folder whose files are all hidden looks empty to a step. With a plain rmdir
// of it the caller's credentials would be gone.
func TestNothingThatAStepDidNotSeeGoesWithWhatItRemoved(t *testing.T) {
	dir := t.TempDir()
	for _, f := range []string{"sec/.git-credentials", "k/l/.git-credentials", "k/v", "k-l/v", "half/.git/config"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, f)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, f), []byte("[remote \"o\"]\n\turl = https://u:p@h/\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	mask, err := scrub.Find(t.Context(), dir, scrub.Options{})
	if err != nil {
		t.Fatal(err)
	}
	v := &view{t: &Tree{mounts: []string{"m/a"}}, mask: mask, absent: []string{"closed/a"}}
	for _, tc := range []struct {
		sentence, change, kind, path string
		bad                          bool
	}{
		{"a folder that only looks empty is removed", workspace.Deleted, "dir", "sec", true},
		{"one further up is", workspace.Deleted, "dir", "k", true},
		{"a link takes the place of one", workspace.Retyped, "symlink", "k/l", true},
		{"a file takes the place of one with a scrubbed file", workspace.Retyped, "file", "half", true},
		{"the hidden file is made anew", workspace.Created, "file", "sec/.git-credentials", true},
		{"something is made in the folder", workspace.Created, "file", "sec/x", false},
		{"the folder gets another mode", workspace.Mode, "dir", "sec", false},
		{"a neighbour whose name begins alike is removed", workspace.Deleted, "dir", "k-l", false},
		{"what the copy lacked is replaced", workspace.Retyped, "file", "closed/a", true},
		{"or something below it is made", workspace.Created, "file", "closed/a/b", true},
		{"the folder that held it is removed", workspace.Deleted, "dir", "closed", true},
		{"something beside it is made", workspace.Created, "file", "closed/b", false},
		{"a mount of the host is removed", workspace.Deleted, "dir", "m/a", true},
		{"the folder that it is in is", workspace.Deleted, "dir", "m", true},
		{"a file that is a mount is written", workspace.Modified, "file", "m/a", true},
		{"something in a mount is removed", workspace.Deleted, "file", "m/a/x", false},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			why := v.unseen(workspace.Change{Path: tc.path, Change: tc.change, Type: tc.kind, Mode: "0755"})
			if (why != "") != tc.bad {
				t.Errorf("%q", why)
			}
		})
	}
}
