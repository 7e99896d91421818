package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// buildVar makes the test binary build runsc, in the folder that it names.
const buildVar = "GVISOR_TEST_BUILD"

// tools writes a Go that is a script and gives options to build with it in a folder.
func tools(t *testing.T, dir, script string) BuildOptions {
	t.Helper()
	write(t, filepath.Join(dir, "tools/go"), "#!/bin/sh\n"+script)
	for _, d := range []string{"cache", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("TMPDIR", filepath.Join(dir, "tmp"))
	return options(dir)
}

func options(dir string) BuildOptions {
	vars := map[string]string{"PATH": filepath.Join(dir, "tools") + ":/usr/bin:/bin", "XDG_CACHE_HOME": filepath.Join(dir, "cache")}
	return BuildOptions{
		Getenv: func(n string) string { return vars[n] }, Log: func(string) {},
		Environ: []string{"PATH=" + vars["PATH"], "HERE=" + dir, "GOROOT=" + dir + "/ws", "GOCACHEPROG=" + dir + "/ws/bin/prog"}, Avoid: []string{filepath.Join(dir, "ws")},
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(b)
}

// left are the folders that builds have made and not removed.
func left(t *testing.T, dir string) (list []string) {
	t.Helper()
	for _, pattern := range []string{"tmp/*", "cache/untrusted-steps/runsc/*/us-*", "cache/untrusted-steps/runsc/*/build-*"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, found...)
	}
	return list
}

// asks is what a Go does that is not the one that is asked for: it looks that one up,
// and git. Its settings are those of a Go that keeps its modules in the workspace.
const asks = `case $1 in
env) go1.26.8; echo "{\"GOENV\":\"$HERE/ws/env\",\"GOMODCACHE\":\"$HERE/ws/mod\",\"GOCACHE\":\"$HERE/else\",\"GOPROXY\":\"${GOENV:-theirs}\"}";;
*) go1.26.8; git; env >"$HERE/env";;
esac`

// Attack: the workspace is on PATH, which its jobs want for tools of their own, and has
// a program there that Go looks up by itself.
func TestBuildStartsNothingOfTheWorkspace(t *testing.T) {
	for name, entry := range map[string]string{"by its name": "HERE/ws/bin", "by a link": "HERE/way", "where we stand": "bin", "by no name": ""} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			o := tools(t, dir, asks)
			for _, program := range []string{"bin/go1.26.8", "bin/git", "go1.26.8", "git"} {
				write(t, filepath.Join(dir, "ws", program), "#!/bin/sh\necho \"$0\" >>"+dir+"/ran\n")
			}
			if err := os.Symlink("ws/bin", filepath.Join(dir, "way")); err != nil {
				t.Fatal(err)
			}
			t.Chdir(filepath.Join(dir, "ws"))
			path := strings.ReplaceAll(entry, "HERE", dir) + ":" + o.Getenv("PATH")
			before := o.Getenv
			o.Getenv = func(n string) string {
				if n == "PATH" {
					return path
				}
				return before(n)
			}
			o.Environ[0] = "PATH=" + path
			_, err := Build(context.Background(), o)
			if err == nil || !strings.Contains(err.Error(), "not the pinned runsc") {
				t.Errorf("%v", err)
			}
			if ran := read(t, filepath.Join(dir, "ran")); ran != "" {
				t.Errorf("started: %s", ran)
			}
			env := "\n" + read(t, filepath.Join(dir, "env"))
			for _, want := range []string{"\nGOCACHEPROG=\n", "\nGOCACHE=" + dir + "/else\n", "\nGOPROXY=off\n", "\nGOMODCACHE=" + dir + "/tmp/us-runsc-"} {
				if !strings.Contains(env, want) {
					t.Errorf("%q is not in what Go was told: %s", want, env)
				}
			}
			if strings.Contains(env, "GOROOT=") {
				t.Errorf("Go was told of a root in the workspace: %s", env)
			}
			if l := left(t, dir); len(l) > 0 {
				t.Errorf("left behind: %q", l)
			}
		})
	}
}

func TestBuildSaysThatItGoesOn(t *testing.T) {
	dir := t.TempDir()
	o := tools(t, dir, `case $1 in env) echo "{}";; *) sleep 1; echo no >&2; exit 1;; esac`)
	var said []string
	o.Log, o.every = func(line string) { said = append(said, line) }, 200*time.Millisecond
	if _, err := Build(t.Context(), o); err == nil || !strings.Contains(err.Error(), "no") {
		t.Fatalf("it built something: %v", err)
	}
	told := len(said)
	time.Sleep(2 * o.every)
	if told < 3 || len(said) != told || !strings.HasPrefix(said[1], "building runsc: ") || !strings.HasSuffix(said[1], "s so far") {
		t.Errorf("it said %q, and %d lines when it had ended", said, len(said)-told)
	}
}

func TestBuildIsBounded(t *testing.T) {
	t.Run("in time, and what Go has started ends with it", func(t *testing.T) {
		dir := t.TempDir()
		o := tools(t, dir, `case $1 in env) echo "{}";; *) sleep 600 & echo $! >"$HERE/pid"; wait;; esac`)
		o.limit = time.Second
		began := time.Now()
		_, err := Build(context.Background(), o)
		if err == nil || !strings.Contains(err.Error(), "not done within 1s") || time.Since(began) > 30*time.Second {
			t.Errorf("%v, after %v", err, time.Since(began))
		}
		gone(t, read(t, filepath.Join(dir, "pid")))
		if l := left(t, dir); len(l) > 0 {
			t.Errorf("left behind: %q", l)
		}
	})
	t.Run("in words", func(t *testing.T) {
		o := tools(t, t.TempDir(), `case $1 in env) echo "{}";; *) head -c 3000000 /dev/zero | tr '\0' x >&2; exit 1;; esac`)
		if _, err := Build(context.Background(), o); err == nil || len(err.Error()) > maxTold+200 {
			t.Errorf("%.80v", err)
		}
	})
}

// Attack: a runner kills us in the middle of a build, as it does with a job that is
// cancelled.
func TestBuildOfAKilledProcessEnds(t *testing.T) {
	dir := t.TempDir()
	o := tools(t, dir, `case $1 in env) echo "{}";; *) echo $$ >"$HERE/pid.new"; mv "$HERE/pid.new" "$HERE/pid"; exec sleep 600;; esac`)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), buildVar+"="+dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := ""
	for until := time.Now().Add(30 * time.Second); pid == "" && time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		pid = read(t, filepath.Join(dir, "pid"))
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	gone(t, pid)
	l := left(t, dir)
	if len(l) == 0 {
		t.Fatal("control: it had no folders")
	}
	long := time.Now().Add(-time.Hour) // one made just now may be one that is being made
	for _, f := range l {
		if err := os.Chtimes(f, long, long); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(dir, "tools/go"), "#!/bin/sh\nexit 1\n")
	if _, err := Build(context.Background(), o); err == nil {
		t.Error("control: this one cannot build")
	}
	if l := left(t, dir); len(l) > 0 {
		t.Errorf("the next build leaves %q", l)
	}
}

// gone fails unless a process ends soon, and ends it.
func gone(t *testing.T, pid string) {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(pid))
	if err != nil || n < 2 {
		t.Fatalf("control: Go did not start (%v)", err)
	}
	for until := time.Now().Add(10 * time.Second); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		if stat := read(t, fmt.Sprintf("/proc/%d/stat", n)); stat == "" || strings.Contains(stat, ") Z ") {
			return
		}
	}
	t.Errorf("process %d is still there", n)
	_ = unix.Kill(n, unix.SIGKILL)
}
