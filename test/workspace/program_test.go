package workspace_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

var (
	// program is the program under test, built once, where any user can run it.
	// It is set by TestMain and not changed after.
	program string

	seeds   = flag.Int("seeds", 6, "how many random scripts are tried")
	oneSeed = flag.Uint64("seed", 0, "the only random script to try")
)

func TestMain(m *testing.M) {
	boxtest.Become(os.Args)
	flag.Parse()
	os.Exit(boxtest.CommandMain(m, &program))
}

// plainID is nobody's: it has no row in passwd, as in many containers.
const plainID = 61_234

// way is who runs the program, and with which engine.
type way struct {
	engine string
	uid    int // 0: whoever we are
}

// normal says whether the program runs as a normal user.
func (w way) normal() bool { return w.uid != 0 || os.Geteuid() != 0 }

// eachWay runs a test with each engine that is to be had here, as root and as a
// normal user.
func eachWay(t *testing.T, test func(t *testing.T, w way)) {
	t.Helper()
	boxtest.Need(t, "userns", "overlay", "seccomp")
	for _, e := range []string{"native", "kern"} {
		t.Run(e, func(t *testing.T) {
			if e == "kern" {
				boxtest.Need(t, "kern")
			}
			if os.Geteuid() != 0 {
				test(t, way{engine: e})
				return
			}
			t.Run("as root", func(t *testing.T) {
				boxtest.Need(t, "idmap")
				test(t, way{engine: e})
			})
			t.Run("as a normal user", func(t *testing.T) { test(t, way{engine: e, uid: plainID}) })
		})
	}
}

// place is where the program runs: a workspace with nothing beside it but the
// report's folder and the steps file.
type place struct {
	way
	dir, workspace string
	runs           int
}

func newPlace(t testing.TB, w way) *place {
	t.Helper()
	p := &place{way: w, dir: boxtest.OpenDir(t)}
	p.workspace = filepath.Join(p.dir, "workspace")
	if err := os.Mkdir(p.workspace, 0o755); err != nil {
		t.Fatal(err)
	}
	p.give(t)
	return p
}

// give makes everything here belong to who runs the program.
func (p *place) give(t testing.TB) {
	t.Helper()
	if p.uid == 0 {
		return
	}
	err := filepath.WalkDir(p.dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		// Not to lose a mode: that of a file is cleared of set-id bits only.
		return os.Lchown(path, p.uid, p.uid)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// command is the program, ready to start.
func (p *place) command(t testing.TB, steps string, env ...string) (cmd *exec.Cmd, out string) {
	t.Helper()
	p.runs++
	out = filepath.Join(p.dir, fmt.Sprintf("out%d", p.runs))
	file := filepath.Join(p.dir, "steps.yml")
	if err := errors.Join(os.Mkdir(out, 0o755), os.WriteFile(file, []byte(steps), 0o644)); err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(program, "run", "--engine", p.engine, "--workspace", p.workspace, "--out", out, "steps.yml")
	cmd.Dir = p.dir
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=/no-home", "TMPDIR=" + os.TempDir(), "KERN_BIN=" + os.Getenv("KERN_BIN")}, env...)
	cmd.WaitDelay = 5 * time.Second
	if p.uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(p.uid), Gid: uint32(p.uid)}}
		if err := os.Lchown(out, p.uid, p.uid); err != nil {
			t.Fatal(err)
		}
	}
	return cmd, out
}

// report is what these tests read of report.json.
type report struct {
	t       testing.TB
	code    int
	log     string
	out     string
	Verdict string   `json:"verdict"`
	Notes   []string `json:"notes"`
	Steps   []result `json:"steps"`
}

type result struct {
	ID          string
	Status      string
	Reason      string
	Fault       *struct{ Type, Message string }
	Violations  []struct{ Type, Message string }
	Files       []workspace.Change
	FilesTotal  int
	Workspace   string
	WorkspaceBy string
	First       []string
	Notes       []string
	DurationMs  int64
}

// patience is for a run that hangs. Each step has its own timeoutS.
const patience = 3 * time.Minute

// run runs the program and reads its report.
func (p *place) run(t testing.TB, steps string, env ...string) *report {
	t.Helper()
	cmd, out := p.command(t, steps, env...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(patience, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	defer late.Stop()
	err := cmd.Wait()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		t.Fatalf("run the program: %v", err)
	}
	r := &report{t: t, code: cmd.ProcessState.ExitCode(), log: log.String(), out: out}
	b, err := os.ReadFile(filepath.Join(out, "report.json"))
	if err != nil {
		t.Fatalf("exit status %d and no report: %v\n%s", r.code, err, r.log)
	}
	if err := json.Unmarshal(b, r); err != nil {
		t.Fatalf("read the report: %v", err)
	}
	return r
}

// exits fails the test, with the program's log, unless it ended with a status.
func (r *report) exits(want int) {
	r.t.Helper()
	if r.code == want {
		return
	}
	for _, s := range r.Steps {
		r.t.Logf("step %s: %s, workspace %s: %s %+v %+v", s.ID, s.Status, s.Workspace, s.Reason, s.Fault, s.Violations)
	}
	r.t.Fatalf("exit status %d (verdict %s), want %d\n%s", r.code, r.Verdict, want, r.log)
}

func (r *report) step(id string) result {
	r.t.Helper()
	for _, s := range r.Steps {
		if s.ID == id {
			return s
		}
	}
	r.t.Fatalf("the report has no step %s", id)
	return result{}
}

// stdout is what a step said.
func (r *report) stdout(id string) string {
	r.t.Helper()
	b, err := os.ReadFile(filepath.Join(r.out, "steps", id, "stdout.log"))
	if err != nil {
		r.t.Fatal(err)
	}
	return string(b)
}

// file writes a steps file. A normal user has no control groups of its own here.
func (w way) file(keys string, list ...scriptStep) string {
	var b strings.Builder
	b.WriteString("version: 1\ndefaults:\n  timeoutS: 120\n" + keys)
	if w.normal() {
		b.WriteString("  requireLimits: false\n")
	}
	b.WriteString("steps:\n")
	for _, s := range list {
		fmt.Fprintf(&b, "- id: %s\n  run: %s\n%s", s.id, quoted(s.text), s.keys)
	}
	return b.String()
}

type scriptStep struct {
	id, text string
	keys     string // more lines of YAML
}

// quoted is a text as YAML and JSON both read it.
func quoted(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}
