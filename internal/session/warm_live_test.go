package session

import (
	"context"
	"crypto/rand"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/host"
	"github.com/untrusted-steps/untrusted-steps/internal/kern"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
	"github.com/untrusted-steps/untrusted-steps/internal/native"
	"github.com/untrusted-steps/untrusted-steps/internal/rootfs"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

func TestMain(m *testing.M) {
	if host.IsTry(os.Args) {
		host.Try(os.Args)
	}
	boxtest.Become(os.Args)
	code := m.Run()
	boxtest.RemoveStatic()
	os.Exit(code)
}

// A cell that finds a box ready is what a cell is that does not, but sooner.
func TestWarm(t *testing.T) {
	boxtest.Boxes(t)
	boxtest.Need(t, "limits", "python3")
	view := rootfs.HostView(rootfs.Host{Getenv: func(n string) string { return map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin"}[n] }, Homes: []string{"/root", "/home"}})
	t.Run("native", func(t *testing.T) {
		e := &native.Engine{Version: "test", View: func(hostname string, _ bool) rootfs.View { return view.For(hostname) }}
		defer e.Close()
		warm(t, e)
	})
	t.Run("kern", func(t *testing.T) {
		boxtest.Need(t, "kern")
		e, err := kern.Open(context.Background(), kern.Options{Getenv: os.Getenv, View: func(hostname string, _ bool) rootfs.View { return view.For(hostname) }})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		warm(t, e)
	})
}

// What a cell has left running in a kernel can say that a later one is over. Of the
// last one it is not believed: that ends with the process, as documented.
func TestNobodyEndsTheLastCell(t *testing.T) {
	boxtest.Boxes(t)
	boxtest.Need(t, "limits", "python3")
	view := rootfs.HostView(rootfs.Host{Getenv: func(n string) string { return map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin"}[n] }, Homes: []string{"/root", "/home"}})
	e := &native.Engine{Version: "test", View: func(hostname string, _ bool) rootfs.View { return view.For(hostname) }}
	defer e.Close()
	r := cells(t, e)
	r.Out = t.TempDir()
	first, last := aCell("first", `
import os, threading, time
def forge():
    while True:
        os.write(4, b'e\0\0\0\1\0')
        time.sleep(0.01)
threading.Thread(target=forge, daemon=True).start()
`), aCell("last", "import time, sys\ntime.sleep(0.5)\nsys.exit(9)")
	first.Kernel, last.Kernel = "k", "k"
	var res steps.Result
	r.Run(t.Context(), &steps.Plan{Steps: []steps.PlanStep{first, last}}, &res)
	if s := res.Steps[1]; s.Status != steps.StatusFailed || s.ExitCode == nil || *s.ExitCode != 9 || s.DurationMs < 500 {
		t.Errorf("%s %s after %d ms", s.Status, s.Reason, s.DurationMs)
	}
}

// Between two cells of a live kernel there is nobody who waits for the box. One that
// fills the disk then is ended all the same, and what it wrote is dropped.
func TestNothingIsWrittenWithoutBoundBetweenCells(t *testing.T) {
	boxtest.Boxes(t)
	boxtest.Need(t, "limits", "python3")
	view := rootfs.HostView(rootfs.Host{Getenv: func(n string) string { return map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin"}[n] }, Homes: []string{"/root", "/home"}})
	e := &native.Engine{Version: "test", View: func(hostname string, _ bool) rootfs.View { return view.For(hostname) }}
	defer e.Close()
	r := cells(t, e)
	r.Out = t.TempDir()
	one := aCell("one", `
import threading, time
def fill():
    time.sleep(0.3)
    with open('big', 'wb') as f:
        for _ in range(100): f.write(b'x' * (1 << 20))
threading.Thread(target=fill, daemon=True).start()
`)
	one.DiskMb = 16
	k, err := r.OpenKernel(t.Context(), one)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close(context.Background())
	if s := k.Run(t.Context(), one); s.Status != steps.StatusPassed {
		t.Fatal(s.Status, s.Reason)
	}
	for end := time.Now().Add(20 * time.Second); k.Ended() == ""; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it lives on")
		}
	}
	two := one
	two.ID, two.Code = "two", "1"
	if s := k.Run(t.Context(), two); s.Status != steps.StatusSkipped || !strings.Contains(s.Reason, "disk_limit") {
		t.Errorf("%s %s", s.Status, s.Reason)
	}
	if s := k.Close(t.Context()); s == nil || s.ID != "one" || s.Fault == nil || s.Fault.Type != box.DiskLimit || s.Workspace != "discarded" {
		t.Errorf("%+v", s)
	}
	if _, err := os.Stat(filepath.Join(r.Workspace, "big")); !os.IsNotExist(err) {
		t.Errorf("it is in the workspace: %v", err)
	}
}

// cells is a runner of cells on a workspace of its own.
func cells(t *testing.T, e box.Engine) *steps.Runner {
	m, err := limits.Open(limits.Config{RunID: "warm" + rand.Text()[:16]})
	if err != nil {
		t.Fatal(err)
	}
	work := boxtest.OpenDir(t)
	tree, _, err := steps.OpenTree(t.Context(), work, steps.TreeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // each finds nothing left of the one before
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return &steps.Runner{
		Engine: e, Limits: m, Guard: steps.NewGuard(steps.Options{Home: "/root"}), Workspace: work, Tree: tree,
		Log: gha.NewLog(t.Output(), gha.LogOptions{}), Masker: gha.NewMasker(),
		Getenv:  func(string) (string, bool) { return "", false },
		BoxPath: []string{"/usr/local/bin", "/usr/bin", "/bin"}, Now: time.Now,
	}
}

func aCell(id, code string) steps.PlanStep {
	return steps.PlanStep{
		ID: id, Code: code, Language: "python", Image: "host", Workdir: box.WorkspaceTarget, PassEnv: []string{"TOKEN"},
		MemoryMb: 128, Pids: 32, TimeoutS: 30, RequireLimits: true, EgressMode: "enforce", MaxOutput: 1 << 20, TrackFiles: true, DiskMb: 64,
		AllowChanges: []string{"**"}, CapDrop: []string{"ALL"}, Tmpfs: []box.Tmpfs{{Target: box.HomeTarget, Bytes: 1 << 20}}, ShmBytes: 1 << 20,
	}
}

func warm(t *testing.T, e box.Engine) {
	r := cells(t, e)
	work := r.Workspace
	w := steps.NewWarm(2)
	defer w.Close()
	token := "one"
	r.Warm = w
	r.Getenv = func(n string) (string, bool) { return token, n == "TOKEN" }
	call := func(code string, change func(*steps.PlanStep)) steps.StepResult {
		t.Helper()
		s := aCell("cell", code)
		if change != nil {
			change(&s)
		}
		again := r.Again()
		again.Out = t.TempDir()
		var res steps.Result
		again.Run(t.Context(), &steps.Plan{Steps: []steps.PlanStep{s}}, &res)
		return res.Steps[0]
	}
	shows := func(s steps.StepResult, want string, ready bool) {
		t.Helper()
		if d := cmp.Diff([]steps.CellResult{{"text/plain": want}}, s.Results); d != "" || s.Status != steps.StatusPassed {
			t.Errorf("%s %s %v\n%s", s.Status, s.Reason, s.Notes, d)
		}
		if was := s.StartupMs == 0; was != ready {
			t.Errorf("a box was ready: %v (%d ms), want %v", was, s.StartupMs, ready)
		}
	}
	wait := func() {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); w.Ready() < 2; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("no box is ready after 30 s")
			}
		}
	}
	shows(call("x = 1\nx + 1", nil), "2", false)
	wait()
	shows(call("import os\n'x' in globals(), os.getcwd(), os.listdir()", nil), "(False, '/workspace', [])", true)
	shows(call("5", nil), "5", true)
	wait()
	// Its deadline and its caps are as of any.
	if s := call("while True: pass", func(s *steps.PlanStep) { s.TimeoutS = 0.3 }); s.Fault == nil || s.Fault.Type != box.Timeout || s.StartupMs != 0 {
		t.Errorf("%s %s, started in %d ms", s.Status, s.Reason, s.StartupMs)
	}
	wait()
	if s := call("x = bytearray(500 << 20)", nil); s.Fault == nil || s.Fault.Type != box.OOM || s.StartupMs != 0 {
		t.Errorf("%s %s, started in %d ms", s.Status, s.Reason, s.StartupMs)
	}
	wait()
	if s := call("import ctypes\nctypes.CDLL(None).unshare(0x10000000)", nil); s.Fault == nil || s.Fault.Type != box.EscapeBlocked || s.StartupMs != 0 {
		t.Errorf("%s %s, started in %d ms", s.Status, s.Reason, s.StartupMs)
	}
	wait()
	// What shapes a box makes it another one.
	shows(call("import os\nos.environ['TOKEN']", nil), "'one'", true)
	token = "two"
	shows(call("import os\nos.environ['TOKEN']", nil), "'two'", false)
	shows(call("1", func(s *steps.PlanStep) { s.Pids = 31 }), "1", false)
	shows(call("1", nil), "1", false)
	wait()
	// What is written is in the workspace when the call is over, and in what comes.
	s := call("open('made.txt', 'w').write('x')", nil)
	shows(s, "1", true)
	if b, err := os.ReadFile(filepath.Join(work, "made.txt")); s.Workspace != "committed" || string(b) != "x" {
		t.Errorf("%s, and there is %q, %v", s.Workspace, b, err)
	}
	shows(call("import os\nos.listdir()", nil), "['made.txt']", false)
	wait()
	shows(call("import os\nos.listdir()", nil), "['made.txt']", true)
	// One that has ended while it waited serves nobody, and is nobody's failure.
	token = rand.Text()
	shows(call("1", nil), "1", false)
	wait()
	if n := kill("TOKEN=" + token); n < 2 {
		t.Fatalf("%d interpreters were ready", n)
	}
	time.Sleep(300 * time.Millisecond) // until that is noticed
	shows(call("1", nil), "1", false)
	wait()
	// Whoever writes past the runner says so.
	w.Drop()
	if err := os.WriteFile(filepath.Join(work, "other.txt"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	shows(call("import os\nsorted(os.listdir())", nil), "['made.txt', 'other.txt']", false)
}

// kill ends all processes that have a variable, and counts them.
func kill(variable string) (n int) {
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, f := range files {
		env, err := os.ReadFile(f)
		if err != nil || !slices.Contains(strings.Split(string(env), "\x00"), variable) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil && syscall.Kill(pid, syscall.SIGKILL) == nil {
			n++
		}
	}
	return n
}
