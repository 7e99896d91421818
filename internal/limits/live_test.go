package limits

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
)

// These tests speak to the kernel of this machine. They need a place where
// control groups can be made: root, or a delegated cgroup2 group.

const (
	roleVariable = "LIMITS_TEST_ROLE"
	// patience is for slow machines; nothing here waits that long by design.
	patience = 60 * time.Second
)

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "":
		os.Exit(m.Run())
	case "allocate":
		allocate()
	case "bomb":
		bomb()
	case "hop":
		hop()
	case "hold":
		awaitWord()
	}
}

func awaitWord() { _, _ = os.Stdin.Read(make([]byte, 1)) }

// bomb forks without end, and so does every child; a refusal stops none.
func bomb() {
	awaitWord()
	for {
		_, _, _ = syscall.RawSyscall(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0)
	}
}

// hop forks and ends at once, over and over: whoever sends a signal to the id
// just read is late.
func hop() {
	awaitWord()
	for {
		pid, _, errno := syscall.RawSyscall(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0)
		if errno == 0 && pid != 0 {
			_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
}

// allocate waits for a word and then takes memory until it is killed.
func allocate() {
	awaitWord()
	for n := 0; n < 512; n++ {
		b, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			os.Exit(3)
		}
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
	}
}

// live opens this host's control groups, if it has some to give.
func live(t testing.TB) *Manager {
	t.Helper()
	m, err := Open(Config{RunID: fmt.Sprintf("t%d", time.Now().UnixNano()), XDGRuntimeDir: os.Getenv("XDG_RUNTIME_DIR")})
	if _, refused := err.(*Refusal); refused {
		need.Met(t, "limits", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// start runs a command in a group; it waits to be told on its standard input.
func start(t testing.TB, g *Group, env []string, argv ...string) (*exec.Cmd, func()) {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	if testing.Verbose() {
		cmd.Stdout = os.Stderr
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if fd := g.CgroupFD(); fd >= 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if err := g.Join(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if in, err := g.Contains(cmd.Process.Pid); !in || err != nil {
		t.Fatalf("the process is in its group: %v, %v", in, err)
	}
	if in, err := g.Contains(os.Getpid()); in || err != nil {
		t.Fatalf("we are in the group: %v, %v", in, err)
	}
	return cmd, func() { _, _ = io.WriteString(in, "\n"); _ = in.Close() }
}

func group(t testing.TB, m *Manager, c Caps) *Group {
	t.Helper()
	g, err := m.New("test", c)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func executable(t testing.TB) string {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

func TestLiveMemoryCapBites(t *testing.T) {
	m := live(t)
	t.Logf("%s in %s, unseen %v, sampled peaks %v", m.Kind(), m.Where(), m.Unseen(), m.noPeak)
	g := group(t, m, Caps{MemoryBytes: 64 << 20, Pids: 64, CPUs: 1})
	t.Logf("enforced: %v", g.Enforced())
	if !slices.Contains(g.Enforced(), "memory") || !slices.Contains(g.Enforced(), "pids") {
		t.Fatalf("enforced: %v", g.Enforced())
	}
	// The outer shell lives on where the kernel kills one process only.
	cmd, tell := start(t, g, []string{roleVariable + "=allocate"}, "/bin/sh", "-c", "read x; "+executable(t)+"; sleep 300")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	acted := g.OOM(ctx)
	if err := g.ExcludeInit(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-acted:
		t.Fatal("the OOM killer is said to have acted before anything ran")
	case <-time.After(50 * time.Millisecond):
	}
	begin := time.Now()
	tell()
	select {
	case <-acted:
		t.Logf("told of the OOM killer %v after the start", time.Since(begin))
	case <-ctx.Done():
		s, err := g.Stats()
		t.Fatalf("not told of the OOM killer: %+v, %v", s, err)
	}
	if err := g.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	s, err := g.Stats()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", s)
	if s.OOMKills == 0 || s.PeakMemory < 32<<20 || s.PeakMemory > 65<<20 || s.PidsRefused != 0 {
		t.Errorf("stats are %+v", s)
	}
}

func TestLivePidsCapIsTheStepsAlone(t *testing.T) {
	m := live(t)
	const n = 8
	for _, c := range []struct {
		name    string
		start   int
		refused bool
	}{
		{"as many as allowed", n, false},
		{"one more", n + 1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := group(t, m, Caps{MemoryBytes: 64 << 20, Pids: n})
			cmd, tell := start(t, g, nil, "/bin/sh", "-c",
				`read x; i=0; while [ $i -lt `+strconv.Itoa(c.start)+` ]; do sleep 300 & i=$((i+1)); done; echo ready; read y`)
			if err := g.ExcludeInit(); err != nil {
				t.Fatal(err)
			}
			tell()
			_ = cmd.Wait() // the shell ends: standard input is closed
			s, err := g.Stats()
			if err != nil {
				t.Fatal(err)
			}
			if (s.PidsRefused > 0) != c.refused || s.OOMKills != 0 {
				t.Errorf("%d processes at a cap of %d: %+v", c.start, n, s)
			}
			if s.PeakPids != n && !m.noPeak {
				t.Errorf("peak of %d processes, want %d", s.PeakPids, n)
			}
			kill(t, g)
			again, err := g.Stats()
			if err != nil || again.PidsRefused != s.PidsRefused {
				t.Errorf("killing changed the counters from %+v to %+v (%v)", s, again, err)
			}
		})
	}
}

func TestLiveCPUShareBites(t *testing.T) {
	m := live(t)
	const share = 0.2
	g := group(t, m, Caps{Pids: 16, CPUs: share})
	if !slices.Contains(g.Enforced(), "cpu") {
		need.Met(t, "cpu", errors.New("no CPU controller here; a CPU share never gates"))
	}
	_, tell := start(t, g, nil, "/bin/sh", "-c", "read x; while :; do :; done")
	tell()
	begin := time.Now()
	time.Sleep(time.Second)
	s, err := g.Stats()
	most := time.Duration(float64(time.Since(begin))*share) + 200*time.Millisecond
	kill(t, g)
	if err != nil || s.CPU > most || s.CPU == 0 {
		t.Errorf("used %v of CPU (%v), want at most %v", s.CPU, err, most)
	}
}

func kill(t testing.TB, g *Group) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := g.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	if empty, err := g.Empty(); !empty || err != nil {
		t.Fatalf("empty after the kill: %v, %v", empty, err)
	}
}

func TestLiveKillLeavesNothingAlive(t *testing.T) {
	m := live(t)
	sh := func(script string) []string { return []string{"/bin/sh", "-c", "read x; " + script} }
	for _, c := range []struct {
		name, role string
		argv       []string
	}{
		{"a daemon that left its session and its parent", "",
			sh(`setsid sh -c 'trap "" TERM HUP INT; setsid sleep 300 & setsid sleep 300 & wait' & exit 0`)},
		{"a fork bomb at its cap", "bomb", []string{executable(t)}},
		{"a process that is always another one", "hop", []string{executable(t)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := group(t, m, Caps{MemoryBytes: 512 << 20, Pids: 100, CPUs: 0.5})
			cmd, tell := start(t, g, []string{roleVariable + "=" + c.role}, c.argv...)
			if err := g.ExcludeInit(); err != nil {
				t.Fatal(err)
			}
			tell()
			time.Sleep(200 * time.Millisecond)
			if empty, err := g.Empty(); empty || err != nil {
				t.Fatalf("nothing runs (%v): the test shows nothing", err)
			}
			pids, err := g.pids()
			if err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			kill(t, g)
			t.Logf("%d processes ended in %v", len(pids), time.Since(begin))
			_ = cmd.Wait()
			for _, pid := range pids {
				if in, _ := g.Contains(pid); in {
					if text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); len(text) > 0 && !strings.Contains(string(text), ") Z ") {
						t.Errorf("process %d is alive: %s", pid, text)
					}
				}
			}
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestLiveSweep(t *testing.T) {
	m := live(t)
	gone := exec.Command("/bin/true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	dead := m.owner
	dead.pid, dead.start = gone.Process.Pid, 1
	sleeper := exec.Command("/bin/sleep", "300")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() }()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", sleeper.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	stat, err := parseStat(string(text))
	if err != nil {
		t.Fatal(err)
	}
	live := m.owner
	live.pid, live.start = sleeper.Process.Pid, stat.start

	// Two other runs: managers like ours, with another owner.
	run := func(o owner) *Manager {
		return &Manager{cfg: m.cfg, k: m.k, v2: m.v2, places: m.places, owner: o, open: map[*Group]struct{}{}}
	}
	old, other := group(t, run(dead), Caps{Pids: 20}), group(t, run(live), Caps{Pids: 20})
	// A shell that forked before it was moved would leave its child outside.
	left, tell := start(t, old, nil, "/bin/sh", "-c", "read x; sleep 300 & wait")
	tell()
	_, tell = start(t, other, nil, "/bin/sh", "-c", "read x; sleep 300 & wait")
	tell()

	removed, err := m.Sweep()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(removed, old.name) || slices.Contains(removed, other.name) {
		t.Errorf("removed %v; want %s and not %s", removed, old.name, other.name)
	}
	if err := left.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("the dead run's box ended with %v", err)
	}
	for _, at := range old.spots {
		if _, err := os.Stat(at.dir); err == nil {
			t.Errorf("%s is still there", at.dir)
		}
	}
	if empty, err := other.Empty(); empty || err != nil {
		t.Errorf("the live run's box is gone (%v)", err)
	}
	kill(t, other)
	if err := other.Close(); err != nil {
		t.Error(err)
	}
}

// Several runs that start at once find the same groups of a dead one, and each
// loses some of them to the others while it looks. That is nobody's mistake.
func TestLiveSweepBySeveralAtOnce(t *testing.T) {
	m := live(t)
	gone := exec.Command("/bin/true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	dead := m.owner
	dead.pid, dead.start = gone.Process.Pid, 1
	was := &Manager{cfg: m.cfg, k: m.k, v2: m.v2, places: m.places, owner: dead, open: map[*Group]struct{}{}}
	for range 5 {
		var old []*Group
		for range 10 {
			g := group(t, was, Caps{Pids: 20})
			_, tell := start(t, g, nil, "/bin/sh", "-c", "read x; sleep 300 & wait")
			tell()
			old = append(old, g)
		}
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				if _, err := m.Sweep(); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		for _, g := range old {
			for _, at := range g.spots {
				if _, err := os.Stat(at.dir); err == nil {
					t.Errorf("%s is still there", at.dir)
				}
			}
		}
	}
}

func TestLiveCloseRemovesEverything(t *testing.T) {
	m := live(t)
	g := group(t, m, Caps{MemoryBytes: 64 << 20, Pids: 16})
	start(t, g, nil, "/bin/sh", "-c", "read x; sleep 300")
	if err := g.Close(); err == nil {
		t.Error("a group with a process in it was removed")
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	for _, dir := range m.Where() {
		if found, _ := filepath.Glob(filepath.Join(dir, namePrefix+"*-"+m.cfg.RunID+"-*")); len(found) > 0 {
			t.Errorf("left over: %v", found)
		}
	}
}

func TestLiveTwoRunsAtOnce(t *testing.T) {
	a, b := live(t), live(t)
	if !slices.Equal(a.Where(), b.Where()) {
		t.Errorf("one run works in %v, the other in %v", a.Where(), b.Where())
	}
	g, h := group(t, a, Caps{Pids: 5}), group(t, b, Caps{Pids: 5})
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if _, err := h.Stats(); err != nil {
		t.Errorf("one run's end hurts the other: %v", err)
	}
}

func TestLiveOOMWatchEndsWithItsContext(t *testing.T) {
	m := live(t)
	g := group(t, m, Caps{MemoryBytes: 64 << 20})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	acted := make(chan struct{})
	go func() { g.watch(ctx, acted); close(done) }()
	cancel()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("the watch goes on")
	}
	select {
	case <-acted:
		t.Error("the end of a context is taken for the OOM killer")
	default:
	}
}

func BenchmarkGroup(b *testing.B) {
	m := live(b)
	b.Run("what=new-close", func(b *testing.B) {
		for b.Loop() {
			g := group(b, m, Caps{MemoryBytes: 512 << 20, Pids: 256, CPUs: 1})
			if err := g.Close(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("what=new-watch-stats-kill-close", func(b *testing.B) {
		for b.Loop() {
			ctx, cancel := context.WithCancel(b.Context())
			g := group(b, m, Caps{MemoryBytes: 512 << 20, Pids: 256, CPUs: 1})
			g.OOM(ctx)
			if _, err := g.Stats(); err != nil {
				b.Fatal(err)
			}
			if err := g.Kill(ctx); err != nil {
				b.Fatal(err)
			}
			if err := g.Close(); err != nil {
				b.Fatal(err)
			}
			cancel()
		}
	})
	b.Run("what=open-close", func(b *testing.B) {
		for b.Loop() {
			if err := live(b).Close(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// What Born starts is in the group from its first instruction, the thread that
// started it is not, and Join then has nothing to move.
func TestLiveBorn(t *testing.T) {
	m := live(t)
	if m.Kind() != Kind1 {
		t.Log("cgroup2: the engine clones into the group by itself")
	}
	for range 20 {
		g, err := m.New("born", Caps{MemoryBytes: 64 << 20, Pids: 8})
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sleep", "30")
		if fd := g.CgroupFD(); fd >= 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd}
		}
		if err := g.Born(cmd.Start); err != nil {
			t.Fatal(err)
		}
		in, err := g.Contains(cmd.Process.Pid)
		if err != nil || !in {
			t.Errorf("the process was not born in the group: %v, %v", in, err)
		}
		if err := g.Join(cmd.Process.Pid); err != nil {
			t.Error(err)
		}
		if err := g.Kill(t.Context()); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait()
		if empty, err := g.Empty(); err != nil || !empty {
			t.Errorf("the group holds something of ours: %v, %v", empty, err)
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}
}
