package seccomp

import (
	"encoding/binary"
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
	// A process that SIGSYS should kill gets this long, for a handler may have
	// been set in the meantime, or the signal blocked, or the process stopped.
	killAfter = 50 * time.Millisecond
	// This many are given that time at once. One more dies of SIGKILL at once.
	maxDying = 64
	// After so many escapes the next ones wait their turn. A caller is stopped
	// while it waits, so a storm of them costs its box time and the host, which
	// the box's own limits do not cover, next to nothing.
	calmAfter = 1000
	calmPause = time.Millisecond
	// A step that forks callers faster than they can be killed does not keep
	// Drain for longer.
	drainLimit = time.Second
)

// Escape is a forbidden system call that was stopped.
type Escape struct {
	Syscall string // a name, or "i386 system call 20"
	Program string // the caller's program; untrusted text, empty if not known
}

// WatchOptions are a Watcher's surroundings. The zero value is the real ones.
type WatchOptions struct {
	Proc string           // where proc of our own pid namespace is; empty: /proc
	Now  func() time.Time // nil: time.Now
}

// Watcher receives the reports of one filter, keeps them and kills the callers.
type Watcher struct {
	listener int
	wake     int // eventfd
	proc     string
	now      func() time.Time
	namer    namer
	done     chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex
	kept    []Escape
	total   uint64
	drains  []chan struct{}
	closing bool
	ended   bool
	err     error
}

// dying is a process that was sent SIGSYS.
type dying struct {
	pidfd int
	until time.Time
}

// NewWatcher takes over the listener that Install returned and starts to
// answer it. Reports made before are waiting and are not lost. On error the
// listener is closed, which leaves the box with ENOSYS for every escape.
func NewWatcher(listener int, opt WatchOptions) (*Watcher, error) {
	w := &Watcher{listener: listener, proc: opt.Proc, now: opt.Now, done: make(chan struct{})}
	if w.proc == "" {
		w.proc = "/proc"
	}
	if w.now == nil {
		w.now = time.Now
	}
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
	w.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	return err
}

// Escapes gives the first different escapes and how many more there were,
// repetitions included.
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

// Drain returns once no report is waiting: all calls made before Drain are then
// in Escapes.
func (w *Watcher) Drain() {
	request := make(chan struct{})
	w.mu.Lock()
	if w.ended {
		w.mu.Unlock()
		return
	}
	w.drains = append(w.drains, request)
	w.rouse()
	w.mu.Unlock()

	limit := time.NewTimer(drainLimit)
	defer limit.Stop()
	select {
	case <-request:
	case <-w.done:
	case <-limit.C:
	}
}

// Close ends the watching. Processes that were still given time to die of
// SIGSYS die of SIGKILL. It is safe to call twice.
func (w *Watcher) Close() {
	w.mu.Lock()
	w.closing = true
	w.rouse()
	w.mu.Unlock()
	<-w.done
}

// rouse wakes the goroutine. The lock is held, for the descriptor may be
// another one's after the end.
func (w *Watcher) rouse() {
	if w.ended {
		return
	}
	one := binary.NativeEndian.AppendUint64(nil, 1)
	// It can only fail by being full, and then the goroutine is awake.
	_, _ = unix.Write(w.wake, one)
}

// run is the goroutine: one wait for the reports, for us, and for the deaths.
func (w *Watcher) run() {
	var victims []dying
	defer func() {
		for _, v := range victims {
			w.strike(v.pidfd, unix.SIGKILL)
			unix.Close(v.pidfd)
		}
		w.mu.Lock()
		w.ended = true
		unix.Close(w.wake)
		unix.Close(w.listener)
		w.mu.Unlock()
		close(w.done)
	}()
	for {
		w.mu.Lock()
		closing := w.closing
		drains := w.drains
		w.drains = nil
		w.mu.Unlock()
		if closing {
			return
		}

		fds := make([]unix.PollFd, 0, 2+len(victims))
		fds = append(fds, unix.PollFd{Fd: int32(w.wake), Events: unix.POLLIN}, unix.PollFd{Fd: int32(w.listener), Events: unix.POLLIN})
		for _, v := range victims {
			fds = append(fds, unix.PollFd{Fd: int32(v.pidfd), Events: unix.POLLIN})
		}
		if _, err := unix.Poll(fds, w.patience(drains, victims)); err != nil {
			w.putBack(drains)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			w.note(fmt.Errorf("wait for forbidden system calls: %w", err))
			return
		}

		victims = w.bury(victims, fds[2:])
		if fds[0].Revents&unix.POLLIN != 0 {
			var count [8]byte
			_, _ = unix.Read(w.wake, count[:])
		}
		switch events := fds[1].Revents; {
		case events&unix.POLLIN != 0:
			w.putBack(drains)
			var err error
			if victims, err = w.handle(victims); err != nil {
				w.note(err)
				return
			}
			if len(drains) == 0 && w.counted() > calmAfter {
				time.Sleep(calmPause)
			}
		case events&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0:
			if events&unix.POLLHUP == 0 {
				w.note(fmt.Errorf("wait for forbidden system calls: the descriptor is no listener"))
			}
			return // every process under the filter is dead
		default:
			for _, d := range drains {
				close(d)
			}
		}
	}
}

// patience is how long to wait, in milliseconds.
func (w *Watcher) patience(drains []chan struct{}, victims []dying) int {
	if len(drains) > 0 {
		return 0
	}
	if len(victims) == 0 {
		return -1
	}
	left := victims[0].until.Sub(w.now()) // the oldest comes first
	return max(0, int((left+time.Millisecond-1)/time.Millisecond))
}

func (w *Watcher) putBack(drains []chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drains = append(w.drains, drains...)
}

// bury forgets the dead and kills those whose time is up.
func (w *Watcher) bury(victims []dying, polled []unix.PollFd) []dying {
	now := w.now()
	alive := victims[:0]
	for i, v := range victims {
		dead := polled[i].Revents != 0
		if !dead && now.Before(v.until) {
			alive = append(alive, v)
			continue
		}
		if !dead {
			w.strike(v.pidfd, unix.SIGKILL)
		}
		unix.Close(v.pidfd)
	}
	return alive
}

// handle takes one report: write it down, kill the caller, answer. In this
// order, so that whoever sees the caller dead can see the report.
func (w *Watcher) handle(victims []dying) ([]dying, error) {
	r, err := receive(w.listener)
	switch {
	case errors.Is(err, unix.ENOENT):
		// A signal or its death took the caller away before it could be named.
		// The call was tried all the same.
		w.record("", "")
		return victims, nil
	case err != nil:
		return victims, fmt.Errorf("receive a forbidden system call: %w", err)
	}

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
		return victims, nil
	}
	w.record(name, who.program)
	switch {
	case lookErr != nil:
		w.note(fmt.Errorf("find the process that made a forbidden system call: %w", lookErr))
	case who.dies && len(victims) < maxDying:
		w.strike(pidfd, unix.SIGSYS)
		victims = append(victims, dying{pidfd, w.now().Add(killAfter)})
	default:
		w.strike(pidfd, unix.SIGKILL)
		unix.Close(pidfd)
	}
	// Gone means dead, or pulled out by the signal that was just sent.
	if err := refuse(w.listener, r.ID); err != nil && !errors.Is(err, unix.ENOENT) {
		return victims, fmt.Errorf("answer a forbidden system call: %w", err)
	}
	return victims, nil
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
