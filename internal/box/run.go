package box

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxinit"
	"github.com/untrusted-steps/untrusted-steps/internal/egress"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
	"github.com/untrusted-steps/untrusted-steps/internal/seccomp"
)

const (
	// buildLimit bounds the building of a box. It is not the step's deadline:
	// a box that is not ready by then is no verdict about the step.
	buildLimit = 60 * time.Second
	// drainLimit bounds the wait for output and for the end of processes after
	// the kill. The kernel needs milliseconds, an emulated machine seconds.
	drainLimit = 10 * time.Second
	// endSoon is how long the end of the first process may take before what is
	// left in the box is ended one by one.
	endSoon = 50 * time.Millisecond
	// cancelLimit bounds the same after a cancel: whoever cancels waits 5 s.
	cancelLimit = 3 * time.Second
)

// setIDFilter is for boxes that can write to the host.
var setIDFilter = sync.OnceValues(func() ([]byte, error) {
	p, err := seccomp.CompileSetID(runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	return p.Raw(), nil
})

// Job is one step to run in one box.
type Job struct {
	Spec   Spec
	Engine Engine
	// Group is the step's control group; limits.None() where nothing is capped.
	Group *limits.Group
	// Proxy serves the box's way out; nil unless the network is the allowlist.
	// Forwards belong to the places of Spec.Listen, one each.
	// A refusal of which ExpectDenied speaks is no evidence.
	Proxy        *egress.Proxy
	Forwards     []egress.Forward
	ExpectDenied []egress.Rule
	// Ready is waited for when the box is built, before the step starts; it may
	// be nil. Its error means that the step is not to start: no verdict.
	Ready func() error
	// Stdout and Stderr take what the step writes, up to MaxOutput bytes each,
	// and Slack bytes more, which let a masking writer see whether a secret lies
	// across the cut. What is kept is the writer's to cut.
	Stdout, Stderr   io.Writer
	MaxOutput, Slack int64
	// Files are descriptors that the step has besides, from 3 on. They stay the
	// caller's to close.
	Files []*os.File
	// CallerPath is the caller's own PATH. Nothing in the box comes from it: it is
	// where a command that the box lacks is looked for, to say how it could be shown.
	CallerPath string
	// Full is closed when the step has written more than it may: it is ended then.
	Full <-chan struct{}
	// Started is called once the step's command runs; it may be nil.
	Started func()
}

// Stream is what became of one output stream.
type Stream struct {
	Bytes     int64 // written by the step, kept or not
	Truncated bool
}

// Outcome is what was measured in one run of one step.
type Outcome struct {
	Evidence       Evidence
	Startup        time.Duration // until the step's command ran
	Duration       time.Duration // of the step itself
	Stdout, Stderr Stream
	Stats          limits.Stats
	// NoRoute is how often a process of the step tried to reach an address that the
	// box has no way to, as the kernel counted it; 0 also where that is not known.
	NoRoute uint64
	// Full are file systems in memory without room when the step's own process had
	// ended; none where its end was not seen.
	Full []FullTmpfs
	// NotBegun: a Live whose process had ended before this piece of work was there.
	NotBegun bool
	// Note is what the engine itself said; untrusted text.
	Note string
	// Cause is the error behind Evidence.Lost where the box could not be built;
	// it decides nothing. Whoever gives advice asks what it is.
	Cause error
}

// FullTmpfs is a file system in memory that had no room left, for bytes or for files.
type FullTmpfs = boxinit.Full

// Run builds a box, runs the step in it and takes the box away again. It
// returns when nothing of the step is alive. Cancelling the context ends the
// box and marks the evidence as cancelled.
func Run(ctx context.Context, j Job) Outcome {
	r := newRunner(j)
	r.run(ctx)
	return r.out
}

func newRunner(j Job) *runner {
	return &runner{job: j, now: time.Now, timer: func(d time.Duration) (<-chan time.Time, func() bool) {
		t := time.NewTimer(d)
		return t.C, t.Stop
	}}
}

type runner struct {
	job   Job
	out   Outcome
	built *Built
	fd    int // our end of the control socket

	// The clock of the step's deadline, in two parts: what the time is, and who
	// wakes us. Only the first one decides.
	now   func() time.Time
	timer func(time.Duration) (<-chan time.Time, func() bool)

	// said is what the process says that a piece of its work ended with, and lives
	// that the box is then as it was; see Live.
	said  <-chan int
	lives bool

	watcher  *seccomp.Watcher
	pumps    []*pump
	messages chan frame
	lostWay  chan error // the proxy's end, while it should live
	noRoute  *noRoute
	way      *way
	cpus     []int // that the step is started on; none for all
	// gone says that the process has ended, or the first one has; quiet is closed
	// when nothing more will be said, and asked gets a word for each count that was
	// asked for.
	gone     atomic.Bool
	quiet    chan struct{}
	asked    chan struct{}
	giveBack func()
	// counted is the last word on the step's processes of a box that counts them
	// by itself.
	counting sync.Mutex
	counted  *boxinit.Counted
}

// way is the proxy at work.
type way struct {
	stop   func()
	served sync.WaitGroup
}

type frame struct {
	m   boxinit.Message
	fds []int
	err error
}

func (r *runner) lost(format string, a ...any) {
	if r.out.Evidence.Lost == "" {
		r.out.Evidence.Lost = fmt.Sprintf(format, a...)
	}
}

func (r *runner) run(ctx context.Context) {
	started, ok := r.open(ctx)
	if r.built == nil {
		return
	}
	defer r.finish()
	if !ok {
		return
	}
	// The clock began when the command was asked for, so a slow start of it
	// takes from the step's time, never adds to it.
	r.watch(ctx, started)
	r.out.Duration = r.now().Sub(started)
}

// open builds the box and starts the step in it. Where there is a box after all,
// somebody has to finish it.
func (r *runner) open(ctx context.Context) (started time.Time, ok bool) {
	s, begun := r.job.Spec, r.now()
	r.out.Evidence.TimeoutS = s.TimeoutS
	r.out.Evidence.MemoryMb = s.MemoryBytes >> 20
	r.out.Evidence.Pids = s.Pids

	// They are the step's until finish has ended it.
	r.cpus, r.giveBack = takeCPUs(s.CPUs)

	build, cancel := context.WithTimeout(ctx, buildLimit)
	defer cancel()
	built, err := r.job.Engine.Start(build, s, r.job.Group)
	if err != nil {
		r.giveBack()
		r.startFailed(ctx, err)
		return started, false
	}
	r.built = built
	r.fd = int(built.Control.Fd())
	r.messages, r.quiet, r.asked = make(chan frame, 8), make(chan struct{}), make(chan struct{}, 1)
	go r.receive()

	if !r.prepare(build) {
		if ctx.Err() != nil {
			r.out.Evidence.Cancelled = true
		}
		return started, false
	}
	if r.job.Ready != nil {
		if err := r.job.Ready(); err != nil {
			r.lost("%v", err)
			return started, false
		}
	}
	started = r.now()
	if !r.start(build) {
		return started, false
	}
	r.out.Startup = r.now().Sub(begun)
	if r.job.Started != nil {
		r.job.Started()
	}
	return started, true
}

func (r *runner) startFailed(ctx context.Context, err error) {
	// An engine that gave up half-way may have left something in the group.
	end, cancel := context.WithTimeout(context.Background(), drainLimit)
	defer cancel()
	if kerr := r.job.Group.Kill(end); kerr != nil {
		r.lost("what was started for the box could not be ended: %v", kerr)
	}
	var se *StartupError
	switch {
	case ctx.Err() != nil:
		r.out.Evidence.Cancelled = true
	case errors.As(err, &se):
		r.out.Evidence.StartupFailure = se.Why
	default:
		r.lost("the box could not be built: %v", err)
		r.out.Cause = err
	}
}

// receive reads the first process's words until it is gone. What it counts comes at
// any time, also while nobody waits for a word, and so is taken here.
func (r *runner) receive() {
	defer close(r.messages)
	for {
		m, fds, err := boxinit.Receive(r.fd)
		if err == nil && m.Counted != nil {
			closeFDs(fds)
			r.count(m.Counted)
			continue
		}
		if err == nil && m.Exited != nil {
			r.count(m.Exited.Counted)
		}
		if err != nil || m.Exited != nil {
			r.gone.Store(true)
		}
		if err != nil {
			close(r.quiet)
		}
		r.messages <- frame{m, fds, err}
		if err != nil {
			return
		}
	}
}

// next waits for one message. ok is false when there is none to come; why is
// then on record.
func (r *runner) next(ctx context.Context, what string) (frame, bool) {
	select {
	case f := <-r.messages:
		if f.err == nil && f.m.Failed == nil {
			return f, true
		}
		if f.err == nil {
			r.failed(f.m.Failed)
			return f, false
		}
		r.initGone(what)
		return f, false
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			r.lost("the box was not ready within %v (%s)", buildLimit, what)
		} else {
			r.out.Evidence.Cancelled = true
		}
		return frame{}, false
	}
}

// failed sorts what the first process could not do: a command or a place that
// the step names is the step's doing, anything else is no verdict.
func (r *runner) failed(f *boxinit.Failed) {
	switch {
	case f.Op == "exec", f.Op == "interpreter":
		r.out.Evidence.ExecFailure = execMessage(r.job.Spec, f)
		r.out.Evidence.ExecAdvice = execAdvice(r.job.Spec, f, r.job.CallerPath)
	case f.Op == "workdir":
		r.out.Evidence.StartupFailure = fmt.Sprintf("workdir %s: %s", f.Name, f.Why)
	case f.Named != "":
		r.out.Evidence.StartupFailure = fmt.Sprintf("%s: cannot %s %s: %s", f.Named, f.Op, f.Name, f.Why)
	default:
		r.lost("the box could not be built: %v", f)
		r.out.Cause = f
	}
}

// initGone says how the first process died without a word. The kernel's OOM
// killer may have picked it; then that is what happened.
func (r *runner) initGone(what string) {
	select {
	case end := <-r.built.Ended:
		stats, _ := r.job.Group.Stats()
		switch {
		case stats.OOMKills > 0:
		case end.Signal == int(unix.SIGKILL):
			r.out.Evidence.InitKilled = true
		case end.Signal != 0:
			r.lost("the box's first process died of %s (%s)", SignalName(syscall.Signal(end.Signal)), what)
		case end.Err != nil:
			r.lost("the box's first process: %v (%s)", end.Err, what)
		default:
			r.lost("the box's first process ended with code %d and no report (%s)", end.Code, what)
		}
	case <-time.After(drainLimit):
		r.lost("the box's first process closed its socket and lives on (%s)", what)
	}
}

// Places are addresses as the first process takes them.
func Places(list []netip.AddrPort) (out []boxinit.Addr) {
	for _, a := range list {
		out = append(out, boxinit.Addr{IP: a.Addr().AsSlice(), Port: a.Port()})
	}
	return out
}

// Addresses are the same without ports.
func Addresses(list []netip.Addr) (out []boxinit.Addr) {
	for _, a := range list {
		out = append(out, boxinit.Addr{IP: a.AsSlice()})
	}
	return out
}

// prepare brings the box to where only the step is missing, and checks that
// the first process is where its caps are.
func (r *runner) prepare(ctx context.Context) bool {
	port := 0
	if r.job.Spec.Network == NetworkAllowlist {
		port = ProxyPort
	}
	ask := boxinit.Prepare{ProxyPort: port, Listen: Places(r.job.Spec.Listen), Addrs: Addresses(r.job.Spec.Addrs), Keep: r.built.Keep, CgroupNS: r.built.CgroupNS, Tmpfs: r.memoryFiles(),
		Relay: r.built.Way != nil, Apart: r.built.Apart}
	if err := boxinit.Send(r.fd, boxinit.Message{Prepare: &ask}); err != nil {
		if f, ok := r.next(ctx, "while it was built"); ok {
			closeFDs(f.fds)
			r.lost("the box could not be asked to get ready: %v", err)
		}
		return false
	}
	f, ok := r.next(ctx, "while it was built")
	if !ok {
		return false
	}
	defer closeFDs(f.fds)
	if f.m.Ready == nil {
		r.lost("bug: the box's first process is not ready and did not say why")
		return false
	}
	pid, err := r.initPID()
	if err != nil {
		r.lost("the box's first process cannot be found: %v", err)
		return false
	}
	if r.job.Group.By() != "" {
		in, err := r.job.Group.Contains(pid)
		if err != nil {
			r.lost("the control group of the box's first process cannot be read: %v", err)
			return false
		}
		if !in {
			r.lost("the box's first process (pid %d) is not in the step's control group, so the step would run uncapped", pid)
			return false
		}
	}
	// Our own first process does not eat the step's allowance of processes.
	if err := r.job.Group.ExcludeInit(); err != nil {
		r.lost("the process cap could not be set: %v", err)
		return false
	}
	if r.job.Spec.Network != NetworkHost { // whose counts are of all the host does
		r.noRoute = openNoRoute(pid)
	}
	if port != 0 {
		if r.built.Way == nil && len(f.fds) != 1+len(r.job.Forwards) || len(r.job.Spec.Listen) != len(r.job.Forwards) || r.job.Proxy == nil {
			r.lost("bug: the box has not the sockets that the egress proxy needs")
			return false
		}
		if err := r.serve(f.fds); err != nil {
			r.lost("the egress proxy could not be started: %v", err)
			return false
		}
	}
	return true
}

// memoryFiles are the places of the box that lie in memory and are bounded.
func (r *runner) memoryFiles() (out []string) {
	if r.job.Spec.ShmBytes > 0 {
		out = append(out, ShmTarget)
	}
	for _, t := range r.job.Spec.Tmpfs {
		out = append(out, t.Target)
	}
	return out
}

func (r *runner) initPID() (int, error) {
	if r.built.InitPID != 0 {
		return r.built.InitPID, nil
	}
	cred, err := unix.GetsockoptUcred(r.fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0, err
	}
	return int(cred.Pid), nil
}

// serve accepts what connects to the box's own loopback, from out here: the
// proxy on the first socket, a forward on each of the others.
func (r *runner) serve(fds []int) error {
	var listeners []net.Listener
	if r.built.Way != nil {
		var err error
		if listeners, err = carried(r.built.Way, 1+len(r.job.Forwards)); err != nil {
			return err
		}
	}
	for _, fd := range fds {
		l, err := listener(fd)
		if err != nil {
			for _, l := range listeners {
				l.Close()
			}
			return err
		}
		listeners = append(listeners, l)
	}
	// The proxy outlives the step: what it was asked in the last millisecond
	// is still answered and written down. finish ends it.
	ctx, cancel := context.WithCancel(context.Background())
	r.lostWay = make(chan error, len(listeners))
	r.way = &way{stop: cancel}
	for i, l := range listeners {
		r.way.served.Add(1)
		go func() {
			defer r.way.served.Done()
			defer l.Close()
			if i == 0 {
				r.lostWay <- r.job.Proxy.Serve(ctx, l)
			} else {
				r.lostWay <- r.job.Proxy.ServeForward(ctx, l, r.job.Forwards[i-1])
			}
		}()
	}
	return nil
}

func listener(fd int) (net.Listener, error) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(dup), "egress")
	defer f.Close()
	return net.FileListener(f)
}

// start hands the step's command over and waits until it runs.
func (r *runner) start(ctx context.Context) bool {
	null, err := os.Open(os.DevNull)
	if err != nil {
		r.lost("%v", err)
		return false
	}
	defer null.Close()
	outW, err := r.pump("stdout", r.job.Stdout, func() *Stream { return &r.out.Stdout })
	if err != nil {
		r.lost("make a pipe for stdout: %v", err)
		return false
	}
	defer outW.Close()
	errW, err := r.pump("stderr", r.job.Stderr, func() *Stream { return &r.out.Stderr })
	if err != nil {
		r.lost("make a pipe for stderr: %v", err)
		return false
	}
	defer errW.Close()
	s := r.job.Spec
	msg := boxinit.Message{Start: &boxinit.Start{Argv: s.Argv, Env: s.Env, Workdir: s.Workdir, Filter: r.built.Filter, Guard: r.built.Guard, FileBytes: s.FileBytes, AppArmor: r.built.AppArmor, CPUs: r.cpus}}
	if s.writesHost() {
		f, err := setIDFilter()
		if err != nil {
			r.lost("%v", err)
			return false
		}
		msg.Start.SetID = f
	}
	fds := []int{int(null.Fd()), int(outW.Fd()), int(errW.Fd())}
	for _, f := range r.job.Files {
		fds = append(fds, int(f.Fd()))
	}
	if err := boxinit.Send(r.fd, msg, fds...); err != nil {
		if f, ok := r.next(ctx, "before the step"); ok {
			closeFDs(f.fds)
			r.lost("the step could not be handed over: %v", err)
		}
		return false
	}
	for {
		f, ok := r.next(ctx, "while the step's command was started")
		if !ok {
			return false
		}
		switch {
		case f.m.Filtered != nil && len(f.fds) == 1:
			if r.watcher, err = seccomp.NewWatcher(f.fds[0], seccomp.WatchOptions{}); err != nil {
				r.lost("watch the system call filter: %v", err)
				return false
			}
		case f.m.Started != nil:
			closeFDs(f.fds)
			if r.built.Filter != nil && r.watcher == nil {
				r.lost("bug: the step runs without the system call filter")
				return false
			}
			return true
		default:
			closeFDs(f.fds)
			r.lost("bug: unexpected word of the box's first process")
			return false
		}
	}
}

// watch waits for what ends the step: its own end, its deadline, the OOM
// killer, the loss of its proxy, of its first process, or a cancel.
func (r *runner) watch(ctx context.Context, started time.Time) {
	oomCtx, stop := context.WithCancel(context.Background())
	defer stop()
	oom := r.job.Group.OOM(oomCtx)
	timeout := time.Duration(r.job.Spec.TimeoutS * float64(time.Second))
	deadline, stopTimer := r.timer(started.Add(timeout).Sub(r.now()))
	defer stopTimer()
	lostWay := r.lostWay
	for {
		select {
		case f := <-r.messages:
			closeFDs(f.fds)
			switch {
			case f.err != nil:
				r.initGone("while the step ran")
			case f.m.Exited != nil:
				r.exited(f.m.Exited)
				// The word may have waited for us, and the timer too: what counts
				// is the clock.
				if r.now().Sub(started) >= timeout {
					r.out.Evidence.DeadlinePassed = true
				}
			default:
				r.lost("bug: unexpected word of the box's first process")
			}
			return
		case <-deadline:
			r.out.Evidence.DeadlinePassed = true
			return
		case <-oom:
			// One process killed is the box ended: half a step has no result.
			return
		case code := <-r.said:
			ws := syscall.WaitStatus(code & 0xff << 8)
			r.out.Evidence.Status = &ws
			r.lives = r.now().Sub(started) < timeout
			r.out.Evidence.DeadlinePassed = !r.lives
			return
		case <-r.job.Full:
			r.out.Evidence.DiskEnded = true
			return
		case err := <-lostWay:
			// The step goes on, with no network: its end is still its own.
			lostWay = nil
			r.out.Evidence.EgressLost = fmt.Sprintf("the egress proxy stopped: %v", err)
		case <-ctx.Done():
			r.out.Evidence.Cancelled = true
			return
		}
	}
}

// finish takes the box away and reads what the kernel counted.
func (r *runner) finish() {
	defer r.giveBack()
	limit := drainLimit
	if r.out.Evidence.Cancelled {
		limit = cancelLimit
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	// What a descendant tried before the step ended counts, even if it is
	// still waiting for its answer.
	if r.watcher != nil {
		r.watcher.Drain()
		if err := r.watcher.Err(); err != nil {
			r.lost("the system call filter could not be watched: %v", err)
		}
	}
	r.job.Group.Sample()
	r.built.Kill()
	// The kernel ends all of a box with its first process. That is given a moment
	// before the group is asked to end what is left, which is then usually nobody.
	ended := false
	select {
	case <-r.built.Ended:
		ended = true
	case <-time.After(endSoon):
	case <-ctx.Done():
	}
	if err := r.job.Group.Kill(ctx); err != nil {
		r.lost("the step's processes could not be ended: %v", err)
	}
	if !ended {
		select {
		case <-r.built.Ended:
		case <-ctx.Done():
			r.lost("the box did not end within %v of being killed", drainLimit)
		}
	}
	switch empty, err := r.job.Group.Empty(); {
	case err != nil:
		r.lost("whether the step's processes are gone cannot be read: %v", err)
	case !empty:
		r.lost("processes of the step are still alive after the kill")
	}
	// Read last: the OOM killer may act until nobody is left. What a kill changes
	// of the counters, Group.Kill has set aside.
	stats, err := r.job.Group.Stats()
	if err != nil {
		r.lost("the control group's counters cannot be read: %v", err)
	}
	r.out.Stats = stats
	r.out.NoRoute = r.noRoute.count()
	r.noRoute.close()
	e := &r.out.Evidence
	if r.built.Filter == nil && !r.built.Plain && e.Status != nil && e.Status.Signaled() && e.Status.Signal() == unix.SIGSYS {
		// The engine's own filter kills and tells nobody. The step's own
		// process is ours to wait for, so its death is seen, without a name; a
		// step that sends itself this signal accuses nobody but itself.
		e.Escapes = append(e.Escapes, Escape{Syscall: "a system call"})
	}
	e.OOMKills, e.PeakMemory, e.PeakSampled, e.PidsRefused = stats.OOMKills, stats.PeakMemory, stats.PeakSampled, stats.PidsRefused
	if r.watcher != nil {
		escapes, more := r.watcher.Escapes()
		for _, x := range escapes {
			e.Escapes = append(e.Escapes, Escape{Syscall: x.Syscall, Program: x.Program})
		}
		e.EscapesMore = more
		r.watcher.Close()
	}
	if r.way != nil {
		// The box is dead. What it still asked is judged, then the proxy ends,
		// and only then is the ledger complete.
		if err := r.job.Proxy.Drain(ctx); err != nil && e.EgressLost == "" {
			r.lost("some of the step's requests were not judged: %v", err)
		}
		select {
		case err := <-r.lostWay: // it ended together with the step
			if e.EgressLost == "" {
				e.EgressLost = fmt.Sprintf("the egress proxy stopped: %v", err)
			}
		default:
		}
		r.way.stop()
		r.way.served.Wait()
		if err := r.job.Proxy.Ledger.Err(); err != nil {
			r.lost("the list of requests is not complete: %v", err)
		}
		e.Denied = r.denied()
	}
	for _, p := range r.pumps {
		if !p.finish(ctx) {
			r.lost("the step's %s could not be written within %v of its end: nobody reads it", p.name, limit)
		}
	}
	// Unblock the reader: it may hold a frame that nobody waits for.
	_ = unix.Shutdown(r.fd, unix.SHUT_RDWR)
	for f := range r.messages {
		closeFDs(f.fds)
	}
	r.addCounted()
	if r.built.Note != nil {
		r.out.Note = r.built.Note()
	}
	if err := r.built.Close(); err != nil {
		r.lost("what was made for the box could not be taken away: %v", err)
	}
}

// exited takes note of how the process ended.
func (r *runner) exited(x *boxinit.Exited) {
	ws := syscall.WaitStatus(x.Status)
	r.out.Evidence.Status = &ws
	r.out.Full = x.Full
}

// count takes note of what the box's own kernel counted. The counts only grow.
func (r *runner) count(c *boxinit.Counted) {
	if c == nil || r.built.Apart == nil {
		return
	}
	r.counting.Lock()
	if r.counted == nil {
		r.counted = &boxinit.Counted{}
	}
	r.counted.Refused = max(r.counted.Refused, c.Refused)
	r.counted.Peak = max(r.counted.Peak, c.Peak)
	r.counting.Unlock()
	if c.Asked {
		select {
		case r.asked <- struct{}{}:
		default: // nobody waits any more
		}
	}
}

// recount has the first process count now, where it is the one who counts, and
// waits for its word. It says whether there was one; if not, why is on record.
func (r *runner) recount(what string) bool {
	if r.built.Apart == nil || r.built.Apart.Pids <= 0 {
		return true
	}
	select {
	case <-r.asked: // too late for whoever asked
	default:
	}
	// It may be gone by now, which is heard next.
	_ = boxinit.Ask(r.fd)
	select {
	case <-r.asked:
		return true
	case <-r.quiet:
		r.initGone(what)
	case <-time.After(drainLimit):
		r.lost("the box's first process did not count the step's processes within %v (%s)", drainLimit, what)
	}
	return false
}

// addCounted adds what the box's own kernel counted to what this one did.
func (r *runner) addCounted() {
	r.counting.Lock()
	defer r.counting.Unlock()
	if r.counted != nil {
		r.out.Evidence.PidsRefused += r.counted.Refused
		r.out.Stats.PeakPids = r.counted.Peak
	}
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
