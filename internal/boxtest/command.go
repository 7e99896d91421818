package boxtest

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// CommandMain is TestMain for a package two folders below the module's root whose
// tests run the command itself: it builds the command where any user can run it,
// writes its path to program, and points KERN_BIN at a copy of kern beside it.
func CommandMain(m *testing.M, program *string) int {
	dir, err := os.MkdirTemp("", "untrusted-steps-command-")
	if err == nil {
		defer os.RemoveAll(dir)
		err = os.Chmod(dir, 0o755)
	}
	if err == nil {
		*program, err = buildCommand(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build the program under test:", err)
		return 1
	}
	return m.Run()
}

// buildCommand makes the command, and a copy of kern that any user can run.
func buildCommand(dir string) (string, error) {
	// The go command caches a package's results by the files that its tests
	// looked at, and does not see what a go command below them reads.
	for _, tree := range []string{"../../cmd", "../../internal"} {
		if err := filepath.WalkDir(tree, func(path string, _ fs.DirEntry, err error) error {
			if err == nil {
				_, err = os.Stat(path)
			}
			return err
		}); err != nil {
			return "", err
		}
	}
	program := filepath.Join(dir, "untrusted-steps")
	cmd := exec.Command("go", "build", "-trimpath", "-o", program, "../../cmd/action")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	if err := os.Chmod(program, 0o755); err != nil {
		return "", err
	}
	bin, err := exec.Command(program, "kern", "path").Output()
	if err != nil {
		return program, nil // no kern: its tests say so
	}
	b, err := os.ReadFile(strings.TrimSpace(string(bin)))
	if err != nil {
		return "", err
	}
	kern := filepath.Join(dir, "kern")
	if err := os.WriteFile(kern, b, 0o755); err != nil {
		return "", err
	}
	return program, os.Setenv("KERN_BIN", kern)
}
