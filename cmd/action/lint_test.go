package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rhysd/actionlint"
	"gopkg.in/yaml.v3"
)

// TestExampleWorkflowsLint: what users copy has nothing that actionlint knows
// to be wrong.
func TestExampleWorkflowsLint(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(moduleRoot(t), "examples/workflows/*.yml"))
	if err != nil || len(files) < 2 {
		t.Fatalf("the example workflows are not found: %v %v", files, err)
	}
	for _, f := range files {
		for _, e := range lint(t, f, nil) {
			t.Error(e)
		}
	}
	// The control: the linter sees what is wrong.
	if got := lint(t, "control.yml", []byte("on: push\njobs:\n  a:\n    runs-on: ubuntu-latest\n    steps:\n      - run: echo ${{ nothing.at.all }}\n")); len(got) == 0 {
		t.Error("actionlint finds nothing in a workflow with an unknown context")
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
