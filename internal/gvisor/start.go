package gvisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxinit"
	"github.com/untrusted-steps/untrusted-steps/internal/idmap"
	"github.com/untrusted-steps/untrusted-steps/internal/pinned"
	"github.com/untrusted-steps/untrusted-steps/internal/rootfs"
	"github.com/untrusted-steps/untrusted-steps/internal/stage"
)

const (
	// startLimit bounds the time from the launcher's start to the first process's
	// first word. An emulated machine takes seconds.
	startLimit = 60 * time.Second
	// maxWords bounds what is kept of runsc's own output.
	maxWords = 16 << 10
	// outputGrace is how long that may stay open after its end.
	outputGrace = time.Second
	// maxFiles is how many files a box may have open: the first process carries
	// connections, which takes two each.
	maxFiles = 1 << 16
)

// threads is what runsc may have of threads on the host, besides those that it starts
// the step with and one for each process that the cap allows: each process of the box
// is one process here and some threads that run it, never more than there are
// processors to run on; the rest is runsc's own.
func threads(pids int64) int64 { return 256 + 3*pids }

// Start builds a box. On success the first process waits in it, ready.
func (e *Engine) Start(ctx context.Context, s box.Spec, p box.Placement) (*box.Built, error) {
	if err := e.Check(s); err != nil {
		return nil, err
	}
	all, err := boxinit.Kept(s.CapDrop)
	if err != nil {
		return nil, err
	}
	kept := keepable(all)
	bin, err := e.verified(ctx)
	if err != nil {
		return nil, err
	}
	set, err := e.order(s, kept)
	if err != nil {
		return nil, err
	}
	if err := p.Spare(threads(s.Pids)); err != nil {
		return nil, err
	}
	// Whatever was inherited without close-on-exec stops here.
	if err := unix.CloseRange(3, 1<<31-1, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return nil, fmt.Errorf("protect inherited descriptors: %w", err)
	}
	var trees []int
	defer func() {
		for _, fd := range trees {
			unix.Close(fd)
		}
	}()
	root := idmap.Needed()
	if root {
		if trees, err = e.openTrees(set, s.Overlay); err != nil {
			return nil, err
		}
	}
	g := &running{ended: make(chan box.ProcessEnd, 1), gone: make(chan struct{}), words: words{left: maxWords}}
	var theirs [3]*os.File
	shut := func(list ...*os.File) {
		for _, f := range list {
			if f != nil {
				f.Close()
			}
		}
	}
	for i, ours := range []**os.File{&g.orders, &g.control, &g.way} {
		if *ours, theirs[i], err = boxinit.Pair(); err != nil {
			shut(g.orders, g.control, g.way, theirs[0], theirs[1], theirs[2])
			return nil, err
		}
	}
	err = p.Born(func() error { return g.spawn(bin, theirs, root, s.Network == box.NetworkHost, p) })
	shut(theirs[:]...)
	if err != nil {
		shut(g.orders, g.control, g.way)
		return nil, err
	}
	undo := func(err error) (*box.Built, error) {
		err = g.explain(err)
		return nil, errors.Join(err, g.close())
	}
	if err := p.Join(g.pid); err != nil {
		return undo(fmt.Errorf("place the box in its control group: %w", err))
	}
	stop := context.AfterFunc(ctx, g.kill)
	defer stop()
	if err := g.command(set, trees); err != nil {
		return undo(err)
	}
	if err := g.hello(ctx); err != nil {
		if e.platform == kvm && ctx.Err() == nil {
			err = &PlatformError{fmt.Errorf("RUNSC_PLATFORM=kvm: %w", err)}
		}
		return undo(err)
	}
	if !stop() { // a cancel that came meanwhile is at work on another thread
		return undo(ctx.Err())
	}
	return &box.Built{
		Control: g.control, InitPID: g.pid, Keep: kept, Guard: e.filter, Plain: true,
		Way: g.way, Apart: &boxinit.Apart{UID: initUID, Pids: s.Pids},
		Ended: g.ended, Kill: g.kill, Close: g.close, Note: g.note,
	}, nil
}

// order is all that the launcher is told.
func (e *Engine) order(s box.Spec, kept []int) (setup, error) {
	view := rootfs.View{}
	if e.opts.View != nil {
		view = e.opts.View(box.Hostname(s.ID), s.Network == box.NetworkHost)
	}
	program, err := filepath.EvalSymlinks(e.program())
	if err != nil || idmap.Needed() {
		program = e.program()
	}
	set := plan(s, view, program)
	set.Argv = arguments(s, e.platform)
	set.KVM = e.platform == kvm
	set.Config, err = bundle(s, set, kept, maxFiles)
	return set, err
}

// openTrees opens every source with root's eyes and maps the ids of those that the
// box may write.
func (e *Engine) openTrees(set setup, o *box.Overlay) (trees []int, err error) {
	defer func() {
		if err != nil {
			for _, fd := range trees {
				unix.Close(fd)
			}
			trees = nil
		}
	}()
	for _, m := range set.sources() {
		owner := func(st *unix.Stat_t) (int, error) {
			return e.mapper.Owner(idmap.Ids{UID: int(st.Uid), GID: int(st.Gid)})
		}
		if o != nil && m.Target == box.WorkspaceTarget {
			// Of all its layers, or a file of one could not be changed in another.
			owner = func(*unix.Stat_t) (int, error) { return e.mapper.Owner(idmap.Ids{UID: o.UID, GID: o.GID}) }
		}
		if m.Target == box.InitTarget {
			if st, err := os.Stat(m.Source); err == nil && st.Mode()&0o005 == 0o005 {
				m.Mapped = false // anybody may run it as it is
			}
		}
		var fd int
		if o != nil && o.Tree != nil && m.Source == o.Base && !m.ReadOnly {
			if fd, err = o.Tree(); err == nil {
				if err = m.shown(owner).Dress(fd); err != nil {
					unix.Close(fd)
				}
			}
		} else {
			fd, err = stage.Open(m.shown(owner))
		}
		if err != nil {
			if m.Named != "" {
				return trees, &box.StartupError{Why: fmt.Sprintf("%s: cannot show %s: %v", m.Named, m.Source, err)}
			}
			return trees, fmt.Errorf("open %s for the box: %w", m.Source, err)
		}
		trees = append(trees, fd)
	}
	return trees, nil
}

// running is a runsc that was started.
type running struct {
	pid   int
	cmd   *exec.Cmd
	words words
	gone  chan struct{}
	ended chan box.ProcessEnd

	orders, control, way *os.File

	mu   sync.Mutex
	dead bool
	once sync.Once
}

// spawn starts a launcher. It has done nothing yet when spawn returns: it waits for
// the order.
func (g *running) spawn(bin *pinned.Binary, theirs [3]*os.File, root, hostNetwork bool, p box.Placement) error {
	flags := uintptr(unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS)
	if !hostNetwork {
		flags |= unix.CLONE_NEWNET
	}
	id := idmap.Ids{UID: os.Geteuid(), GID: os.Getegid()}
	if root {
		id = idmap.Box
	}
	attr := &syscall.SysProcAttr{
		Cloneflags:                 flags,
		UidMappings:                []syscall.SysProcIDMap{{ContainerID: 0, HostID: id.UID, Size: 1}},
		GidMappings:                []syscall.SysProcIDMap{{ContainerID: 0, HostID: id.GID, Size: 1}},
		GidMappingsEnableSetgroups: root,
		Credential:                 &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: !root},
		Setsid:                     true,
		Pdeathsig:                  syscall.SIGKILL,
	}
	if fd := p.CgroupFD(); fd >= 0 {
		attr.UseCgroupFD, attr.CgroupFD = true, fd
	}
	g.cmd = &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{"untrusted-steps", launcherArg}, Env: []string{"GOTRACEBACK=none"}, Dir: "/",
		Stdout: &g.words, Stderr: &g.words, SysProcAttr: attr, WaitDelay: outputGrace,
		// In the order of orderFD, controlFD, wayFD, runscFD.
		ExtraFiles: append(theirs[:], bin.Sealed),
	}
	started := make(chan error)
	go g.wait(started)
	if err := <-started; err != nil {
		return startError(err)
	}
	g.pid = g.cmd.Process.Pid
	return nil
}

// ErrNamespaces: this host lets us make no namespaces.
var ErrNamespaces = errors.New("make namespaces for runsc")

func startError(err error) error {
	for _, refused := range []error{unix.EPERM, unix.EACCES, unix.ENOSYS, unix.ENOSPC} {
		if errors.Is(err, refused) {
			return fmt.Errorf("%w: %w: unprivileged user namespaces are off or restricted here (by AppArmor, a sysctl or a container's seccomp filter)", ErrNamespaces, err)
		}
	}
	return fmt.Errorf("start runsc's launcher: %w", err)
}

// wait starts the launcher and sees it to its end, on one thread that stays: the
// kernel ends the launcher, and all it has started, with the thread that started
// it, and the threads of this program come and go.
func (g *running) wait(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := g.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	for {
		// Without reaping, so that the number stays ours until nobody uses it.
		var info unix.Siginfo
		if err := unix.Waitid(unix.P_PID, g.cmd.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil); err != unix.EINTR {
			break
		}
	}
	g.mu.Lock()
	g.dead = true
	g.mu.Unlock()
	err = g.cmd.Wait()
	close(g.gone)
	end := box.ProcessEnd{Err: err}
	if ws, ok := g.cmd.ProcessState.Sys().(syscall.WaitStatus); ok {
		end = box.ProcessEnd{Code: ws.ExitStatus()}
		if ws.Signaled() {
			end = box.ProcessEnd{Signal: int(ws.Signal())}
		}
	}
	g.ended <- end
	close(g.ended)
}

// command hands the order over and waits until the launcher has become runsc.
func (g *running) command(set setup, trees []int) error {
	raw, err := json.Marshal(set)
	if err != nil {
		return fmt.Errorf("gvisor: bug: encode the order: %w", err)
	}
	if err := boxinit.Send(int(g.orders.Fd()), boxinit.Message{Setup: raw}, trees...); err != nil {
		return err
	}
	m, _, err := boxinit.Receive(int(g.orders.Fd()))
	switch {
	case errors.Is(err, io.EOF):
		return nil // closed by the exec, or by its death, which is seen next
	case err != nil:
		return err
	case m.Failed == nil:
		return errors.New("gvisor: bug: the launcher said something else than why it failed")
	case m.Failed.Named != "":
		f := m.Failed
		return &box.StartupError{Why: fmt.Sprintf("%s: cannot %s %s: %s", f.Named, f.Op, f.Name, f.Why)}
	}
	return m.Failed
}

// hello waits for the first process's first word.
func (g *running) hello(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	heard := make(chan error, 1)
	fd := int(g.way.Fd())
	go func() {
		var b [1]byte
		for {
			n, err := unix.Read(fd, b[:])
			switch {
			case err == unix.EINTR:
				continue
			case err == nil && (n != 1 || b[0] != boxinit.Hello):
				err = errGone
			}
			heard <- err
			return
		}
	}()
	select {
	case err := <-heard:
		return err
	case <-g.gone:
	case <-ctx.Done():
	}
	// Its end closes the socket, and with it the wait.
	g.kill()
	_ = unix.Shutdown(fd, unix.SHUT_RDWR)
	<-heard
	if err := ctx.Err(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("the box's first process did not report within %s", startLimit)
	}
	return errGone
}

// kill ends runsc's first process here, and with it all of runsc: it is the first
// one of a process namespace.
func (g *running) kill() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.dead {
		_ = unix.Kill(g.pid, unix.SIGKILL)
	}
}

func (g *running) close() error {
	g.once.Do(func() {
		g.kill()
		g.orders.Close()
		g.control.Close()
		g.way.Close()
	})
	select {
	case <-g.gone:
		return nil
	case <-time.After(10 * time.Second):
		return fmt.Errorf("runsc (process %d) is still there 10 s after it was killed", g.pid)
	}
}

// explain adds runsc's own words to an error, since they say why.
func (g *running) explain(err error) error {
	g.kill()
	select {
	case <-g.gone:
	case <-time.After(10 * time.Second):
	}
	if w := g.note(); w != "" {
		return fmt.Errorf("%w (runsc said: %s)", err, strings.Join(strings.Fields(w), " "))
	}
	return err
}

// note is what runsc said of itself. No byte of the step comes this way.
func (g *running) note() string { return strings.TrimSpace(g.words.String()) }

// words keeps the first bytes of a stream.
type words struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	left int
}

func (w *words) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := min(len(p), w.left)
	w.left -= n
	w.buf.Write(p[:n])
	return len(p), nil
}

func (w *words) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}
