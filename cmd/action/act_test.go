package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
	"github.com/untrusted-steps/untrusted-steps/internal/gvisor"
)

// actVersion is the one whose ways these tests know.
const actVersion = "v0.2.87"

// needAct gives the path of act, which it installs where it is missing.
func needAct(t *testing.T) string {
	t.Helper()
	path, err := findAct(t)
	need.Met(t, "act", err)
	return path
}

func findAct(t *testing.T) (string, error) {
	if path, err := exec.LookPath("act"); err == nil {
		out, err := exec.Command(path, "--version").Output()
		if err == nil && strings.Contains(string(out), strings.TrimPrefix(actVersion, "v")) {
			return path, nil
		}
	}
	dir := t.TempDir()
	cmd := exec.Command("go", "install", "github.com/nektos/act@"+actVersion)
	cmd.Dir = dir // outside of our module
	cmd.Env = append(os.Environ(), "GOBIN="+dir, "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", errors.New("go install act: " + err.Error() + ": " + string(out))
	}
	return filepath.Join(dir, "act"), nil
}

// job is a run of an example workflow: what a runner would have made of it.
type job struct {
	result    string            // success or failure
	gate      string            // result of the step with our action
	outputs   map[string]string // of that step
	summaries []string
	log       string
}

// workflow is a run of one of examples/workflows, as it stands there, by act.
type workflow struct {
	name  string // file in examples/workflows
	event string // name of the event
	// sources are what a checkout gives, by the ref it is asked for.
	sources map[string]map[string]string
	payload string
	token   string // github.token
	// lost is the name of an artifact that is not kept.
	lost string
	// shipped: the action's tree has a binary; otherwise it is built.
	shipped bool
}

// checkout stands in for actions/checkout, which is on another machine. It
// gives what the workflow asked for by ref, and refuses what it does not know.
const checkout = `
name: checkout
inputs:
  path: { default: . }
  ref: { default: the-change }
  persist-credentials: { default: "true" }
  sparse-checkout: {}
  sparse-checkout-cone-mode: {}
runs:
  using: composite
  steps:
    - shell: bash
      env:
        TO: ${{ inputs.path }}
        REF: ${{ inputs.ref }}
        KEEPS: ${{ inputs.persist-credentials }}
      run: |
        [ "$KEEPS" = false ] || { echo "a token would be left in .git"; exit 1; }
        [ -d "SOURCES/$REF" ] || { echo "no such ref: $REF"; exit 1; }
        mkdir -p "$TO"
        cp -r "SOURCES/$REF/." "$TO"
`

// setupGo stands in for actions/setup-go: here Go is there already.
const setupGo = `
name: setup-go
inputs:
  go-version: {}
  cache: { default: "true" }
runs:
  using: composite
  steps:
    - shell: bash
      env:
        VERSION: ${{ inputs.go-version }}
      run: |
        [[ $(go version) == *"go$VERSION"* ]] || { echo "the workflow asks for Go $VERSION, and the action is built with $(go version)"; exit 1; }
`

// upload and fetchArtifacts stand in for the actions of artifacts, as checkout
// does: upload also says what it keeps.
const upload = `
name: upload
inputs:
  name: { required: true }
  path: { required: true }
  overwrite: { default: "false" }
  retention-days: { default: "0" }
  if-no-files-found: { default: warn }
runs:
  using: composite
  steps:
    - shell: bash
      env:
        NAME: ${{ inputs.name }}
        FROM: ${{ inputs.path }}
        NONE: ${{ inputs.if-no-files-found }}
      run: |
        [ "$NAME" != "LOST" ] || exit 0
        if [ -e "$FROM" ]; then
          mkdir -p "KEPT/$NAME"
          cp -r "$FROM/." "KEPT/$NAME"
          echo "kept $(ls "$FROM" | tr '\n' ' ')"
        elif [ "$NONE" = error ]; then
          exit 1
        else
          echo "kept nothing"
        fi
`

const fetchArtifacts = `
name: download
inputs:
  pattern: { required: true }
  path: { required: true }
runs:
  using: composite
  steps:
    - shell: bash
      env:
        PATTERN: ${{ inputs.pattern }}
        TO: ${{ inputs.path }}
      run: |
        mkdir -p "$TO"
        find KEPT -mindepth 1 -maxdepth 1 -name "$PATTERN" -exec cp -r {} "$TO" ';'
`

// keptRunsc stands in for actions/cache, which an earlier job has filled with RUNSC.
const keptRunsc = `
name: cache
inputs:
  path: { required: true }
  key: { required: true }
runs:
  using: composite
  steps:
    - shell: bash
      env:
        TO: ${{ inputs.path }}
        KEY: ${{ inputs.key }}
      run: |
        [[ $KEY == *RELEASE-Linux-* ]] || { echo "the key $KEY does not name the version of runsc"; exit 1; }
        sum=$(sha256sum "RUNSC" | cut -c1-64)
        mkdir -p "${TO/#\~/$HOME}/$sum"
        cp "RUNSC" "${TO/#\~/$HOME}/$sum/runsc"
`

// cacheAction is the one that gvisor.yml keeps runsc with.
const cacheAction = "actions/cache@0057852bfaa89a56745cba8c7296529d2fc39830"

func (w workflow) run(t *testing.T, act string) job {
	t.Helper()
	dir, root := boxtest.OpenDir(t), moduleRoot(t)
	write := func(name, text string, mode os.FileMode) {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), mode)); err != nil {
			t.Fatal(err)
		}
	}
	for ref, files := range w.sources {
		for name, text := range files {
			write(filepath.Join("sources", ref, name), text, 0o755)
		}
	}
	write("checkout/action.yml", strings.ReplaceAll(checkout, "SOURCES", filepath.Join(dir, "sources")), 0o644)
	kept := strings.NewReplacer("KEPT", filepath.Join(dir, "artifacts"), "LOST", w.lost)
	write("upload/action.yml", kept.Replace(upload), 0o644)
	write("download/action.yml", kept.Replace(fetchArtifacts), 0o644)
	write("artifacts/.keep", "", 0o644)
	write("setup-go/action.yml", setupGo, 0o644)
	write("cache-runsc/action.yml", strings.NewReplacer("RUNSC", os.Getenv("RUNSC_BIN"), "RELEASE", gvisor.Release).Replace(keptRunsc), 0o644)
	write("event.json", w.payload, 0o644)
	write("repo/README", "", 0o644)
	write("home/.keep", "", 0o644)
	action := filepath.Join(dir, "action")
	copyAction(t, root, action, w.shipped)

	goenv, err := exec.Command("go", "env", "GOCACHE", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	caches := strings.Fields(string(goenv))
	cmd := exec.Command(act, w.event, "-e", filepath.Join(dir, "event.json"), "-W", filepath.Join(root, "examples/workflows", w.name),
		"-P", "ubuntu-latest=-self-hosted", "-P", "self-hosted=-self-hosted", "--json",
		"--local-repository", "actions/checkout@v4="+filepath.Join(dir, "checkout"),
		"--local-repository", "actions/setup-go@v5="+filepath.Join(dir, "setup-go"),
		"--local-repository", "actions/upload-artifact@v4="+filepath.Join(dir, "upload"),
		"--local-repository", "actions/download-artifact@v4="+filepath.Join(dir, "download"),
		"--local-repository", cacheAction+"="+filepath.Join(dir, "cache-runsc"),
		"--local-repository", "untrusted-steps/untrusted-steps@v1="+action,
		"--no-skip-checkout", "--action-offline-mode", "--no-cache-server", "--action-cache-path", filepath.Join(dir, "cache"))
	if w.token != "" {
		cmd.Args = append(cmd.Args, "--secret", "GITHUB_TOKEN="+w.token)
	}
	cmd.Dir = filepath.Join(dir, "repo")
	// act hands on all it has. A real runner has none of what we were started
	// with, and no way to fetch kern here: auto must get along without.
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Join(dir, "home"), "TMPDIR=" + dir, "GOCACHE=" + caches[0], "GOMODCACHE=" + caches[1],
		"GOTOOLCHAIN=local", "GOPROXY=off", "https_proxy=http://127.0.0.1:9", "PIP_RETRIES=0",
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.WaitDelay = 10 * time.Second
	err = cmd.Run()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		t.Fatalf("act: %v\n%s", err, &errs)
	}
	j := readJob(t, out.Bytes())
	if (err == nil) != (j.result == "success") {
		t.Fatalf("act: %v, and the job's result is %q\n%s\n%s", err, j.result, j.log, &errs)
	}
	return j
}

// copyAction makes what a runner downloads: the tree of a commit.
func copyAction(t *testing.T, from, to string, shipped bool) {
	t.Helper()
	for _, name := range []string{"action.yml", "go.mod", "go.sum"} {
		b, err := os.ReadFile(filepath.Join(from, name))
		if err == nil {
			err = errors.Join(os.MkdirAll(to, 0o755), os.WriteFile(filepath.Join(to, name), b, 0o644))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	folders := []string{"scripts", "cmd", "internal", "sandbox"}
	if shipped {
		folders = folders[:1]
		cmd := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(to, "dist", "untrusted-steps-linux-"+runtime.GOARCH), ".")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	for _, name := range folders {
		if err := os.CopyFS(filepath.Join(to, name), os.DirFS(filepath.Join(from, name))); err != nil {
			t.Fatal(err)
		}
	}
}

// readJob reads act's own log. The step with our action is the one that sets
// the verdict, or the last to fail.
func readJob(t *testing.T, stream []byte) job {
	t.Helper()
	j := job{outputs: map[string]string{}}
	results := map[string]string{}
	var log strings.Builder
	lines := bufio.NewScanner(bytes.NewReader(stream))
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e struct {
			Msg, Command, Name, Arg, Content, Stage, Step, StepResult, JobResult string
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			log.WriteString(lines.Text() + "\n")
			continue
		}
		switch {
		case e.Command == "set-output":
			j.outputs[e.Name] = e.Arg
		case e.Command == "summary":
			j.summaries = append(j.summaries, e.Content)
		case e.JobResult != "":
			j.result = e.JobResult
		case e.StepResult != "" && e.Stage == "Main":
			results[e.Step] = e.StepResult
		}
		log.WriteString(strings.TrimSuffix(e.Msg, "\n") + "\n")
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	j.log = log.String()
	for step, r := range results {
		if strings.HasPrefix(step, "Run them") || strings.HasPrefix(step, "Make one of them") || strings.Contains(step, "untrusted-steps/untrusted-steps@") {
			j.gate = r
		}
	}
	return j
}

func (j job) check(t *testing.T, gate string, outputs map[string]string, words ...string) {
	t.Helper()
	if j.gate != gate || j.result != gate {
		t.Errorf("the action's step is %q and the job %q, want %q", j.gate, j.result, gate)
	}
	for name, want := range outputs {
		if got, ok := j.outputs[name]; !ok || got != want {
			t.Errorf("output %s is %q (set: %v), want %q", name, got, ok, want)
		}
	}
	if filepath.Base(j.outputs["report"]) != "report.json" {
		t.Errorf("output report is %q", j.outputs["report"])
	}
	if len(j.summaries) == 0 {
		t.Fatalf("there is no summary\n%s", j.log)
	}
	for _, w := range words {
		if !strings.Contains(j.summaries[0], w) {
			t.Errorf("the summary does not have %q:\n%s", w, j.summaries[0])
		}
	}
	if t.Failed() {
		t.Log(j.log)
	}
}

// pull is what a runner tells of a pull request.
const pull = `{"pull_request": {"number": 7, "head": {"sha": "the-change", "ref": "patch"}, "base": {"sha": "the-base", "ref": "main"}}}`

// TestExamplesUnderAct runs the example workflows as they stand. act is no judge
// of security, but it wires inputs, outputs, summaries and exit codes as a
// runner does.
func TestExamplesUnderAct(t *testing.T) {
	boxtest.Boxes(t)
	act := needAct(t)

	// A policy of the base, and one that the change brings and nobody asks.
	const policy = "network: false\nmemoryMb: 512\nrequired: [{id: tests, run: sh ./run-tests.sh}]"
	const steps, own = ".github/untrusted-steps.yml", ".github/untrusted-steps-policy.yml"

	t.Run("a pull request passes by steps within the policy of its base", func(t *testing.T) {
		j := workflow{name: "pull-request.yml", event: "pull_request", payload: pull, sources: map[string]map[string]string{
			"the-base": {own: policy, steps: "steps: [{id: tests, run: exit 1}]"},
			"the-change": {
				"run-tests.sh": "echo '::set-output name=verdict::forged'; echo '::error::forged'; touch made",
				steps:          "steps: [{id: tests, run: sh ./run-tests.sh}, {id: more, run: 'true'}]",
				own:            "diskMb: 1",
			},
		}}.run(t, act)
		j.check(t, "success", map[string]string{
			"verdict": "pass", "faults": "", "failed-steps": "", "changed-files": "1",
		}, "tests", "pass", "made")
		if strings.Contains(j.log, "set-output:: verdict=forged") {
			t.Errorf("a step has set an output:\n%s", j.log)
		}
	})
	t.Run("a pull request that gives itself more than the policy of its base allows runs nothing", func(t *testing.T) {
		j := workflow{name: "pull-request.yml", event: "pull_request", payload: pull, shipped: true, sources: map[string]map[string]string{
			"the-base": {own: policy},
			"the-change": {
				steps: "steps:\n- {id: own-rules, run: echo they ran, network: true}\n",
				own:   "network: true",
			},
		}}.run(t, act)
		if j.gate != "failure" || j.result != "failure" || len(j.summaries) == 0 || !strings.Contains(j.summaries[0], "Nothing ran") || strings.Contains(j.log, "own-rules | they ran") {
			t.Errorf("gate %q, job %q, summaries %q", j.gate, j.result, j.summaries)
		}
		for _, want := range []string{
			"change/.github/untrusted-steps.yml:2:48: network: true is more than the policy allows", "base/.github/untrusted-steps-policy.yml:1:10: the policy: network is false",
			`the step "tests" is not there, which the policy requires`,
		} {
			if !strings.Contains(j.log, want) {
				t.Errorf("the log does not have %q", want)
			}
		}
		if t.Failed() {
			t.Log(j.log)
		}
	})
	t.Run("a pull request that fails closes the gate", func(t *testing.T) {
		j := workflow{name: "pull-request.yml", event: "pull_request", payload: pull, shipped: true, sources: map[string]map[string]string{
			"the-base": {own: policy},
			"the-change": {
				"run-tests.sh": "echo '::set-output name=verdict::pass'; exit 3",
				steps:          "steps: [{id: tests, run: sh ./run-tests.sh}, {id: escapes, command: [unshare, --user, 'true']}]",
			},
		}}.run(t, act)
		j.check(t, "failure", map[string]string{
			"verdict": "fail", "faults": "escapes:escape_blocked", "failed-steps": "tests,escapes", "changed-files": "0",
		}, "exit 3", "escape_blocked")
	})
	t.Run("a gate with checks passes where the API cannot be reached", func(t *testing.T) {
		j := workflow{name: "checks.yml", event: "pull_request", payload: strings.Replace(pull, "the-change", apiSHA, 1), token: apiToken, shipped: true,
			sources: map[string]map[string]string{
				"the-base":   {".github/untrusted-steps.yml": "steps: [{id: tests, run: sh ./run-tests.sh}]"},
				"the-change": {"run-tests.sh": "touch made"},
			}}.run(t, act)
		j.check(t, "success", map[string]string{"verdict": "pass", "changed-files": "1"}, "tests", "pass")
		if !strings.Contains(j.log, "kept egress.jsonl junit.xml report.html report.json results.sarif steps summary.md") {
			t.Errorf("the report is not kept:\n%s", j.log)
		}
		if !strings.Contains(j.log, "check run: the API does not answer") || strings.Contains(j.log, apiToken) {
			t.Errorf("the log does not say that nobody was told, or has the token:\n%s", j.log)
		}
	})
	t.Run("a self-hosted runner passes", func(t *testing.T) {
		workflow{name: "self-hosted.yml", event: "push", payload: "{}", shipped: true, sources: map[string]map[string]string{
			"the-change": {"run-tests.sh": "#!/bin/sh\necho tests\n", "build-docs.sh": "#!/bin/sh\necho >page.html\n"},
		}}.run(t, act).check(t, "success", map[string]string{"verdict": "pass", "changed-files": "1"}, "docs", "page.html")
	})
	t.Run("a self-hosted runner skips what needs a failed step", func(t *testing.T) {
		j := workflow{name: "self-hosted.yml", event: "push", payload: "{}", shipped: true, sources: map[string]map[string]string{
			"the-change": {"run-tests.sh": "#!/bin/sh\nexit 1\n", "build-docs.sh": "#!/bin/sh\necho >page.html\n"},
		}}.run(t, act)
		j.check(t, "failure", map[string]string{"verdict": "fail", "failed-steps": "tests", "changed-files": "0"}, "skipped")
		if !strings.Contains(j.log, "kept ") || !strings.Contains(j.log, "report.json") {
			t.Errorf("the report of a run that failed is not kept:\n%s", j.log)
		}
	})
}

// TestGvisorExampleUnderAct: the policy of the base has every step of the change in a
// box with a kernel of its own, and the runsc that was kept is the one that is used.
func TestGvisorExampleUnderAct(t *testing.T) {
	boxtest.Boxes(t)
	boxtest.Need(t, "runsc")
	act := needAct(t)
	const policy, steps, own = "engine: gvisor\nnetwork: false", ".github/untrusted-steps.yml", ".github/untrusted-steps-policy.yml"
	run := func(list string) job {
		return workflow{name: "gvisor.yml", event: "pull_request", payload: pull, shipped: true, sources: map[string]map[string]string{
			"the-base":   {own: policy},
			"the-change": {steps: list, own: "engine: native"},
		}}.run(t, act)
	}
	t.Run("a step has that kernel, and runsc is not built again", func(t *testing.T) {
		j := run("steps: [{id: tests, run: grep -q gvisor /proc/version && touch made}]")
		j.check(t, "success", map[string]string{"verdict": "pass", "changed-files": "1"}, "tests", "pass")
		if strings.Contains(j.log, "building runsc") {
			t.Errorf("runsc is built:\n%s", j.log)
		}
	})
	t.Run("a change that asks for less runs nothing", func(t *testing.T) {
		j := run("steps:\n- {id: tests, engine: native, run: echo they ran}\n")
		if j.gate != "failure" || j.result != "failure" || strings.Contains(j.log, "| they ran") ||
			!strings.Contains(j.log, "change/.github/untrusted-steps.yml:2:23: engine is not one") ||
			!strings.Contains(j.log, "base/.github/untrusted-steps-policy.yml:1:9: the policy: engine is gvisor") {
			t.Errorf("gate %q, job %q\n%s", j.gate, j.result, j.log)
		}
	})
}

// TestShardedExampleUnderAct: the parts of a plan run in jobs of their own, and the
// gate is the verdict of all of them.
func TestShardedExampleUnderAct(t *testing.T) {
	boxtest.Boxes(t)
	act := needAct(t)
	const list = `
steps:
  - {id: one, run: sh ./run.sh one}
  - {id: two, needs: one, run: cat one}
  - {id: three, run: sh ./run.sh three}
  - {id: four, run: sh ./run.sh four}
`
	run := func(script, lost string) job {
		j := workflow{name: "sharded.yml", event: "pull_request", payload: pull, shipped: true, lost: lost, sources: map[string]map[string]string{
			"the-base":   {".github/untrusted-steps.yml": list},
			"the-change": {"run.sh": script},
		}}.run(t, act)
		if n := len(j.summaries); n > 1 {
			j.summaries = j.summaries[n-1:] // of the gate
		}
		return j
	}
	t.Run("all parts pass", func(t *testing.T) {
		run("echo ran >$1; echo '::error::forged'", "").check(t, "success", map[string]string{
			"verdict": "pass", "failed-steps": "", "changed-files": "3",
		}, "4 steps passed in 3 shards", "one", "two", "three", "four")
	})
	t.Run("a failure in one part closes the gate", func(t *testing.T) {
		run("test $1 != three && echo ran >$1", "").check(t, "failure", map[string]string{
			"verdict": "fail", "failed-steps": "three", "changed-files": "2",
		}, "1 of 4 steps failed", "exit 1")
	})
	t.Run("and so does a report that is lost", func(t *testing.T) {
		run("echo ran >$1", "untrusted-steps-2").check(t, "failure", map[string]string{"verdict": "fail"}, "shard 2 of 3 is missing", "skipped")
	})
}
