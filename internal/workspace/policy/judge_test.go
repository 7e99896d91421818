package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

func TestJudge(t *testing.T) {
	for _, tc := range []struct {
		sentence string
		globs    string // "**" if empty
		before   tree
		changes  string
		want     string // "; " between
	}{
		{"everything is permitted by default", "", nil, "created file a\ndeleted file b\nmode dir c\nmodified file d/e\nretyped dir f", "commit a; commit b; commit c; commit d/e; commit f"},
		{"a change elsewhere is a violation", "out/**", nil, "created file out/a\nmodified file src/a.go", "commit out/a; change_not_allowed src/a.go"},
		{"a deletion elsewhere is a violation", "out/**", nil, "deleted file a", "change_not_allowed a"},
		{"no glob permits nothing", "none", nil, "created file a", "change_not_allowed a"},
		{"out/** permits to make out", "out/**", nil, "created dir out\ncreated file out/a", "commit out; commit out/a"},
		{"a folder made for a permitted file is permitted", "a/b/*.txt", nil, "created dir a\ncreated dir a/b\ncreated file a/b/c.txt", "commit a; commit a/b; commit a/b/c.txt"},
		{"a folder made for nothing permitted is a violation", "a/b/*.txt", nil, "created dir a\ncreated dir a/c\ncreated file a/c/d", "change_not_allowed a; change_not_allowed a/c; change_not_allowed a/c/d"},
		{"a deleted file makes no folder permitted", "a/b", nil, "created dir a\ndeleted file a/b", "commit a/b; change_not_allowed a"},
		{"a folder whose mode changed needs a glob, whatever was made in it", "a/b", nil, "mode dir a\ncreated file a/b", "commit a/b; change_not_allowed a"},
		{"a file replaced by a folder needs a glob, whatever was made in it", "a/b", nil, "retyped dir a\ncreated file a/b", "commit a/b; change_not_allowed a"},
		{"the workspace's own mode needs a glob that means it", "a/**", nil, "mode dir .", "change_not_allowed ."},
		{"the workspace's own mode is permitted by a dot", ".", nil, "mode dir .", "commit ."},
		{"the workspace itself is not replaced", "", nil, "retyped symlink .", "change_not_allowed ."},

		{"FIFOs, sockets and devices are not committed and no violation", "out/**", nil, "created fifo a\ncreated socket out/b\nretyped device c\nmode fifo d", "special a; special out/b; special c; special d"},
		{"the folder of a permitted FIFO is permitted", "out/p", nil, "created dir out\ncreated fifo out/p", "commit out; special out/p"},
		{"a FIFO may be deleted where the globs say so", "out/**", nil, "deleted fifo out/a\ndeleted fifo b", "commit out/a; change_not_allowed b"},

		{"what is protected needs naming", "", nil, "modified file .git/config\ncreated file .git/hooks/pre-commit\nmodified file .github/workflows/ci.yml\ncreated file CODEOWNERS\ncreated file docs/CODEOWNERS\nmodified file .gitattributes\ndeleted file .gitmodules\nmode dir .git",
			"protected_path .git/config; protected_path .git/hooks/pre-commit; protected_path .github/workflows/ci.yml; protected_path CODEOWNERS; protected_path docs/CODEOWNERS; protected_path .gitattributes; protected_path .gitmodules; protected_path .git"},
		{"CODEOWNERS in .github needs naming", "", nil, "created file .github/CODEOWNERS", "protected_path .github/CODEOWNERS"},
		{"wildcards do not name", "* .* .*/** .g*/** .gi?/** [.]git/** */** **/*", nil, "created file .git/x\ncreated file .github/x\ncreated file CODEOWNERS", "protected_path .git/x; protected_path .github/x; protected_path CODEOWNERS"},
		{"a wildcard beside a name does not make it the name", "*/**/.git/** .git?hub/**", nil, "created file .git/hooks/.git/x\ncreated file .github/.git/x", "protected_path .git/hooks/.git/x; protected_path .github/.git/x"},
		{"named is permitted", ".git/hooks/* .github/** docs/CODEOWNERS CODEOWNERS {.gitattributes,.gitmodules}", nil, "created dir .git/hooks\ncreated file .git/hooks/a\ncreated dir .github\ncreated file .github/CODEOWNERS\ncreated file docs/CODEOWNERS\ncreated file CODEOWNERS\ncreated file .gitattributes\ncreated file .gitmodules",
			"commit .git/hooks; commit .git/hooks/a; commit .github; commit .github/CODEOWNERS; commit docs/CODEOWNERS; commit CODEOWNERS; commit .gitattributes; commit .gitmodules"},
		{"naming one path of .git names no other", ".git/hooks/*", nil, "created file .git/hooks/a\nmodified file .git/config", "commit .git/hooks/a; protected_path .git/config"},
		{"**/CODEOWNERS names it", "**/CODEOWNERS", nil, "created file CODEOWNERS\ncreated file docs/CODEOWNERS\ncreated file a/CODEOWNERS", "commit CODEOWNERS; commit docs/CODEOWNERS; commit a/CODEOWNERS"},
		{"below the root the forge's files are ordinary", "", nil, "created file a/.github/x\ncreated file a/CODEOWNERS\ncreated file a/.gitattributes\ncreated file a/.gitmodules\ncreated file a/docs/CODEOWNERS", "commit a/.github/x; commit a/CODEOWNERS; commit a/.gitattributes; commit a/.gitmodules; commit a/docs/CODEOWNERS"},
		{"names that begin alike are ordinary", "", nil, "created file .gitignore\ncreated file .git2\ncreated file .gitkeep\ncreated file git\ncreated file github\ncreated file CODEOWNERS.md\ncreated file git~\ncreated file .git.bak\ncreated file .github-backup\ncreated file .gitmodules~", "commit .gitignore; commit .git2; commit .gitkeep; commit git; commit github; commit CODEOWNERS.md; commit git~; commit .git.bak; commit .github-backup; commit .gitmodules~"},
		{"what another file system takes for .git is protected", "", nil, "created file .GIT/config\ncreated file .Git\ncreated file .git /x\ncreated file .git./x\ncreated file .git. . /x\ncreated file git~1/x\ncreated file GIT~2\ncreated file .g\u200cit/x\ncreated file \ufeff.git\ncreated file .git::$INDEX_ALLOCATION/x\ncreated file .git\\hooks\\x\ncreated file .GitHub/x\ncreated file github~1\ncreated file GITMOD~1\ncreated file gi7eba~1\ncreated file gi7d29~1\ncreated file codeowners\ncreated file Docs/codeowners\ncreated file .gitmodule\u017f",
			"protected_path .GIT/config; protected_path .Git; protected_path .git /x; protected_path .git./x; protected_path .git. . /x; protected_path git~1/x; protected_path GIT~2; protected_path .g\\u200cit/x; protected_path \\ufeff.git; protected_path .git::$INDEX_ALLOCATION/x; protected_path .git\\\\hooks\\\\x; protected_path .GitHub/x; protected_path github~1; protected_path GITMOD~1; protected_path gi7eba~1; protected_path gi7d29~1; protected_path codeowners; protected_path Docs/codeowners; protected_path .gitmoduleſ"},
		{"naming .git does not name what looks like it", ".git/**", nil, "created file .GIT/config", "protected_path .GIT/config"},
		{"what looks like .git can be named", ".GIT/**", nil, "created file .GIT/config", "commit .GIT/config"},

		{"git status passes", "", tree{".git": "d"}, "modified file .git/index", "drop .git/index"},
		{"what git refreshes is dropped", "src/**", tree{".git": "d"}, "modified file .git/index\ncreated file .git/index.lock\ncreated file .git/config.lock\nmodified file .git/FETCH_HEAD\ncreated file .git/ORIG_HEAD\ncreated dir .git/objects/ab\ncreated file .git/objects/ab/cd\ndeleted file .git/objects/ef/01\nmodified file src/a", "commit src/a; drop .git/index; drop .git/index.lock; drop .git/config.lock; drop .git/FETCH_HEAD; drop .git/ORIG_HEAD; drop .git/objects/ab; drop .git/objects/ab/cd; drop .git/objects/ef/01"},
		{"what git refreshes is committed if named", ".git/**", nil, "modified file .git/index\ncreated file .git/objects/ab/cd", "commit .git/index; commit .git/objects/ab/cd"},
		{"the same of a submodule", "", nil, "modified file .git/modules/a/b/index\ncreated file .git/modules/a/objects/ab/cd\ncreated file .git/modules/a/config", "drop .git/modules/a/b/index; drop .git/modules/a/objects/ab/cd; protected_path .git/modules/a/config"},
		{"a lock of a ref is not what git refreshes", "", nil, "created file .git/refs/heads/a.lock\ncreated file .git/refs/heads/a", "protected_path .git/refs/heads/a.lock; protected_path .git/refs/heads/a"},
		{"a folder in .git made for what is dropped is dropped", "", nil, "created dir .git\ncreated dir .git/modules\ncreated dir .git/modules/a\ncreated file .git/modules/a/index", "drop .git; drop .git/modules; drop .git/modules/a; drop .git/modules/a/index"},
		{"a folder in .git made for more is a violation", "", nil, "created dir .git\ncreated file .git/index\ncreated file .git/HEAD", "drop .git/index; protected_path .git; protected_path .git/HEAD"},
		{"an empty folder made in .git is a violation", "", nil, "created dir .git/hooks", "protected_path .git/hooks"},
		{"what looks like .git has nothing that git refreshes", "", nil, "created file .GIT/index", "protected_path .GIT/index"},
		{"git init in a workspace without git is a violation", "", nil, "created dir .git\ncreated file .git/HEAD\ncreated file .git/config", "protected_path .git; protected_path .git/HEAD; protected_path .git/config"},

		{"a nested repository that was there is protected", "", tree{"sub/.git": "d"}, "modified file sub/.git/config\nmodified file sub/.git/index\ndeleted file sub/.git/HEAD", "protected_path sub/.git/config; protected_path sub/.git/index; protected_path sub/.git/HEAD"},
		{"a submodule's .git file that was there is protected", "", tree{"sub/.git": "f"}, "modified file sub/.git", "protected_path sub/.git"},
		{"the folder of a nested repository cannot be made anew", "", tree{"a/sub/.git": "d"}, "created file a/sub/.git/hooks/x", "protected_path a/sub/.git/hooks/x"},
		{"a nested repository is named like the other", "sub/.git/** **/.git/config", tree{"sub/.git": "d", "b/.git": "d"}, "modified file sub/.git/index\nmodified file b/.git/config\nmodified file b/.git/index", "commit sub/.git/index; commit b/.git/config; protected_path b/.git/index"},
		{"git clone into a sub folder is ordinary", "", nil, "created dir sub\ncreated dir sub/.git\ncreated file sub/.git/config\ncreated file sub/.git/index", "commit sub; commit sub/.git; commit sub/.git/config; commit sub/.git/index"},
		{"a repository in a folder that was there, perhaps a submodule's, needs naming", "", tree{"a/sub": "d"}, "created dir a/sub/.git\ncreated file a/sub/.git/config", "protected_path a/sub/.git; protected_path a/sub/.git/config"},
		{"and so does a .git file", "", tree{"sub": "d"}, "created file sub/.git", "protected_path sub/.git"},
		{"named it is permitted", "**/.git/**", tree{"sub": "d"}, "created dir sub/.git\ncreated file sub/.git/config", "commit sub/.git; commit sub/.git/config"},
		{"git clone where the globs do not permit it is a violation of these", "out/**", nil, "created dir sub\ncreated file sub/.git", "change_not_allowed sub; change_not_allowed sub/.git"},
		{".GIT beside a .git that was there is protected", "", tree{"sub/.git": "d"}, "created file sub/.GIT/config", "protected_path sub/.GIT/config"},

		{"go build passes", "", tree{"go.mod": "f"}, "created file app\nmodified file go.sum", "commit app; commit go.sum"},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			globs := strings.Fields(tc.globs)
			switch tc.globs {
			case "":
				globs = []string{"**"}
			case "none":
				globs = nil
			}
			v := compiled(t, globs...).Judge(parse(t, tc.changes), Env{Before: tc.before.look, After: tree{}.look})
			if diff := cmp.Diff(strings.Split(tc.want, "; "), told(v)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestWhetherANestedRepositoryWasThereIsInDoubtYes(t *testing.T) {
	for sentence, env := range map[string]Env{
		"nobody can be asked": {},
		"the answer is an error": {Before: func(string) (Found, error) {
			return Found{}, errors.New("gone")
		}},
	} {
		v := compiled(t, "**").Judge(parse(t, "created file sub/.git/config"), env)
		if diff := cmp.Diff([]string{"protected_path sub/.git/config"}, told(v)); diff != "" {
			t.Errorf("%s: %s", sentence, diff)
		}
	}
}

// One step removes the empty folder, which is harmless; the next makes it anew,
// and the repository in it is what git status obeys.
func TestARepositoryWhereASubmoduleBelongsNeedsNaming(t *testing.T) {
	env := Env{Before: tree{}.look, After: tree{}.look, Modules: []string{"lib/one", "./Two/"}}
	v := compiled(t, "**").Judge(parse(t, "created dir lib\ncreated dir lib/one\ncreated dir lib/one/.git\ncreated file two/.git\ncreated dir lib/three\ncreated file lib/three/.git"), env)
	want := []string{"commit lib", "commit lib/one", "protected_path lib/one/.git", "protected_path two/.git", "commit lib/three", "commit lib/three/.git"}
	got := told(v)
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestWhatCannotBeJudgedIsAViolation(t *testing.T) {
	for sentence, c := range map[string]workspace.Change{
		"an absolute path":          change("created", "file", "/etc/passwd"),
		"a path that climbs":        change("created", "file", "a/../../b"),
		"an empty path":             change("created", "file", ""),
		"a path with a NUL":         change("created", "file", "a\x00b"),
		"a path with a slash more":  change("created", "file", "a//b"),
		"a word that is no change":  change("renamed", "file", "a"),
		"a word that is no type":    change("created", "door", "a"),
		"no word at all":            {Path: "a"},
		"bytes that climb":          {Path: "ok", PathBytes: "Li4v/w==", Change: "created", Type: "file", Mode: "0644"},
		"a mode that is no number":  withMode(change("created", "file", "a"), "rwx"),
		"a link without its target": link("a", ""),
	} {
		v := compiled(t, "**").Judge([]workspace.Change{c}, Env{})
		if len(v.Commit)+len(v.Dropped)+len(v.Special) > 0 || len(v.Violations) != 1 {
			t.Errorf("%s: %+v", sentence, v)
		}
	}
}

// An attacker can make both of these in a second or two.
func TestDeepAndWideTreesAreJudgedQuickly(t *testing.T) {
	begun := time.Now()
	var list []workspace.Change
	for _, start := range []string{"a", "x/.git", ".git/hooks", ".git/modules"} {
		p := start
		for range 1000 {
			p += "/.git"
			list = append(list, change("created", "dir", p))
		}
	}
	list = append(list, change("created", "file", ".git/objects/ab"))
	for i := range 50_000 {
		list = append(list, change("created", "file", fmt.Sprintf("w/%d", i)))
	}
	v := compiled(t, "w/**", "**/b/**/c").Judge(list, Env{Before: tree{}.look})
	if len(v.Commit) != 50_000 {
		t.Errorf("%d committed", len(v.Commit))
	}
	// It is well under a second.
	if d := time.Since(begun); d > 20*time.Second {
		t.Errorf("%v", d)
	}
}
