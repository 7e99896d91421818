package seccomp

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVar); role != "" {
		child(role)
	}
	os.Exit(m.Run())
}

// seen is what came of a program under the filter.
type seen struct {
	status  syscall.WaitStatus
	out     string
	escapes []Escape
	more    uint64
	took    time.Duration
}

type setting struct {
	env    []string
	attr   *syscall.SysProcAttr
	during func(*Watcher)
}

func self(t testing.TB) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func probeEnv(what, sigsys string) []string {
	return []string{probeVar + "=" + what, sigsysVar + "=" + sigsys}
}

// filtered runs a command under the filter, with a watcher as a host has it.
func filtered(t testing.TB, s setting, argv ...string) seen {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, self(t), argv...)
	cmd.Env = append(s.env, "GODEBUG=asyncpreemptoff=1")
	cmd.SysProcAttr = s.attr
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	listener, goOn := startFiltered(t, cmd)
	w, err := NewWatcher(listener, WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	start := time.Now()
	goOn()
	if s.during != nil {
		s.during(w)
	}
	_ = cmd.Wait() // its end is in the state
	took := time.Since(start)
	if ctx.Err() != nil {
		t.Fatalf("%v did not end; %s", argv, out.String())
	}
	w.Drain()
	if err := w.Err(); err != nil {
		t.Errorf("the watcher has an error: %v", err)
	}
	escapes, more := w.Escapes()
	return seen{cmd.ProcessState.Sys().(syscall.WaitStatus), out.String(), escapes, more, took}
}

// startFiltered starts this program, which puts the filter on, hands the listener
// over, and becomes its arguments when it is told to go on.
func startFiltered(t testing.TB, cmd *exec.Cmd, files ...*os.File) (listener int, goOn func()) {
	t.Helper()
	ours, theirs := socketPair(t)
	cmd.Env = append(append(os.Environ(), roleVar+"=install"), cmd.Env...)
	cmd.ExtraFiles = append([]*os.File{theirs}, files...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	listener, err := receiveListener(ours)
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		t.Fatalf("receive the listener: %v; %v", err, cmd.Stderr)
	}
	return listener, func() {
		t.Helper()
		if _, err := unix.Write(int(ours.Fd()), []byte{1}); err != nil {
			t.Fatal(err)
		}
	}
}

func socketPair(t testing.TB) (ours, theirs *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs = os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	return ours, theirs
}

func receiveListener(socket *os.File) (int, error) {
	control := make([]byte, unix.CmsgSpace(4))
	n, cn, _, _, err := unix.Recvmsg(int(socket.Fd()), make([]byte, 1), control, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, err
	}
	if n == 0 {
		return -1, fmt.Errorf("the child ended")
	}
	messages, err := unix.ParseSocketControlMessage(control[:cn])
	if err != nil || len(messages) != 1 {
		return -1, fmt.Errorf("%d messages, %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return -1, fmt.Errorf("%d descriptors, %w", len(fds), err)
	}
	return fds[0], nil
}

// diedOfSIGSYS admits a SIGKILL that came late: on a machine so busy that the
// process was not given the processor for killAfter, that is what it gets.
func diedOfSIGSYS(s seen) bool {
	return s.status.Signaled() &&
		(s.status.Signal() == unix.SIGSYS || s.status.Signal() == unix.SIGKILL && s.took >= killAfter)
}

func TestEachEscapeIsReportedAndKillsItsCaller(t *testing.T) {
	type attempt struct{ name, reported string }
	var all []attempt
	for _, e := range escapes {
		all = append(all, attempt{e.name, e.name})
	}
	if len(all) != 25 {
		t.Fatalf("%d escapes are tried, want the 24 and clone", len(all))
	}
	for _, e := range otherEscapes {
		all = append(all, attempt{e.name, e.reported})
	}
	for _, a := range all {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			got := filtered(t, setting{env: probeEnv("escape:"+a.name, "")}, self(t))
			if !diedOfSIGSYS(got) {
				t.Errorf("it ended with %#x after %v, want death by SIGSYS; %s", got.status, got.took, got.out)
			}
			want := []Escape{{Syscall: a.reported, Program: self(t)}}
			if diff := cmp.Diff(want, got.escapes); diff != "" || got.more != 0 {
				t.Errorf("reported (-want +got), and %d more:\n%s", got.more, diff)
			}
		})
	}
}

// Without the filter the same calls come back with an answer of the kernel's:
// what kills above is the filter.
func TestEscapesReturnWhereThereIsNoFilter(t *testing.T) {
	for _, e := range escapes {
		cmd := exec.Command(self(t))
		cmd.Env = append(append(os.Environ(), roleVar+"=probe"), probeEnv("escape:"+e.name, "")...)
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.HasPrefix(string(out), "survived: "+e.name) {
				t.Errorf("got %v, %q", err, out)
			}
		})
	}
}

func TestAnEscapeOfAGrandchildWhoseParentExitsZeroIsReported(t *testing.T) {
	got := filtered(t, setting{env: probeEnv("escape:mount", "")},
		"sh", "-c", `sh -c '"$0"; echo "ended with $?"; exit 0' "$0"; exit 0`, self(t))
	if !got.status.Exited() || got.status.ExitStatus() != 0 {
		t.Errorf("the parent ended with %#x, want 0", got.status)
	}
	// 128 + SIGSYS; see diedOfSIGSYS for the other.
	if late := got.took >= killAfter && strings.Contains(got.out, "ended with 137\n"); !late && !strings.Contains(got.out, "ended with 159\n") {
		t.Errorf("the grandchild's parent saw %q, want a death by SIGSYS", got.out)
	}
	if diff := cmp.Diff([]Escape{{"mount", self(t)}}, got.escapes); diff != "" {
		t.Errorf("reported (-want +got):\n%s", diff)
	}
}

func TestNoTreatmentOfSIGSYSSurvives(t *testing.T) {
	for _, how := range []string{"handled", "ignored", "blocked"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			got := filtered(t, setting{env: probeEnv("escape:mount", how)}, self(t))
			if !got.status.Signaled() || got.status.Signal() != unix.SIGKILL {
				t.Errorf("it ended with %#x, want death by SIGKILL; %s", got.status, got.out)
			}
			if diff := cmp.Diff([]Escape{{"mount", self(t)}}, got.escapes); diff != "" {
				t.Errorf("reported (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAThreadThatKeepsChangingItsMindAboutSIGSYSDoesNotSaveTheProcess(t *testing.T) {
	got := filtered(t, setting{env: probeEnv("race", "")}, self(t))
	if !got.status.Signaled() || strings.Contains(got.out, "survived") {
		t.Errorf("it ended with %#x; %s", got.status, got.out)
	}
	if len(got.escapes) != 1 {
		t.Errorf("reported %v", got.escapes)
	}
}

// The kernel drops SIGSYS for the first process of a pid namespace. It must die
// all the same, a little later; and its ids must be found from outside.
func TestAProcessThatSIGSYSCannotKillDiesOfSIGKILL(t *testing.T) {
	need.Root(t) // or no pid namespace can be made
	got := filtered(t, setting{
		env:  probeEnv("escape:mount", ""),
		attr: &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID},
	}, self(t))
	if !got.status.Signaled() || got.status.Signal() != unix.SIGKILL {
		t.Errorf("it ended with %#x, want death by SIGKILL; %s", got.status, got.out)
	}
	if got.took < killAfter || got.took > 500*time.Millisecond {
		t.Errorf("it lived for %v, want a little over %v", got.took, killAfter)
	}
	if diff := cmp.Diff([]Escape{{"mount", self(t)}}, got.escapes); diff != "" {
		t.Errorf("reported (-want +got):\n%s", diff)
	}
}

func TestAnEscapeOfOneThreadKillsTheWholeProcess(t *testing.T) {
	got := filtered(t, setting{env: probeEnv("thread escape", "")}, self(t))
	if !diedOfSIGSYS(got) || got.took > 2*time.Second {
		t.Errorf("it ended with %#x after %v, want death by SIGSYS at once; %s", got.status, got.took, got.out)
	}
}

func TestAFilterOfTheStepsOwnOpensNothing(t *testing.T) {
	t.Run("an allow-all filter on top changes nothing", func(t *testing.T) {
		got := filtered(t, setting{env: probeEnv("own filter", "")}, self(t))
		if !diedOfSIGSYS(got) || len(got.escapes) != 1 {
			t.Errorf("it ended with %#x, reported %v; %s", got.status, got.escapes, got.out)
		}
	})
	t.Run("a listener of its own is refused, and no_new_privs stays", func(t *testing.T) {
		got := filtered(t, setting{env: probeEnv("own listener", "")}, self(t))
		want := "own listener: " + unix.EBUSY.Error() + "\nno_new_privs off: " + unix.EINVAL.Error() + "\n"
		if got.out != want || len(got.escapes) != 0 {
			t.Errorf("got %q, want %q; reported %v", got.out, want, got.escapes)
		}
	})
}

func TestRefusedCallsHaveTheirErrors(t *testing.T) {
	got := filtered(t, setting{env: probeEnv("refusals", "")}, self(t))
	want := `vsock: address family not supported by protocol
alg: function not implemented
netlink: <nil>
limits of 1: operation not permitted
own limits: <nil>
set own limits: <nil>
clone3: function not implemented
io_uring_setup: function not implemented
keyctl: function not implemented
call -1: function not implemented
`
	if diff := cmp.Diff(want, got.out); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(got.escapes) != 0 || got.more != 0 {
		t.Errorf("reported %v and %d more", got.escapes, got.more)
	}
}

func TestOrdinaryProgramsRun(t *testing.T) {
	for _, test := range []struct {
		name string
		argv []string
		want string
	}{
		{"a pipeline", []string{"sh", "-c", "echo a | tr a b; (exit 3) || echo $?"}, "b\n3\n"},
		{"a listing", []string{"ls", "-l", "/dev/null"}, "/dev/null\n"},
		{"background jobs", []string{"sh", "-c", "for i in 1 2 3 4 5 6 7 8; do (sleep 0.01; echo x) & done; wait; echo end"}, "end\n"},
		{"Go threads that start processes", []string{self(t)}, "done\n"},
		{"Python threads", []string{"python3", "-c", `
import threading
done = []
ts = [threading.Thread(target=lambda: done.append(1)) for _ in range(50)]
[t.start() for t in ts]; [t.join() for t in ts]
print(len(done))`}, "50\n"},
		{"Python starting processes by vfork, posix_spawn and fork", []string{"python3", "-c", `
import os, subprocess
for kw in ({}, {"close_fds": False}, {"preexec_fn": lambda: None}, {"start_new_session": True}):
    assert subprocess.run(["true"], **kw).returncode == 0
pid = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 5"], {})
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
import multiprocessing as mp
with mp.Pool(3) as p: print(sum(p.map(abs, range(-9, 0))))`}, "45\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if test.argv[0] == "python3" {
				_, missing := exec.LookPath("python3")
				need.Met(t, "python3", missing)
			}
			got := filtered(t, setting{env: probeEnv("threads", "")}, test.argv...)
			if !got.status.Exited() || got.status.ExitStatus() != 0 || !strings.HasSuffix(got.out, test.want) {
				t.Errorf("ended with %#x and %q, want 0 and %q", got.status, got.out, test.want)
			}
			if len(got.escapes) != 0 || got.more != 0 {
				t.Errorf("reported %v and %d more", got.escapes, got.more)
			}
		})
	}
}

func TestAStormOfEscapesIsCountedAndBounded(t *testing.T) {
	got := filtered(t, setting{env: probeEnv("storm", "")}, self(t))
	if got.out != "done\n" {
		t.Errorf("the storm says %q", got.out)
	}
	if diff := cmp.Diff([]Escape{{"mount", self(t)}}, got.escapes); diff != "" {
		t.Errorf("reported (-want +got):\n%s", diff)
	}
	if n := got.more + uint64(len(got.escapes)); n != 2000 {
		t.Errorf("%d escapes are counted, want 2000", n)
	}
	t.Logf("2000 escapes in %v", got.took)
}

func TestAReportMadeBeforeAnybodyWatchesIsNotLost(t *testing.T) {
	cmd := exec.Command(self(t), self(t))
	cmd.Env = probeEnv("escape:mount", "")
	listener, goOn := startFiltered(t, cmd)
	goOn()
	fds := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
	for n := 0; n == 0; {
		var err error
		if n, err = unix.Poll(fds, 5000); err != nil && err != unix.EINTR || err == nil && n == 0 {
			t.Fatalf("no report came: %v", err)
		}
	}
	w, err := NewWatcher(listener, WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	w.Drain() // and nothing else: the process need not be dead yet
	if got, more := w.Escapes(); len(got) != 1 || more != 0 {
		t.Errorf("reported %v and %d more", got, more)
	}
	_ = cmd.Wait()
}

func TestAWatcherEndsWithItsLastProcess(t *testing.T) {
	var watcher *Watcher
	filtered(t, setting{during: func(w *Watcher) { watcher = w }}, "true")
	select {
	case <-watcher.done:
	case <-time.After(5 * time.Second):
		t.Fatal("the watcher still runs")
	}
	watcher.Drain()
	watcher.Close()
	watcher.Close()
	if err := watcher.Err(); err != nil {
		t.Errorf("it ended with an error: %v", err)
	}
}

func TestCloseEndsAWatcherWhoseProcessLives(t *testing.T) {
	before := runtime.NumGoroutine()
	got := filtered(t, setting{during: func(w *Watcher) {
		w.Drain()
		w.Close()
		w.Drain()
		if n := runtime.NumGoroutine(); n > before+3 { // those of os/exec
			t.Errorf("%d goroutines, %d before", n, before)
		}
	}, env: probeEnv("escape:mount", "")}, self(t))
	// Nobody listens: the call does not exist, and cannot succeed.
	if !strings.Contains(got.out, "survived: mount function not implemented") {
		t.Errorf("without a listener the call gave %q", got.out)
	}
}

func TestADescriptorThatIsNoListenerIsAnError(t *testing.T) {
	r, wr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer wr.Close()
	if _, err := wr.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Dup(int(r.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	w, err := NewWatcher(fd, WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	<-w.done
	w.Close()
	if w.Err() == nil {
		t.Error("it is watched without an error")
	}
}

func TestInstallRefusesWhatIsNoFilter(t *testing.T) {
	if fd, err := Install([]byte("nonsense")); err == nil {
		t.Errorf("it is installed, listener %d", fd)
	}
	if err := InstallPlain([]byte("nonsense")); err == nil {
		t.Error("it is installed")
	}
}

func TestWhatIsReadOfACaller(t *testing.T) {
	const rest = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001000\nSigCgt:\t0000000000000002\n"
	for _, test := range []struct {
		name, text string
		want       caller
		bad        bool
	}{
		{"a plain process dies of SIGSYS", "Name:\tsh\nTgid:\t7\n" + rest, caller{7, "sh", true}, false},
		{"one that catches it does not", "Name:\tsh\nTgid:\t7\nSigBlk:\t0\nSigIgn:\t0\nSigCgt:\t0000000040000000\n", caller{7, "sh", false}, false},
		{"one that ignores it does not", "Name:\tsh\nTgid:\t7\nSigBlk:\t0\nSigIgn:\t40000000\nSigCgt:\t0\n", caller{7, "sh", false}, false},
		{"one that blocks it does not", "Name:\tsh\nTgid:\t7\nSigBlk:\t40000000\nSigIgn:\t0\nSigCgt:\t0\n", caller{7, "sh", false}, false},
		{"one whose masks are not all seen may not", "Name:\tsh\nTgid:\t7\nSigBlk:\t0\n", caller{7, "sh", false}, false},
		{"a name may look like a line", "Name:\tTgid: 3\nTgid:\t7\n" + rest, caller{7, "Tgid: 3", true}, false},
		{"no thread group is an error", "Name:\tsh\n" + rest, caller{}, true},
		{"thread group 0 is an error", "Name:\tsh\nTgid:\t0\n" + rest, caller{}, true},
		{"a mask that is no number is an error", "Tgid:\t7\nSigBlk:\tx\n", caller{}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := parseStatus([]byte(test.text))
			if (err != nil) != test.bad {
				t.Fatalf("error %v", err)
			}
			if got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
	if got := bounded(strings.Repeat("é", 200)); got != strings.Repeat("é", 128)+"…" {
		t.Errorf("a long name is cut to %q", got)
	}
}

// A bare call, outside and under the filter.
func BenchmarkGetppid(b *testing.B) {
	b.Run("filter=none", func(b *testing.B) {
		for b.Loop() {
			unix.RawSyscall(unix.SYS_GETPPID, 0, 0, 0)
		}
	})
	for _, call := range []struct {
		name string
		nr   uintptr
	}{{"getppid", unix.SYS_GETPPID}, {"sched_setaffinity", unix.SYS_SCHED_SETAFFINITY}} {
		b.Run("filter=box/call="+call.name, func(b *testing.B) {
			runtime.LockOSThread() // for good: the thread ends with the goroutine
			p, err := Compile(hostArch(b), testOptions)
			if err != nil {
				b.Fatal(err)
			}
			if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
				b.Fatal(err)
			}
			listener, err := Install(p.Raw())
			if err != nil {
				b.Fatal(err)
			}
			defer unix.Close(listener)
			for b.Loop() {
				unix.RawSyscall(call.nr, 1, 0, 0)
			}
		})
	}
}
