package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/report"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// tree makes files, and folders from names that end in a slash.
func tree(t *testing.T, names ...string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	for _, n := range names {
		at := filepath.Join(dir, n)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(at), 0o755)
		}
		if err == nil && strings.HasSuffix(n, "/") {
			err = os.MkdirAll(at, 0o755)
		} else if err == nil {
			err = os.WriteFile(at, []byte("gitdir: elsewhere\n"), 0o644)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestAFileIsNamedFromTheTopOfItsCheckout(t *testing.T) {
	dir := tree(t, "repo/.git/HEAD", "repo/.github/a.yml", "repo/sub/", "repo/work/.git", "repo/work/ci/a.yml", "repo/fake/.git/", "repo/fake/a.yml",
		"job/base/.git/HEAD", "job/base/.github/a.yml", "job/change/.github/a.yml", "plain/a.yml")
	for _, link := range [][2]string{{"repo/.github/a.yml", "link.yml"}, {"../base/.github/a.yml", "job/change/lure.yml"}, {"repo", "other"}} {
		if err := os.Symlink(link[0], filepath.Join(dir, link[1])); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		sentence, cwd, file, job string
		top, path, named         string // named is what an annotation has; path if empty
	}{
		{"run in the top folder", "repo", ".github/a.yml", "", "repo", ".github/a.yml", ""},
		{"run above it", ".", "repo/.github/a.yml", "", "repo", ".github/a.yml", ""},
		{"run below it", "repo/sub", "../.github/a.yml", "", "repo", ".github/a.yml", ""},
		{"run in the file's folder", "repo/.github", "a.yml", "", "repo", ".github/a.yml", ""},
		{"an absolute path", "plain", "/repo/.github/a.yml", "", "repo", ".github/a.yml", ""},
		{"a path that goes round", ".", "repo/sub/../.github/./a.yml", "", "repo", ".github/a.yml", ""},
		{"a link to the file: git writes through none", ".", "link.yml", "", "repo", ".github/a.yml", ""},
		{"a link to the checkout", "other/sub", "../.github/a.yml", "", "repo", ".github/a.yml", ""},
		{"a second work tree or a submodule, where .git is a file", "repo", "work/ci/a.yml", "", "repo/work", "ci/a.yml", ""},
		{"an empty .git is no repository to git either", ".", "repo/fake/a.yml", "", "repo", "fake/a.yml", ""},
		{"in a workflow, the base branch in a folder", "job", "base/.github/a.yml", "job", "job/base", ".github/a.yml", ""},
		{"in a workflow, a download that is no repository starts at the job's workspace", "job", "change/.github/a.yml", "job", "job", "change/.github/a.yml", ""},
		{"a link that a change brings names the file it leads to", "job", "change/lure.yml", "job", "job/base", ".github/a.yml", ""},
		{"nothing above the job's workspace counts", "repo/sub", "../.github/a.yml", "repo/.github", "repo/.github", "a.yml", ""},
		{"a file outside the job's workspace", "job", "../repo/.github/a.yml", "job", "repo", ".github/a.yml", ""},
		{"no checkout at all", ".", "plain/a.yml", "", "plain", "a.yml", "plain/a.yml"},
		{"no checkout, and a workspace elsewhere", ".", "plain/a.yml", "job", "plain", "a.yml", "plain/a.yml"},
	} {
		t.Chdir(filepath.Join(dir, c.cwd))
		getenv := func(n string) string {
			if n == "GITHUB_WORKSPACE" && c.job != "" {
				return filepath.Join(dir, c.job)
			}
			return ""
		}
		a := &app{getenv: getenv}
		file := c.file
		if strings.HasPrefix(file, "/") {
			file = dir + file
		}
		if got, want := a.patched(file), (inCheckout{filepath.Join(dir, c.top), c.path}); got != want {
			t.Errorf("%s: %+v, want %+v", c.sentence, got, want)
		}
		want := c.named
		if want == "" {
			want = c.path
		}
		if got := a.annotatedFile(file); got != want {
			t.Errorf("%s: an annotation names %q, want %q", c.sentence, got, want)
		}
	}
	a := &app{getenv: func(string) string { return "" }}
	for _, none := range []string{"", "-"} {
		if got := a.annotatedFile(none); got != "" {
			t.Errorf("steps that are no file are named %q", got)
		}
	}
}

// TestThePatchOfAnAuditAppliesAsTheLogSays types what the log says.
func TestThePatchOfAnAuditAppliesAsTheLogSays(t *testing.T) {
	boxtest.Need(t, "git")
	const src, want = "steps:\n  - id: a\n    run: x\n    egressMode: audit\n", "steps:\n  - id: a\n    run: x\n    egressAllow:\n      - example.org\n"
	for _, c := range []struct{ sentence, cwd, file string }{
		{"in the top folder", "repo", ".github/a.yml"},
		{"above it", ".", "repo/.github/a.yml"},
		{"below it", "repo/sub", "../.github/a.yml"},
		{"elsewhere, with an absolute path", "plain", "/repo/.github/a.yml"},
		{"a name that a shell and git would take apart", "repo", `it's a "file"` + "\t.yml"},
		{"in a folder of such a name, and in no checkout", "plain", "p'l a;n/ä.yml"},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			dir := tree(t, "repo/.github/", "repo/sub/", "plain/p'l a;n/", "out/")
			git := exec.Command("git", "init", "-q", filepath.Join(dir, "repo"))
			if out, err := git.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			t.Chdir(filepath.Join(dir, c.cwd))
			file := c.file
			if strings.HasPrefix(file, "/") {
				file = dir + file
			}
			if err := os.WriteFile(file, []byte(src), 0o644); err != nil {
				t.Fatal(err)
			}
			p, err := steps.Load(file, []byte(src), steps.Options{Workspace: filepath.Join(dir, "plain")})
			if err != nil {
				t.Fatal(err)
			}
			var log strings.Builder
			a := &app{getenv: func(string) string { return "" }, stdout: &log, stderr: io.Discard}
			folder, err := report.Prepare(filepath.Join(dir, "out"), filepath.Join(dir, "plain"))
			if err != nil {
				t.Fatal(err)
			}
			defer folder.Close()
			r := &run{app: a, opt: &options{file: file, out: folder.Path, folder: folder}, plan: p, source: []byte(src), masker: gha.NewMasker(),
				result: &steps.Result{Steps: []steps.StepResult{{ID: "a", EgressProposal: []string{"example.org"}}}}}
			r.openLog(&log, &log, "")
			r.propose()
			if err := r.log.Close(); err != nil {
				t.Fatal(err)
			}
			_, apply, ok := strings.Cut(log.String(), "apply:   ")
			if !ok {
				t.Fatalf("the log does not say how to apply it:\n%s", log.String())
			}
			apply, _, _ = strings.Cut(apply, "\n")
			t.Chdir("/")
			sh := exec.Command("sh", "-ec", apply)
			sh.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+dir)
			if out, err := sh.CombinedOutput(); err != nil {
				patch, _ := os.ReadFile(filepath.Join(dir, "out", report.PatchFile))
				t.Fatalf("%s: %v\n%s\n%s", apply, err, out, patch)
			}
			if !filepath.IsAbs(file) {
				file = filepath.Join(dir, c.cwd, file)
			}
			got, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, string(got)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
