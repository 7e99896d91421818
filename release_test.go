package untrustedsteps_test

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
)

// These are the scripts that .github/workflows/release.yml calls, run here as they
// stand.

// releaseVersion is a release that will never be.
const releaseVersion = "v0.0.7-test.1"

// machines are the processors there is a binary for.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

func binaryName(arch string) string { return "untrusted-steps-linux-" + arch }

// sources copies what a release is built of to a folder.
func sources(t *testing.T, to string) {
	t.Helper()
	for _, from := range []string{"cmd", "internal", "sandbox", "scripts", "go.mod", "go.sum"} {
		err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir():
				return os.MkdirAll(filepath.Join(to, path), 0o755)
			}
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(to, path), b, info.Mode().Perm())
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// do runs a program and gives its output.
func do(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	out, err := tried(dir, env, name, args...)
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return out
}

func tried(dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func fileBytes(t *testing.T, path ...string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestReleaseBuild: the binaries of a release need nothing of a machine, name
// nothing of the one they were built on, and say which release they are.
func TestReleaseBuild(t *testing.T) {
	tree, dist := t.TempDir(), t.TempDir()
	sources(t, tree)
	do(t, tree, nil, "scripts/release-build", releaseVersion, dist)

	t.Run("sums", func(t *testing.T) {
		want := ""
		for _, arch := range []string{"amd64", "arm64"} {
			want += fmt.Sprintf("%x  %s\n", sha256.Sum256(fileBytes(t, dist, binaryName(arch))), binaryName(arch))
		}
		if got := string(fileBytes(t, dist, "SHA256SUMS")); got != want {
			t.Errorf("SHA256SUMS is\n%swant\n%s", got, want)
		}
	})
	for arch, machine := range machines {
		t.Run("static/"+arch, func(t *testing.T) {
			path := filepath.Join(dist, binaryName(arch))
			f, err := elf.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if f.Machine != machine || f.Type != elf.ET_EXEC {
				t.Errorf("it is a %v for %v", f.Type, f.Machine)
			}
			for _, p := range f.Progs {
				if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
					t.Errorf("it has a %v: it needs a loader of the machine", p.Type)
				}
			}
			// Names for a debugger, and an id made of more than what is in the file.
			for _, name := range []string{".symtab", ".debug_info", ".zdebug_info", ".note.go.buildid"} {
				if f.Section(name) != nil {
					t.Errorf("it has a section %s", name)
				}
			}
			info, err := buildinfo.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range info.Settings {
				if s.Key == "CGO_ENABLED" && s.Value != "0" || s.Key == "-trimpath" && s.Value != "true" {
					t.Errorf("it was built with %s=%s", s.Key, s.Value)
				}
			}
			if here, err := filepath.EvalSymlinks(tree); err != nil || bytes.Contains(fileBytes(t, path), []byte(here)) {
				t.Errorf("the folder it was built in is in it (%v)", err)
			}
		})
		t.Run("runs/"+arch, func(t *testing.T) { runsAsReleased(t, arch, filepath.Join(dist, binaryName(arch))) })
	}
	t.Run("tag", func(t *testing.T) { releaseIsTagged(t, dist) })
}

// small is a program that go builds in a moment, with what settings of go would
// change in it.
var small = map[string]string{
	"go.mod":                "module example.com/small\n\ngo 1.26.0\n",
	"cmd/action/main.go":    "package main\n\nvar buildVersion string\n\nfunc main() { println(buildVersion) }\n",
	"cmd/action/tagged.go":  "//go:build other\n\npackage main\n\nfunc init() { println(`other`) }\n",
	"scripts/release-build": "",
}

func writeSmall(t *testing.T, tree string) {
	t.Helper()
	for name, text := range small {
		b := []byte(text)
		if text == "" {
			b = fileBytes(t, name)
		}
		writeFile(t, filepath.Join(tree, name), b)
	}
}

func writeFile(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, b, 0o755)); err != nil {
		t.Fatal(err)
	}
}

// TestReleaseBuildIsTheSame: neither the folder, nor a repository around it, nor
// what somebody has set changes a byte. A small program shows it, since all of that
// would change any; the compiler and what it keeps are the same here both times, so
// it is the workflow that holds one machine to another, with the real one.
func TestReleaseBuildIsTheSame(t *testing.T) {
	_, err := exec.LookPath("git")
	need.Met(t, "git", err)
	plain := t.TempDir()
	writeSmall(t, plain)
	out := do(t, plain, nil, "scripts/release-build", releaseVersion, "dist")
	if want := strings.TrimSpace(do(t, ".", []string{"GOTOOLCHAIN=local"}, "go", "version")); !strings.Contains(out, want+"\n") {
		t.Errorf("it does not say that it is built by %s:\n%s", want, out)
	}

	home := t.TempDir()
	tree := filepath.Join(home, "in/a folder/further down")
	writeSmall(t, tree)
	env := []string{"HOME=" + home, "XDG_CONFIG_HOME=", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null"}
	for _, args := range [][]string{{"init", "-q"}, {"add", "-A"}, {"-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-qm", "small"}} {
		do(t, tree, env, "git", args...)
	}
	writeFile(t, filepath.Join(home, ".config/go/env"), []byte("GOFLAGS=-race\n"))
	writeFile(t, filepath.Join(home, "in/go.work"), []byte("go 1.26.0\n"))
	caches := strings.Fields(do(t, ".", nil, "go", "env", "GOMODCACHE", "GOCACHE"))
	out = do(t, tree, append(env, "GOMODCACHE="+caches[0], "GOCACHE="+caches[1],
		"GOENV="+filepath.Join(home, ".config/go/env"), "GOFLAGS=-tags=other -ldflags=-X=main.buildVersion=v9", "GOWORK=",
		"GOTOOLCHAIN=go1.99.9", "GOPROXY=off", "GOROOT="+home, "GO111MODULE=off", "GOEXPERIMENT=nogreenteagc", "GOFIPS140=latest",
		"CGO_ENABLED=1", "GOAMD64=v3", "GOARM64=v9.0", "GOOS=plan9", "GOARCH=386",
	), "bash", "-c", `umask 077 && exec scripts/release-build "$0" "out put"`, releaseVersion)
	for _, name := range []string{binaryName("amd64"), binaryName("arm64"), "SHA256SUMS"} {
		// The script's folder is relative to where it was called.
		if !bytes.Equal(fileBytes(t, plain, "dist", name), fileBytes(t, tree, "out put", name)) {
			t.Errorf("%s is not the same\n%s", name, out)
		}
	}
}

// runsAsReleased runs the binary for an architecture, on an emulated processor
// where this one is another.
func runsAsReleased(t *testing.T, arch, path string) {
	var emulator []string
	if arch != runtime.GOARCH {
		name := map[string]string{"amd64": "qemu-x86_64-static", "arm64": "qemu-aarch64-static"}[arch]
		found, err := exec.LookPath(name)
		need.Met(t, "qemu", err)
		emulator = []string{found}
	}
	command := func(args ...string) string {
		all := append(append(emulator, path), args...)
		return do(t, ".", nil, all[0], all[1:]...)
	}
	if got, want := command("version"), "untrusted-steps "+releaseVersion+"\n"; got != want {
		t.Errorf("version says %q, want %q", got, want)
	}
	if got := command("check", "examples/quickstart.yml"); !strings.Contains(got, "nothing wrong") {
		t.Errorf("check says %q", got)
	}
	if got := command("schema"); !json.Valid([]byte(got)) {
		t.Errorf("schema is no JSON: %.200q", got)
	}
}

// TestReleaseRefusesWhatIsNoVersion: what is in a tag becomes a flag of the linker
// and the name of a ref.
func TestReleaseRefusesWhatIsNoVersion(t *testing.T) {
	for _, version := range []string{"1.2.3", "v1.2", "v1.2.3 -X main.toolName=x", "v1.2.3/../v1", "v1.2.3-", "-v1.2.3", "v1.2.3\nv1.2.4", "main"} {
		for _, call := range [][]string{{"scripts/release-build", version, t.TempDir()}, {"scripts/release-tag", version, "HEAD", t.TempDir()}} {
			out, err := tried(".", nil, call[0], call[1:]...)
			var ended *exec.ExitError
			if !errors.As(err, &ended) || ended.ExitCode() != 2 || !strings.Contains(out, "is no version") {
				t.Errorf("%s %q: %v: %s", call[0], version, err, out)
			}
		}
	}
}

// releaseIsTagged: in the tree of a release is what the action runs, and no branch
// has it.
func releaseIsTagged(t *testing.T, dist string) {
	_, err := exec.LookPath("git")
	need.Met(t, "git", err)
	repo := t.TempDir()
	// No settings of whoever runs this.
	env := []string{"HOME=" + repo, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null"}
	git := func(args ...string) string { t.Helper(); return strings.TrimSpace(do(t, repo, env, "git", args...)) }
	git("init", "-q", "-b", "main")
	sources(t, repo)
	if err := os.WriteFile(filepath.Join(repo, ".gitignore"), []byte("/dist/\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	git("add", "-A")
	git("-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-qm", "the source")
	source := git("rev-parse", "HEAD")
	git("tag", "v1.2.3")
	git("tag", "v1.2.4-rc.1")
	script, err := filepath.Abs("scripts/release-tag")
	if err != nil {
		t.Fatal(err)
	}
	release := func(tag, commit, dir string) (string, error) { return tried(repo, env, script, tag, commit, dir) }
	out, err := release("v1.2.3", source, dist)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	made := git("rev-parse", "v1.2.3^{commit}")
	// What is pushed may replace this and nothing else.
	if want := fmt.Sprintf("v1.2.3 %s %s\nv1 %s \n", made, source, made); out != want {
		t.Errorf("it says\n%swant\n%s", out, want)
	}
	if made == source || git("rev-parse", made+"^") != source || git("rev-parse", "v1") != made {
		t.Errorf("the release is %s, v1 is %s and the source is %s", made, git("rev-parse", "v1"), source)
	}
	if git("rev-parse", "main") != source || git("status", "--porcelain") != "" {
		t.Error("the branch or the work tree is another than before")
	}
	changed := "A\tdist/SHA256SUMS\nA\tdist/" + binaryName("amd64") + "\nA\tdist/" + binaryName("arm64")
	if got := git("diff", "--name-status", source, made); got != changed {
		t.Errorf("the release changes\n%s", got)
	}
	if out, err := release("v1.2.3", source, dist); err != nil || git("rev-parse", "v1.2.3") != made {
		t.Errorf("a second try makes %s (%v)\n%s", git("rev-parse", "v1.2.3"), err, out)
	}

	// A pre-release is nobody's v1.
	if out, err := release("v1.2.4-rc.1", source, dist); err != nil || git("rev-parse", "v1") != made || git("rev-parse", "v1.2.4-rc.1") == made {
		t.Errorf("after a pre-release v1 is %s (%v)\n%s", git("rev-parse", "v1"), err, out)
	}
	// A tag whose release never came to be holds nothing back.
	git("tag", "v1.10.0")
	for _, tag := range []string{"v1.2.4", "v1.10.0"} {
		if out, err := release(tag, source, dist); err != nil || git("rev-parse", "v1") != git("rev-parse", tag) || git("rev-parse", tag+"^") != source {
			t.Errorf("after %s, the newest release, v1 is %s (%v)\n%s", tag, git("rev-parse", "v1"), err, out)
		}
	}
	// One of an older line is not v1, nor one that is newer by its letters only.
	newest := git("rev-parse", "v1")
	for _, tag := range []string{"v1.1.9", "v1.2.3", "v1.9.0"} {
		if out, err := release(tag, source, dist); err != nil || git("rev-parse", "v1") != newest {
			t.Errorf("after %s v1 is %s (%v)\n%s", tag, git("rev-parse", "v1"), err, out)
		}
	}
	if out, err := release("v1.2.5", made, dist); err == nil || !strings.Contains(out, "has a dist/") {
		t.Errorf("a release was made of a release: %v\n%s", err, out)
	}
	broken := t.TempDir()
	for _, name := range []string{binaryName("amd64"), binaryName("arm64"), "SHA256SUMS"} {
		b := fileBytes(t, dist, name)
		if name == binaryName("arm64") {
			b = append(b, 0)
		}
		if err := os.WriteFile(filepath.Join(broken, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := release("v1.2.5", source, broken); err == nil || git("tag", "-l", "v1.2.5") != "" {
		t.Errorf("a release was made of a file that SHA256SUMS does not have: %v\n%s", err, out)
	}

	// As a runner gets it: the tree of the tag. There is no Go to build anything.
	tree := t.TempDir()
	do(t, repo, env, "bash", "-c", `git archive v1 | tar -x -C "$0"`, tree)
	for _, name := range []string{binaryName("amd64"), binaryName("arm64")} {
		if info, err := os.Stat(filepath.Join(tree, "dist", name)); err != nil || info.Mode().Perm()&0o111 == 0 {
			t.Errorf("dist/%s cannot be run: %v", name, err)
		}
		if !bytes.Equal(fileBytes(t, tree, "dist", name), fileBytes(t, dist, name)) {
			t.Errorf("dist/%s is not what was built", name)
		}
	}
	out, err = tried(tree, []string{
		"PATH=/usr/bin:/bin", "UNTRUSTED_STEPS_ACTION=" + tree, "UNTRUSTED_STEPS_ENGINE=native",
		"UNTRUSTED_STEPS_FILE=", "UNTRUSTED_STEPS_STEPS=steps: []", "GITHUB_ACTIONS=true", "GITHUB_WORKSPACE=" + t.TempDir(),
	}, "bash", filepath.Join(tree, "scripts/action.sh"))
	var ended *exec.ExitError
	if !errors.As(err, &ended) || ended.ExitCode() != 2 || !strings.Contains(out, "steps") {
		t.Errorf("the action did not run the binary in its tree, which refuses a list without steps with exit 2: %v\n%s", err, out)
	}
}
