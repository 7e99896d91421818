package policy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

func TestLinks(t *testing.T) {
	long := tree{}
	for i := range maxLinks + 1 {
		long[fmt.Sprintf("l%d", i)] = fmt.Sprintf("-> l%d", i+1)
	}
	long["ok"] = "-> l5"
	loop := tree{"a": "-> b", "b": "-> a"}
	for _, tc := range []struct {
		sentence string
		at, to   string
		tree     tree
		why      string // empty: it is committed
	}{
		{"a neighbour", "x", "y", nil, ""},
		{"the workspace itself", "a/x", "..", nil, ""},
		{"a dangling target inside", "a/x", "../no/such", nil, ""},
		{"itself", "x", "x", nil, ""},
		{"what npm makes", "node_modules/.bin/x", "../x/cli.js", tree{"node_modules/x": "d"}, ""},
		{"a venv's python", "v/bin/python3", "/usr/bin/python3", nil, ""},
		{"a venv's python of the tool cache", "v/bin/python3", "/opt/hostedtoolcache/Python/3.12.1/x64/bin/python3", nil, ""},
		{"a venv's lib64", "v/lib64", "lib", nil, ""},
		{"slashes and dots in an absolute target", "x", "//usr/.//bin/", nil, ""},

		{"/etc", "x", "/etc", nil, "outside"},
		{"the root", "x", "/", nil, "outside"},
		{"a name that begins like a tool folder", "x", "/usrlocal", nil, "outside"},
		{"what lies in /proc", "x", "/proc/self/cwd", nil, "outside"},
		{"an open file", "x", "/dev/fd/3", nil, "outside"},
		{"a home", "x", "/home/me/.ssh/id_rsa", nil, "outside"},
		{"what climbs out of a tool folder", "x", "/usr/../etc/shadow", nil, ".."},
		{"what climbs within a tool folder", "x", "/usr/bin/../lib", nil, ".."},
		{"a tool that is not one on this machine", "x", "/usr/lib/ssl/private", nil, "leads out of them"},
		{"above the workspace", "x", "../x", nil, "above"},
		{"above the workspace and back", "a/x", "../../w/x", nil, "above"},
		{"above, behind a name", "a/x", "b/../../../x", nil, "above"},
		{"relative to the tools", "a/x", "../../usr/bin/python3", nil, "above"},
		{"the workspace as the box calls it", "a/b/x", "/workspace/a/c", nil, "../c"},
		{"the workspace's own folder as the box calls it", "a/x", "/workspace", nil, `relative: ".."`},
		{"what only begins like the workspace", "x", "/workspaces", nil, "outside"},

		{"through a link that goes up", "x", "a/b/../../y", tree{"a/b": "-> .."}, "above"},
		{"through a link that goes up, and not too far", "x", "a/b/../y", tree{"a": "d", "a/b": "-> c"}, "goes up behind a name"},
		{"through a real folder", "x", "a/b/../../y", tree{"a/b": "d"}, "goes up behind a name"},
		{"through a folder that a later step could make a link", "x", "a/b/c/../../../y", tree{"a": "d", "a/b": "d", "a/b/c": "d"}, "goes up behind a name"},
		{"up at its beginning, however that is written", "a/b/x", ".././/../y/./z/", tree{"a": "d", "a/b": "d"}, ""},
		{"through a link that leaves", "x", "a/passwd", tree{"a": "-> /etc"}, "outside"},
		{"through a link to the tools", "x", "a/python3", tree{"a": "-> /usr/bin"}, ""},
		{"through a link to the tools, and up", "x", "a/../../etc", tree{"a": "-> /usr/bin"}, ".."},
		{"through links of links", "x", "a/y", tree{"a": "-> b", "b": "-> c/..", "c": "-> .."}, "above"},
		{"its own folder is no link, whatever its name", "a/x", "../y", tree{"a": "d"}, ""},
		{"a link as the last component is judged by itself", "x", "a", tree{"a": "-> /etc"}, ""},
		{"the same with a slash behind it", "x", "a/", tree{"a": "-> /etc"}, ""},
		{"through forty links", "x", "l1/y", long, ""},
		{"through more than forty links", "x", "l0/y", long, "more than 40"},
		{"round in a ring", "x", "a/y", loop, "more than 40"},
		{"bytes that are not UTF-8", "x", "\xff/../y", tree{"\xff": "-> .."}, "above"},
	} {
		for _, from := range []string{"after", "before"} {
			t.Run(tc.sentence+"/"+from, func(t *testing.T) {
				env := Env{
					Before: tree{}.look, After: tc.tree.look, Tools: []string{"/usr", "/bin/", "/lib", "/opt/hostedtoolcache", "/", "relative", ""},
					Real: func(p string) string { return strings.Replace(p, "/usr/lib/ssl/private", "/etc/ssl/private", 1) },
				}
				changes := []workspace.Change{link(tc.at, tc.to)}
				if from == "before" {
					// What is not committed stays as it was, so that is what counts.
					env.Before = tc.tree.look
					env.After = func(p string) (Found, error) { return Found{}, nil }
					for p := range tc.tree {
						changes = append(changes, change("retyped", "fifo", p))
					}
				}
				v := compiled(t, "**").Judge(changes, env)
				switch {
				case tc.why == "" && (len(v.Violations) > 0 || len(v.Commit) != 1):
					t.Errorf("%+v", v.Violations)
				case tc.why != "" && (len(v.Violations) != 1 || v.Violations[0].Type != LinkEscape || !strings.Contains(v.Violations[0].Message, tc.why)):
					t.Errorf("want %q, got %+v", tc.why, v.Violations)
				}
			})
		}
	}
}

func TestALinkThatCannotBeFollowedIsAViolation(t *testing.T) {
	if v := compiled(t, "**").Judge([]workspace.Change{link("x", "a/y")}, Env{}); len(v.Violations) != 1 {
		t.Errorf("%+v", v)
	}
}

func TestTheExactTargetCounts(t *testing.T) {
	v := compiled(t, "**").Judge([]workspace.Change{link("x", "shown")}, Env{After: tree{"x": "-> /etc"}.look})
	if diff := cmp.Diff([]string{"link_escape x"}, told(v)); diff != "" {
		t.Error(diff)
	}
}

func TestADeletedLinkLeavesNothing(t *testing.T) {
	c := link("x", "/etc")
	c.Change = workspace.Deleted
	if v := compiled(t, "**").Judge([]workspace.Change{c}, Env{}); len(v.Commit) != 1 {
		t.Errorf("%+v", v)
	}
}

func TestModes(t *testing.T) {
	was := tree{"was": "s", ".": "d"}
	is := tree{"was": "s", "s": "s", "s/a": "d", "d": "d"}
	for _, tc := range []struct {
		sentence, kind, typ, path, mode string
		bad                             bool
	}{
		{"an ordinary program", "created", "file", "a", "0755", false},
		{"the sticky bit", "created", "dir", "a", "1777", false},
		{"set-user-id, made", "created", "file", "a", "4755", true},
		{"set-group-id, made", "created", "file", "a", "2755", true},
		{"set-user-id, on what was changed", "modified", "file", "a", "4755", true},
		{"set-user-id, given", "mode", "file", "a", "4755", true},
		{"set-user-id, on what was a folder", "retyped", "file", "a", "6755", true},
		{"set-user-id, and gone", "deleted", "file", "a", "4755", false},
		{"a folder with set-group-id in one without", "created", "dir", "d/x", "2755", true},
		{"a folder with set-group-id in the workspace's own", "created", "dir", "x", "2755", true},
		{"a folder with set-group-id in one that has it", "created", "dir", "s/x", "2755", false},
		{"a file with set-group-id in a folder that has it", "created", "file", "s/x", "2755", true},
		{"a folder with set-user-id", "created", "dir", "s/x", "4755", true},
		{"a folder that had set-group-id before", "mode", "dir", "was", "2775", false},
		{"a folder that had set-group-id before and not set-user-id", "mode", "dir", "was", "6775", true},
		{"the workspace itself", "mode", "dir", ".", "2755", true},
		{"a link, whose mode is nothing", "created", "symlink", "l", "6777", false},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			c := withMode(change(tc.kind, tc.typ, tc.path), tc.mode)
			if tc.typ == "symlink" {
				c.Target = "y"
			}
			v := compiled(t, "**").Judge([]workspace.Change{c}, Env{Before: was.look, After: is.look})
			if got := len(v.Violations) == 1 && v.Violations[0].Type == SetID; got != tc.bad || got == (len(v.Commit) == 1) {
				t.Errorf("%+v", v)
			}
		})
	}
}
