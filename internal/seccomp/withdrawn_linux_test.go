package seccomp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What an attacker does here: a second thread floods the calling one with a
// signal whose handler does not restart calls. The forbidden call is then over
// before the host has heard of it, and the process can go on as if nothing had
// been tried.

// withdrawVar has how often the probe tries in one process, at most. 0 is one
// call without a flood, which death withdraws.
const withdrawVar = "SECCOMP_TEST_WITHDRAW"

// triesFD is where the probe writes one byte before each call.
const triesFD = 4

// withdraw makes forbidden calls under a flood of signals until one of them
// kills it, then exits 0.
func withdraw() error {
	tries, err := strconv.Atoi(os.Getenv(withdrawVar))
	if err != nil {
		return err
	}
	if err := treatSIGSYS(""); err != nil {
		return err
	}
	if err := interruptsCalls(unix.SIGUSR1); err != nil {
		return err
	}
	runtime.LockOSThread()
	place, pid, me := nowhere(), uintptr(unix.Getpid()), uintptr(unix.Gettid())
	if tries == 0 {
		unix.RawSyscall6(unix.SYS_MOUNT, place, place, 0, 0, 0, 0)
		return errors.New("the call came back")
	}
	flooding := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		close(flooding)
		for {
			unix.RawSyscall(unix.SYS_TGKILL, pid, me, uintptr(unix.SIGUSR1))
		}
	}()
	<-flooding
	time.Sleep(time.Millisecond)
	b := []byte{1}
	for range tries {
		for {
			_, _, errno := unix.RawSyscall(unix.SYS_WRITE, triesFD, uintptr(unsafe.Pointer(&b[0])), 1)
			if errno == 0 {
				break
			}
			if errno != unix.EINTR {
				return errno
			}
		}
		if _, _, errno := unix.RawSyscall6(unix.SYS_MOUNT, place, place, 0, 0, 0, 0); errno == unix.ENOSYS {
			return fmt.Errorf("nobody listens: %w", errno)
		}
	}
	for {
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
}

// hold is what a box's first process does: it carries the filter on, outlives
// the step, and starts it again whenever it is asked to.
func hold() error {
	if err := unix.Setrlimit(unix.RLIMIT_CPU, &unix.Rlimit{Cur: 20, Max: 20}); err != nil {
		return err
	}
	for {
		cmd := exec.Command(os.Args[0])
		// The runtime's own signals restart calls, and a restarted one counts
		// twice.
		cmd.Env = append(os.Environ(), probeVar+"=withdraw", "GODEBUG=asyncpreemptoff=1", "GOMAXPROCS=4")
		cmd.Stderr = os.Stderr
		cmd.ExtraFiles = []*os.File{nil, os.NewFile(triesFD, "tries")}
		// Nothing is to be left of it, however the test ends.
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			return err
		}
		if os.Getenv(withdrawVar) == "0" { // it waits in its call by then
			time.Sleep(300 * time.Millisecond)
			_ = cmd.Process.Kill()
		}
		_ = cmd.Wait() // its end is in the state
		status := cmd.ProcessState.Sys().(syscall.WaitStatus)
		if status.Exited() && status.ExitStatus() != 0 {
			return fmt.Errorf("the attacker ended with %#x", status)
		}
		if _, err := fmt.Fprintf(os.Stdout, "%t\n", status.Signaled()); err != nil {
			return err
		}
		if n, err := os.Stdin.Read(make([]byte, 1)); n == 0 || err != nil {
			return nil
		}
	}
}

// attacker is a box with the filter in which a step withdraws its calls.
type attacker struct {
	listener int
	tries    int // not blocking
	out, in  *os.File
	counted  int
}

// attack starts the box, and the step in it for the first time.
func attack(t *testing.T, perProcess int) *attacker {
	t.Helper()
	pipe := func() (r, w *os.File) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close(); w.Close() })
		return r, w
	}
	tries, triesIn := pipe()
	triesFD := int(tries.Fd()) // asking again would make it block again
	if err := unix.SetNonblock(triesFD, true); err != nil {
		t.Fatal(err)
	}
	out, outIn := pipe()
	inOut, in := pipe()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	cmd := exec.CommandContext(ctx, self(t), self(t))
	cmd.Env = append(probeEnv("hold", ""), withdrawVar+"="+strconv.Itoa(perProcess))
	cmd.Stdin, cmd.Stdout = inOut, outIn
	var says bytes.Buffer
	cmd.Stderr = &says
	listener, goOn := startFiltered(t, cmd, triesIn)
	t.Cleanup(func() {
		in.Close()
		defer cancel()
		if err := cmd.Wait(); err != nil || says.Len() > 0 {
			t.Errorf("the box ended with %v; %s", err, says.String())
		}
	})
	triesIn.Close()
	outIn.Close()
	inOut.Close()
	goOn()
	return &attacker{listener: listener, tries: triesFD, out: out, in: in}
}

// ended waits for the step and says how many calls were made so far and whether
// one of the last was reported in time to kill it.
func (a *attacker) ended(t *testing.T) (tries int, killed bool) {
	t.Helper()
	if err := a.out.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fscanf(a.out, "%t\n", &killed); err != nil {
		t.Fatalf("wait for the attacker: %v", err)
	}
	for buf := make([]byte, 4096); ; {
		n, err := unix.Read(a.tries, buf)
		if err == unix.EAGAIN {
			return a.counted, killed
		}
		if err != nil || n == 0 {
			t.Fatalf("read how often it tried: %d, %v", n, err)
		}
		a.counted += n
	}
}

func (a *attacker) again(t *testing.T) {
	t.Helper()
	if _, err := a.in.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
}

func sumOf(w *Watcher) int {
	kept, more := w.Escapes()
	return len(kept) + int(more)
}

func TestEveryCallThatASignalWithdrawsIsCounted(t *testing.T) {
	const want, patience = 200, 10 * time.Second
	start := time.Now()
	a := attack(t, 1)
	w, err := NewWatcher(a.listener, WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	tries, missed, killed := 0, 0, 0
	for {
		var dead bool
		tries, dead = a.ended(t)
		w.Drain()
		if dead {
			killed++
		}
		if got := sumOf(w); got != tries-missed {
			t.Errorf("after %d calls %d are counted", tries, got)
			missed = tries - got
		}
		if tries >= want || time.Since(start) > patience {
			break
		}
		a.again(t)
	}
	t.Logf("of %d calls %d were withdrawn, %d of them unseen", tries, tries-killed, missed)
	// One processor has either the flood or the call.
	if killed == tries && runtime.NumCPU() > 1 {
		t.Error("no signal withdrew a call, so nothing is shown")
	}
	if err := w.Err(); err != nil {
		t.Error(err)
	}
}

// As above, with the time of the attack chosen best: nobody listens yet.
func TestEveryCallWithdrawnBeforeAnybodyWatchesIsCounted(t *testing.T) {
	const calls = 400
	a := attack(t, calls)
	tries, killed := a.ended(t)
	if tries != calls || killed {
		t.Fatalf("%d calls were made, killed %t, want %d", tries, killed, calls)
	}
	w, err := NewWatcher(a.listener, WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	start := time.Now()
	w.Drain()
	took := time.Since(start)
	if kept, more := w.Escapes(); len(kept) != 0 || more != calls {
		t.Errorf("%v are named and %d more counted, want %d without a name", kept, more, calls)
	}
	t.Logf("counted in %v", took)
	if err := w.Err(); err != nil {
		t.Error(err)
	}
}

func TestACallThatDeathWithdrawsIsCounted(t *testing.T) {
	a := attack(t, 0)
	if _, killed := a.ended(t); !killed {
		t.Fatal("it was not killed")
	}
	w, err := NewWatcher(a.listener, WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	w.Drain()
	if kept, more := w.Escapes(); len(kept) != 0 || more != 1 {
		t.Errorf("%v are named and %d more counted, want one without a name", kept, more)
	}
}

// idle gives a watcher with a filter that nobody uses but a thread of ours.
func idle(t testing.TB) (*Watcher, func()) {
	t.Helper()
	type installed struct {
		fd  int
		err error
	}
	out, stop, stopped := make(chan installed), make(chan struct{}), make(chan struct{})
	p, err := Compile(hostArch(t), testOptions)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		defer close(stopped)
		err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		fd := -1
		if err == nil {
			fd, err = Install(p.Raw())
		}
		out <- installed{fd, err}
		<-stop
	}()
	i := <-out
	if i.err != nil {
		t.Fatal(i.err)
	}
	w, err := NewWatcher(i.fd, WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return w, func() { close(stop); <-stopped }
}

func TestDrainAndCloseWakeAWatcherThatNothingHappensTo(t *testing.T) {
	threads := func() int {
		list, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	var longest, sum time.Duration
	before, goroutines := 0, 0
	const rounds, perRound = 30, 10
	for i := range rounds {
		if i == rounds/3 { // by then the runtime has the threads it wants
			before, goroutines = threads(), runtime.NumGoroutine()
		}
		w, end := idle(t)
		for range perRound {
			start := time.Now()
			w.Drain()
			took := time.Since(start)
			sum += took
			longest = max(longest, took)
		}
		w.Close()
		end()
		if got := sumOf(w); got != 0 || w.Err() != nil {
			t.Fatalf("%d escapes are counted, error %v", got, w.Err())
		}
	}
	t.Logf("Drain takes %v, at most %v", sum/(rounds*perRound), longest)
	if longest > drainLimit/2 {
		t.Errorf("a Drain took %v", longest)
	}
	if n := threads(); n > before+5 {
		t.Errorf("%d threads, %d before", n, before)
	}
	if n := runtime.NumGoroutine(); n > goroutines+2 {
		t.Errorf("%d goroutines, %d before", n, goroutines)
	}
}

// The last process takes the kernel's count with it, and the answer that no
// process is left must not be taken for a withdrawn call.
func TestTheEndOfAFilterIsNoEscape(t *testing.T) {
	for range 30 {
		w, end := idle(t)
		end()
		w.Drain()
		w.Close()
		if got := sumOf(w); got != 0 || w.Err() != nil {
			t.Fatalf("%d escapes are counted, error %v", got, w.Err())
		}
	}
}

func TestAProcessOutOfReachOfSIGSYSIsNotKeptWaitingForItsTurn(t *testing.T) {
	var struck []unix.Signal
	d := deathbed{strike: func(_ int, s unix.Signal) { struck = append(struck, s) }}
	pidfd := func() int {
		fd, err := unix.PidfdOpen(os.Getpid(), 0)
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	for range maxDying {
		if !d.take(pidfd()) {
			t.Fatal("there is no room for as many as there should be")
		}
	}
	fd := pidfd()
	if d.take(fd) {
		t.Error("there is room for one more")
	}
	unix.Close(fd)
	time.Sleep(2 * killAfter)
	d.mu.Lock()
	left, first, last := len(d.list), struck[0], struck[len(struck)-1]
	all := len(struck)
	d.mu.Unlock()
	if left != 0 || all != 2*maxDying || first != unix.SIGSYS || last != unix.SIGKILL {
		t.Errorf("%d are left of %d signals from %v to %v", left, all, first, last)
	}
	d.end()
	fd = pidfd()
	defer unix.Close(fd)
	if d.take(fd) {
		t.Error("it takes one after the end")
	}
}

// What an idle watcher costs a step that ends.
func BenchmarkDrain(b *testing.B) {
	w, end := idle(b)
	for b.Loop() {
		w.Drain()
	}
	w.Close()
	end()
}
