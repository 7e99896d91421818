package boxtest

import (
	"debug/elf"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// probeName is what the probe's file is called, and so what a fault names.
const probeName = "boxtest-probe-program"

// programVar names a probe that was built before, for a run that has no sources.
const programVar = "BOXTEST_PROGRAM"

// program puts the probe into a folder of its own and gives its path. The test
// binary is the probe too; one that needs the host's loader does not run in
// every root, so then the probe is built as a program of its own.
func program(t testing.TB, dir string) string {
	t.Helper()
	at := filepath.Join(dir, "probe")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(at, probeName)
	from := os.Getenv(programVar)
	if from == "" {
		from = "/proc/self/exe"
	}
	static, err := isStatic(from)
	if err != nil {
		t.Fatal(err)
	}
	if static {
		err = copyProgram(from, to)
	} else {
		err = buildProbe(to)
	}
	if err != nil {
		t.Fatal(err)
	}
	return to
}

func isStatic(path string) (bool, error) {
	f, err := elf.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return false, nil
		}
	}
	return true, nil
}

func copyProgram(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

func buildProbe(to string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-o", to, "github.com/untrusted-steps/untrusted-steps/internal/boxtest/probe/static")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return errors.New("build the probe: " + err.Error() + ": " + string(out))
	}
	return os.Chmod(to, 0o755)
}
