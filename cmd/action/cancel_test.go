package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// running is the program on its way, with a step that shows it has begun.
type running struct {
	t   *testing.T
	cmd *exec.Cmd
	dir string // the workspace is dir/ws, the report folder dir/out, and dir/tell what a step is told through
	log bytes.Buffer
}

// eachEngine runs a test for each engine that is to be had here.
func eachEngine(t *testing.T, test func(t *testing.T, engine string)) {
	boxtest.Boxes(t)
	for _, e := range engines {
		t.Run(e, func(t *testing.T) {
			if e == "kern" {
				boxtest.Need(t, "kern")
			}
			test(t, e)
		})
	}
}

// prepare makes the folders of a run and its command. What a running step writes
// into the workspace nobody else sees, nor does it see what others write there:
// it says that it has begun by printing that, and is told by files in a folder
// of its own, which the text TELL in a steps file names as a mount's source.
func prepare(t *testing.T, engine, stepsFile string) *running {
	t.Helper()
	return prepareIn(t, boxtest.OpenDir(t), engine, stepsFile)
}

// prepareIn does so in a folder where an earlier run may have been.
func prepareIn(t *testing.T, dir, engine, stepsFile string) *running {
	t.Helper()
	r := &running{t: t, dir: dir}
	ws, tell := filepath.Join(r.dir, "ws"), filepath.Join(r.dir, "tell")
	for _, dir := range []string{ws, tell} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(r.dir, "f.yml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(stepsFile, "TELL", tell)), 0o644); err != nil {
		t.Fatal(err)
	}
	r.cmd = exec.Command("/proc/self/exe", "run", "--engine", engine, "--out", filepath.Join(r.dir, "out"), file)
	r.cmd.Args[0] = toolName
	r.cmd.Dir = ws
	r.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/no-home", "KERN_BIN=" + os.Getenv("KERN_BIN")}
	r.cmd.Stdout, r.cmd.Stderr = &r.log, &r.log
	// The program's pipes must not hold us up after it was killed.
	r.cmd.WaitDelay = 5 * time.Second
	t.Cleanup(func() {
		if r.cmd.Process != nil && r.cmd.ProcessState == nil {
			r.cmd.Process.Kill()
			r.cmd.Wait()
		}
	})
	return r
}

// tell makes a file that a running step waits for.
func (r *running) tell(name string) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, "tell", name), nil, 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// begin starts the program and waits until a step has said that it has begun.
func begin(t *testing.T, engine, stepsFile string) *running {
	t.Helper()
	r := prepare(t, engine, stepsFile)
	r.begin()
	return r
}

func (r *running) begin() {
	r.t.Helper()
	if err := r.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	if !eventually(20*time.Second, r.hasBegun) {
		r.cmd.Process.Kill()
		r.cmd.Wait()
		r.t.Fatalf("the step did not begin:\n%s", &r.log)
	}
}

// hasBegun looks into the logs that steps write while they run, of which the
// caller's own log may be stalled.
func (r *running) hasBegun() bool {
	logs, err := filepath.Glob(filepath.Join(r.dir, "out", "steps", "*", "stdout.log"))
	if err != nil {
		r.t.Fatal(err)
	}
	return slices.ContainsFunc(logs, func(path string) bool {
		f, err := os.Open(path)
		if err != nil {
			return false
		}
		defer f.Close()
		start := make([]byte, 1<<20) // what is printed after it has no end
		n, _ := io.ReadFull(f, start)
		return slices.Contains(strings.Split(string(start[:n]), "\n"), "begun")
	})
}

// end waits for the program and gives its exit status, or minus the signal.
func (r *running) end() int {
	r.t.Helper()
	err := r.cmd.Wait()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) && !errors.Is(err, exec.ErrWaitDelay) {
		r.t.Fatal(err)
	}
	st := r.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if st.Signaled() {
		return -int(st.Signal())
	}
	return st.ExitStatus()
}

func (r *running) report() *steps.Result {
	r.t.Helper()
	b, err := os.ReadFile(filepath.Join(r.dir, "out", "report.json"))
	if err != nil {
		r.t.Fatalf("%v\n%s", err, &r.log)
	}
	var res steps.Result
	if err := json.Unmarshal(b, &res); err != nil {
		r.t.Fatal(err)
	}
	return &res
}

func eventually(patience time.Duration, ok func() bool) bool {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if ok() {
			return true
		}
	}
	return ok()
}

// alive lists the processes that have a word in their command line.
func alive(t *testing.T, word string) []string {
	t.Helper()
	var out []string
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range lines {
		if b, err := os.ReadFile(p); err == nil && bytes.Contains(b, []byte(word)) {
			out = append(out, fmt.Sprintf("%s: %q", p, b))
		}
	}
	return out
}

// groups lists the control groups that a run of this pid has made.
func groups(t *testing.T, pid int) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // a group that ends while we look
		}
		name := d.Name()
		// untrusted-steps-WORLD-PID-…: a number further on may be the same.
		if f := strings.Split(name, "-"); d.IsDir() && strings.HasPrefix(name, "untrusted-steps-") && len(f) > 4 && f[3] == strconv.Itoa(pid) {
			out = append(out, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// nothingBeside holds that nothing of ours lies beside the workspace.
func nothingBeside(t *testing.T, dir string) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Errorf("left beside the workspace: %v", left)
	}
}

// marker is a number that only this step sleeps for.
func marker() string { return fmt.Sprintf("7%d.25", time.Now().UnixNano()%1e12) }

// sleeper is a step that ignores signals, with a child in a session of its own.
func sleeper(mark string) string {
	return fmt.Sprintf(`
steps:
  - id: before
    run: touch kept
  - id: sleeper
    timeoutS: 120
    run: |
      trap '' INT TERM HUP
      setsid sleep %[1]s &
      touch dropped
      echo begun
      sleep %[1]s
  - id: after
    run: touch never
  - id: dependant
    needs: sleeper
    run: touch never
`, mark)
}

// TestCancel: a signal ends the box at once, the report says cancelled, and
// nothing is left behind.
func TestCancel(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine string) {
		for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
			t.Run(sig.String(), func(t *testing.T) {
				mark := marker()
				r := begin(t, engine, sleeper(mark))
				pid := r.cmd.Process.Pid
				// The controls: both would be seen if they were left.
				if !eventually(5*time.Second, func() bool { return len(alive(t, mark)) >= 2 }) {
					t.Fatalf("the box's sleepers are not seen: %v", alive(t, mark))
				}
				if len(groups(t, pid)) == 0 {
					t.Fatal("the box's control groups are not seen")
				}
				signalled := time.Now()
				if err := r.cmd.Process.Signal(sig); err != nil {
					t.Fatal(err)
				}
				code := r.end()
				if took := time.Since(signalled); took > 5*time.Second {
					t.Errorf("it took %s to end", took)
				}
				if code != exitCancelled {
					t.Errorf("exit status %d, want %d\n%s", code, exitCancelled, &r.log)
				}
				if left := alive(t, mark); len(left) > 0 {
					t.Errorf("processes of the box are left: %v", left)
				}
				if left := groups(t, pid); len(left) > 0 {
					t.Errorf("control groups are left: %v", left)
				}
				res := r.report()
				if res.Verdict != steps.VerdictCancelled {
					t.Errorf("verdict %s", res.Verdict)
				}
				want := []string{steps.StatusPassed, steps.StatusCancelled, steps.StatusCancelled, steps.StatusCancelled}
				for i, s := range res.Steps {
					if s.Status != want[i] {
						t.Errorf("%s is %s, want %s", s.ID, s.Status, want[i])
					}
				}
				if len(res.Steps) != len(want) {
					t.Errorf("%d steps in the report, want %d", len(res.Steps), len(want))
				}
				for name, want := range map[string]bool{
					"kept":    true,  // by the step before
					"dropped": false, // with the step that was cancelled
					"never":   false, // no step began after the signal
				} {
					if _, err := os.Stat(filepath.Join(r.dir, "ws", name)); (err == nil) != want {
						t.Errorf("the workspace has %s: %t, want %t", name, err == nil, want)
					}
				}
				nothingBeside(t, r.dir)
				summary, err := os.ReadFile(filepath.Join(r.dir, "out", "summary.md"))
				if err != nil || !bytes.Contains(summary, []byte("cancelled")) {
					t.Errorf("the summary does not say cancelled: %v\n%s", err, summary)
				}
			})
		}
	})
}

// TestKilled: where the program itself is killed, which nobody can catch, its
// boxes die with it, and the next run takes away what is left.
func TestKilled(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine string) {
		// Any run on this machine takes it away, such as one of another test. So what
		// the next run says is looked at in the first of some tries where it was ours.
		for range 5 {
			if said := killed(t, engine); said || t.Failed() {
				return
			}
		}
		t.Error("the next run never says what it removed")
	})
}

// killed kills a run and says whether the next one told what it removed.
func killed(t *testing.T, engine string) (said bool) {
	mark := marker()
	r := begin(t, engine, sleeper(mark))
	pid := r.cmd.Process.Pid
	if !eventually(5*time.Second, func() bool { return len(alive(t, mark)) >= 2 }) {
		t.Fatalf("the box's sleepers are not seen: %v", alive(t, mark))
	}
	if err := r.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if code := r.end(); code != -int(syscall.SIGKILL) {
		t.Fatalf("exit status %d", code)
	}
	if !eventually(5*time.Second, func() bool { return len(alive(t, mark)) == 0 }) {
		t.Errorf("processes of the box outlive the program: %v", alive(t, mark))
	}
	left := groups(t, pid)
	next := begin(t, engine, "steps: [{id: next, run: echo begun}]")
	if code := next.end(); code != exitPass {
		t.Errorf("the next run: exit status %d\n%s", code, &next.log)
	}
	if left := groups(t, pid); len(left) > 0 {
		t.Errorf("the next run has left %v", left)
	}
	return len(left) > 0 && strings.Contains(next.log.String(), "removed what a killed run had left")
}

// TestNoVerdict: where we ourselves fail, the status is 4, whatever else is
// excused or failed.
func TestNoVerdict(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine string) {
		r := begin(t, engine, `
steps:
  - id: first
    continueOnError: true
    mounts: {TELL: [/tell, ro]}
    run: |
      echo begun
      until [ -e /tell/go ]; do sleep 0.05; done
      exit 1
  - id: lost
    continueOnError: true
    run: "true"
  - id: last
    run: exit 1
`)
		// Somebody puts a folder where our log is to be.
		if err := os.MkdirAll(filepath.Join(r.dir, "out", "steps", "lost", "stdout.log"), 0o755); err != nil {
			t.Fatal(err)
		}
		r.tell("go")
		if code := r.end(); code != exitNoVerdict {
			t.Errorf("exit status %d, want %d\n%s", code, exitNoVerdict, &r.log)
		}
		res := r.report()
		if res.Verdict != steps.VerdictError {
			t.Errorf("verdict %s", res.Verdict)
		}
		for i, want := range []string{steps.StatusFailed, steps.StatusError, steps.StatusFailed} {
			if got := res.Steps[i]; got.Status != want {
				t.Errorf("%s is %s, want %s: %s", got.ID, got.Status, want, got.Reason)
			}
		}
		if res.Steps[1].Excused {
			t.Error("a step without a verdict was excused")
		}
	})
}

// TestCancelAtAnyMoment: whenever the signal comes, the run is cancelled as a
// whole, or was not a run yet; never anything else, and nothing is left.
func TestCancelAtAnyMoment(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine string) {
		cancelled := 0
		for after := time.Duration(0); after < 240*time.Millisecond; after += 12 * time.Millisecond {
			r := prepare(t, engine, "steps: [{id: one, run: sleep 20}]")
			if err := r.cmd.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(after)
			if err := r.cmd.Process.Signal(syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
			code := r.end()
			switch code {
			case exitCancelled:
				cancelled++
				if v := r.report().Verdict; v != steps.VerdictCancelled {
					t.Errorf("a signal after %s: verdict %s", after, v)
				}
			case -int(syscall.SIGINT): // before it listened
				if _, err := os.Stat(filepath.Join(r.dir, "out", "report.json")); err == nil {
					t.Errorf("a signal after %s: there is a report of a run that had not begun", after)
				}
			default:
				t.Errorf("a signal after %s: exit status %d\n%s", after, code, &r.log)
			}
			if left := groups(t, r.cmd.Process.Pid); len(left) > 0 {
				t.Errorf("a signal after %s: control groups are left: %v", after, left)
			}
		}
		if cancelled == 0 {
			t.Error("no run was cancelled, so this shows nothing")
		}
	})
}

// TestReaderGone: a log that nobody reads any more, as behind `| head -1`, ends
// neither the steps nor the report.
func TestReaderGone(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine string) {
		r := prepare(t, engine, `
steps:
  - id: one
    run: for i in 1 2 3 4 5; do echo $i; echo $i >&2; done; touch done
  - id: pipes # a step's own pipes are as they always are
    language: bash
    run: (yes || echo "$?" >&3) 3>code | head -1
`)
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		read.Close()
		r.cmd.Stdout, r.cmd.Stderr = write, write
		if err := r.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		write.Close()
		code := r.end()
		res := r.report()
		for _, s := range res.Steps {
			if s.ID == "one" && s.Status != steps.StatusPassed {
				t.Errorf("%s is %s: %s", s.ID, s.Status, s.Reason)
			}
		}
		if code == -int(syscall.SIGPIPE) || code == exitNoVerdict {
			t.Errorf("exit status %d", code)
		}
		if _, err := os.Stat(filepath.Join(r.dir, "ws", "done")); err != nil {
			t.Error(err)
		}
		// yes must die of the signal: ignored, it would complain and exit with 1.
		if b, err := os.ReadFile(filepath.Join(r.dir, "ws", "code")); err != nil || strings.TrimSpace(string(b)) != "141" {
			t.Errorf("a step's program sees a broken pipe as %q (%v), want 141", b, err)
		}
	})
}

// TestCancelInActions: a cancelled job has its summary and its outputs, and no
// green verdict among them.
func TestCancelInActions(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine string) {
		r := prepare(t, engine, sleeper(marker()))
		r.cmd.Args = []string{toolName}
		out, summary := filepath.Join(r.dir, "output"), filepath.Join(r.dir, "step-summary")
		r.cmd.Env = append(r.cmd.Env, "GITHUB_ACTIONS=true", "GITHUB_OUTPUT="+out, "GITHUB_STEP_SUMMARY="+summary,
			"UNTRUSTED_STEPS_FILE="+filepath.Join(r.dir, "f.yml"), "UNTRUSTED_STEPS_ENGINE="+engine, "UNTRUSTED_STEPS_OUT="+filepath.Join(r.dir, "out"))
		r.begin()
		if err := r.cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if code := r.end(); code != exitCancelled {
			t.Errorf("exit status %d\n%s", code, &r.log)
		}
		for file, word := range map[string]string{out: "\ncancelled\n", summary: "cancelled"} {
			b, err := os.ReadFile(file)
			if err != nil || !strings.Contains(string(b), word) {
				t.Errorf("%s does not say %q: %v\n%s", filepath.Base(file), word, err, b)
			}
		}
	})
}
