package workspace_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// short is a list of changes in words.
func short(list []workspace.Change) []string {
	out := []string{}
	for _, c := range list {
		out = append(out, c.Change+" "+c.Type+" "+c.RawPath())
	}
	return out
}

// lawful holds that a step passed, did nothing it may not, and what became of
// what it wrote.
func (r *report) lawful(id, fate string) result {
	r.t.Helper()
	st := r.step(id)
	if st.Status != "passed" || len(st.Violations) > 0 || st.Fault != nil || st.Workspace != fate {
		r.t.Errorf("step %s: %s, workspace %s, want it passed and %s: %s %+v %+v", id, st.Status, st.Workspace, fate, st.Reason, st.Fault, st.Violations)
	}
	return st
}

// repository makes the workspace a git repository with one commit. Its index is
// stale, so that git refreshes it when it is asked anything.
func (p *place) repository(t testing.TB, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(p.workspace, name)
		do(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644))
	}
	p.commitAll(t)
}

func (p *place) commitAll(t testing.TB) {
	t.Helper()
	for _, args := range [][]string{
		{"init", "-q", "-b", "main"}, {"add", "-A"},
		{"-c", "user.name=A", "-c", "user.email=a@example.com", "commit", "-q", "-m", "first"},
	} {
		cmd := exec.Command("git", append([]string{"-C", p.workspace, "-c", "safe.directory=*"}, args...)...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/no-home", "GIT_CONFIG_NOSYSTEM=1"}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	p.own(t)
	if out, err := exec.Command("find", p.workspace, "-name", ".git", "-prune", "-o", "-type", "f", "-exec", "touch", "-d", "2001-02-03", "{}", "+").CombinedOutput(); err != nil {
		t.Fatalf("touch: %v\n%s", err, out)
	}
}

func TestAskingGitChangesNothingAndIsNoViolation(t *testing.T) {
	boxtest.Need(t, "git")
	eachWay(t, func(t *testing.T, w way) {
		p := newPlace(t, w)
		p.repository(t, map[string]string{"a.txt": "one\n", "d/b.txt": "two\n"})
		before := list(t, p.workspace)
		git := w.file("",
			scriptStep{id: "status", text: "git status --porcelain"},
			scriptStep{id: "refresh", text: "GIT_OPTIONAL_LOCKS=1 git status --porcelain"},
			scriptStep{id: "log", text: "git log --oneline && git diff --stat && git branch && git stash list"},
			scriptStep{id: "edit", text: "echo more >> a.txt && git status --porcelain && git diff > ../tmp/diff && cat ../tmp/diff > change.diff"},
			scriptStep{id: "commit", text: "git add a.txt && git -c user.name=B -c user.email=b@example.com commit -q -m second"},
		)
		r := p.run(t, git)
		r.exits(1) // the last step, which is the control
		r.lawful("status", "unchanged")
		// The control: git does refresh its index where it is told that it may, which
		// is in the list and nowhere else.
		if st := r.lawful("refresh", "unchanged"); !slices.Contains(short(st.Files), "modified file .git/index") {
			t.Errorf("git status changed %q, want .git/index among it", short(st.Files))
		}
		r.lawful("log", "unchanged")
		r.lawful("edit", "committed")
		if st := r.step("commit"); st.Workspace != "discarded" || len(st.Violations) == 0 || st.Violations[0].Type != "protected_path" {
			t.Errorf("git commit: workspace %s, violations %+v, want protected_path", st.Workspace, st.Violations)
		}
		want := []string{"modified file a.txt", "created file change.diff"}
		if diff := cmp.Diff(want, short(workspace.Diff(before, list(t, p.workspace)))); diff != "" {
			t.Errorf("the workspace after it (-want +got)\n%s", diff)
		}
		p.clean(t)
	})
}

// goModule is a module of other people's with tests, and what those need.
const (
	goModule = "gopkg.in/yaml.v3@v3.0.1"
	goNeeds  = "gopkg.in/check.v1@v0.0.0-20161208181325-20d25e280405"
)

// fetched asks the go command for a module, which it has in its cache or fetches.
func fetched(t testing.TB, module string) (m struct{ Dir, Zip, GoMod, Info string }) {
	t.Helper()
	cmd := exec.Command("go", "mod", "download", "-json", module)
	cmd.Dir = boxtest.OpenDir(t)
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("go mod download: %w", err)
	}
	need.Met(t, "registries", err)
	do(t, json.Unmarshal(out, &m))
	return m
}

// A real module's own tests run in a box without a network, and what the step
// changed is what it was told to write.
func TestTheTestsOfARealGoModulePassAndTheListHasItsOutputsOnly(t *testing.T) {
	boxtest.Need(t, "git")
	module, dependency := fetched(t, goModule), fetched(t, goNeeds)
	dir := boxtest.OpenDir(t)
	// A module proxy in a folder, with what the tests need, readable by any user.
	proxy := filepath.Join(dir, "proxy", "gopkg.in", "check.v1", "@v")
	do(t, os.MkdirAll(proxy, 0o755))
	for _, path := range []string{dependency.Zip, dependency.GoMod, dependency.Info} {
		b, err := os.ReadFile(path)
		do(t, err, os.WriteFile(filepath.Join(proxy, filepath.Base(path)), b, 0o644))
	}
	// The control, outside: the same commands pass, and leave in the build cache
	// what is the same for every box, the standard library above all.
	env := []string{"GOPROXY=file://" + dir + "/proxy", "GOSUMDB=off", "GOTOOLCHAIN=local", "CGO_ENABLED=0", "GOFLAGS=-trimpath", "GOTELEMETRY=off"}
	text := "go build ./... && go test -count=1 -coverprofile=cover.out . > test.txt && go test -c -o out/yaml.test . && git status --porcelain | sort"
	sources, outside := filepath.Join(dir, "sources"), &place{dir: dir, workspace: filepath.Join(dir, "outside")}
	plain := func(text string) {
		t.Helper()
		cmd := exec.Command("sh", "-ec", text)
		cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=/no-home", "GOENV=off", "GOCACHE=" + filepath.Join(dir, "cache"), "GOMODCACHE=" + filepath.Join(dir, "mod"),
			"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"}, env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("outside: %v\n%s", err, out)
		}
	}
	t.Cleanup(func() { _ = exec.Command("chmod", "-R", "u+w", filepath.Join(dir, "mod")).Run() })
	// It comes without the sums of what its tests need.
	plain("cp -R -T " + module.Dir + " " + sources + "; chmod -R u+w " + sources + "; cd " + sources + "; GOFLAGS=-mod=mod go list -deps -test ./... >/dev/null")
	prepare := func(p *place) *workspace.Tree {
		plain("cp -R -T " + sources + " " + p.workspace)
		p.commitAll(t)
		return list(t, p.workspace)
	}
	want := []string{"created file cover.out", "created dir out", "created file out/yaml.test", "created file test.txt"}
	before := prepare(outside)
	plain("cd " + outside.workspace + "; " + text)
	changed := slices.DeleteFunc(short(workspace.Diff(before, list(t, outside.workspace))), func(s string) bool { return strings.HasSuffix(s, " .git/index") })
	if diff := cmp.Diff(want, changed); diff != "" {
		t.Fatalf("control: outside (-want +got)\n%s", diff)
	}
	do(t, os.Chmod(filepath.Join(dir, "cache"), 0o755))
	eachWay(t, func(t *testing.T, w way) {
		p := newPlace(t, w)
		before := prepare(p)
		keys := "  memoryMb: 2048\n  tmpfs: {/tmp: 900m}\n  mounts:\n    " + dir + "/proxy: [/proxy, ro]\n    " + dir + "/cache: [/cache, ro]\n" +
			"  env: {GOPROXY: 'file:///proxy', GOSUMDB: 'off', GOTOOLCHAIN: local, CGO_ENABLED: '0', GOFLAGS: -trimpath, GOTELEMETRY: 'off', GOCACHE: /tmp/cache, GOMODCACHE: /tmp/mod}\n"
		r := p.run(t, w.file(keys, scriptStep{id: "test", text: "export PATH=$PATH:/usr/local/go/bin; cp -R /cache /tmp/cache; " + text}))
		r.exits(0)
		st := r.lawful("test", "committed")
		got := slices.DeleteFunc(short(st.Files), func(s string) bool { return strings.HasSuffix(s, " .git/index") })
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the report's list (-want +got)\n%s", diff)
		}
		if diff := cmp.Diff(want, short(workspace.Diff(before, list(t, p.workspace)))); diff != "" {
			t.Errorf("the workspace (-want +got)\n%s", diff)
		}
		if b, err := os.ReadFile(filepath.Join(p.workspace, "test.txt")); err != nil || !strings.HasPrefix(string(b), "ok ") {
			t.Errorf("its tests said %q, %v", b, err)
		}
		p.clean(t)
	})
}

func TestAVirtualEnvironmentIsCommittedAndWorksInTheNextStep(t *testing.T) {
	boxtest.Need(t, "python3")
	eachWay(t, func(t *testing.T, w way) {
		p := newPlace(t, w)
		do(t, os.WriteFile(filepath.Join(p.workspace, "main.py"), []byte("print('hello')\n"), 0o644))
		p.own(t)
		r := p.run(t, w.file("",
			scriptStep{id: "venv", text: "python3 -m venv --without-pip venv"},
			scriptStep{id: "use", text: "venv/bin/python main.py; venv/bin/python -c 'import sys; print(sys.prefix)'"},
			scriptStep{id: "module", text: "echo 'x = 1' > mod.py; venv/bin/python -c 'import mod'"}))
		r.exits(0)
		files := short(r.lawful("venv", "committed").Files)
		for _, want := range []string{"created symlink venv/bin/python3", "created file venv/pyvenv.cfg", "created file venv/bin/activate"} {
			if !slices.Contains(files, want) {
				t.Errorf("the list has no %s: %q", want, files)
			}
		}
		r.lawful("use", "unchanged")
		if got := r.stdout("use"); got != "hello\n/workspace/venv\n" {
			t.Errorf("the environment said %q", got)
		}
		if got := short(r.lawful("module", "committed").Files); !slices.Contains(got, "created file mod.py") || !slices.Contains(got, "created dir __pycache__") {
			t.Errorf("importing a module made %q", got)
		}
		p.clean(t)
	})
}

func TestNpmInstallsAFolderWithoutAViolation(t *testing.T) {
	boxtest.Need(t, "npm")
	eachWay(t, func(t *testing.T, w way) {
		p := newPlace(t, w)
		for name, text := range map[string]string{
			"package.json":     `{"name": "app", "version": "1.0.0", "dependencies": {"dep": "file:./dep"}, "scripts": {"test": "node -e 'console.log(require(\"dep\"))'"}}`,
			"dep/package.json": `{"name": "dep", "version": "1.0.0", "main": "index.js", "bin": {"dep": "index.js"}}`,
			"dep/index.js":     "#!/usr/bin/env node\nmodule.exports = 'from dep'\n",
		} {
			do(t, os.MkdirAll(filepath.Join(p.workspace, filepath.Dir(name)), 0o755), os.WriteFile(filepath.Join(p.workspace, name), []byte(text), 0o644))
		}
		p.own(t)
		keys := "  memoryMb: 1024\n  pids: 256\n  env: {NPM_CONFIG_UPDATE_NOTIFIER: 'false', NPM_CONFIG_AUDIT: 'false', NPM_CONFIG_FUND: 'false'}\n"
		r := p.run(t, w.file(keys,
			scriptStep{id: "install", text: "npm install --offline --no-progress"},
			scriptStep{id: "test", text: "npm test --silent"}))
		r.exits(0)
		st := r.lawful("install", "committed")
		for _, want := range []string{"created dir node_modules", "created symlink node_modules/dep", "created symlink node_modules/.bin/dep", "created file package-lock.json"} {
			if !slices.Contains(short(st.Files), want) {
				t.Errorf("the list has no %s: %q", want, short(st.Files))
			}
		}
		if len(st.First) == 0 || st.First[0] != "package-lock.json" {
			t.Errorf("a reviewer is first shown %q, want package-lock.json", st.First)
		}
		r.lawful("test", "unchanged")
		if got := strings.TrimSpace(r.stdout("test")); got != "from dep" {
			t.Errorf("the package said %q", got)
		}
		p.clean(t)
	})
}

func TestNpmInstallsFromItsRegistryWithoutAViolation(t *testing.T) {
	boxtest.Need(t, "npm")
	// Where npm asks is read from it, and written down nowhere.
	out, err := exec.Command("npm", "config", "get", "registry").Output()
	registry := strings.TrimSpace(string(out))
	if err == nil && registry == "" {
		err = fmt.Errorf("npm names no registry")
	}
	need.Met(t, "registries", err)
	eachWay(t, func(t *testing.T, w way) {
		p := newPlace(t, w)
		do(t, os.WriteFile(filepath.Join(p.workspace, "package.json"), []byte(`{"name": "app", "version": "1.0.0"}`), 0o644))
		p.own(t)
		keys := "  memoryMb: 1024\n  pids: 256\n  env: {NPM_CONFIG_UPDATE_NOTIFIER: 'false', NPM_CONFIG_AUDIT: 'false', NPM_CONFIG_FUND: 'false'}\n" +
			"  passEnv: [NPM_CONFIG_REGISTRY]\n"
		r := p.run(t, w.file(keys, scriptStep{id: "install", text: "npm install --no-progress is-number@7.0.0", keys: "  egressAllow: ['preset:npm']\n"},
			scriptStep{id: "use", text: "node -e 'if (!require(\"is-number\")(5)) process.exit(1)'"}), "NPM_CONFIG_REGISTRY="+registry)
		if r.code != 0 {
			t.Fatalf("exit status %d: %s", r.code, strings.ReplaceAll(r.log, registry, "(the registry)"))
		}
		files := short(r.lawful("install", "committed").Files)
		for _, want := range []string{"created file node_modules/is-number/package.json", "created file package-lock.json", "modified file package.json"} {
			if !slices.Contains(files, want) {
				t.Errorf("the list has no %s: %q", want, files)
			}
		}
		r.lawful("use", "unchanged")
		p.clean(t)
	})
}
