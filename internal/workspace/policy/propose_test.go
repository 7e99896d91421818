package policy

import (
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

func TestOneLineIsProposedForAllThatWasRefused(t *testing.T) {
	for _, tc := range []struct {
		sentence string
		globs    []string
		changes  string
		want     string
		line     []string // its globs, which must be enough
	}{
		{"a commit gets what it needs, objects too, and never all of .git", []string{"**"},
			"created file .git/COMMIT_EDITMSG\nmodified file .git/index\ncreated dir .git/logs\ncreated file .git/logs/HEAD\ncreated dir .git/logs/refs\ncreated file .git/logs/refs/main\nmodified file .git/refs/heads/main\ncreated file .git/objects/ab/c",
			`to permit all of these, write allowChanges: ["**", ".git/COMMIT_EDITMSG", ".git/logs/**", ".git/refs/heads/main", ".git/objects/**"]`,
			[]string{"**", ".git/COMMIT_EDITMSG", ".git/logs/**", ".git/refs/heads/main", ".git/objects/**"}},
		{"a folder that was named alone is named with what is in it", []string{"dist"}, "created dir dist\ncreated file dist/a",
			`to permit it, write allowChanges: ["dist/**"]`, []string{"dist/**"}},
		{"a folder that was made for a refused file is proposed whole", []string{"out/**"}, "created dir new\ncreated dir new/sub\ncreated file new/sub/f",
			`to permit all of these, write allowChanges: ["out/**", "new/**"]`, []string{"out/**", "new/**"}},
		{"several files of one folder are proposed as that", nil, "modified file src/a\nmodified file src/b\nmodified file top",
			`allowChanges: ["src/**", "top"]`, []string{"src/**", "top"}},
		{"one file is proposed as itself", nil, "modified file src/a", `to permit it, write allowChanges: ["src/a"]`, []string{"src/a"}},
		{"files at the top are never proposed as everything", nil, "created file a\ncreated file b", `allowChanges: ["a", "b"]`, []string{"a", "b"}},
		{"a new workflow folder names what must be named", []string{"**"}, "created dir .github\ncreated dir .github/workflows\ncreated file .github/workflows/ci.yml",
			`allowChanges: ["**", ".github/**"]`, []string{"**", ".github/**"}},
		{"an empty folder is proposed as itself", nil, "created dir a", `allowChanges: ["a"]`, []string{"a"}},
	} {
		changes := parse(t, tc.changes)
		v := compiled(t, tc.globs...).Judge(changes, Env{Before: tree{".git": "d"}.look})
		n := 0
		for i, x := range v.Violations {
			if strings.Contains(x.Message, "to permit") {
				n++
				if i > 0 || !strings.Contains(x.Message, tc.want) {
					t.Errorf("%s: violation %d: %s\nwant %s", tc.sentence, i, x.Message, tc.want)
				}
			}
		}
		if n != 1 {
			t.Errorf("%s: %d of %d messages have a line to write: %+v", tc.sentence, n, len(v.Violations), v.Violations)
		}
		if v := compiled(t, tc.line...).Judge(changes, Env{Before: tree{".git": "d"}.look}); len(v.Violations) > 0 {
			t.Errorf("%s: the line is not enough: %+v", tc.sentence, v.Violations)
		}
	}
}

func TestALineForVeryManyIsBounded(t *testing.T) {
	var list []workspace.Change
	for i := range 2000 {
		list = append(list, change("created", "file", strings.Repeat("d", i%50+1)+string(rune('a'+i%26))))
	}
	v := compiled(t).Judge(list, Env{})
	if m := v.Violations[0].Message; len(m) > 2*maxLine || !strings.Contains(m, "more lines under allowChanges: - ") || !strings.Contains(m, " more") {
		t.Errorf("%d bytes: %s", len(m), m)
	}
}

func TestWhatOnlyBeginsLikeAMakefileIsNone(t *testing.T) {
	for path, want := range map[string]bool{"makefile.py": false, "lib/makefile.cpython-312.pyc": false, "dockerfile.go": false, "Makefile.linux": true, "Makefile": true, "Dockerfile.dev": true, "x.mk": true} {
		if got := Why(path) != ""; got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}
