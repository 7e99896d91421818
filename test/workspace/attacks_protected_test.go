package workspace_test

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
)

// protectedAttacks are about what somebody obeys, and where nobody looks.
func protectedAttacks() []attack {
	return []attack{{
		name: "I108 nothing is passed over for its name",
		before: func(t *testing.T, p *place, host string) {
			file(t, filepath.Join(p.workspace, ".gitignore"), "build/\n*.o\n.deps/\nnode_modules/\n.env*\n")
		},
		steps: []scriptStep{{id: "a108", text: "for f in .deps/x a/.deps/x node_modules/x a/node_modules/p/x build/x x.o .cache/x .venv/x .env.local .untrusted-steps/x .DS_Store; do mkdir -p $(dirname $f); echo x > $f; done"}},
		after: func(t *testing.T, s *scene) {
			st := s.passes(t, "a108", "committed")
			for _, n := range strings.Fields(".deps/x a/.deps/x node_modules/x a/node_modules/p/x build/x x.o .cache/x .venv/x .env.local .untrusted-steps/x .DS_Store") {
				has(t, st.Files, "created file "+n)
			}
			if n := s.asListed(t, st); n != 11 {
				t.Errorf("control: %d files are on the disk as listed, want 11", n)
			}
		},
	}, {
		name: "I109 I114 what git, CI and reviews obey is dropped, and no patch carries what lies in .git",
		steps: []scriptStep{
			{id: "a109", text: "mkdir -p .github/workflows docs; for f in .git/config .git/hooks/pre-commit .git/info/attributes .github/workflows/ci.yml CODEOWNERS docs/CODEOWNERS .gitattributes .gitmodules; do echo evil >> $f; done; chmod +x .git/hooks/pre-commit; echo fine > fine"},
			{id: "a109-spelt", text: "mkdir -p .GIT/hooks '.git.' 'git~1'; echo evil > .GIT/hooks/post-checkout; echo evil > .git./config; echo evil > 'git~1/config'"},
			{id: "a109-named", text: "mkdir -p .github/workflows; echo named > .github/workflows/ok.yml", keys: "  allowChanges: ['.github/**']\n"},
			{id: "a109-first", text: "for f in package-lock.json Makefile .npmrc action.yml zz; do echo x > $f; done"},
		},
		after: func(t *testing.T, s *scene) {
			st := s.violates(t, "a109", "protected_path")
			said := fmt.Sprint(st.Violations)
			for _, p := range strings.Fields(".git/config .git/hooks/pre-commit .git/info/attributes .github/workflows/ci.yml CODEOWNERS docs/CODEOWNERS .gitattributes .gitmodules") {
				if !strings.Contains(said, `"`+p+`"`) {
					t.Errorf("no violation names %s: %s", p, said)
				}
			}
			s.absent(t, ".git/hooks/pre-commit", ".git/info/attributes", ".github/workflows/ci.yml", "CODEOWNERS", "docs", ".gitattributes", ".gitmodules", "fine")
			if b, err := os.ReadFile(s.at(".git/config")); err != nil || strings.Contains(string(b), "evil") {
				t.Errorf(".git/config is now %q, %v", b, err)
			}
			s.violates(t, "a109-spelt", "protected_path")
			s.absent(t, ".GIT", ".git.", "git~1")
			has(t, s.passes(t, "a109-named", "committed").Files, "created file .github/workflows/ok.yml")
			st = s.passes(t, "a109-first", "committed")
			for _, n := range []string{"package-lock.json", "Makefile", ".npmrc", "action.yml"} {
				if !slices.Contains(st.First, n) {
					t.Errorf("a reviewer is first shown %q, want %s among it", st.First, n)
				}
			}
			if slices.Contains(st.First, "zz") {
				t.Errorf("control: any file is shown first: %q", st.First)
			}
			s.patchIsHarmless(t)
		},
	}}
}

// patchIsHarmless holds that the patch of a step that wrote to .git carries the
// rest of what it did and nothing of that: applied elsewhere, it would plant it.
func (s *scene) patchIsHarmless(t *testing.T) {
	t.Helper()
	patch := filepath.Join(s.out, "steps", "a109", "changes.patch")
	b, err := os.ReadFile(patch)
	do(t, err)
	for line := range strings.Lines(string(b)) {
		for _, start := range []string{"diff --git", "--- ", "+++ ", "rename ", "copy "} {
			if strings.HasPrefix(line, start) && (strings.Contains(line, ".git/") || strings.Contains(line, "..")) {
				t.Errorf("the patch has %q", line)
			}
		}
	}
	if !strings.Contains(string(b), ".git/hooks/pre-commit") {
		t.Error("the patch does not say what it leaves out")
	}
	clone := boxtest.OpenDir(t)
	for _, args := range [][]string{{"init", "-q"}, {"apply", patch}} {
		cmd := exec.Command("git", args...)
		cmd.Dir, cmd.Env = clone, []string{"PATH=" + os.Getenv("PATH"), "HOME=/no-home", "GIT_CONFIG_NOSYSTEM=1"}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	if _, err := os.Stat(filepath.Join(clone, "fine")); err != nil {
		t.Errorf("control: the patch does not apply: %v", err)
	}
	if err := filepath.WalkDir(filepath.Join(clone, ".git"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), "evil") {
			t.Errorf("the patch wrote %s", path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}
