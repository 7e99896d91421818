package policy

import (
	"slices"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// A step that takes the workspace from its owner takes it from all later ones too.
func TestTheWorkspaceIsNotClosed(t *testing.T) {
	for _, tc := range []struct {
		mode    string
		globs   []string
		dropped bool
	}{
		{"0000", []string{"**"}, true},
		{"0077", []string{"**", "."}, true},
		{"0555", []string{"**"}, true},
		{"0600", []string{"**"}, true},
		{"0300", []string{}, true},
		{"2700", []string{"**"}, false},
		{"0700", []string{"**"}, false},
		{"0750", []string{"**"}, false},
	} {
		t.Run(tc.mode, func(t *testing.T) {
			p, err := Compile(tc.globs)
			if err != nil {
				t.Fatal(err)
			}
			other := change(workspace.Mode, "dir", "sub")
			v := p.Judge([]workspace.Change{withMode(change(workspace.Mode, "dir", "."), tc.mode), withMode(other, "0000")}, Env{Before: tree{"sub": "d"}.look, After: tree{"sub": "d"}.look})
			got := len(v.Dropped) == 1 && v.Dropped[0].Path == "." && !slices.ContainsFunc(v.Commit, func(c workspace.Change) bool { return c.Path == "." }) &&
				len(v.Notes) == 1 && strings.Contains(v.Notes[0], tc.mode)
			if got != tc.dropped {
				t.Errorf("%+v", v)
			}
		})
	}
}

// Whoever can write to the workspace's own folder can put another .git there.
func TestTheWorkspaceIsNotOpenedToOthers(t *testing.T) {
	for _, tc := range []struct {
		sentence, mode string
		globs          []string
		permitted      bool
	}{
		{"a mode that lets nobody else write", "0700", []string{"**"}, true},
		{"one that lets everybody write", "0777", []string{"**"}, false},
		{"one that lets the group write", "0775", []string{"**"}, false},
		{"it can be named", "0777", []string{"**", "."}, true},
		{"a mode that cannot be read", "x", []string{"**"}, false},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			p, err := Compile(tc.globs)
			if err != nil {
				t.Fatal(err)
			}
			v := p.Judge([]workspace.Change{withMode(change(workspace.Mode, "dir", "."), tc.mode)}, Env{Before: tree{}.look, After: tree{}.look})
			if got := len(v.Commit) == 1 && len(v.Violations) == 0; got != tc.permitted {
				t.Errorf("%+v", v)
			}
		})
	}
}
