package egress_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
)

// program is the program under test, built once, where any user can run it.
// It is set by TestMain and not changed after.
var program string

func TestMain(m *testing.M) {
	boxtest.Become(os.Args)
	os.Exit(boxtest.CommandMain(m, &program))
}

// eachEngine runs a test for each engine that is to be had here.
func eachEngine(t *testing.T, test func(t *testing.T, engine string)) {
	t.Helper()
	boxtest.Boxes(t)
	for _, e := range []string{"native", "kern"} {
		t.Run(e, func(t *testing.T) {
			if e == "kern" {
				boxtest.Need(t, "kern")
			}
			test(t, e)
		})
	}
}

// job is one run of the program.
type job struct {
	engine string
	steps  string            // the steps file
	files  map[string][]byte // in the workspace beforehand
	env    []string          // besides PATH and what finds kern
	secret []string          // words that no log of ours may have
	lab    *lab              // nil: the host's own network
	uid    int               // 0: we
	// during is called while it runs. A step that names TELL as a mount's source
	// says things there, and is told things: of what it writes into the workspace
	// nobody sees anything before it has passed.
	during func(tell string)
}

// run is what came of it.
type run struct {
	t         *testing.T
	code      int
	log       string
	dir       string // of steps.yml
	workspace string
	out       string
	peak      int64  // bytes of memory of the program, or of its largest child
	Verdict   string `json:"verdict"`
	Steps     []step `json:"steps"`
	secret    []string
}

// step is what these tests read of a step in report.json.
type step struct {
	ID       string `json:"id"`
	Status   string `json:"status"`
	ExitCode *int   `json:"exitCode"`
	Reason   string `json:"reason"`
	Fault    *event `json:"fault"`
	Events   []event
	Network  string       `json:"network"`
	Egress   []connection `json:"egress"`
	Mode     string       `json:"egressMode"`
	Proposal []string     `json:"egressProposal"`
	Unused   []string     `json:"egressUnused"`
	Presets  []preset     `json:"egressPresets"`
	TooWide  []struct {
		Rule     string
		Narrower []string
	} `json:"egressTooWide"`
	Files []struct{ Path, Change string }
}

type preset struct {
	Name  string
	Rules []presetRule
}

type presetRule struct{ Rule, From string }

type event struct {
	Type    string `json:"type"`
	Message string `json:"message"`
	Count   uint64 `json:"count"`
}

type connection struct {
	Host     string `json:"host"`
	Port     int    `json:"port"`
	Protocol string `json:"protocol"`
	Verdict  string `json:"verdict"`
	Reason   string `json:"reason"`
	Rule     string `json:"rule"`
	Count    uint64 `json:"count"`
	BytesIn  uint64 `json:"bytesIn"`
	BytesOut uint64 `json:"bytesOut"`
	Expected bool   `json:"expected"`
}

// patience is for a run that hangs. Each step has its own timeoutS.
const patience = 2 * time.Minute

// start runs the program and reads its report.
func start(t *testing.T, j job) *run {
	t.Helper()
	dir := boxtest.OpenDir(t)
	r := &run{t: t, dir: dir, workspace: filepath.Join(dir, "workspace"), out: filepath.Join(dir, "out"), secret: j.secret}
	file, tell := filepath.Join(dir, "steps.yml"), filepath.Join(dir, "tell")
	if err := errors.Join(os.Mkdir(r.workspace, 0o755), os.Mkdir(r.out, 0o755), os.Mkdir(tell, 0o755),
		os.WriteFile(file, []byte(strings.ReplaceAll(j.steps, "TELL", tell)), 0o644)); err != nil {
		t.Fatal(err)
	}
	for name, b := range j.files {
		if err := os.WriteFile(filepath.Join(r.workspace, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(program, "run", "--engine", j.engine, "--workspace", r.workspace, "--out", r.out, "steps.yml")
	cmd.Dir = dir
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=/no-home", "KERN_BIN=" + os.Getenv("KERN_BIN")}, j.env...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.WaitDelay = 5 * time.Second
	if j.uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(j.uid), Gid: uint32(j.uid)}}
		// Beside the workspace this user can make nothing.
		state := filepath.Join(dir, "state")
		if err := os.Mkdir(state, 0o700); err != nil {
			t.Fatal(err)
		}
		cmd.Env = append(cmd.Env, "XDG_STATE_HOME="+state)
		for _, p := range append([]string{r.workspace, r.out, state}, glob(t, r.workspace+"/*")...) {
			if err := os.Lchown(p, j.uid, j.uid); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := j.lab.in(cmd.Start); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(patience, func() { cmd.Process.Signal(syscall.SIGTERM) })
	defer late.Stop()
	if j.during != nil {
		j.during(tell)
	}
	err := cmd.Wait()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		t.Fatalf("run the program: %v", err)
	}
	r.code, r.log = cmd.ProcessState.ExitCode(), log.String()
	if use, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		r.peak = int64(use.Maxrss) << 10
	}
	b, err := os.ReadFile(filepath.Join(r.out, "report.json"))
	if err != nil {
		r.fatalf("exit status %d and no report: %v", r.code, err)
	}
	if err := json.Unmarshal(b, r); err != nil {
		r.fatalf("read the report: %v", err)
	}
	return r
}

func glob(t testing.TB, pattern string) []string {
	t.Helper()
	list, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// clean takes the words that must not be told out of a text.
func (r *run) clean(s string) string {
	for _, w := range r.secret {
		s = strings.ReplaceAll(s, w, "(a host of this machine's set-up)")
	}
	return s
}

func (r *run) errorf(format string, args ...any) {
	r.t.Helper()
	r.t.Error(r.clean(fmt.Sprintf(format, args...)))
}

func (r *run) fatalf(format string, args ...any) {
	r.t.Helper()
	r.t.Fatal(r.clean(fmt.Sprintf(format, args...) + "\n" + r.log))
}

// exits fails the test, with the program's log, unless it ended with a status.
func (r *run) exits(want int) {
	r.t.Helper()
	if r.code != want {
		r.fatalf("exit status %d (verdict %s), want %d", r.code, r.Verdict, want)
	}
}

func (r *run) step(id string) step {
	r.t.Helper()
	for _, s := range r.Steps {
		if s.ID == id {
			return s
		}
	}
	r.fatalf("the report has no step %s", id)
	return step{}
}

// only gives the one record of a step about a host and port, in a step that has
// no other ones.
func (r *run) only(id, host string, port int) connection {
	r.t.Helper()
	s := r.step(id)
	if len(s.Egress) != 1 || s.Egress[0].Host != host || s.Egress[0].Port != port {
		r.fatalf("step %s: the ledger has %+v, want one record of %s:%d", id, s.Egress, host, port)
	}
	return s.Egress[0]
}

// stdout is what a step said.
func (r *run) stdout(id string) string {
	r.t.Helper()
	b, err := os.ReadFile(filepath.Join(r.out, "steps", id, "stdout.log"))
	if err != nil {
		r.fatalf("%v", err)
	}
	return strings.TrimSpace(string(b))
}

func (r *run) stderr(id string) string {
	r.t.Helper()
	b, err := os.ReadFile(filepath.Join(r.out, "steps", id, "stderr.log"))
	if err != nil {
		r.fatalf("%v", err)
	}
	return strings.TrimSpace(string(b))
}

// line is what these tests read of a line of egress.jsonl.
type line struct {
	Step       string
	Protocol   string
	Host       string
	Port       int
	Address    string
	SNI        string
	Method     string
	Path       string
	BytesIn    uint64
	BytesOut   uint64
	DurationMs int64
	Verdict    string
	Rule       string
	Reason     string
	Private    bool
	First      time.Time
	Last       time.Time
}

// lines reads the complete list of requests.
func (r *run) lines() []line {
	r.t.Helper()
	b, err := os.ReadFile(filepath.Join(r.out, "egress.jsonl"))
	if err != nil {
		r.fatalf("%v", err)
	}
	var out []line
	for text := range bytes.Lines(b) {
		d := json.NewDecoder(bytes.NewReader(text))
		var l line
		if err := d.Decode(&l); err != nil {
			r.fatalf("egress.jsonl, line %d: %v", len(out)+1, err)
		}
		out = append(out, l)
	}
	return out
}

// output runs a command that may fail.
func output(t *testing.T, argv ...string) (out string, code int) {
	t.Helper()
	b, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		t.Fatal(err)
	}
	if ended != nil {
		code = ended.ExitCode()
	}
	return string(b), code
}
