package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// TestExamplesAreTriedInAClone: people run an example where they stand, in a clone of
// this repository. A folder called vendor at its top ends `go run` and `go build` there.
func TestExamplesAreTriedInAClone(t *testing.T) {
	examples, err := filepath.Glob(filepath.Join(moduleRoot(t), "examples/*.yml"))
	if err != nil || len(examples) == 0 {
		t.Fatal(examples, err)
	}
	vendor := regexp.MustCompile(`(^|[^\w/.-])(\./|/workspace/)?vendor($|[^\w.-])`)
	for _, path := range examples {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for line := range strings.Lines(string(b)) {
			if n++; vendor.MatchString(line) {
				t.Errorf("%s:%d names a folder vendor at the top of the workspace: %s", filepath.Base(path), n, line)
			}
		}
	}
}

// TestExamplesHaveTheirCommand: the README has the whole command of each example that
// asks for more than its name, as the example itself has it.
func TestExamplesHaveTheirCommand(t *testing.T) {
	readme := document(t, "README.md")
	for _, name := range []string{"showcase.yml", "quickstart-gvisor.yml"} {
		var command string
		for line := range strings.Lines(document(t, "examples/"+name)) {
			if c, ok := strings.CutPrefix(strings.TrimLeft(line, "# "), toolName+" run "); ok {
				command = toolName + " run " + strings.TrimSpace(c)
			}
		}
		if command == "" || !strings.Contains(readme, "\n    "+command+"\n") {
			t.Errorf("the README does not have the command of %s: %s", name, command)
		}
	}
}

// TestTheExampleOfGVisorRunsOnNoOther: one step of it ends otherwise elsewhere, which
// would say nothing of why.
func TestTheExampleOfGVisorRunsOnNoOther(t *testing.T) {
	a := &app{getenv: func(string) string { return "" }, lookupEnv: func(string) (string, bool) { return "", false }, environ: func() []string { return nil }}
	for engine, want := range map[string]string{"auto": "", "gvisor": "", "native": "gvisor", "kern": "gvisor"} {
		o := &options{file: "f.yml", workspace: t.TempDir(), engine: engine}
		p, err := steps.Load(o.file, []byte(document(t, "examples/quickstart-gvisor.yml")), a.loadOptions(o))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("--engine %s: %v", engine, err)
		}
		if err == nil && slices.ContainsFunc(p.Steps, func(s steps.PlanStep) bool { return s.Engine != "gvisor" }) {
			t.Errorf("--engine %s: a step leaves the choice of its engine", engine)
		}
	}
}
