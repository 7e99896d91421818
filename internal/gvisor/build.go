package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/pinned"
)

// modulePackage is where runsc's source is.
const modulePackage = "gvisor.dev/gvisor/runsc"

// BuildOptions say how runsc is built.
type BuildOptions struct {
	Getenv func(string) string
	// Environ is the caller's environment, which says where Go has its caches and
	// whom it asks for modules.
	Environ []string
	// Avoid are folders from which no go is taken, whatever PATH says: the workspace,
	// which is code that nobody has read. An empty one is none.
	Avoid []string
	// Log is told what is done, a line each.
	Log func(string)
}

// Build builds the pinned runsc with the Go of this machine and puts it into the
// cache, and gives its path. What comes out must have the pinned sum: so it matters
// to nobody where the source came from, and what is in the caches of Go. A build
// that is in the cache already is taken.
func Build(ctx context.Context, o BuildOptions) (string, error) {
	sum := sums[runtime.GOARCH]
	to := cachePath(o.Getenv)
	if sum == "" {
		return "", fmt.Errorf("no runsc is pinned for %s", runtime.GOARCH)
	}
	if to == "" {
		return "", errors.New("neither XDG_CACHE_HOME nor HOME names a folder to keep runsc in")
	}
	if b, err := pinned.Verify(ctx, kind(runtime.GOARCH), to, ""); err == nil {
		defer b.Close()
		return to, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		o.Log(fmt.Sprintf("%s is not the pinned build, and is replaced: %v", to, err))
	}
	gobin, err := pinned.LookPath("go", o.Getenv("PATH"), o.Avoid...)
	if err != nil {
		return "", fmt.Errorf("runsc is built from its source, which takes Go: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return "", fmt.Errorf("make a folder for runsc: %w", err)
	}
	dir, err := os.MkdirTemp(filepath.Dir(to), "build-")
	if err != nil {
		return "", fmt.Errorf("make a folder for runsc: %w", err)
	}
	defer os.RemoveAll(dir)
	o.Log(fmt.Sprintf("building runsc from %s@%s, which takes some minutes the first time", modulePackage, Release))
	cmd := exec.CommandContext(ctx, gobin, "install", "-trimpath", "-buildvcs=false",
		"-ldflags=-s -w -buildid= -X gvisor.dev/gvisor/runsc/version.version="+Release, modulePackage+"@"+Release)
	cmd.Dir = dir
	// What it builds in is the folder that the caller has found fit, whatever the
	// settings of Go say.
	settings, err := goSettings(ctx, gobin, dir, o.Environ)
	if err != nil {
		return "", err
	}
	cmd.Env = append(goEnviron(o.Environ), append(settings, "GOBIN="+dir, "GOTMPDIR="+os.TempDir())...)
	endWhole(cmd)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build runsc: %w: %s", err, lastLines(string(out), 5))
	}
	made := filepath.Join(dir, "runsc")
	b, err := pinned.Verify(ctx, kind(runtime.GOARCH), made, "")
	if err != nil {
		// The sum of it is nothing to accept: the file is gone.
		return "", fmt.Errorf("what was built is not the pinned runsc, whose SHA-256 is %s: another Go or another source makes another file (it is built with %s)", sum, buildGo)
	}
	defer b.Close()
	if err := os.Rename(made, to); err != nil {
		return "", fmt.Errorf("keep runsc: %w", err)
	}
	return to, nil
}

// goEnviron is the caller's environment, but for what makes another file of the
// same source.
func goEnviron(environ []string) []string {
	fixed := map[string]string{
		"CGO_ENABLED": "0", "GOTOOLCHAIN": buildGo, "GOFLAGS": "", "GOWORK": "off", "GOEXPERIMENT": "",
		// Its file of settings could name a program to run for each compile.
		"GOENV": "off",
		"GOOS":  "linux", "GOARCH": runtime.GOARCH, "GOAMD64": "v1", "GOARM64": "v8.0", "GOFIPS140": "off", "GO111MODULE": "on",
	}
	var env []string
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		if _, ours := fixed[name]; !ours && name != "GOBIN" && name != "GOTMPDIR" {
			env = append(env, kv)
		}
	}
	for name, value := range fixed {
		env = append(env, name+"="+value)
	}
	return env
}

// fetching are the settings that say where Go gets modules and keeps them.
var fetching = []string{"GOPROXY", "GONOPROXY", "GOPRIVATE", "GOSUMDB", "GONOSUMDB", "GOINSECURE", "GOMODCACHE", "GOCACHE"}

// goSettings reads those from wherever the caller has them, Go's file of settings
// too, which the build itself does not read.
func goSettings(ctx context.Context, gobin, dir string, environ []string) ([]string, error) {
	cmd := exec.CommandContext(ctx, gobin, append([]string{"env", "-json"}, fetching...)...)
	cmd.Dir = dir
	cmd.Env = append(slices.Clone(environ), "GOTOOLCHAIN=local", "GOWORK=off", "GOFLAGS=")
	endWhole(cmd)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("ask Go for its settings: %w", err)
	}
	var have map[string]string
	if err := json.Unmarshal(out, &have); err != nil {
		return nil, fmt.Errorf("read Go's settings: %w", err)
	}
	var env []string
	for _, name := range fetching {
		if v := have[name]; v != "" {
			env = append(env, name+"="+v)
		}
	}
	return env, nil
}

// endWhole has a cancel end what a program has started too, and not wait for it.
func endWhole(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], " / ")
}
