package boxtest

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/probe"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
)

// goneWithin bounds how long a box may take to be gone. The kernel needs
// milliseconds; a busy machine gets more.
const goneWithin = 5 * time.Second

// lifeFacts are about what ends a box, and what does not.
func (s *suite) lifeFacts(t *testing.T) {
	t.Run("no signal from inside ends the box's first process", func(t *testing.T) {
		t.Parallel()
		var ops []probe.Op
		for sig := 1; sig <= 64; sig++ {
			ops = append(ops, probe.Do("kill", "1", itoa(sig)))
		}
		r := s.run(t, s.probing(t, append(ops, probe.Do("exit", "7"))...))
		r.exited(t, 7)
		r.noFault(t)
	})

	t.Run("no signal that a file's readiness sends ends the box's first process", func(t *testing.T) {
		t.Parallel()
		for _, how := range []string{"F_SETOWN", "F_SETOWN of the group", "F_SETOWN_EX", "FIOSETOWN", "SIOCSPGRP"} {
			for _, sig := range []unix.Signal{unix.SIGKILL, unix.SIGSTOP, unix.SIGIO} {
				r := s.run(t, s.probing(t, probe.Do("signal by a file", how, "1", itoa(int(sig))), probe.Do("exit", "7")))
				r.exited(t, 7)
				r.noFault(t)
			}
		}
	})

	t.Run("a program has its own files' readiness signalled to it", func(t *testing.T) {
		t.Parallel()
		r := s.run(t, s.probing(t, probe.Do("signal by a file", "F_SETOWN", "own", itoa(int(unix.SIGKILL)))))
		if r.Signal != "SIGKILL" {
			t.Errorf("control: %s", r.describe())
		}
	})

	t.Run("kill -9 -1 ends the step's other processes and no more", func(t *testing.T) {
		t.Parallel()
		r := s.run(t, s.probing(t, probe.Do("kill everybody"), probe.Do("exit", "5")))
		r.exited(t, 5)
		r.noFault(t)
		if a := parse(t, r.stdout); a[0].Text != "signal: killed" {
			t.Errorf("control: the child of the step: %s", tell(a[0]))
		}
	})

	t.Run("limits of the box's first process cannot be changed, one's own can", func(t *testing.T) {
		t.Parallel()
		a := s.ask(t, probe.Do("limit cpu of", "1"), probe.Do("limit cpu of", "0"))
		wantErr(t, "prlimit on process 1", a[0], "EPERM", "ESRCH", "ENOSYS")
		works(t, "prlimit on oneself", a[1])
	})

	t.Run("G80 tracing the box's first process is escape_blocked", func(t *testing.T) {
		t.Parallel()
		s.escaped(t, s.run(t, s.probing(t, probe.Do("escape", "ptrace"))), "ptrace")
	})

	t.Run("killing the box's first process from outside is the fault killed", func(t *testing.T) {
		t.Parallel()
		j := s.probing(t, probe.Do("sleep", "20000"))
		spy := &spy{Engine: s.engine}
		j.engine = spy
		j.started = func() { go spy.kill(t) }
		r := s.run(t, j)
		r.faulted(t, box.Killed)
		if r.took > goneWithin {
			t.Errorf("it took %v", r.took)
		}
	})

	t.Run("cancelling ends the box at once and is no fault", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		token := runID()
		j := s.probing(t, probe.Do("daemon", "/workspace/beat", token), probe.Do("spin"), probe.Do("token", token))
		j.ctx = ctx
		began := make(chan time.Time, 1)
		j.started = func() {
			go func() {
				for range 1000 {
					if _, err := os.Stat(j.Workspace + "/beat"); err == nil {
						break
					}
					time.Sleep(5 * time.Millisecond)
				}
				if alive(token) == 0 && !s.differ.OwnKernel {
					t.Error("control: nothing of the step can be seen on the host while it runs")
				}
				began <- time.Now()
				cancel()
			}()
		}
		r := s.run(t, j)
		if took := time.Since(<-began); took > goneWithin {
			t.Errorf("it took %v", took)
		}
		if !r.Evidence.Cancelled || r.Fault != nil {
			t.Errorf("a cancelled step: cancelled %v, %s", r.Evidence.Cancelled, r.describe())
		}
		s.gone(t, token, j.Workspace+"/beat")
	})

	t.Run("a box that is cancelled before it starts never runs its step", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		j := s.probing(t, probe.Do("create", "/workspace/x", ""))
		j.ctx = ctx
		if r := s.run(t, j); !r.Evidence.Cancelled || r.ExitCode != nil {
			t.Errorf("got %s", r.describe())
		}
		if _, err := os.Stat(j.Workspace + "/x"); err == nil {
			t.Error("the step ran")
		}
	})

	t.Run("O159 a box dies with the program that watches it", func(t *testing.T) {
		t.Parallel()
		token := runID()
		work := workspace(t)
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+strings.Split(t.Name(), "/")[0]+"$", "-test.timeout=60s")
		cmd.Env = append(os.Environ(), roleVar+"="+roleParent, parentDir+"="+s.dir, parentWork+"="+work, parentToken+"="+token)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		beat := filepath.Join(work, "beat")
		for range 2000 {
			if _, err := os.Stat(beat); err == nil {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		if alive(token) == 0 && !s.differ.OwnKernel {
			t.Error("control: nothing of the box can be seen while its program lives")
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		if err := <-ended; err == nil || err.Error() != "signal: killed" {
			t.Fatalf("the program ended by itself: %v: %s", err, out.String())
		}
		s.gone(t, token, beat)
	})
}

// The role of a program that starts a box and then is killed.
const (
	roleParent  = "parent"
	parentDir   = "BOXTEST_PARENT_DIR"
	parentWork  = "BOXTEST_PARENT_WORKSPACE"
	parentToken = "BOXTEST_PARENT_TOKEN"
)

func parent(t *testing.T, e box.Engine) {
	s := &suite{engine: e, dir: os.Getenv(parentDir)}
	j := s.probing(t, probe.Do("daemon", "/workspace/beat", os.Getenv(parentToken)), probe.Do("heartbeat", "/tmp/beat"), probe.Do("token", os.Getenv(parentToken)))
	j.Workspace = os.Getenv(parentWork)
	out := box.Run(context.Background(), box.Job{Spec: j.Spec, Engine: e, Group: limits.None(), Stdout: os.Stdout, Stderr: os.Stderr, MaxOutput: mib})
	t.Fatalf("the box ended by itself: %+v", out)
}

// alive counts the processes on the host that have a word in their command
// line, which the step put there. It asks the host's /proc, not the engine.
func alive(token string) int {
	n := 0
	list, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range list {
		if text, err := os.ReadFile(f); err == nil && bytes.Contains(text, []byte(token)) {
			n++
		}
	}
	return n
}

// gone fails unless no process with the word is left and the heartbeat has
// stopped.
func (s *suite) gone(t testing.TB, token, beat string) {
	t.Helper()
	for until := time.Now().Add(goneWithin); alive(token) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(until) {
			t.Errorf("%d processes of the step are alive after %v", alive(token), goneWithin)
			break
		}
	}
	first, err := os.Stat(beat)
	if err != nil {
		t.Errorf("control: the step's process left no trace: %v", err)
		return
	}
	time.Sleep(40 * time.Millisecond)
	if again, err := os.Stat(beat); err != nil || again.Size() != first.Size() {
		t.Error("a process of the step still writes to the workspace")
	}
}

// spy is an engine that remembers the box it built.
type spy struct {
	box.Engine
	mu    sync.Mutex
	built *box.Built
}

func (s *spy) Start(ctx context.Context, sp box.Spec, p box.Placement) (*box.Built, error) {
	b, err := s.Engine.Start(ctx, sp, p)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.built = b
	return b, err
}

// kill sends SIGKILL to the box's first process.
func (s *spy) kill(t testing.TB) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pid := s.built.InitPID
	if pid == 0 {
		cred, err := unix.GetsockoptUcred(int(s.built.Control.Fd()), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			t.Errorf("find the box's first process: %v", err)
			return
		}
		pid = int(cred.Pid)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Errorf("kill the box's first process: %v", err)
	}
}
