package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

func TestMessagesNameThePathAndTheLineToWrite(t *testing.T) {
	for _, tc := range []struct {
		sentence string
		globs    []string
		change   workspace.Change
		want     []string
	}{
		{"a change elsewhere", []string{"out/**"}, change("modified", "file", "src/a.go"), []string{`"src/a.go" was modified`, `allowChanges: ["out/**", "src/a.go"]`}},
		{"a mode", []string{"out/**"}, change("mode", "file", "a"), []string{`"a" had its mode changed`}},
		{"a replaced folder", nil, change("retyped", "file", "a"), []string{`"a" was replaced by a file`, `allowChanges: ["a"]`}},
		{"a protected path", []string{"**"}, change("created", "file", ".github/workflows/ci.yml"), []string{"was created", "CI obeys it", `allowChanges: ["**", ".github/workflows/ci.yml"]`}},
		{"a look-alike", []string{"**"}, change("created", "file", ".Git/x"), []string{`takes ".Git" for the same name`}},
		{"a name with wildcards", nil, change("created", "file", "a*[b]"), []string{`allowChanges: ["a\\*\\[b\\]"]`}},
		{"a name with a new line", nil, change("created", "file", "a\n::error::b"), []string{`"a\n::error::b"`}},
		{"a name that is not UTF-8", nil, change("created", "file", "a\xffb"), []string{`"a\xffb"`, `allowChanges: ["a?b"]`}},
		{"many globs", slices.Repeat([]string{"some/folder/or/other/**"}, 20), change("created", "file", "a"), []string{`one more line under allowChanges: - "a"`}},
	} {
		v := compiled(t, tc.globs...).Judge([]workspace.Change{tc.change}, Env{})
		if len(v.Violations) != 1 {
			t.Errorf("%s: %+v", tc.sentence, v)
			continue
		}
		for _, w := range tc.want {
			if m := v.Violations[0].Message; !strings.Contains(m, w) || strings.Contains(m, "\n") {
				t.Errorf("%s: %s\nlacks %s", tc.sentence, m, w)
			}
		}
	}
}

func TestTheLineToWriteIsEnough(t *testing.T) {
	for _, c := range parse(t, "modified file .git/config\ncreated file .GIT\\x\ncreated file docs/CODEOWNERS\ncreated file a/{b,c}*\nmodified file sub/.git/config") {
		before := tree{"sub/.git": "d"}
		if v := compiled(t, escape(c.RawPath())).Judge([]workspace.Change{c}, Env{Before: before.look}); len(v.Violations) > 0 || len(v.Commit) != 1 {
			t.Errorf("%q does not permit %q: %+v", escape(c.RawPath()), c.RawPath(), v.Violations)
		}
	}
}

func TestViolationsAreBounded(t *testing.T) {
	var list []workspace.Change
	for i := range 1000 {
		list = append(list, change("deleted", "file", fmt.Sprintf(".git/refs/%d", i)), change("created", "file", fmt.Sprintf("a%d", i)))
	}
	v := compiled(t, "out").Judge(list, Env{})
	if len(v.Violations) != 2*(maxEach+1) || len(v.Commit) > 0 {
		t.Fatalf("%d violations", len(v.Violations))
	}
	if last := v.Violations[len(v.Violations)-1]; !strings.Contains(last.Message, "980 more paths") {
		t.Errorf("the last one: %+v", last)
	}
}

func TestNotesSayWhatIsNotCommitted(t *testing.T) {
	changes := parse(t, "modified file .git/index\ncreated file .git/objects/ab/c\ncreated file .git/refs/heads/x\ncreated fifo p\ncreated dir sub/.git\ncreated dir locked")
	changes[5].Unreadable = true
	v := compiled(t, "**", ".git/refs/**").Judge(changes, Env{Before: tree{}.look})
	all := strings.Join(v.Notes, "\n")
	for _, w := range []string{`git refreshes by itself is not committed: ".git/index", ".git/objects/ab/c"`, `".git/refs/heads/x"; name ".git/objects/**"`, `devices are not committed: "p"`, `"sub/.git"; programs`, `not readable, so not all that happened there is known: "locked"`} {
		if !strings.Contains(all, w) {
			t.Errorf("no note says %s:\n%s", w, all)
		}
	}
	if v := compiled(t, "**").Judge(parse(t, "created file a"), Env{}); len(v.Notes) > 0 {
		t.Errorf("notes about nothing: %q", v.Notes)
	}
}
