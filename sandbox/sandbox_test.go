package sandbox_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/sandbox"
)

func TestMain(m *testing.M) {
	boxtest.Become(os.Args)
	os.Exit(m.Run())
}

// open makes a sandbox of engine native.
func open(t *testing.T, o sandbox.Options) *sandbox.Sandbox {
	t.Helper()
	boxtest.Boxes(t)
	if o.Engine == "" {
		o.Engine = "native"
	}
	s, err := sandbox.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func do(t *testing.T, s *sandbox.Sandbox, c sandbox.Call) *sandbox.Result {
	t.Helper()
	r, err := s.Do(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// engines runs a test with each.
func engines(t *testing.T, test func(t *testing.T, engine string)) {
	t.Run("native", func(t *testing.T) { test(t, "native") })
	t.Run("kern", func(t *testing.T) {
		boxtest.Need(t, "kern", "static")
		test(t, "kern")
	})
}

func TestOutcomes(t *testing.T) { engines(t, testOutcomes) }

func testOutcomes(t *testing.T, engine string) {
	s := open(t, sandbox.Options{Engine: engine, MemoryMb: 64, Pids: 16, MaxOutputBytes: 1000})
	if !strings.HasPrefix(s.Engine(), engine+" ") {
		t.Errorf("the engine is %s", s.Engine())
	}
	for _, tc := range []struct {
		sentence     string
		call         sandbox.Call
		exit         int
		signal       string
		fault        string
		stdout       string
		success, cut bool
	}{
		{"a command", sandbox.Call{Command: []string{"echo", "-n", "a b"}}, 0, "", "", "a b", true, false},
		{"an exit code is the code's own, also one that looks like an end", sandbox.Call{Code: "exit 137", Language: sandbox.Sh}, 137, "", "", "", false, false},
		{"a signal that it gives itself is no fault", sandbox.Call{Code: "kill -9 $$", Language: sandbox.Sh}, -1, "SIGKILL", "", "", false, false},
		{"python is what code is in by itself", sandbox.Call{Code: "print(sum(range(100)))"}, 0, "", "", "4950\n", true, false},
		{"the deadline", sandbox.Call{Command: []string{"sleep", "60"}, Timeout: 300 * time.Millisecond}, -1, "", "timeout", "", false, false},
		{"memory", sandbox.Call{Code: "x = 'a' * (1 << 30)"}, -1, "", "oom", "", false, false},
		{"a program that is not there", sandbox.Call{Command: []string{"no-such-program"}}, -1, "", "exec_failed", "", false, false},
		{"more output than is kept", sandbox.Call{Code: "print('x' * 5000)"}, 0, "", "", strings.Repeat("x", 1000), true, true},
		{"an environment of its own", sandbox.Call{Command: []string{"sh", "-c", "echo $A$B$GITHUB_TOKEN"}, Env: map[string]string{"A": "1"}}, 0, "", "", "1\n", true, false},
		{"a folder to start in", sandbox.Call{Command: []string{"pwd"}, Workdir: "/tmp"}, 0, "", "", "/tmp\n", true, false},
		{"a text that nobody sees, as an argument", sandbox.Call{Command: []string{"printf", "%s", "\ufeff\x7f\u0085\u202e\u2066\ufffe\U0001f600"}}, 0, "", "", "\ufeff\x7f\u0085\u202e\u2066\ufffe\U0001f600", true, false},
		{"and in code", sandbox.Call{Code: "import sys; sys.stdout.write('\ufeff\x7f\u0085\u202e\U0001f600')", Env: map[string]string{"PYTHONIOENCODING": "utf-8"}}, 0, "", "", "\ufeff\x7f\u0085\u202e\U0001f600", true, false},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			t.Setenv("GITHUB_TOKEN", "secret")
			r := do(t, s, tc.call)
			fault := ""
			if r.Fault != nil {
				fault = r.Fault.Type
			}
			if r.ExitCode != tc.exit || r.Signal != tc.signal || fault != tc.fault || r.Stdout != tc.stdout || r.Success != tc.success || r.Truncated != tc.cut {
				t.Errorf("%+v", r)
			}
			if (r.Reason == "") != r.Success {
				t.Errorf("success %v, because %q", r.Success, r.Reason)
			}
		})
	}
}

func TestFilesLastAndProcessesDoNot(t *testing.T) { engines(t, testFilesLast) }

func testFilesLast(t *testing.T, engine string) {
	s := open(t, sandbox.Options{Engine: engine})
	if err := s.WriteFile("in/data.csv", []byte("a,b\n1,2\n")); err != nil {
		t.Fatal(err)
	}
	r := do(t, s, sandbox.Call{Code: "sleep 100 & cat in/data.csv; cp in/data.csv out.csv; mkdir d; echo x > /tmp/y", Language: sandbox.Sh})
	if !r.Success || !r.Kept || r.Stdout != "a,b\n1,2\n" {
		t.Fatalf("%+v", r)
	}
	changed := fmt.Sprint(r.Files)
	if !strings.Contains(changed, "out.csv created file 8") || !strings.Contains(changed, "d created dir") {
		t.Errorf("changed: %s", changed)
	}
	if b, err := s.ReadFile("out.csv"); err != nil || string(b) != "a,b\n1,2\n" {
		t.Errorf("%q %v", b, err)
	}
	if r := do(t, s, sandbox.Call{Code: "ls /tmp; pgrep sleep || true; ls", Language: sandbox.Sh}); !strings.HasSuffix(r.Stdout, "d\nin\nout.csv\n") || strings.Contains(r.Stdout, "y\n") {
		t.Errorf("%q", r.Stdout)
	}
	t.Run("of a failure nothing is kept", func(t *testing.T) {
		if r := do(t, s, sandbox.Call{Code: "echo half > out.csv; exit 3", Language: sandbox.Sh}); r.Kept || len(r.Files) != 1 || r.Files[0].Change != "modified" {
			t.Errorf("%+v", r)
		}
		if b, err := s.ReadFile("out.csv"); err != nil || string(b) != "a,b\n1,2\n" {
			t.Errorf("%q %v", b, err)
		}
	})
	t.Run("but for who wants it", func(t *testing.T) {
		s := open(t, sandbox.Options{Engine: engine, KeepOnFailure: true})
		if r := do(t, s, sandbox.Call{Code: "echo half > out; exit 3", Language: sandbox.Sh}); !r.Kept || r.Success {
			t.Errorf("%+v", r)
		}
		if b, err := s.ReadFile("out"); err != nil || string(b) != "half\n" {
			t.Errorf("%q %v", b, err)
		}
	})
	t.Run("a list has what is there, below a folder", func(t *testing.T) {
		list, err := s.ListFiles("")
		if err != nil || fmt.Sprint(list) != "[{d dir 0} {in dir 0} {in/data.csv file 8} {out.csv file 8}]" {
			t.Errorf("%v %v", list, err)
		}
		if list, err = s.ListFiles("in"); err != nil || fmt.Sprint(list) != "[{in/data.csv file 8}]" {
			t.Errorf("%v %v", list, err)
		}
	})
	t.Run("and it can be put away and back", func(t *testing.T) {
		var b bytes.Buffer
		if _, err := s.Snapshot(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
		do(t, s, sandbox.Call{Code: "rm -r in; echo other > out.csv", Language: sandbox.Sh})
		if err := s.Restore(t.Context(), bytes.NewReader(b.Bytes())); err != nil {
			t.Fatal(err)
		}
		if r := do(t, s, sandbox.Call{Code: "cat in/data.csv out.csv", Language: sandbox.Sh}); r.Stdout != "a,b\n1,2\na,b\n1,2\n" {
			t.Errorf("%+v", r)
		}
		if err := s.Restore(t.Context(), strings.NewReader("no archive")); err == nil {
			t.Error("what is no archive was restored")
		}
	})
}

// What code leaves in the workspace must lead nobody to another place.
func TestWhatCodeLeavesLeadsNowhere(t *testing.T) {
	work := t.TempDir()
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("before"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := open(t, sandbox.Options{Workspace: work})
	for name, to := range map[string]string{"link": outside, "dir": filepath.Dir(outside)} {
		if err := os.Symlink(to, filepath.Join(work, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(work, "fifo"), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"link", "dir/outside", "fifo", "../x", "/etc/passwd", "", ".", "none", "a\x00b", "dir"} {
		if b, err := s.ReadFile(name); err == nil {
			t.Errorf("%q is read: %q", name, b)
		}
	}
	for _, name := range []string{"dir/outside", "dir/new", "../x", "/x", "", ".", "a/../../x"} {
		if err := s.WriteFile(name, []byte("after")); err == nil {
			t.Errorf("%q is written", name)
		}
	}
	// The link itself is replaced, not what it leads to.
	if err := s.WriteFile("link", []byte("after")); err != nil {
		t.Error(err)
	}
	if b, _ := os.ReadFile(outside); string(b) != "before" {
		t.Errorf("outside is %q now", b)
	}
	if list, err := os.ReadDir(filepath.Dir(outside)); err != nil || len(list) != 1 {
		t.Errorf("%v %v", list, err)
	}
	list, err := s.ListFiles("")
	if err != nil || fmt.Sprint(list) != "[{dir symlink 0} {fifo fifo 0} {link file 5}]" {
		t.Errorf("%v %v", list, err)
	}
	if _, err := s.ListFiles("dir"); err == nil {
		t.Error("a link to a folder is listed")
	}
}

func TestWhatMayNotBeIsNamed(t *testing.T) {
	for want, o := range map[string]sandbox.Options{
		"memoryMb":            {MemoryMb: 1},
		"no_such":             {Engine: "no_such"},
		"/root":               {Mounts: []sandbox.Mount{{Source: "/root", Target: "/x"}}},
		"egressAllow":         {EgressAllow: []string{"http://x"}},
		"both":                {Network: true, EgressAllow: []string{"example.com"}},
		"prewarm is -1":       {Prewarm: -1},
		"prewarm is 65":       {Prewarm: 65},
		"capDrop":             {CapDrop: []string{"nonsense"}},
		"apparmor":            {AppArmor: "-x"},
		"profiles":            {Profiles: []string{"vcpu"}},
		"the workspace /etc ": {Workspace: "/etc"},
		"the workspace /usr ": {Workspace: "/usr"},
		"the workspace /opt ": {Workspace: "/opt"},
	} {
		_, err := sandbox.New(t.Context(), o)
		var bad *sandbox.BadOptions
		if !errors.As(err, &bad) {
			t.Errorf("%s: %v", want, err)
		} else if want != "both" && !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
	// What cannot be had is told before the first call.
	var refusal *sandbox.Refusal
	if _, err := sandbox.New(t.Context(), sandbox.Options{Image: "registry.invalid/none:1"}); !errors.As(err, &refusal) || !strings.Contains(err.Error(), "registry.invalid") {
		t.Errorf("%v", err)
	}
	if _, err := sandbox.New(t.Context(), sandbox.Options{Engine: "native", Profiles: []string{"vcpu:small"}}); !errors.As(err, &refusal) || !strings.Contains(err.Error(), "vcpu:small is a profile of kern") {
		t.Errorf("%v", err)
	}
	s := open(t, sandbox.Options{})
	for what, c := range map[string]sandbox.Call{
		"nothing":               {},
		"two things":            {Command: []string{"true"}, Code: "x"},
		"no language there is":  {Code: "x", Language: "cobol"},
		"a folder not absolute": {Command: []string{"true"}, Workdir: "x"},
		"a time that is none":   {Command: []string{"true"}, Timeout: -1},
		"bytes that are none":   {Code: "\xff", Language: sandbox.Sh},
		"a value that is none":  {Command: []string{"true"}, Env: map[string]string{"A": "\xff"}},
	} {
		var bad *sandbox.BadOptions
		if _, err := s.Do(t.Context(), c); !errors.As(err, &bad) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// The defaults may name the engine. Then no other is looked for, and none takes its
// place.
func TestEngineOfDefaults(t *testing.T) {
	boxtest.Boxes(t)
	boxtest.Need(t, "python3")
	t.Setenv("KERN_BIN", filepath.Join(t.TempDir(), "nowhere"))
	file := func(text string) string {
		path := filepath.Join(t.TempDir(), "defaults.yml")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	s := open(t, sandbox.Options{Engine: "auto", DefaultsFile: file("defaults: {engine: native}\n"), Prewarm: 1})
	if !strings.HasPrefix(s.Engine(), "native ") {
		t.Errorf("the engine is %s", s.Engine())
	}
	for _, n := range s.Notes() {
		if strings.Contains(n, "kern") {
			t.Errorf("another was looked for: %s", n)
		}
	}
	if r := do(t, s, sandbox.Call{Code: "print(1)"}); r.Stdout != "1\n" {
		t.Errorf("%+v", r)
	}
	k, err := s.Kernel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r, err := k.Do(t.Context(), sandbox.Call{Code: "print(2)"}); err != nil || r.Stdout != "2\n" {
		t.Errorf("%+v, %v", r, err)
	}
	_, err = sandbox.New(t.Context(), sandbox.Options{DefaultsFile: file("defaults: {engine: kern}\n")})
	var no *sandbox.Refusal
	if !errors.As(err, &no) || !strings.Contains(no.Cause, "step probe names engine kern") || len(no.Fix) == 0 {
		t.Errorf("%v", err)
	}
}

func TestFilesOfOptions(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	s := open(t, sandbox.Options{DefaultsFile: file("d.yml", "version: 1\ndefaults:\n  env: {A: one}\n  timeoutS: 7 # seconds"), PolicyFile: file("p.yml", "timeoutS: 10\nengine: native\n")})
	if r := do(t, s, sandbox.Call{Command: []string{"sh", "-c", "echo $A"}}); r.Stdout != "one\n" {
		t.Errorf("%+v", r)
	}
	for want, bad := range map[string]func() error{
		"timeoutS is more": func() error { // more than the policy
			_, err := s.Do(t.Context(), sandbox.Call{Command: []string{"true"}, Timeout: time.Minute})
			return err
		},
		"p2.yml:1:11": func() error { // and the default is more than the policy
			_, err := sandbox.New(t.Context(), sandbox.Options{PolicyFile: file("p2.yml", "timeoutS: 1\n")})
			return err
		},
		"d3.yml:2:3: ": func() error {
			_, err := sandbox.New(t.Context(), sandbox.Options{DefaultsFile: file("d3.yml", "defaults:\n  nonsense: 1\n")})
			return err
		},
		"d4.yml:1:1: a file of defaults has no steps": func() error {
			_, err := sandbox.New(t.Context(), sandbox.Options{DefaultsFile: file("d4.yml", "steps: [{run: x}]\n")})
			return err
		},
		"d5.yml:2:11: engine is not the one": func() error { // that was asked for by name
			_, err := sandbox.New(t.Context(), sandbox.Options{Engine: "native", DefaultsFile: file("d5.yml", "defaults:\n  engine: kern\n")})
			return err
		},
		"d6.yml:2:11: engine is not one that the policy allows": func() error {
			_, err := sandbox.New(t.Context(), sandbox.Options{DefaultsFile: file("d6.yml", "defaults:\n  engine: native\n"), PolicyFile: file("p4.yml", "engine: kern\n")})
			return err
		},
		"engine: the policy allows kern": func() error {
			_, err := sandbox.New(t.Context(), sandbox.Options{Engine: "native", PolicyFile: file("p3.yml", "engine: kern\n")})
			return err
		},
	} {
		err := bad()
		var b *sandbox.BadOptions
		if !errors.As(err, &b) || !strings.Contains(err.Error(), want) {
			t.Errorf("want %s: %v", want, err)
		}
	}
	if _, err := sandbox.New(t.Context(), sandbox.Options{PolicyFile: filepath.Join(dir, "none")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// figures is a module of the name of matplotlib's, which nobody has to install.
const figures = `
import sys, types
class Figure:
    def savefig(self, to, **kw): to.write(b"\x89PNG\r\n\x1a\n" + b"x" * 70000)
plt = types.ModuleType("matplotlib.pyplot"); open_ = [1]
plt.get_fignums = lambda: list(open_); plt.figure = lambda n=None: Figure(); plt.close = lambda *a: open_.clear()
m = types.ModuleType("matplotlib"); m.pyplot = plt
sys.modules["matplotlib"] = m; sys.modules["matplotlib.pyplot"] = plt
`

func TestResults(t *testing.T) { engines(t, testResults) }

func testResults(t *testing.T, engine string) {
	s := open(t, sandbox.Options{Engine: engine})
	r := do(t, s, sandbox.Call{Code: "print('out')\ndisplay({'text/html': '<b>x</b>', 'text/plain': 'x'}, raw=True)\n6 * 7"})
	if r.Stdout != "out\n" || !r.Success || len(r.Results) != 2 || r.Results[0].HTML() != "<b>x</b>" || r.Results[1].Text() != "42" {
		t.Errorf("%+v", r)
	}
	// One that is large enough to have a file of its own comes whole.
	r = do(t, s, sandbox.Call{Code: figures})
	if len(r.Results) != 1 || len(r.Results[0].PNG()) != 70008 {
		t.Errorf("%d results of %+v", len(r.Results), r.Notes)
	}
}

func TestKernel(t *testing.T) { engines(t, testKernel) }

func testKernel(t *testing.T, engine string) {
	s := open(t, sandbox.Options{Engine: engine, MemoryMb: 128})
	k, err := s.Kernel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	run := func(code string) *sandbox.Result {
		t.Helper()
		r, err := k.RunCode(t.Context(), code)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	run("x = 20")
	if r := run("print('now'); open('f', 'w').write('kept')\nx + 1"); !r.Success || r.Stdout != "now\n" || len(r.Results) != 1 || r.Results[0].Text() != "21" {
		t.Errorf("%+v", r)
	}
	if r := run("raise ValueError('no')"); r.Success || r.ExitCode != 1 || r.Fault != nil || !strings.Contains(r.Stderr, "ValueError: no") {
		t.Errorf("%+v", r)
	}
	if r := run("x"); r.Results[0].Text() != "20" {
		t.Errorf("what an exception left: %+v", r)
	}
	t.Run("what cells write is kept or dropped at the end, of a failure as any", func(t *testing.T) {
		r, err := k.Close(t.Context())
		if err != nil || r == nil || r.Kept || len(r.Files) != 1 || r.Files[0].Path != "f" {
			t.Errorf("%+v %v", r, err)
		}
		if _, err := s.ReadFile("f"); err == nil {
			t.Error("it is there")
		}
		k, err := s.Kernel(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := k.RunCode(t.Context(), "open('f', 'w').write('kept')"); err != nil {
			t.Fatal(err)
		}
		if r, err := k.Close(t.Context()); err != nil || !r.Kept || !r.Success {
			t.Errorf("%+v %v", r, err)
		}
		if b, err := s.ReadFile("f"); err != nil || string(b) != "kept" {
			t.Errorf("%q %v", b, err)
		}
	})
	t.Run("a fault ends it, and what comes after is told", func(t *testing.T) {
		k, err := s.Kernel(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r, err := k.Do(t.Context(), sandbox.Call{Code: "while True: pass", Timeout: 500 * time.Millisecond})
		if err != nil || r.Fault == nil || r.Fault.Type != "timeout" {
			t.Fatalf("%+v %v", r, err)
		}
		var ended *sandbox.KernelEnded
		if _, err := k.RunCode(t.Context(), "1"); !errors.As(err, &ended) || !strings.Contains(err.Error(), "timeout") {
			t.Errorf("%v", err)
		}
	}) // and it is left to the sandbox to close
	t.Run("one that is never used is nothing", func(t *testing.T) {
		k, err := s.Kernel(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if r, err := k.Close(t.Context()); r != nil || err != nil {
			t.Errorf("%+v %v", r, err)
		}
		if _, err := k.RunCode(t.Context(), "1"); err == nil {
			t.Error("a closed kernel runs cells")
		}
	})
}

// left is a cell that writes a file and leaves a process behind, which does these
// things of shell when the cell is over, a second later, and then stays; seen waits
// for that.
func left(t *testing.T, things string) (code string, seen func() bool) {
	token := strconv.Itoa(7_000_000+os.Getpid()) + strconv.Itoa(int(time.Now().UnixNano()%1000))
	program := "sleep 1\n" + things + "\nexec sleep " + token
	code = "import subprocess; open('f', 'w').write('kept')\n" +
		"subprocess.Popen(['sh', '-c', " + strconv.Quote(program) + "], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL);"
	return code, func() bool {
		list, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(list, func(path string) bool {
			b, err := os.ReadFile(path)
			return err == nil && string(b) == "sleep\x00"+token+"\x00"
		})
	}
}

func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// A cell can leave something behind that waits for it to be over: what that does is
// judged like all else, and drops what was written.
func TestWhatAKernelDoesBetweenCellsIsJudged(t *testing.T) { engines(t, testBetweenCells) }

func testBetweenCells(t *testing.T, engine string) {
	const things = "unshare -U true\ncurl -s http://evil.test/\ncurl -s http://listed.test/\n"
	s := open(t, sandbox.Options{Engine: engine, EgressAllow: []string{"listed.test"}})
	for _, tc := range []struct {
		sentence, and string
		next          bool
	}{
		{"and the kernel is closed", "", false},
		{"and it ended the interpreter", "kill -9 $PPID\nsleep 0.5", false},
		{"and it ended the interpreter, and another cell is asked for", "kill -9 $PPID\nsleep 0.5", true},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			k, err := s.Kernel(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			code, seen := left(t, things+tc.and)
			if r, err := k.RunCode(t.Context(), code); err != nil || !r.Success || len(r.Requests) > 0 {
				t.Fatalf("%+v %v", r, err)
			}
			until(t, "it does not come to its end", seen)
			if tc.next {
				var ended *sandbox.KernelEnded
				if r, err := k.RunCode(t.Context(), "1"); !errors.As(err, &ended) {
					t.Fatalf("%+v %v", r, err)
				}
			}
			r, err := k.Close(t.Context())
			if err != nil || r == nil {
				t.Fatalf("%+v %v", r, err)
			}
			want := []string{"egress_denied"}
			if engine == "native" {
				want = []string{"escape_blocked", "egress_denied"}
			}
			var got []string
			for _, e := range r.Events {
				got = append(got, e.Type)
			}
			if !slices.Equal(got, want) || r.Fault == nil || r.Fault.Type != want[0] || r.Success || r.ExitCode != 0 || r.Kept || len(r.Files) != 1 {
				t.Errorf("%+v", r)
			}
			asked := map[string]int{}
			for _, q := range r.Requests {
				asked[q.Host+" "+q.Verdict] += q.Count
			}
			if len(asked) != 2 || asked["evil.test denied"] != 1 || asked["listed.test failed"] != 1 {
				t.Errorf("requests: %v", asked)
			}
			if _, err := s.ReadFile("f"); err == nil {
				t.Error("what was written is kept")
			}
		})
	}
	t.Run("and it did nothing that is forbidden: what was written is kept", func(t *testing.T) {
		k, err := s.Kernel(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		code, seen := left(t, "curl -s http://listed.test/; : > g")
		if r, err := k.RunCode(t.Context(), code); err != nil || !r.Success {
			t.Fatalf("%+v %v", r, err)
		}
		until(t, "it does not come to its end", seen)
		r, err := k.Close(t.Context())
		if err != nil || !r.Success || r.Fault != nil || !r.Kept || len(r.Files) != 2 || len(r.Requests) != 1 {
			t.Errorf("%+v %v", r, err)
		}
		if seen() {
			t.Error("it goes on after the kernel was closed")
		}
	})
	t.Run("what a fault leaves running is ended with it", func(t *testing.T) {
		k, err := s.Kernel(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		code, seen := left(t, "")
		if r, err := k.RunCode(t.Context(), code); err != nil || !r.Success {
			t.Fatalf("%+v %v", r, err)
		}
		until(t, "it does not begin", seen)
		if r, err := k.RunCode(t.Context(), "import os; os.system('curl -s http://evil.test/')"); err != nil || r.Fault == nil {
			t.Fatalf("%+v %v", r, err)
		}
		if seen() {
			t.Error("it goes on")
		}
		if r, err := k.Close(t.Context()); err != nil || r.Fault == nil || r.Kept || len(r.Requests) != 1 || r.Requests[0].Count != 1 {
			t.Errorf("%+v %v", r, err)
		}
	})
}

// What the code in a box that was kept ready does before it has a cell is told of the
// cell that gets it, also where it is then gone.
func TestWhatAReadyBoxDoesIsTold(t *testing.T) { engines(t, testReadyBox) }

func testReadyBox(t *testing.T, engine string) {
	for _, ends := range []bool{false, true} {
		dir := t.TempDir()
		code, seen := left(t, "curl -s http://evil.test/")
		if ends {
			code, seen = left(t, "curl -s http://evil.test/; kill -9 $PPID; sleep 0.5")
		}
		code = strings.Replace(code, "open('f', 'w').write('kept')", "0", 1)
		if err := os.WriteFile(filepath.Join(dir, "sitecustomize.py"), []byte(code), 0o644); err != nil {
			t.Fatal(err)
		}
		s := open(t, sandbox.Options{Engine: engine, Workspace: dir, Prewarm: 1, EgressAllow: []string{"listed.test"}, Env: map[string]string{"PYTHONPATH": "/workspace"}})
		until(t, "no box gets ready", func() bool { return s.Ready() == 1 })
		until(t, "it does not come to its end", seen)
		r, err := s.Do(t.Context(), sandbox.Call{Code: "print('ran')"})
		if err != nil || r.Fault == nil || r.Fault.Type != "egress_denied" || r.Success || r.Kept || len(r.Requests) != 1 || r.Stdout == "ran\n" == ends {
			t.Errorf("it ends: %v; %+v %v", ends, r, err)
		}
	}
}

// A kernel can have any number of cells; of those that are over nothing is kept.
func TestAKernelKeepsNothingOfCellsThatAreOver(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	s := open(t, sandbox.Options{})
	k, err := s.Kernel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		r, err := k.RunCode(t.Context(), "print('x' * (1 << 20))\ndisplay({'image/png': b'\\x89PNG\\r\\n\\x1a\\n' + b'y' * (1 << 20)}, raw=True)")
		if err != nil || len(r.Stdout) != 1<<20+1 || len(r.Results) != 1 {
			t.Fatal(err)
		}
	}
	size := int64(0)
	if err := filepath.WalkDir(os.Getenv("TMPDIR"), func(_ string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			size += info.Size()
		}
		return err
	}); err != nil || size > 3<<20 {
		t.Errorf("%d bytes are kept: %v", size, err)
	}
	if r, err := k.Close(t.Context()); err != nil || len(r.Stdout) != 1<<20+1 || len(r.Results) != 1 {
		t.Errorf("%v", err)
	}
}

func TestPrewarm(t *testing.T) { engines(t, testPrewarm) }

func testPrewarm(t *testing.T, engine string) {
	s := open(t, sandbox.Options{Engine: engine, Prewarm: 2})
	ready := func() {
		t.Helper()
		for range 300 {
			if s.Ready() == 2 {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
		t.Fatal("no boxes get ready")
	}
	ready()
	if r := do(t, s, sandbox.Call{Code: "40 + 2"}); !r.Success || r.Results[0].Text() != "42" || r.Startup != 0 {
		t.Errorf("%+v", r)
	}
	ready()
	// They show the workspace as it is, whoever changed it.
	if err := s.WriteFile("f", []byte("new")); err != nil {
		t.Fatal(err)
	}
	if r := do(t, s, sandbox.Call{Code: "open('f').read()"}); !r.Success || r.Results[0].Text() != "'new'" {
		t.Errorf("%+v", r)
	}
	if r := do(t, s, sandbox.Call{Code: "open('f', 'w').write('newer')"}); !r.Success || !r.Kept {
		t.Errorf("%+v", r)
	}
	if b, err := s.ReadFile("f"); err != nil || string(b) != "newer" {
		t.Errorf("%q %v", b, err)
	}
	ready()
	if r := do(t, s, sandbox.Call{Code: "open('f').read()"}); r.Results[0].Text() != "'newer'" {
		t.Errorf("%+v", r)
	}
}

// Boxes that are ready show what the setup made, over the workspace as it is.
func TestPrewarmOverASetup(t *testing.T) { engines(t, testPrewarmOverASetup) }

func testPrewarmOverASetup(t *testing.T, engine string) {
	s := open(t, sandbox.Options{Engine: engine, Prewarm: 1, SetupEgress: []string{},
		Setup: "cat given > made; mkdir -p .deps; echo 'value = 7' > .deps/tiny.py"})
	// A setup sees what is there when it runs, and New is too early for that.
	if err := s.WriteFile("given", []byte("given")); err != nil {
		t.Fatal(err)
	}
	if r := do(t, s, sandbox.Call{Command: []string{"true"}}); !r.Success {
		t.Fatalf("%+v", r)
	}
	ready := func() {
		t.Helper()
		for range 300 {
			if s.Ready() == 1 {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
		t.Fatal("no box gets ready")
	}
	for _, tc := range []struct {
		code, shown string
		kept        bool
	}{
		{"import tiny; tiny.value", "7", false},
		{"open('made').read()", "'given'", false},
		{"open('f', 'w').write('new')", "3", true},
		{"open('f').read() + open('made').read()", "'newgiven'", false},
		// What a setup made is not committed, also where a call changes it, and its
		// packages cannot be changed.
		{"open('made', 'a').write('more')", "4", false},
		{"open('made').read()", "'given'", false},
		{"try:\n  open('.deps/tiny.py', 'w')\nexcept OSError as e:\n  display(e.errno)", "30", false},
	} {
		ready()
		r := do(t, s, sandbox.Call{Code: tc.code})
		if !r.Success || r.Startup != 0 || len(r.Results) != 1 || r.Results[0].Text() != tc.shown || r.Kept != tc.kept {
			t.Errorf("%s: %+v", tc.code, r)
		}
	}
	for _, name := range []string{"made", ".deps/tiny.py"} {
		if b, err := s.ReadFile(name); err == nil {
			t.Errorf("%s is in the workspace: %q", name, b)
		}
	}
	if b, err := s.ReadFile("f"); err != nil || string(b) != "new" {
		t.Errorf("%q %v", b, err)
	}
}

// Over a setup that failed there is none, and each call says that it did. What keeps
// boxes from getting ready is told once.
func TestWhyNoBoxIsReady(t *testing.T) {
	log := &lines{}
	s := open(t, sandbox.Options{Prewarm: 1, Setup: "exit 3", SetupEgress: []string{}})
	for range 2 {
		if r := do(t, s, sandbox.Call{Code: "1"}); r.Success || !strings.Contains(r.Reason, "setup: it ended with exit code 3") || s.Ready() != 0 {
			t.Errorf("%+v", r)
		}
	}
	s = open(t, sandbox.Options{Prewarm: 1, Log: log, Env: map[string]string{"PATH": "/nowhere"}})
	told := func() int { return strings.Count(log.String(), "a box could not be made ready: ") }
	for end := time.Now().Add(30 * time.Second); told() == 0 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	for range 3 {
		if r, err := s.Do(t.Context(), sandbox.Call{Code: "1"}); err != nil || r.Success {
			t.Errorf("%+v %v", r, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if n := told(); n != 1 || !strings.Contains(log.String(), `made ready: exec_failed: "python3" is not in the box`) {
		t.Errorf("%d times in\n%s", n, log)
	}
}

// lines are what was written, read while more of it is.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func TestSetup(t *testing.T) {
	s := open(t, sandbox.Options{Setup: "mkdir -p .deps; echo 'value = 7' > .deps/tiny.py", SetupEgress: []string{}})
	for i, timeout := range []time.Duration{0, 0, 10 * time.Minute, 5 * time.Second} {
		r := do(t, s, sandbox.Call{Code: "import tiny; tiny.value", Timeout: timeout})
		if !r.Success || r.Results[0].Text() != "7" || strings.Contains(fmt.Sprint(r.Notes), "it took") != (i == 0) {
			t.Errorf("%+v", r)
		}
	}
	if _, err := s.ReadFile(".deps/tiny.py"); err == nil {
		t.Error("what a setup wrote is in the workspace")
	}
}

// What a setup asked for is told of with the first cell of a kernel, as it is with a
// call's.
func TestTheSetupOfAKernelIsTold(t *testing.T) {
	s := open(t, sandbox.Options{Setup: "curl -s -m 5 http://nowhere.invalid/; mkdir .deps", SetupEgress: []string{"nowhere.invalid:80"}})
	k, err := s.Kernel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close(t.Context())
	for i := range 2 {
		r, err := k.Do(t.Context(), sandbox.Call{Code: "1"})
		if err != nil || !r.Success {
			t.Fatalf("%+v %v", r, err)
		}
		if told := len(r.Requests) > 0 && r.Requests[0].Host == "nowhere.invalid" && len(r.Notes) > 0; told != (i == 0) {
			t.Errorf("cell %d: requests %+v, notes %q", i, r.Requests, r.Notes)
		}
	}
}

func TestSecretsThatAreHandedInDoNotComeBack(t *testing.T) {
	t.Setenv("US_TEST_KEY", "sesame-open-now")
	s := open(t, sandbox.Options{PassEnv: []string{"US_TEST_KEY"}})
	var live bytes.Buffer
	r := do(t, s, sandbox.Call{Command: []string{"sh", "-c", "echo $US_TEST_KEY; echo ${#US_TEST_KEY}"}, Stdout: &live})
	if strings.Contains(r.Stdout+live.String(), "sesame") || !strings.HasSuffix(r.Stdout, "\n15\n") || live.String() != r.Stdout {
		t.Errorf("%q, live %q", r.Stdout, live.String())
	}
}

// What our own tools read to write it back is as it is: it is shown to nobody, and of
// a call that failed nothing is left that could be.
func TestWhatIsReadForOurselves(t *testing.T) {
	t.Setenv("US_TEST_KEY", "sesame-open-now")
	var log, live bytes.Buffer
	s := open(t, sandbox.Options{PassEnv: []string{"US_TEST_KEY"}, MaxOutputBytes: 100, Log: &log})
	for code, want := range map[string]string{"0": "sesame-open-now\n", "1": "", "0; printf %100s": ""} {
		r, err := s.Do(gha.Unmasked(t.Context()), sandbox.Call{Code: "echo $US_TEST_KEY; echo $US_TEST_KEY >&2; (exit " + code[:1] + ")" + code[1:], Language: sandbox.Sh, Stdout: &live})
		if err != nil {
			t.Fatal(err)
		}
		if r.Stdout != want || strings.Contains(r.Stderr+r.Reason, "sesame") {
			t.Errorf("%q: %q, %q, %q", code, r.Stdout, r.Stderr, r.Reason)
		}
	}
	if r := do(t, s, sandbox.Call{Command: []string{"sh", "-c", "echo $US_TEST_KEY"}}); r.Stdout != "***\n" {
		t.Errorf("%q", r.Stdout)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(log.String()+live.String(), "sesame") {
		t.Errorf("%s%s", &log, &live)
	}
}

// stuck never takes anything.
type stuck struct{}

func (stuck) Write([]byte) (int, error) { select {} }

func TestAReaderThatDoesNotReadHoldsNothingUp(t *testing.T) {
	s := open(t, sandbox.Options{Timeout: 20 * time.Second})
	r := do(t, s, sandbox.Call{Code: "for i in range(100000): print(i)", Stdout: stuck{}})
	if !r.Success || !strings.HasSuffix(r.Stdout, "\n99999\n") {
		t.Errorf("%v %v %d", r.Success, r.Fault, len(r.Stdout))
	}
	s = open(t, sandbox.Options{Timeout: 20 * time.Second, Log: stuck{}})
	r = do(t, s, sandbox.Call{Code: "for i in range(100000): print(i)"})
	if !r.Success || !strings.HasSuffix(r.Stdout, "\n99999\n") {
		t.Errorf("%v %v %d", r.Success, r.Fault, len(r.Stdout))
	}
}

func TestCallsAtTheSameTime(t *testing.T) { engines(t, testAtTheSameTime) }

func testAtTheSameTime(t *testing.T, engine string) {
	s := open(t, sandbox.Options{Engine: engine})
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			r, err := s.Do(t.Context(), sandbox.Call{Code: fmt.Sprintf("echo %d > f%d; echo %d", i, i, i), Language: sandbox.Sh})
			if err != nil || !r.Success || r.Stdout != fmt.Sprintf("%d\n", i) {
				t.Errorf("%+v %v", r, err)
			}
		})
	}
	all.Wait()
	if r := do(t, s, sandbox.Call{Code: "cat f0 f1 f2 f3", Language: sandbox.Sh}); r.Stdout != "0\n1\n2\n3\n" {
		t.Errorf("%+v", r)
	}
}

// What the host writes beside a call that runs is not lost, and the call does not see
// it: as with two calls at the same time, one that changes the same is in conflict.
func TestTheHostWritesBesideACall(t *testing.T) { engines(t, testHostBesideACall) }

func testHostBesideACall(t *testing.T, engine string) {
	gate, err := filepath.EvalSymlinks(t.TempDir())
	if err == nil {
		err = os.Chmod(gate, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, sandbox.Options{Engine: engine, Mounts: []sandbox.Mount{{Source: gate, Target: "/gate"}}})
	if err := s.WriteFile("f", []byte("old")); err != nil {
		t.Fatal(err)
	}
	var saved bytes.Buffer
	if _, err := s.Snapshot(t.Context(), &saved); err != nil {
		t.Fatal(err)
	}
	// during runs a call, does something while it runs, and lets it go on.
	calls := 0
	during := func(code string, do func()) *sandbox.Result {
		t.Helper()
		var r *sandbox.Result
		var err error
		began, ended := make(chan struct{}), make(chan struct{})
		calls++
		name := strconv.Itoa(calls)
		release := sync.OnceFunc(func() {
			if err := os.WriteFile(filepath.Join(gate, name), nil, 0o644); err != nil {
				t.Error(err)
			}
		})
		defer release()
		go func() {
			defer close(ended)
			r, err = s.Do(t.Context(), sandbox.Call{Language: sandbox.Sh, Code: "echo began; while [ ! -e /gate/" + name + " ]; do sleep 0.05; done; " + code, Stdout: &once{at: began}})
		}()
		select {
		case <-began:
			do()
			release()
		case <-ended:
		}
		<-ended
		if err != nil || !strings.HasPrefix(r.Stdout, "began") {
			t.Fatalf("%+v %v", r, err)
		}
		return r
	}
	read := func(name string) string {
		b, err := s.ReadFile(name)
		if err != nil {
			return err.Error()
		}
		return string(b)
	}
	write := func(name, text string) {
		t.Helper()
		if err := s.WriteFile(name, []byte(text)); err != nil {
			t.Error(err)
		}
	}
	inConflict := func(r *sandbox.Result, with string) {
		t.Helper()
		if said := fmt.Sprint(r.Violations, r.Reason); r.Success || r.Kept || !strings.Contains(said, with) {
			t.Errorf("want a conflict with %s: %+v", with, r)
		}
	}

	t.Run("the same name is a conflict, and what the host wrote stays", func(t *testing.T) {
		r := during("echo call > f; echo call > g", func() { write("f", "host") })
		inConflict(r, "WriteFile")
		if got := read("f"); got != "host" {
			t.Errorf("f is %q", got)
		}
		if got := read("g"); !strings.Contains(got, "no such file") {
			t.Errorf("g is %q", got)
		}
	})
	t.Run("another name is none, and the call does not see it", func(t *testing.T) {
		r := during("cat f new 2>/dev/null || true; ls; echo call > g", func() {
			write("new", "host")
			write("in/a/folder", "1")
			write("f", "host 2")
			// The host's own view has it at once.
			list, err := s.ListFiles("")
			if got := read("new") + read("in/a/folder") + read("f"); got != "host1host 2" || err != nil || fmt.Sprint(list) != "[{f file 6} {in dir 0} {in/a dir 0} {in/a/folder file 1} {new file 4}]" {
				t.Errorf("read %q, list %v (%v)", got, list, err)
			}
			if list, err := s.ListFiles("in"); err != nil || fmt.Sprint(list) != "[{in/a dir 0} {in/a/folder file 1}]" {
				t.Errorf("%v (%v)", list, err)
			}
			if _, err := s.ListFiles("new"); err == nil {
				t.Error("a file is listed as a folder")
			}
			// So has a call that begins now, and a snapshot.
			if r := do(t, s, sandbox.Call{Language: sandbox.Sh, Code: "cat f new; rm new; echo more >in/b"}); r.Stdout != "host 2host" || !r.Kept {
				t.Errorf("%+v", r)
			}
			var b bytes.Buffer
			if _, err := s.Snapshot(t.Context(), &b); err != nil {
				t.Error(err)
			}
			if got := strings.Join(names(t, &b), " "); got != "f in/ in/a/ in/a/folder in/b" {
				t.Errorf("the snapshot has %s", got)
			}
			if got := read("new"); !strings.Contains(got, "no such file") {
				t.Errorf("what a call has removed is %q", got)
			}
		})
		if !r.Success || !r.Kept || r.Stdout != "began\nhostf\n" {
			t.Errorf("%+v", r)
		}
		if b, err := os.ReadFile(filepath.Join(s.Workspace(), "f")); err != nil || string(b) != "host 2" || read("g") != "call\n" || read("in/b") != "more\n" {
			t.Errorf("%q (%v), %q, %q", b, err, read("g"), read("in/b"))
		}
	})
	t.Run("a folder that a call made of a file is one for all", func(t *testing.T) {
		write("in2", "1")
		write("in3", "1")
		during("true", func() {
			do(t, s, sandbox.Call{Language: sandbox.Sh, Code: "rm in2 in3; mkdir in2 in3; echo 1 >in2/f; ln -s in2 link"})
			if list, err := s.ListFiles("in2"); err != nil || fmt.Sprint(list) != "[{in2/f file 2}]" || read("in2/f") != "1\n" {
				t.Errorf("%v (%v), %q", list, err, read("in2/f"))
			}
			if _, err := s.ListFiles("in3/none"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("what is not in such a folder: %v", err)
			}
			for _, name := range []string{"link", "link/x", "f", "f/x"} {
				if list, err := s.ListFiles(name); err == nil {
					t.Errorf("%s has %v", name, list)
				}
			}
		})
		do(t, s, sandbox.Call{Language: sandbox.Sh, Code: "rm -r in2 in3 link"})
	})
	t.Run("an archive that is restored is a change like any other", func(t *testing.T) {
		r := during("echo call > f", func() {
			if err := s.Restore(t.Context(), bytes.NewReader(saved.Bytes())); err != nil {
				t.Error(err)
			}
		})
		inConflict(r, "Restore")
		if got := read("f"); got != "old" {
			t.Errorf("f is %q", got)
		}
	})
	t.Run("a call that has ended before is not in conflict", func(t *testing.T) {
		var second *sandbox.Result
		first := during("true", func() {
			second = do(t, s, sandbox.Call{Language: sandbox.Sh, Code: "echo call > f"})
			write("f", "after it")
		})
		if !first.Success || !second.Kept || read("f") != "after it" {
			t.Errorf("%+v %+v %q", first, second, read("f"))
		}
	})
}

// once says when it is first written to.
type once struct {
	at   chan struct{}
	done sync.Once
}

func (o *once) Write(b []byte) (int, error) {
	o.done.Do(func() { close(o.at) })
	return len(b), nil
}

// names are those in a .tar.gz.
func names(t *testing.T, from io.Reader) (list []string) {
	t.Helper()
	z, err := gzip.NewReader(from)
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			slices.Sort(list)
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, h.Name)
	}
}

func TestCancelAndClose(t *testing.T) {
	s := open(t, sandbox.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	if r, err := s.Run(ctx, "sleep", "30"); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 20*time.Second {
		t.Errorf("%+v %v after %v", r, err, time.Since(began))
	}
	work := s.Workspace()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(work); !os.IsNotExist(err) {
		t.Errorf("the workspace is there still: %v", err)
	}
	if _, err := s.Run(t.Context(), "true"); !errors.Is(err, sandbox.ErrClosed) {
		t.Error(err)
	}
	if err := s.WriteFile("x", nil); !errors.Is(err, sandbox.ErrClosed) {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// Requests go through the proxy, or nowhere.
func TestNetwork(t *testing.T) { engines(t, testNetwork) }

func testNetwork(t *testing.T, engine string) {
	s := open(t, sandbox.Options{Engine: engine, EgressAllow: []string{"allowed.invalid"}})
	r := do(t, s, sandbox.Call{Code: `
import urllib.request
for name in "allowed", "other":
    try: urllib.request.urlopen("http://%s.invalid/" % name, timeout=5)
    except Exception as e: print(name, type(e).__name__)
`})
	verdicts := map[string]string{}
	for _, q := range r.Requests {
		verdicts[q.Host] = q.Verdict
	}
	if r.Success || r.Fault == nil || r.Fault.Type != "egress_denied" || verdicts["other.invalid"] != "denied" || verdicts["allowed.invalid"] != "failed" {
		t.Errorf("%+v", r)
	}
}

// What a box is given is masked whoever names it, and has the value that it had when
// the sandbox was made.
func TestWhatIsPassedIsMasked(t *testing.T) {
	const secret, later = "a-value-of-the-caller", "another-value-of-it"
	defaults := filepath.Join(t.TempDir(), "defaults.yml")
	if err := os.WriteFile(defaults, []byte("defaults: {passEnv: [US_PASSED, US_NOT_THERE]}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]sandbox.Options{
		"the options":          {PassEnv: []string{"US_PASSED", "US_NOT_THERE"}},
		"the file of defaults": {DefaultsFile: defaults},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("US_PASSED", secret)
			s := open(t, o)
			t.Setenv("US_PASSED", later)
			t.Setenv("US_NOT_THERE", later)
			var live bytes.Buffer
			r := do(t, s, sandbox.Call{Code: `echo "${#US_PASSED} $US_PASSED $US_NOT_THERE"; echo $US_PASSED >&2; : > "$US_PASSED"`, Language: sandbox.Sh, Stdout: &live})
			if want := fmt.Sprintf("%d *** \n", len(secret)); r.Stdout != want || live.String() != want || r.Stderr != "***\n" {
				t.Errorf("%q, live %q, stderr %q", r.Stdout, live.String(), r.Stderr)
			}
			if all := fmt.Sprintf("%+v", r); strings.Contains(all, secret) || strings.Contains(all, later) {
				t.Errorf("it is in the result: %s", all)
			}
		})
	}
}

// Code can guess no name that WriteFile needs.
func TestWriteFileNeedsNoNameThatCodeCouldTake(t *testing.T) {
	s := open(t, sandbox.Options{})
	if r := do(t, s, sandbox.Call{Code: "for i in range(100): open('.untrusted-steps-%d' % i, 'w').close()"}); !r.Success {
		t.Fatal(r.Reason)
	}
	if err := s.WriteFile("a", []byte("x")); err != nil {
		t.Error(err)
	}
}

// Folders within folders, as code can make them, cost no more than others.
func TestListFilesOfDeepFolders(t *testing.T) {
	s := open(t, sandbox.Options{Timeout: time.Minute})
	if r := do(t, s, sandbox.Call{Code: `
import os
for c in range(20):
    os.makedirs('/workspace/' + str(c) + '/d' * 400)
`}); !r.Success {
		t.Fatal(r.Reason)
	}
	begun := time.Now()
	list, err := s.ListFiles("")
	if took := time.Since(begun); err != nil || len(list) != 20*401 || took > time.Minute {
		t.Errorf("%d paths in %v: %v", len(list), took, err)
	}
	if list, err = s.ListFiles("3/d"); err != nil || len(list) != 399 || list[0].Path != "3/d/d" || list[0].Type != "dir" {
		t.Errorf("%d paths: %v", len(list), err)
	}
	if r := do(t, s, sandbox.Call{Code: "import os; os.makedirs('x' + '/d' * 600)"}); !r.Success {
		t.Fatal(r.Reason)
	}
	if _, err := s.ListFiles(""); !errors.Is(err, sandbox.ErrTooLarge) {
		t.Errorf("folders deeper than are listed: %v", err)
	}
	if r := do(t, s, sandbox.Call{Code: `
import os, shutil
shutil.rmtree('x')
long = '/'.join(['n' * 250] * 14)
os.makedirs(long)
os.chdir(long)
for i in range(20000): open(str(i), 'w').close()
`}); !r.Success {
		t.Fatal(r.Reason)
	}
	if _, err := s.ListFiles(""); !errors.Is(err, sandbox.ErrTooLarge) {
		t.Errorf("more bytes of names than are listed: %v", err)
	}
}

// A program can write files one by one while a kernel is open, and is told of one that
// the host would not take afterwards, by its path and once.
func TestFilesThatAreWrittenWhileAKernelIsOpen(t *testing.T) {
	s := open(t, sandbox.Options{})
	if err := s.WriteFile("d/old", nil); err != nil {
		t.Fatal(err)
	}
	k, err := s.Kernel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r, err := k.RunCode(t.Context(), "open('k', 'w').close()"); err != nil || !r.Success {
		t.Fatalf("%+v %v", r, err)
	}
	for i := range 300 {
		if err := s.WriteFile("many/"+strconv.Itoa(i), []byte("x")); err != nil {
			t.Fatalf("file %d: %v", i, err)
		}
	}
	if r := do(t, s, sandbox.Call{Language: sandbox.Sh, Code: "ls many | wc -l"}); strings.TrimSpace(r.Stdout) != "300" {
		t.Errorf("%+v", r)
	}
	if err := s.Restore(t.Context(), bytes.NewReader(tarOf(t, "d/x", "d/y"))); err != nil {
		t.Fatal(err)
	}
	// Somebody on the host puts a file in the place of the folder.
	d := filepath.Join(s.Workspace(), "d")
	if err := errors.Join(os.RemoveAll(d), os.WriteFile(d, nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	if r, err := k.Close(t.Context()); err != nil || !r.Kept {
		t.Errorf("the kernel has nothing to do with it: %+v %v", r, err)
	}
	if _, err := s.Run(t.Context(), "true"); !errors.Is(err, sandbox.ErrNotKept) || !strings.Contains(err.Error(), "Restore") || !strings.Contains(err.Error(), `"d"`) {
		t.Errorf("got %v", err)
	}
	list, err := s.ListFiles("many")
	if _, e := s.ReadFile("k"); err != nil || e != nil || len(list) != 300 {
		t.Errorf("%d files (%v), %v", len(list), err, e)
	}
}

// tarOf is a .tar.gz of empty files.
func tarOf(t *testing.T, names ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, name := range names {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
