package kern

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/pinned"
	"github.com/untrusted-steps/untrusted-steps/internal/scratch"
)

// maxPipOutput bounds what is kept of pip's words.
const maxPipOutput = 8 << 10

// fromWheel has pip fetch the package whose Linux wheel carries kern. pip knows
// the caller's index, proxy and certificates; it installs nothing and runs
// nothing of the package.
func fromWheel(ctx context.Context, o InstallOptions, p pin) ([]byte, error) {
	platform, ok := wheelPlatform[p.Arch]
	if !ok {
		return nil, fmt.Errorf("there is no wheel for %s", p.Arch)
	}
	own, err := scratch.Make(o.Temp, scratch.Wheel)
	if err != nil {
		return nil, err
	}
	defer own.Remove()
	dir := own.Path
	args := []string{"download", "--quiet", "--disable-pip-version-check", "--no-input", "--no-cache-dir",
		"--no-deps", "--only-binary=:all:", "--platform", platform, "--dest", dir, wheelPackage + "==" + wheelVersion}
	if err := pip(ctx, o, dir, args); err != nil {
		return nil, err
	}
	wheels, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	if err != nil || len(wheels) != 1 {
		return nil, fmt.Errorf("pip left %d wheels, want one", len(wheels))
	}
	return openWheel(wheels[0])
}

// pip runs pip by way of the Python that is first on the caller's PATH, else as
// a program of its own. Python looks for modules in the folder it starts in, so
// that is the fresh one that holds nothing: a pip.py in the workspace, or in
// /tmp, would run with all the caller has.
func pip(ctx context.Context, o InstallOptions, dir string, args []string) error {
	var tried []error
	for _, with := range [][]string{{"python3", "-m", "pip"}, {"pip3"}} {
		prog, err := pinned.LookPath(with[0], o.Getenv("PATH"), o.Avoid...)
		if err != nil {
			tried = append(tried, err)
			continue
		}
		var out bytes.Buffer
		cmd := exec.CommandContext(ctx, prog, append(with[1:], args...)...)
		// It looks up programs as well, such as one that names the system.
		cmd.Env = append(pinned.Environ(o.Env, o.Getenv("PATH"), o.Avoid...), "PYTHONSAFEPATH=1")
		cmd.Dir = dir
		w := &pinned.Capped{To: &out, Left: maxPipOutput}
		cmd.Stdout, cmd.Stderr = w, w
		if err := pinned.Run(cmd); err != nil {
			tried = append(tried, fmt.Errorf("%s: %w: %s", strings.Join(with, " "), err, oneLine(out.String())))
			continue
		}
		return nil
	}
	return inOneLine(tried)
}

// openWheel takes kern out of a wheel.
func openWheel(path string) ([]byte, error) {
	z, err := zip.OpenReader(path)
	if err != nil {
		return nil, fmt.Errorf("open the wheel: %w", err)
	}
	defer z.Close()
	var found *zip.File
	for _, f := range z.File {
		if strings.HasSuffix(f.Name, wheelMember) && strings.Count(f.Name, "/") == 2 {
			if found != nil {
				return nil, errors.New("the wheel holds two programs of that name")
			}
			found = f
		}
	}
	if found == nil {
		return nil, fmt.Errorf("the wheel holds no %s; its platform carries no kern", strings.TrimPrefix(wheelMember, "."))
	}
	r, err := found.Open()
	if err != nil {
		return nil, fmt.Errorf("open kern in the wheel: %w", err)
	}
	defer r.Close()
	var b bytes.Buffer
	if err := copyAtMost(&b, r, maxBinary); err != nil {
		return nil, fmt.Errorf("read kern from the wheel: %w", err)
	}
	return b.Bytes(), nil
}

// copyAtMost copies all of r, and fails where that is more than max: a
// compressed file says nothing about what comes out of it.
func copyAtMost(w io.Writer, r io.Reader, max int64) error {
	n, err := io.Copy(w, io.LimitReader(r, max+1))
	if err == nil && n > max {
		err = fmt.Errorf("over %d bytes", max)
	}
	return err
}
