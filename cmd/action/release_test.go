package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
)

// gh is a stand-in for GitHub's own command: it writes down how it was called, and
// knows a release once it was created.
const gh = `#!/bin/sh
echo "gh $*" >>"$CALLS"
case "$1 $2" in
"release view") [ -e "$CALLS.$3" ] ;;
"release create") touch "$CALLS.$3" ;;
esac
`

// refuses is what GitHub refuses a push with a workflow's own token, as a hook of the
// test's repository: the rules of a ruleset, whose bypass list cannot have that
// token, and a ref with workflows that no branch's tip has.
const refuses = `#!/bin/bash
[ -n "$TOKEN" ] || exit 0
zero=0000000000000000000000000000000000000000
case $2:$3 in $zero:*) does=creations ;; *:$zero) does=deletions ;; *) does=updates ;; esac
while read -r pattern rule; do
  # The pattern is one. shellcheck disable=SC2254
  case $1 in refs/tags/$pattern) [ "$rule" != $does ] || { echo "GH013: $does of $1 are restricted"; exit 1; } ;; esac
done <rules
[ "$3" != $zero ] || exit 0
for branch in $(git for-each-ref --format='%(objectname)' refs/heads); do
  [ "$(git rev-parse "$branch:.github/workflows")" != "$(git rev-parse "$3:.github/workflows")" ] || exit 0
done
echo "GH013: refusing to allow a GitHub App to create or update workflow without workflows permission"
exit 1
`

// rulesets gives, on each line, a pattern and what docs/releasing.md would restrict.
func rulesets(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	text := document(t, "docs/releasing.md")
	for _, pattern := range column(t, text, "tags") {
		_, row, _ := strings.Cut(text, "| `"+pattern+"` |")
		rules, _, _ := strings.Cut(row, "\n")
		for _, m := range regexp.MustCompile("`Restrict ([a-z]+)`").FindAllStringSubmatch(rules, -1) {
			fmt.Fprintln(&b, pattern, m[1])
		}
	}
	if b.Len() == 0 {
		t.Fatal("docs/releasing.md restricts nothing: whoever may write may release")
	}
	return b.String()
}

// TestReleaseWorkflow: what docs/releasing.md has a person type, and the scripts of
// the workflow as they stand there, with the shell that a runner gives them, on a
// clone of a repository of the test's own.
func TestReleaseWorkflow(t *testing.T) {
	boxtest.Need(t, "git")
	dir := t.TempDir()
	script := func(job, has string) string {
		for _, s := range readRelease(t).Jobs[job].Steps {
			if strings.Contains(s.Run, has) {
				return s.Run
			}
		}
		t.Fatalf("job %s has no step that runs %s", job, has)
		return ""
	}
	calls := filepath.Join(dir, "calls")
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run := func(text string, env ...string) (string, error) {
		cmd := exec.Command("bash", "-e", "-c", text)
		cmd.Dir = filepath.Join(dir, "clone")
		cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "HOME="+dir, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
			"CALLS="+calls, "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
		cmd.Env = append(cmd.Env, env...)
		out, err := cmd.CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	must := func(text string) string {
		t.Helper()
		out, err := run(text)
		if err != nil {
			t.Fatalf("%s: %v\n%s", text, err, out)
		}
		return out
	}
	at := func(ref string) string { t.Helper(); return must("git ls-remote ../origin " + ref + " | cut -f1") }

	write("bin/gh", gh)
	write("clone/scripts/release-tag", document(t, "scripts/release-tag"))
	write("clone/.github/workflows/ci.yml", "on: push")
	must("git init -q --bare -b main ../origin; git init -q -b main; git remote add origin ../origin; git add -A; git commit -qm source; git push -q origin main")
	source := must("git rev-parse HEAD")
	// The release is of a commit that main has left behind, with workflows of its own.
	write("clone/.github/workflows/ci.yml", "on: pull_request")
	must("git commit -qam later; git push -q origin main; git checkout -q -b stray; git commit -q --allow-empty -m stray; git checkout -q " + source)
	write("origin/rules", rulesets(t))
	write("origin/hooks/update", refuses)

	// What a step of a job does, on what it checked out.
	job := func(text, tag, sha string, env ...string) (string, error) {
		t.Helper()
		must("git fetch -q --prune -f origin '+refs/heads/*:refs/remotes/origin/*' '+refs/tags/*:refs/tags/*'")
		return run(text, append(env, "GITHUB_REF_NAME="+tag, "GITHUB_SHA="+sha, "TOKEN=t")...)
	}
	// What docs/releasing.md has a person type.
	push := func(tag, commit string) {
		t.Helper()
		for _, block := range indented(document(t, "docs/releasing.md")) {
			if strings.HasPrefix(block, "git tag ") {
				must(strings.NewReplacer("v1.2.3", tag, "COMMIT", commit).Replace(block))
				return
			}
		}
		t.Fatal("docs/releasing.md does not say how a tag is pushed")
	}

	gate := script("build", "merge-base")
	push("v1.2.3", source)
	for _, c := range []struct{ name, before, sha, created, says string }{
		{"a tag of main", "", source, "true", ""},
		{"one that was moved", "", source, "false", "has been moved"},
		{"one of a commit that was never on main", "git push -q -f origin stray:refs/heads/release/v1.2.3", must("git rev-parse stray"), "true", "not on main"},
		{"one whose branch is elsewhere", "git push -q -f origin main:refs/heads/release/v1.2.3", source, "true", "git push origin " + source + ":refs/heads/release/v1.2.3"},
		{"one without a branch", "git push -q -d origin release/v1.2.3", source, "true", "git push origin " + source + ":refs/heads/release/v1.2.3"},
	} {
		must(c.before)
		out, err := job(gate, "v1.2.3", c.sha, "CREATED="+c.created)
		if (err == nil) != (c.says == "") || !strings.Contains(out, c.says) {
			t.Errorf("%s: %v, want %q\n%s", c.name, err, c.says, out)
		}
	}

	sums := ""
	for _, name := range []string{"untrusted-steps-linux-amd64", "untrusted-steps-linux-arm64"} {
		write("clone/dist/"+name, name)
		sums += fmt.Sprintf("%x  %s\n", sha256.Sum256([]byte(name)), name)
	}
	write("clone/dist/SHA256SUMS", sums)
	publish := []string{script("publish", "release-tag"), script("publish", "gh release create")}
	// The control: here, as at GitHub, it is the branch that lets the tags through.
	if out, err := job(publish[0], "v1.2.3", source); err == nil || !strings.Contains(out, "without workflows permission") || at("refs/tags/v1.2.3") != source {
		t.Errorf("without its branch the tag is pushed: %v\n%s", err, out)
	}
	must("git push -q origin " + source + ":refs/heads/release/v1.2.3")

	released := func(tag string) (called string) {
		t.Helper()
		if err := os.RemoveAll(calls); err != nil {
			t.Fatal(err)
		}
		for _, text := range publish {
			if out, err := job(text, tag, source); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		}
		b, err := os.ReadFile(calls)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	const assets = " --clobber dist/untrusted-steps-linux-amd64 dist/untrusted-steps-linux-arm64 dist/SHA256SUMS\n"
	view := func(tag string) string { return "gh release view " + tag + "\n" }
	upload := func(tag string) string { return "gh release upload " + tag + assets }

	if got, want := released("v1.2.3"), view("v1.2.3")+"gh release create v1.2.3 --verify-tag --generate-notes\n"+upload("v1.2.3"); got != want {
		t.Errorf("gh was called\n%swant\n%s", got, want)
	}
	made := at("refs/tags/v1.2.3")
	if made == source || made == "" || at("refs/tags/v1") != made || at("refs/heads/main") != must("git rev-parse main") {
		t.Errorf("at the origin v1.2.3 is %s, v1 %s, main %s; the source is %s", made, at("refs/tags/v1"), at("refs/heads/main"), source)
	}
	if got := must("git ls-tree -r --name-only " + made + " dist"); got != "dist/SHA256SUMS\ndist/untrusted-steps-linux-amd64\ndist/untrusted-steps-linux-arm64" {
		t.Errorf("in the tree of the release is\n%s", got)
	}
	if got, want := released("v1.2.3"), view("v1.2.3")+upload("v1.2.3"); got != want || at("refs/tags/v1.2.3") != made {
		t.Errorf("run again, it makes %s and calls\n%swant %s and\n%s", at("refs/tags/v1.2.3"), got, made, want)
	}
	push("v1.3.0-rc.1", source)
	if got, want := released("v1.3.0-rc.1"), view("v1.3.0-rc.1")+"gh release create v1.3.0-rc.1 --verify-tag --generate-notes --prerelease\n"+upload("v1.3.0-rc.1"); got != want || at("refs/tags/v1") != made {
		t.Errorf("a pre-release makes v1 %s and calls\n%swant %s and\n%s", at("refs/tags/v1"), got, made, want)
	}
	push("v1.3.0", source)
	if released("v1.3.0"); at("refs/tags/v1") != at("refs/tags/v1.3.0") || at("refs/tags/v1") == made {
		t.Errorf("the next release makes v1 %s, and is %s", at("refs/tags/v1"), at("refs/tags/v1.3.0"))
	}

	// v1 goes on behind the back of a run: what it decided no longer holds.
	push("v1.4.0", source)
	overtaken := "git -C ../origin update-ref refs/tags/v1 " + source + "\n" + publish[0]
	if out, err := job(overtaken, "v1.4.0", source); err == nil || !strings.Contains(out, "stale info") || at("refs/tags/v1") != source {
		t.Errorf("a run that was overtaken makes v1 %s (%v)\n%s", at("refs/tags/v1"), err, out)
	}
	if out, err := job(publish[0], "v1.4.0", source); err != nil || at("refs/tags/v1") != at("refs/tags/v1.4.0") {
		t.Errorf("run again, it makes v1 %s (%v)\n%s", at("refs/tags/v1"), err, out)
	}
}

// releaseBuild is a stand-in for the script: it builds what its version says.
const releaseBuild = `#!/bin/sh
mkdir -p "$2" && cd "$2" || exit 1
for arch in amd64 arm64; do echo "$arch of $1" >untrusted-steps-linux-$arch; done
sha256sum untrusted-steps-linux-* >SHA256SUMS
`

// TestReleaseBuiltAgain: the scripts of the jobs that check what was built, in their
// order, with what an action would have brought in its place. Only what this machine
// comes to as well is let through, and signed only what is as its sums say.
func TestReleaseBuiltAgain(t *testing.T) {
	put := func(t *testing.T, path, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	sum := func(text, name string) string { return fmt.Sprintf("%x  %s\n", sha256.Sum256([]byte(text)), name) }
	const (
		amd64, arm64 = "untrusted-steps-linux-amd64", "untrusted-steps-linux-arm64"
		one, two     = "amd64 of v1.2.3\n", "arm64 of v1.2.3\n"
	)
	sums := sum(one, amd64) + sum(two, arm64)
	for _, c := range []struct {
		name          string
		dist          map[string]string
		again, attest bool
	}{
		{"the same", map[string]string{amd64: one, arm64: two, "SHA256SUMS": sums}, true, true},
		{"another binary, with its sum", map[string]string{amd64: one, arm64: "evil", "SHA256SUMS": sum(one, amd64) + sum("evil", arm64)}, false, true},
		{"another binary that SHA256SUMS does not have", map[string]string{amd64: one, arm64: "evil", "SHA256SUMS": sum(one, amd64)}, false, true},
		{"a file too many", map[string]string{amd64: one, arm64: two, "SHA256SUMS": sums, "other": ""}, false, true},
		{"another binary under the old sum", map[string]string{amd64: one, arm64: "evil", "SHA256SUMS": sums}, false, false},
		{"sums of nothing", map[string]string{amd64: one, arm64: two, "SHA256SUMS": ""}, false, false},
	} {
		for job, want := range map[string]bool{"again": c.again, "attest": c.attest} {
			t.Run(c.name+"/"+job, func(t *testing.T) {
				dir, ran := t.TempDir(), 0
				for _, s := range readRelease(t).Jobs[job].Steps {
					switch action, _, _ := strings.Cut(s.Uses, "@"); action {
					case "actions/checkout":
						put(t, filepath.Join(dir, s.With["path"], "scripts/release-build"), releaseBuild)
					case "actions/download-artifact":
						for name, text := range c.dist {
							put(t, filepath.Join(dir, s.With["path"], name), text)
						}
					case "actions/setup-go", "actions/attest-build-provenance":
					case "":
						ran++
						cmd := exec.Command("bash", "-e", "-c", s.Run)
						cmd.Dir = filepath.Join(dir, s.WorkingDirectory)
						cmd.Env = append(os.Environ(), "GITHUB_REF_NAME=v1.2.3")
						if out, err := cmd.CombinedOutput(); err != nil {
							if want {
								t.Errorf("%s: %v\n%s", s.Run, err, out)
							}
							return
						}
					default:
						t.Fatalf("this test does not know %s", s.Uses)
					}
				}
				if !want || ran == 0 {
					t.Errorf("it is let through, by %d scripts", ran)
				}
			})
		}
	}
}
