package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/gvisor"
	"github.com/untrusted-steps/untrusted-steps/internal/host"
)

// TestMain is the program itself under its own name, so the tests drive what
// users run and not a part of it. A box's first process is this same file: it
// must be that before anything else.
func TestMain(m *testing.M) {
	if host.IsTry(os.Args) {
		host.Try(os.Args)
	}
	boxtest.Become(os.Args)
	boxtest.FindBy("runsc", func() (string, error) {
		return gvisor.Find(context.Background(), gvisor.Options{Getenv: os.Getenv})
	})
	testscript.Main(tests{m}, map[string]func(){toolName: main})
}

// tests are all tests, and what is to be taken away after them.
type tests struct{ *testing.M }

func (t tests) Run() int {
	defer boxtest.RemoveStatic()
	return t.M.Run()
}

// engines are run through every script that needs boxes.
var engines = []string{"native", "kern"}

// TestCommand is what the command does where nothing runs.
func TestCommand(t *testing.T) { scripts(t, "testdata/command", "native") }

// TestBox is what a run does, for each engine.
func TestBox(t *testing.T) {
	boxtest.Boxes(t)
	for _, e := range engines {
		t.Run(e, func(t *testing.T) {
			if e == "kern" {
				boxtest.Need(t, "kern")
			}
			scripts(t, "testdata/box", e)
		})
	}
}

// TestCells is what cells of Python do.
func TestCells(t *testing.T) {
	boxtest.Boxes(t)
	boxtest.Need(t, "python3")
	for _, e := range engines {
		t.Run(e, func(t *testing.T) {
			if e == "kern" {
				boxtest.Need(t, "kern")
			}
			scripts(t, "testdata/cells", e)
		})
	}
}

// TestImages is what steps do in images. Engine kern shows them this program as
// their first process, which in an image finds no loader.
func TestImages(t *testing.T) {
	boxtest.Boxes(t)
	for _, e := range engines {
		t.Run(e, func(t *testing.T) {
			if e == "kern" {
				boxtest.Need(t, "kern", "static")
			}
			scripts(t, "testdata/image", e)
		})
	}
}

// TestEngines is what runs do whose steps name engines.
func TestEngines(t *testing.T) {
	boxtest.Boxes(t)
	t.Run("named", func(t *testing.T) {
		boxtest.Need(t, "kern")
		scripts(t, "testdata/engines", "native")
	})
	t.Run("own", func(t *testing.T) {
		boxtest.Need(t, "runsc", "static")
		scripts(t, "testdata/enginesown", "native", "RUNSC_BIN")
	})
}

// TestRefused is what a run does on a host that cannot enforce what it asks: attack
// J125 and its like.
// Root makes one by giving everything up.
func TestRefused(t *testing.T) {
	boxtest.Need(t, "root")
	boxtest.Boxes(t)
	scripts(t, "testdata/refused", "native")
}

// scripts runs those of a folder. Of binaries of engines they have kern, and what
// else is named by its variable.
func scripts(t *testing.T, dir, engine string, binaries ...string) {
	testscript.Run(t, testscript.Params{
		Dir: dir, RequireExplicitExec: true, RequireUniqueNames: true,
		// Other users must get in, for the refused runs.
		WorkdirRoot: boxtest.OpenDir(t),
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "run": runCmd, "json": jsonCmd, "valid": validCmd, "commands": commandsCmd,
			"variables": variablesCmd, "lines": linesCmd, "unshown": unshownCmd, "registry": registries{}.registryCmd,
		},
		Condition: func(c string) (bool, error) {
			if c == "apparmor" {
				return box.AppArmor() == nil, nil
			}
			if !slices.Contains(engines, c) {
				return false, fmt.Errorf("no condition is called %q", c)
			}
			return c == engine, nil
		},
		Setup: func(e *testscript.Env) error {
			e.Setenv("ENGINE", engine)
			for _, name := range append([]string{"KERN_BIN"}, binaries...) {
				if bin := os.Getenv(name); bin != "" {
					e.Setenv(name, bin)
				}
			}
			e.Setenv("EXAMPLES", filepath.Join(moduleRoot(t), "examples"))
			// The program is in a folder that only we can enter.
			program, err := exec.LookPath(toolName)
			if err != nil {
				return err
			}
			if err := os.Chmod(filepath.Dir(filepath.Dir(program)), 0o755); err != nil {
				return err
			}
			return os.Chmod(e.WorkDir, 0o777|os.ModeSticky)
		},
	})
}

func moduleRoot(t testing.TB) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
		t.Fatal(err)
	}
	return dir
}
