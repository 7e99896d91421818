package policy

import (
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

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
