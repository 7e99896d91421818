package gvisor

import (
	"bytes"
	"cmp"
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
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/pinned"
	"github.com/untrusted-steps/untrusted-steps/internal/scratch"
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

	limit time.Duration // 0 is buildLimit
	every time.Duration // 0 is tellEvery
}

const (
	// buildLimit bounds a build, with the fetching of a Go and of modules: some minutes
	// on two processors, more on an emulated machine.
	buildLimit = 30 * time.Minute
	// tellEvery is how often it is said that a build goes on: Go itself says nothing, and
	// a program that is silent for minutes looks as if it hung.
	tellEvery = 30 * time.Second
	// maxSaid bounds what is kept of Go's words.
	maxSaid = 256 << 10
	// maxTold bounds what is told of them.
	maxTold = 2 << 10
)

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
	sweep(to)
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
	own, err := scratch.Make(filepath.Dir(to), scratch.Runsc)
	if err != nil {
		return "", fmt.Errorf("make a folder for runsc: %w", err)
	}
	defer own.Remove()
	temp, err := scratch.Make("", scratch.Runsc)
	if err != nil {
		return "", fmt.Errorf("make a folder to build runsc in: %w", err)
	}
	defer temp.Remove()
	dir := own.Path
	o.Log(fmt.Sprintf("building runsc from %s@%s, which takes some minutes the first time", modulePackage, Release))
	limit := cmp.Or(o.limit, buildLimit)
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	told := o.goingOn()
	err = o.build(within, gobin, dir, temp.Path)
	told()
	if err != nil {
		if ctx.Err() == nil && within.Err() != nil {
			err = fmt.Errorf("it was not done within %v (%w)", limit, err)
		}
		return "", fmt.Errorf("build runsc: %w", err)
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

// goingOn says every so often how long a build has been going on, until what it gives is
// called.
func (o BuildOptions) goingOn() (end func()) {
	begun, done, ended := time.Now(), make(chan struct{}), make(chan struct{})
	tick := time.NewTicker(cmp.Or(o.every, tellEvery))
	go func() {
		defer close(ended)
		for {
			select {
			case <-tick.C:
				o.Log(fmt.Sprintf("building runsc: %v so far", time.Since(begun).Round(time.Second)))
			case <-done:
				return
			}
		}
	}()
	return func() {
		tick.Stop()
		close(done)
		<-ended
	}
}

// sweep removes what builds have left that were killed, of other versions too.
func sweep(to string) {
	scratch.Sweep("", time.Now())
	if of, err := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(to)), "*")); err == nil {
		for _, dir := range of {
			if scratch.Way(dir, scratch.RootOrUs) == nil {
				scratch.Sweep(dir, time.Now())
			}
		}
	}
}

// build has Go put runsc into a folder.
func (o BuildOptions) build(ctx context.Context, gobin, dir, temp string) error {
	// Go itself looks for another Go, for git, and for whatever GOAUTH names by PATH.
	environ := pinned.Environ(o.Environ, o.Getenv("PATH"), o.Avoid...)
	settings, err := o.settings(ctx, gobin, dir, temp, environ)
	if err != nil {
		return err
	}
	// What it builds in is the folder that the caller has found fit, whatever the
	// settings of Go say.
	_, err = run(ctx, gobin, dir, append(goEnviron(environ), append(settings, "GOBIN="+dir, "GOTMPDIR="+temp)...),
		"install", "-trimpath", "-buildvcs=false",
		"-ldflags=-s -w -buildid= -X gvisor.dev/gvisor/runsc/version.version="+Release, modulePackage+"@"+Release)
	return err
}

// run runs Go and gives the first of what it says.
func run(ctx context.Context, gobin, dir string, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, gobin, args...)
	cmd.Dir, cmd.Env = dir, env
	var out, words bytes.Buffer
	cmd.Stdout, cmd.Stderr = &pinned.Capped{To: &out, Left: maxSaid}, &pinned.Capped{To: &words, Left: maxSaid}
	if err := pinned.Run(cmd); err != nil {
		return "", fmt.Errorf("%w: %s", err, lastLines(words.String(), 5))
	}
	return out.String(), nil
}

// goEnviron is the caller's environment, but for what makes another file of the
// same source.
func goEnviron(environ []string) []string {
	fixed := map[string]string{
		"CGO_ENABLED": "0", "GOTOOLCHAIN": buildGo, "GOFLAGS": "", "GOWORK": "off", "GOEXPERIMENT": "",
		// Its file of settings could name a program to run for each compile, and this
		// one to keep what was compiled.
		"GOENV": "off", "GOCACHEPROG": "",
		"GOOS": "linux", "GOARCH": runtime.GOARCH, "GOAMD64": "v1", "GOARM64": "v8.0", "GOFIPS140": "off", "GO111MODULE": "on",
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

// settings reads those from wherever the caller has them, Go's file of settings too,
// which the build itself does not read. A file in a folder to avoid is not read here
// either. What is kept in one is left alone, and kept with the build: a Go that was
// fetched lies among the modules, and is believed once it is there.
func (o BuildOptions) settings(ctx context.Context, gobin, dir, temp string, environ []string) ([]string, error) {
	have := map[string]string{}
	for _, file := range []string{"", "GOENV=off"} {
		env := append(slices.Clone(environ), "GOTOOLCHAIN=local", "GOWORK=off", "GOFLAGS=")
		if file != "" {
			env = append(env, file)
		}
		out, err := run(ctx, gobin, dir, env, append([]string{"env", "-json", "GOENV"}, fetching...)...)
		if err != nil {
			return nil, fmt.Errorf("ask Go for its settings: %w", err)
		}
		clear(have)
		if err := json.Unmarshal([]byte(out), &have); err != nil {
			return nil, fmt.Errorf("read Go's settings: %w", err)
		}
		if !o.avoided(have["GOENV"]) {
			break
		}
	}
	var env []string
	for _, name := range fetching {
		v := have[name]
		if (name == "GOMODCACHE" || name == "GOCACHE") && o.avoided(v) {
			v = filepath.Join(temp, name)
		}
		if v != "" {
			env = append(env, name+"="+v)
		}
	}
	return env, nil
}

func (o BuildOptions) avoided(path string) bool {
	return slices.ContainsFunc(o.Avoid, func(a string) bool { return pinned.In(path, a) })
}

// lastLines are the last of what Go said, which say why, and no more than fits a line.
func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	line := strings.Join(lines[max(0, len(lines)-n):], " / ")
	return line[max(0, len(line)-maxTold):]
}
