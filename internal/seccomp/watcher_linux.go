package seccomp

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxEscapes = 16 // different ones that are kept; the rest are counted
	// After so many escapes the next ones wait their turn. A caller is stopped
	// while it waits, so a storm of them costs its box time and the host, which
	// the box's own limits do not cover, next to nothing.
	calmAfter = 1000
	calmPause = time.Millisecond
	// Calls that were withdrawn keep nobody waiting, so more of them are counted
	// between two pauses.
	calmWithdrawn = 100
	// A step that forks callers faster than they can be killed does not keep
	// Drain for longer.
	drainLimit = time.Second
	// wakeSignal does nothing to a thread that is not waiting at that moment,
	// so it is sent again after a while, and less and less often.
	firstWake, lastWake = 50 * time.Microsecond, 5 * time.Millisecond
)

// Escape is a forbidden system call that was stopped.
type Escape struct {
	Syscall string // a name, or "i386 system call 20"
	Program string // the caller's program; untrusted text, empty if not known
}

// WatchOptions are a Watcher's surroundings. The zero value is the real ones.
type WatchOptions struct {
	Proc string // where proc of our own pid namespace is; empty: /proc
}

// Watcher receives the reports of one filter, keeps them and kills the callers.
type Watcher struct {
	listener int
	proc     string
	namer    namer
	dying    deathbed
	done     chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex
	thread  int // the goroutine's, 0 before it runs and after it has ended
	kept    []Escape
	total   uint64
	drains  []chan struct{}
	closing bool
	ended   bool
	err     error
}

// NewWatcher takes over the listener that Install returned and starts to
// answer it. Reports made before are waiting and are not lost. On error the
// listener is closed, which leaves the box with ENOSYS for every escape.
func NewWatcher(listener int, opt WatchOptions) (*Watcher, error) {
	w := &Watcher{listener: listener, proc: opt.Proc, done: make(chan struct{})}
	if w.proc == "" {
		w.proc = "/proc"
	}
	w.dying.strike = w.strike
	err := w.prepare()
	if err != nil {
		unix.Close(listener)
		return nil, fmt.Errorf("watch for forbidden system calls: %w", err)
	}
	go w.run()
	return w, nil
}

func (w *Watcher) prepare() error {
	a, err := architectureOf(runtime.GOARCH)
	if err != nil {
		return err
	}
	if w.namer, err = newNamer(a); err != nil {
		return err
	}
	if err := sizesAgree(); err != nil {
		return err
	}
	unix.CloseOnExec(w.listener)
	return interruptsCalls(wakeSignal)
}

// Escapes gives the first different escapes and how many more there were,
// repetitions included. A call that a signal or its caller's death withdrew
// before it could be named is one of the latter, so it can be that none is kept
// and more is not zero. A program that restarts such a call makes it again, and
// it counts again.
func (w *Watcher) Escapes() (kept []Escape, more uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.kept), w.total - uint64(len(w.kept))
}

// Err is the first thing that went wrong. Nothing can be said then about the
// absence of escapes.
func (w *Watcher) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Drain returns once every call made before it is in Escapes, named or counted.
// A process must still be alive under the filter, as a box's first process is:
// with the last one the kernel forgets what was withdrawn and not yet counted.
func (w *Watcher) Drain() {
	request := make(chan struct{})
	w.mu.Lock()
	if w.ended {
		w.mu.Unlock()
		return
	}
	w.drains = append(w.drains, request)
	w.mu.Unlock()
	w.rouse(request, drainLimit)
}

// Close ends the watching. Processes that were still given time to die of
// SIGSYS die of SIGKILL. It is safe to call twice.
func (w *Watcher) Close() {
	w.mu.Lock()
	w.closing = true
	w.mu.Unlock()
	w.rouse(nil, 0)
	<-w.done
}

// rouse wakes the goroutine until it answers or has ended. No limit is 0.
func (w *Watcher) rouse(answer <-chan struct{}, limit time.Duration) {
	start := time.Now()
	for pause := firstWake; limit == 0 || time.Since(start) < limit; pause = min(2*pause, lastWake) {
		w.wake()
		// Not a timer: the runtime's are no finer than a millisecond, and a step
		// waits for this.
		nap := unix.NsecToTimespec(int64(pause))
		_ = unix.Nanosleep(&nap, nil)
		select {
		case <-answer:
			return
		case <-w.done:
			return
		default:
		}
	}
}

// wake sends one signal. The lock is held, for the thread is another
// goroutine's after the end.
func (w *Watcher) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.thread == 0 {
		return
	}
	if err := unix.Tgkill(unix.Getpid(), w.thread, wakeSignal); err != nil && w.err == nil {
		w.err = fmt.Errorf("wake the wait for forbidden system calls: %w", err)
	}
}

// run is the goroutine. It has a thread to itself and waits in the kernel.
func (w *Watcher) run() {
	runtime.LockOSThread()
	restore, err := admitWake()
	if err == nil {
		w.mu.Lock()
		w.thread = unix.Gettid()
		w.mu.Unlock()
		err = w.watch()
	}
	if err != nil {
		w.note(err)
	}
	w.dying.end()
	w.mu.Lock()
	w.ended, w.thread = true, 0
	// A signal that was sent before comes in here at the latest, not into the
	// system call of whatever has this thread next.
	unix.Close(w.listener)
	w.mu.Unlock()
	if restore != nil {
		restore()
	}
	// Not to be ended with the goroutine: processes that the thread started
	// earlier may be set to die with it.
	runtime.UnlockOSThread()
	close(w.done)
}

// watch takes reports until Close, an error, or the end of the last process
// under the filter.
func (w *Watcher) watch() error {
	withdrawn := 0
	for {
		// Only those who asked before the wait began can be told by its end that
		// everything before has been received.
		waiting, closing := w.asked()
		if closing {
			return nil
		}
		r, err := receive(w.listener)
		switch {
		case err == nil:
			if err := w.handle(r); err != nil {
				return err
			}
			w.calm(waiting)
		case errors.Is(err, unix.ENOENT):
			if gone, err := allGone(w.listener); gone || err != nil {
				return err
			}
			// The call was tried all the same.
			w.record("", "")
			if withdrawn++; withdrawn%calmWithdrawn == 0 {
				w.calm(waiting)
			}
		case errors.Is(err, unix.EINTR):
			w.answer(waiting)
			if gone, err := allGone(w.listener); gone || err != nil {
				return err
			}
		default:
			return fmt.Errorf("receive a forbidden system call: %w", err)
		}
	}
}

// asked says how many wait in Drain, and whether somebody waits in Close.
func (w *Watcher) asked() (waiting int, closing bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.drains), w.closing
}

// answer lets the first n of those in Drain go.
func (w *Watcher) answer(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range w.drains[:n] {
		close(d)
	}
	w.drains = slices.Delete(w.drains, 0, n)
}

// calm makes a storm of escapes a light breeze, except while somebody waits for
// its end.
func (w *Watcher) calm(waiting int) {
	if waiting == 0 && w.counted() > calmAfter {
		time.Sleep(calmPause)
	}
}

// handle takes one report: write it down, kill the caller, answer. In this
// order, so that whoever sees the caller dead can see the report.
func (w *Watcher) handle(r report) error {
	name := w.namer.name(r.Call)
	who, lookErr := look(w.proc, r.PID, w.room())
	pidfd := -1
	if lookErr == nil {
		pidfd, lookErr = unix.PidfdOpen(who.process, 0)
	}
	if !stillWaits(w.listener, r.ID) {
		// The ids may be another process's by now.
		w.record(name, "")
		if pidfd >= 0 {
			unix.Close(pidfd)
		}
		return nil
	}
	w.record(name, who.program)
	switch {
	case lookErr != nil:
		w.note(fmt.Errorf("find the process that made a forbidden system call: %w", lookErr))
	case who.dies && w.dying.take(pidfd):
	default:
		w.strike(pidfd, unix.SIGKILL)
		unix.Close(pidfd)
	}
	// Gone means dead, or pulled out by the signal that was just sent.
	if err := refuse(w.listener, r.ID); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("answer a forbidden system call: %w", err)
	}
	return nil
}

// room says whether another escape could still be kept; if not, there is no
// need to find out which program it was.
func (w *Watcher) room() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.kept) < maxEscapes
}

func (w *Watcher) counted() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.total
}

// record counts an escape, and keeps it if it has a name and is a new one.
func (w *Watcher) record(name, program string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.total++
	e := Escape{Syscall: name, Program: program}
	if name != "" && len(w.kept) < maxEscapes && !slices.Contains(w.kept, e) {
		w.kept = append(w.kept, e)
	}
}

// strike sends a signal to the process behind a pidfd, which cannot be another.
func (w *Watcher) strike(pidfd int, signal unix.Signal) {
	err := unix.PidfdSendSignal(pidfd, signal, nil, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		w.note(fmt.Errorf("kill the process that made a forbidden system call: %w", err))
	}
}

// note keeps the first error. A reported call stays refused whatever happens:
// once nobody listens, the kernel answers it with ENOSYS.
func (w *Watcher) note(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
}
