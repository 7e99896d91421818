package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// chatty is a step that begins and then writes without end.
const chatty = `
steps:
  - id: one
    timeoutS: 120
    run: |
      echo begun
      yes a line that nobody reads
`

// TestCancelWhileNobodyReads: a reader that is there and does not read holds the
// steps up, as it always does; a cancel it does not.
func TestCancelWhileNobodyReads(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine string) {
		for _, c := range []struct {
			name         string
			args         []string
			fullAtStart  bool
			both, answer bool
		}{
			{name: "the log", answer: true},
			{name: "the log and stderr", both: true},
			{name: "the report on stdout", args: []string{"--json"}},
			{name: "a log that is full before the run", fullAtStart: true},
		} {
			t.Run(c.name, func(t *testing.T) {
				r := prepare(t, engine, chatty)
				read, write, err := os.Pipe()
				if err != nil {
					t.Fatal(err)
				}
				defer read.Close()
				defer write.Close()
				if c.fullAtStart || c.args != nil {
					fill(t, write)
				}
				r.cmd.Args = append(r.cmd.Args, c.args...)
				r.cmd.Stdout = write
				if c.both {
					r.cmd.Stderr = write
				}
				if c.fullAtStart {
					if err := r.cmd.Start(); err != nil {
						t.Fatal(err)
					}
					time.Sleep(300 * time.Millisecond) // it waits with its first line
				} else {
					r.begin()
					time.Sleep(300 * time.Millisecond)
				}
				signalled := time.Now()
				if err := r.cmd.Process.Signal(syscall.SIGINT); err != nil {
					t.Fatal(err)
				}
				code := r.end()
				if took := time.Since(signalled); took > 5*time.Second {
					t.Errorf("it took %s to end", took)
				}
				if code != exitCancelled {
					t.Errorf("exit status %d, want %d\n%.2000s", code, exitCancelled, r.log.String())
				}
				if v := r.report().Verdict; v != steps.VerdictCancelled {
					t.Errorf("verdict %s", v)
				}
				if c.answer && !strings.Contains(r.log.String(), "nobody reads") {
					t.Errorf("nothing says that some of the log is missing: %q", r.log.String())
				}
			})
		}
	})
}

// fill writes to a pipe until it takes no more.
func fill(t *testing.T, w *os.File) {
	t.Helper()
	raw, err := w.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) {
		if err := unix.SetNonblock(int(fd), true); err != nil {
			t.Error(err)
		}
		for {
			if _, err := unix.Write(int(fd), bytes.Repeat([]byte("x"), 4096)); err != nil {
				break
			}
		}
		if err := unix.SetNonblock(int(fd), false); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// fullFile is a file that takes nothing.
func fullFile(t *testing.T) *os.File {
	t.Helper()
	f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// TestReportNobodyGot: with --json the answer is on stdout. Where it cannot be
// written a pass and a fail become no verdict, and a cancel stays one.
func TestReportNobodyGot(t *testing.T) {
	boxtest.Boxes(t)
	for _, file := range []string{"steps: [{run: 'true'}]", "steps: [{run: exit 1}]"} {
		r := prepare(t, "native", file)
		r.cmd.Args = append(r.cmd.Args, "--json")
		r.cmd.Stdout = fullFile(t)
		if err := r.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if code := r.end(); code != exitNoVerdict {
			t.Errorf("%s: exit status %d, want %d\n%s", file, code, exitNoVerdict, &r.log)
		}
		if v := r.report().Verdict; v != steps.VerdictError {
			t.Errorf("%s: the report says %s", file, v)
		}
	}
	r := prepare(t, "native", sleeper(marker()))
	r.cmd.Args = append(r.cmd.Args, "--json")
	r.cmd.Stdout = fullFile(t)
	r.begin()
	if err := r.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := r.end(); code != exitCancelled {
		t.Errorf("cancelled: exit status %d, want %d\n%s", code, exitCancelled, &r.log)
	}
	if v := r.report().Verdict; v != steps.VerdictCancelled {
		t.Errorf("cancelled: the report says %s", v)
	}
}

// TestAnswerNobodyGot: an empty file must not pass for a schema or a check.
func TestAnswerNobodyGot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f.yml")
	if err := os.WriteFile(file, []byte("steps: [{run: 'true'}]"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"schema"}, {"schema", "report"}, {"seccomp"}, {"check", file}, {"plan", file}, {"plan", "--json", file}, {"version"}, {"help"},
	} {
		cmd := exec.Command("/proc/self/exe", args...)
		cmd.Args[0] = toolName
		var stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = fullFile(t), &stderr
		_ = cmd.Run()
		if code := cmd.ProcessState.ExitCode(); code != exitNoVerdict || !strings.Contains(stderr.String(), "stdout") {
			t.Errorf("%v: exit status %d, %q", args, code, &stderr)
		}
	}
}

// outOnItsOwn gives a run a report folder on a file system of 1 MiB, and a file
// there that leaves no more than room.
func outOnItsOwn(t *testing.T, r *running, room int) (ballast string) {
	t.Helper()
	boxtest.Need(t, "root")
	out := filepath.Join(r.dir, "out")
	if err := os.Mkdir(out, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("test", out, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=1m,mode=755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(out, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	ballast = filepath.Join(out, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 1<<20-room), 0o644); err != nil {
		t.Fatal(err)
	}
	return ballast
}

// TestDiskFullForALog: a log that was cut by a full disk is not passed off as
// whole, even if there is room for the report later.
func TestDiskFullForALog(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine string) {
		r := prepare(t, engine, `
steps:
  - id: one
    mounts: {TELL: /tell}
    run: |
      echo begun
      head -c 400000 /dev/zero | tr '\0' x
      touch /tell/full
      until [ -e /tell/go ]; do sleep 0.02; done
`)
		ballast := outOnItsOwn(t, r, 100<<10)
		r.begin()
		if !eventually(20*time.Second, func() bool {
			_, err := os.Stat(filepath.Join(r.dir, "tell", "full"))
			return err == nil
		}) {
			t.Fatal("the step did not fill the disk")
		}
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		r.tell("go")
		if code := r.end(); code != exitNoVerdict {
			t.Errorf("exit status %d, want %d", code, exitNoVerdict)
		}
		s := r.report().Steps[0]
		if s.Status != steps.StatusError || !strings.Contains(s.Reason, "step's log") || !strings.Contains(s.Reason, "no space left") {
			t.Errorf("%s: %s", s.Status, s.Reason)
		}
	})
}

// TestDiskFullForTheReport: a verdict whose report is nowhere is none, and no
// path is named where nothing is.
func TestDiskFullForTheReport(t *testing.T) {
	boxtest.Boxes(t)
	r := prepare(t, "native", "steps: [{run: 'true'}]")
	outOnItsOwn(t, r, 0)
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if code := r.end(); code != exitNoVerdict {
		t.Errorf("exit status %d, want %d", code, exitNoVerdict)
	}
	out := r.log.String()
	for _, bad := range []string{"pass: ", "\nreport: ", "\nsummary: "} {
		if strings.Contains(out, bad) {
			t.Errorf("it says %q:\n%s", bad, out)
		}
	}
	if !strings.Contains(out, "the report could not be written") || !strings.Contains(out, "error: no verdict") {
		t.Errorf("it does not say so:\n%s", out)
	}
	left, err := os.ReadDir(filepath.Join(r.dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range left {
		if strings.Contains(f.Name(), "report.json") || strings.Contains(f.Name(), "summary.md") {
			t.Errorf("%s is left", f.Name())
		}
	}
}

// TestNoPlaceForTheReport is the host's doing, not that of the flags.
func TestNoPlaceForTheReport(t *testing.T) {
	r := prepare(t, "native", "steps: [{run: touch ran}]")
	r.cmd.Args = []string{toolName, "run", filepath.Join(r.dir, "f.yml")}
	r.cmd.Env = append(r.cmd.Env, "TMPDIR=/nowhere")
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if code := r.end(); code != exitRefused {
		t.Errorf("exit status %d, want %d", code, exitRefused)
	}
	out := r.log.String()
	if !strings.HasPrefix(out, "untrusted-steps: refused, nothing ran: ") || !strings.Contains(out, "--out DIR") || strings.Contains(out, "try: #") {
		t.Errorf("it says\n%s", out)
	}
	if _, err := os.Stat(filepath.Join(r.dir, "ws", "ran")); err == nil {
		t.Error("the step ran")
	}
}
