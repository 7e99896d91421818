package boxtest

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/probe"
	"github.com/untrusted-steps/untrusted-steps/internal/egress"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
)

// boxPath is PATH in the boxes of the suite.
var boxPath = []string{"/usr/local/bin", "/usr/bin", "/bin"}

const (
	probeTarget = "/probe" // where the probe's folder is in a box
	insideProbe = probeTarget + "/" + probeName
	mib         = 1 << 20
)

// step is one box to run. The zero value of a field is what most facts want.
type step struct {
	box.Spec
	proxy *egress.Proxy
	// forwards are those of the tcp:// rules in it; see carrying.
	forwards []egress.Forward
	ctx      context.Context
	max      int64
	started  func()
	files    []*os.File
	// callerPath is PATH as the caller of the run has it.
	callerPath string
	engine     box.Engine
}

// result is what was measured, and what it amounts to.
type result struct {
	box.Outcome
	box.Verdict
	stdout, stderr string
	took           time.Duration
}

// spec is a box like any step's, with the probe in it.
func (s *suite) spec(t testing.TB, argv ...string) step {
	t.Helper()
	return step{Spec: box.Spec{
		ID: "step-1", Argv: argv, Workdir: box.WorkspaceTarget, Workspace: workspace(t),
		Env:      box.Environment{Path: boxPath}.List(),
		Mounts:   []box.Mount{{Source: s.dir + "/probe", Target: probeTarget, ReadOnly: true}},
		Tmpfs:    []box.Tmpfs{{Target: "/tmp", Bytes: box.DefaultTmpBytes}, {Target: box.HomeTarget, Bytes: box.DefaultHomeBytes}},
		ShmBytes: box.DefaultShmBytes, CapDrop: []string{"ALL"},
		MemoryBytes: 256 * mib, Pids: 64, TimeoutS: patient(30 * time.Second).Seconds(), RequireLimits: s.limits != nil,
	}}
}

// probing is a box that runs the probe.
func (s *suite) probing(t testing.TB, ops ...probe.Op) step {
	t.Helper()
	return s.spec(t, append([]string{insideProbe}, probe.Args(ops...)...)...)
}

// shell is a box that runs a line of shell.
func (s *suite) shell(t testing.TB, text string) step { t.Helper(); return s.spec(t, "sh", "-c", text) }

// workspace is an empty folder of the caller's.
func workspace(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// run runs a box the way a run of the product does, and judges it.
func (s *suite) run(t testing.TB, j step) result {
	t.Helper()
	r := s.attempt(t, j)
	if r.NoVerdict != "" {
		t.Fatalf("no verdict: %s (engine: %s)", r.NoVerdict, r.Note)
	}
	return r
}

// attempt is run where there may be no verdict.
func (s *suite) attempt(t testing.TB, j step) result {
	t.Helper()
	group := limits.None()
	if s.limits != nil {
		g, err := s.limits.New(j.ID, limits.Caps{MemoryBytes: j.MemoryBytes, Pids: j.Pids, CPUs: j.CPUs})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		}()
		group = g
	}
	if j.ctx == nil {
		j.ctx = context.Background()
	}
	if j.max == 0 {
		j.max = 4 * mib
	}
	if j.engine == nil {
		j.engine = s.engine
	}
	s.slots <- struct{}{}
	defer func() { <-s.slots }()
	var stdout, stderr locked
	begun := time.Now()
	out := box.Run(j.ctx, box.Job{
		Spec: j.Spec, Engine: j.engine, Group: group, Proxy: j.proxy, Forwards: j.forwards,
		Stdout: &stdout, Stderr: &stderr, MaxOutput: j.max, Started: j.started, Files: j.files, CallerPath: j.callerPath,
	})
	r := result{Outcome: out, Verdict: box.Classify(out.Evidence, nil), took: time.Since(begun)}
	r.stdout, r.stderr = stdout.String(), stderr.String()
	if empty, err := group.Empty(); err != nil || !empty {
		t.Errorf("the step's control group is not empty after the run (%v)", err)
	}
	return r
}

// ask runs the probe in a plain box and gives its answers.
func (s *suite) ask(t testing.TB, ops ...probe.Op) []probe.Answer {
	t.Helper()
	return s.run(t, s.probing(t, ops...)).answers(t, len(ops))
}

// answers are those of a probe that came to its end, in a box without a fault.
func (r result) answers(t testing.TB, n int) []probe.Answer {
	t.Helper()
	r.passed(t)
	list := parse(t, r.stdout)
	if len(list) != n {
		t.Fatalf("%d answers to %d questions: %s%s", len(list), n, r.stdout, r.stderr)
	}
	return list
}

func parse(t testing.TB, text string) []probe.Answer {
	t.Helper()
	var list []probe.Answer
	for line := range strings.Lines(text) {
		var a probe.Answer
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			t.Fatalf("answer %.200q: %v", line, err)
		}
		list = append(list, a)
	}
	return list
}

// outside runs the same program with the same ops on the host: the control.
func (s *suite) outside(t testing.TB, ops ...probe.Op) []probe.Answer {
	t.Helper()
	return s.control(t, nil, ops...)
}

// inOwnNamespaces runs the ops outside the box with all powers over fresh user
// and network namespaces.
func (s *suite) inOwnNamespaces(t testing.TB, ops ...probe.Op) []probe.Answer {
	t.Helper()
	return s.control(t, &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		Credential:  &syscall.Credential{NoSetGroups: true},
	}, ops...)
}

func (s *suite) control(t testing.TB, attr *syscall.SysProcAttr, ops ...probe.Op) []probe.Answer {
	t.Helper()
	cmd := exec.Command(s.probe, probe.Args(ops...)...)
	cmd.SysProcAttr = attr
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("control outside the box: %v: %s%s", err, out, stderr.String())
	}
	list := parse(t, string(out))
	if len(list) != len(ops) {
		t.Fatalf("control outside the box: %d answers to %d questions", len(list), len(ops))
	}
	return list
}

// passed fails unless the step ended with 0 and nothing happened.
func (r result) passed(t testing.TB) {
	t.Helper()
	r.exited(t, 0)
	r.noFault(t)
}

func (r result) exited(t testing.TB, code int) {
	t.Helper()
	if r.ExitCode == nil || *r.ExitCode != code {
		t.Fatalf("the step ended with %s, want exit code %d", r.describe(), code)
	}
}

func (r result) noFault(t testing.TB) {
	t.Helper()
	if r.Fault != nil || len(r.Events) != 0 {
		t.Fatalf("the step ended with %s, want no fault", r.describe())
	}
}

// faulted fails unless the fault is of this type.
func (r result) faulted(t testing.TB, want box.FaultType) {
	t.Helper()
	if r.Fault == nil || r.Fault.Type != want {
		t.Fatalf("the step ended with %s, want the fault %s", r.describe(), want)
	}
}

func (r result) describe() string {
	var b strings.Builder
	switch {
	case r.ExitCode != nil:
		b.WriteString("exit code " + itoa(*r.ExitCode))
	case r.Signal != "":
		b.WriteString(r.Signal)
	default:
		b.WriteString("no status")
	}
	for _, e := range r.Events {
		b.WriteString("; " + string(e.Type) + ": " + e.Message)
	}
	b.WriteString(" (stdout " + clip(r.stdout) + ", stderr " + clip(r.stderr) + ")")
	return b.String()
}

// wantErr fails unless the answer is one of these errors; "" is success.
func wantErr(t testing.TB, what string, a probe.Answer, want ...string) {
	t.Helper()
	if !slices.Contains(want, a.Err) {
		t.Errorf("%s: got %s, want one of %q", what, tell(a), want)
	}
}

// works is a control: it fails unless the action was possible.
func works(t testing.TB, what string, a probe.Answer) {
	t.Helper()
	if !a.OK() {
		t.Errorf("control: %s: got %s, want that it works", what, tell(a))
	}
}

// refused fails if the action was possible.
func refused(t testing.TB, what string, a probe.Answer) {
	t.Helper()
	if a.OK() {
		t.Errorf("%s: it worked (%s), want that it is refused", what, tell(a))
	}
}

func tell(a probe.Answer) string {
	b, _ := json.Marshal(a)
	return clip(string(b))
}

// locked is a buffer for a stream's goroutine and ours.
type locked struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func itoa(n int) string { return strconv.Itoa(n) }

func clip(s string) string {
	if len(s) > 400 {
		return strconv.Quote(s[:400]) + "…"
	}
	return strconv.Quote(s)
}
