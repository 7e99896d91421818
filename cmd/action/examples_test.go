package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
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
	for _, name := range []string{"showcase.yml"} {
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
