package main

import (
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rhysd/actionlint"
	"gopkg.in/yaml.v3"

	"github.com/untrusted-steps/untrusted-steps/internal/gvisor"
)

// TestExampleWorkflowsLint: what users copy has nothing that actionlint knows
// to be wrong.
func TestExampleWorkflowsLint(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(moduleRoot(t), "examples/workflows/*.yml"))
	if err != nil || len(files) < 2 {
		t.Fatalf("the example workflows are not found: %v %v", files, err)
	}
	for _, f := range append(files, ownWorkflows(t)...) {
		for _, e := range lint(t, f, nil) {
			t.Error(e)
		}
	}
	// The control: the linter sees what is wrong.
	if got := lint(t, "control.yml", []byte("on: push\njobs:\n  a:\n    runs-on: ubuntu-latest\n    steps:\n      - run: echo ${{ nothing.at.all }}\n")); len(got) == 0 {
		t.Error("actionlint finds nothing in a workflow with an unknown context")
	}
}

// TestGvisorExampleKeepsThePinnedRunsc: a key that names another version would keep
// what the action does not take, and have it built in each job.
func TestGvisorExampleKeepsThePinnedRunsc(t *testing.T) {
	text := document(t, "examples/workflows/gvisor.yml")
	for _, want := range []string{
		"uses: " + cacheAction + " # v", "path: ~/.cache/untrusted-steps/runsc\n", "key: runsc-" + gvisor.Release + "-${{ runner.os }}-${{ runner.arch }}\n",
		"policy: base/", "engine: gvisor # ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("examples/workflows/gvisor.yml lacks %q", want)
		}
	}
}

// ownWorkflows are the files of those that run for this repository.
func ownWorkflows(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(moduleRoot(t), ".github/workflows/*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("our own workflows are not found: %v", err)
	}
	return files
}

// TestOwnWorkflowsArePinned: a tag of an action can be moved, and whoever moves it
// runs what he likes with the tokens of our jobs. A commit cannot.
func TestOwnWorkflowsArePinned(t *testing.T) {
	pinned := regexp.MustCompile(`^actions/[a-z-]+@[0-9a-f]{40} # v[0-9]+\.[0-9]+\.[0-9]+$`)
	version := map[string]string{}
	for _, f := range ownWorkflows(t) {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			_, uses, ok := strings.Cut(strings.TrimSpace(line), "uses: ")
			if !ok {
				continue
			}
			if !pinned.MatchString(uses) {
				t.Errorf("%s: %s is not pinned by its commit, with its version behind it", f, uses)
			}
			name, at, _ := strings.Cut(uses, "@")
			if version[name] != "" && version[name] != at {
				t.Errorf("%s: %s is %s here and %s elsewhere", f, name, at, version[name])
			}
			version[name] = at
		}
		for _, script := range regexp.MustCompile(`scripts/[a-z-]+`).FindAllString(string(b), -1) {
			if info, err := os.Stat(filepath.Join(moduleRoot(t), script)); err != nil || info.Mode().Perm()&0o111 == 0 {
				t.Errorf("%s runs %s, which cannot be: %v", f, script, err)
			}
		}
	}
	if len(version) < 4 {
		t.Errorf("our workflows use %d actions only: this test looks for the wrong thing", len(version))
	}
}

// releaseWorkflow is .github/workflows/release.yml.
type releaseWorkflow struct {
	Concurrency any
	Permissions map[string]string
	Jobs        map[string]releaseJob
}

type releaseJob struct {
	Needs           names
	If              string
	ContinueOnError any `yaml:"continue-on-error"`
	Concurrency     map[string]string
	Permissions     map[string]string
	Steps           []releaseStep
}

type releaseStep struct {
	Name, Uses, Run, If string
	ContinueOnError     any    `yaml:"continue-on-error"`
	WorkingDirectory    string `yaml:"working-directory"`
	With, Env           map[string]string
}

// names is one name or a list of them.
type names []string

func (n *names) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		*n = names{node.Value}
		return nil
	}
	return node.Decode((*[]string)(n))
}

func readRelease(t *testing.T) (w releaseWorkflow) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(document(t, ".github/workflows/release.yml")), &w); err != nil {
		t.Fatal(err)
	}
	return w
}

// TestReleaseMayDoNoMore: what each job of a release is permitted, and that no
// expression is written into a script. No job that may write builds anything.
func TestReleaseMayDoNoMore(t *testing.T) {
	w := readRelease(t)
	if w.Permissions == nil || len(w.Permissions) > 0 {
		t.Errorf("a job that names no permissions has %v", w.Permissions)
	}
	got := map[string]map[string]string{}
	for name, job := range w.Jobs {
		got[name] = job.Permissions
		writes := slices.Contains(slices.Collect(maps.Values(job.Permissions)), "write")
		for _, s := range job.Steps {
			if strings.Contains(s.Run, "${{") {
				t.Errorf("%s: an expression is written into the script %q", name, s.Run)
			}
			if checkout := strings.HasPrefix(s.Uses, "actions/checkout@"); checkout && !writes && s.With["persist-credentials"] != "false" {
				t.Errorf("%s leaves its token in the checkout", name)
			}
			if writes && (strings.Contains(s.Uses, "setup-go") || strings.Contains(s.Run, "release-build") || strings.Contains(s.Run, "go ")) {
				t.Errorf("%s may write and builds", name)
			}
		}
	}
	want := map[string]map[string]string{
		"build":   {"contents": "read"},
		"again":   {"contents": "read"},
		"attest":  {"id-token": "write", "attestations": "write"},
		"publish": {"contents": "write"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("permissions of the jobs (-want +got)\n%s", diff)
	}
}

// TestReleaseIsAChain: nothing is signed before another machine has built the same,
// nothing is published before it is signed, nothing goes on after a failure, and
// every job has the commit that the tag named when the run began.
func TestReleaseIsAChain(t *testing.T) {
	needs, env := map[string]names{}, map[string]string{}
	for name, job := range readRelease(t).Jobs {
		needs[name] = job.Needs
		if job.If != "" || job.ContinueOnError != nil {
			t.Errorf("%s has a condition of its own (%q, %v): without one a job is run if those it needs passed, and fails if a step does", name, job.If, job.ContinueOnError)
		}
		for _, s := range job.Steps {
			maps.Copy(env, s.Env)
			if s.If != "" || s.ContinueOnError != nil {
				t.Errorf("%s: the step %q %q is one that may be left out or fail (%q, %v)", name, s.Name, s.Uses, s.If, s.ContinueOnError)
			}
			if strings.HasPrefix(s.Uses, "actions/checkout@") && s.With["ref"] != "${{ github.sha }}" {
				t.Errorf("%s checks out %q: a tag can be moved meanwhile", name, s.With["ref"])
			}
			if strings.HasPrefix(s.Uses, "actions/setup-go@") && s.With["go-version"] != "${{ env.GO_VERSION }}" {
				t.Errorf("%s takes the Go %q", name, s.With["go-version"])
			}
			if strings.HasPrefix(s.Uses, "actions/attest-build-provenance@") && s.With["subject-checksums"] != "dist/SHA256SUMS" {
				t.Errorf("%s signs %v", name, s.With)
			}
		}
	}
	want := map[string]names{"build": nil, "again": {"build"}, "attest": {"again"}, "publish": {"attest"}}
	if diff := cmp.Diff(want, needs); diff != "" {
		t.Errorf("what the jobs need (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"CREATED": "${{ github.event.created }}", "GH_TOKEN": "${{ github.token }}"}, env); diff != "" {
		t.Errorf("what the scripts are given (-want +got)\n%s", diff)
	}
}

// TestReleaseWaitsForItself: two runs of one tag do not write at a time. Of a group
// only one run waits, and a third ends it: a release of another tag would be lost.
func TestReleaseWaitsForItself(t *testing.T) {
	w := readRelease(t)
	if w.Concurrency != nil {
		t.Errorf("the whole run is in a group (%v): one that waits is ended by a third", w.Concurrency)
	}
	got := map[string]map[string]string{}
	for name, job := range w.Jobs {
		if job.Concurrency != nil {
			got[name] = job.Concurrency
		}
	}
	want := map[string]map[string]string{"publish": {"group": "publish-${{ github.ref }}", "cancel-in-progress": "false"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("jobs in a group (-want +got)\n%s", diff)
	}
}

func lint(t *testing.T, file string, content []byte) []*actionlint.Error {
	t.Helper()
	opts := &actionlint.LinterOptions{}
	if path, err := exec.LookPath("shellcheck"); err == nil {
		opts.Shellcheck = path
	}
	l, err := actionlint.NewLinter(io.Discard, opts)
	if err != nil {
		t.Fatal(err)
	}
	if content == nil {
		if content, err = os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
	}
	errs, err := l.Lint(file, content, nil)
	if err != nil {
		t.Fatal(err)
	}
	return errs
}

// manifest is action.yml.
type manifest struct {
	Inputs  map[string]struct{ Description, Default string }
	Outputs map[string]struct{ Description, Value string }
	Runs    struct {
		Using string
		Steps []struct {
			ID, Shell, Run string
			Env            map[string]string
		}
	}
}

func readManifest(t *testing.T) manifest {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(moduleRoot(t), "action.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var m manifest
	if err := yaml.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestShell: the action's scripts are whole, and no input is spliced into one.
func TestShell(t *testing.T) {
	m := readManifest(t)
	if m.Runs.Using != "composite" || len(m.Runs.Steps) == 0 {
		t.Fatalf("action.yml runs %q with %d steps", m.Runs.Using, len(m.Runs.Steps))
	}
	sources := map[string]string{}
	for _, s := range m.Runs.Steps {
		if strings.Contains(s.Run, "${{") {
			t.Errorf("action.yml: an expression is written into the script %q: whoever chooses its value chooses what runs", s.Run)
		}
		sources["action.yml: "+s.ID] = s.Run
	}
	for _, glob := range []string{"scripts/*", ".ci/run", "cmd/action/completion/bash"} {
		files, err := filepath.Glob(filepath.Join(moduleRoot(t), glob))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no files: %v", glob, err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			sources[f] = string(b)
		}
	}
	for name, text := range sources {
		cmd := exec.Command("bash", "-n")
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", name, err, out)
		}
		path, err := exec.LookPath("shellcheck")
		if err != nil {
			continue // bash has read it; shellcheck is more where there is one
		}
		cmd = exec.Command(path, "--shell=bash", "-")
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}
