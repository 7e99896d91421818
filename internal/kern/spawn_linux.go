package kern

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/idmap"
	"github.com/untrusted-steps/untrusted-steps/internal/pinned"
)

const (
	// maxWords bounds what is kept of kern's own output.
	maxWords = 16 << 10
	// outputGrace is how long kern's output may stay open after its end.
	outputGrace = time.Second
	// reapGrace is how long kern may take to die once it was killed.
	reapGrace = 10 * time.Second
)

// running is a kern that was started.
type running struct {
	pid    int
	cmd    *exec.Cmd
	tell   *os.File // the order goes here
	words  words
	alive  alive
	gone   chan struct{}
	ended  chan box.ProcessEnd
	report Payload // set once gone is closed

	control *os.File // nil until the first process reported
	first   int      // the first process, as a descriptor; -1 until then
	name    string
	env     []string // for kern's other verbs
	bin     *pinned.Binary
	folder  folder
	staged  bool

	mu     sync.Mutex
	killed bool  // by us, while it lived
	setup  Setup // how far it was then: its end closes the pipe that tells
	dead   bool
	once   sync.Once
	left   error
}

// spawn starts a launcher. It has done nothing yet when spawn returns: it waits
// for the order.
func spawn(bin *pinned.Binary, trees []*os.File, on *stage, p box.Placement) (*running, error) {
	k := &running{first: -1, gone: make(chan struct{}), ended: make(chan box.ProcessEnd, 1), words: words{left: maxWords}}
	var pipes [3][2]*os.File // order, started, alive
	shut := func() {
		for _, p := range pipes {
			for _, f := range p {
				if f != nil {
					f.Close()
				}
			}
		}
	}
	for i := range pipes {
		r, w, err := os.Pipe()
		if err != nil {
			shut()
			return nil, fmt.Errorf("start kern: %w", err)
		}
		pipes[i] = [2]*os.File{r, w}
	}
	attr := &syscall.SysProcAttr{Setsid: true}
	switch {
	case on == nil:
	case on.Own:
		ownNamespace(attr, on)
	default:
		attr.Cloneflags = unix.CLONE_NEWNS
	}
	if fd := p.CgroupFD(); fd >= 0 {
		attr.UseCgroupFD, attr.CgroupFD = true, fd
	}
	k.cmd = &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{"untrusted-steps", launcherArg}, Env: []string{"GOTRACEBACK=none"}, Dir: "/",
		Stdout: &k.words, Stderr: &k.words, SysProcAttr: attr, WaitDelay: outputGrace,
		// In the order of orderFD, startedFD, aliveFD, kernFD.
		ExtraFiles: append([]*os.File{pipes[0][0], pipes[1][1], pipes[2][1], bin.Sealed}, trees...),
	}
	started := make(chan error)
	go k.wait(started, pipes[1][0], pipes[2][0])
	err := <-started
	pipes[0][0].Close()
	pipes[1][1].Close()
	pipes[2][1].Close()
	if err != nil {
		shut()
		if on != nil && on.Own && (errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOSPC)) {
			return nil, fmt.Errorf("%w: make a user namespace to mount it in: %w", box.ErrNoOverlay, err)
		}
		return nil, fmt.Errorf("start kern's launcher: %w", err)
	}
	k.pid = k.cmd.Process.Pid
	k.tell = pipes[0][1]
	return k, nil
}

// ownNamespace puts the launcher into a user namespace in which it is the id that
// kern runs as, and has every capability until it becomes kern. A mount in it
// belongs to that id and to nobody of the host: to mount the workspace as the
// host's root would give an overlay whose every access is root's.
func ownNamespace(attr *syscall.SysProcAttr, on *stage) {
	host := idmap.Ids{UID: os.Geteuid(), GID: os.Getegid()}
	if idmap.Needed() {
		host = idmap.Box
	}
	attr.Cloneflags = unix.CLONE_NEWUSER | unix.CLONE_NEWNS
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: on.UID, HostID: host.UID, Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: on.GID, HostID: host.GID, Size: 1}}
	attr.GidMappingsEnableSetgroups = idmap.Needed()
	attr.Credential = &syscall.Credential{Uid: uint32(on.UID), Gid: uint32(on.GID), NoSetGroups: !idmap.Needed()}
	// Not being root there, it would lose them at its exec. Becoming kern, it does.
	for c := range uintptr(lastCap + 1) {
		attr.AmbientCaps = append(attr.AmbientCaps, c)
	}
}

// lastCap is the highest capability of Linux 5.9 and later (CHECKPOINT_RESTORE).
const lastCap = 40

// wait starts the launcher and sees it to its end, on one thread that stays:
// kern asks the kernel to end it when the thread that started it does, and the
// threads of this program come and go.
func (k *running) wait(started chan<- error, report, alive *os.File) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := k.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	heard := make(chan Payload, 1)
	go func() { heard <- readPayload(report) }()
	go func() {
		k.alive.follow(alive)
		alive.Close()
	}()
	k.awaitEnd()
	err = k.cmd.Wait()
	select {
	case k.report = <-heard:
	case <-time.After(outputGrace):
		// Somebody else holds the pipe, so what it says is nobody's word.
		_ = report.SetReadDeadline(time.Unix(1, 0))
		<-heard
	}
	report.Close()
	end := exitOf(k.cmd.ProcessState, err)
	if end.Signal == 0 && end.Err == nil && k.report.Signaled == Yes {
		// kern ended by itself and says what ended the first process. The pipe
		// is out of the box's reach.
		end = box.ProcessEnd{Signal: k.report.Signal}
	}
	close(k.gone)
	k.ended <- end
	close(k.ended)
}

// awaitEnd waits without reaping, so that the number stays ours until nobody
// can use it any more.
func (k *running) awaitEnd() {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, k.cmd.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			break
		}
	}
	k.mu.Lock()
	k.dead = true
	k.mu.Unlock()
}

// order tells the launcher what to do.
func (k *running) order(raw []byte) error {
	_, err := k.tell.Write(raw)
	if cerr := k.tell.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("tell kern's launcher what to do: %w", err)
	}
	return nil
}

// kill ends kern, and with it the box: the first process was told by kern to
// die with it. The whole session goes, in case kern had children.
func (k *running) kill() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dead {
		return
	}
	if !k.killed {
		k.killed, k.setup = true, k.alive.Setup()
	}
	_ = unix.Kill(-k.pid, unix.SIGKILL)
	_ = unix.Kill(k.pid, unix.SIGKILL)
}

// close waits for the end, takes away what is left, and says what could not be.
func (k *running) close() error {
	k.once.Do(func() {
		k.kill()
		k.tell.Close()
		if k.control != nil {
			k.control.Close()
		}
		k.left = k.endFirst()
		select {
		case <-k.gone:
		case <-time.After(reapGrace):
			k.left = errors.Join(k.left, fmt.Errorf("kern (process %d) is still there %s after it was killed", k.pid, reapGrace))
		}
		if !k.staged {
			k.left = errors.Join(k.left, k.tidy())
		}
		k.left = errors.Join(k.left, k.folder.remove())
	})
	return k.left
}

// endFirst makes sure of the first process, and with it of all in the box: the
// kernel lets it end only after everything in its process namespace has.
func (k *running) endFirst() error {
	if k.first < 0 {
		return nil
	}
	defer unix.Close(k.first)
	if err := unix.PidfdSendSignal(k.first, unix.SIGKILL, nil, 0); err != nil && err != unix.ESRCH && err != unix.EPERM {
		return fmt.Errorf("end the box's first process: %w", err)
	}
	p := []unix.PollFd{{Fd: int32(k.first), Events: unix.POLLIN}}
	until := time.Now().Add(reapGrace)
	for left := reapGrace; left > 0; left = time.Until(until) {
		n, err := unix.Poll(p, int(left.Milliseconds())+1)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return fmt.Errorf("wait for the box's first process: %w", err)
		case n > 0:
			return nil
		}
	}
	return fmt.Errorf("the box's first process is still there %s after it was killed", reapGrace)
}

// note is what kern said of itself. Untrusted only insofar as kern is: no byte
// of the step comes this way.
func (k *running) note() string {
	text := strings.TrimSpace(k.words.String())
	select {
	case <-k.gone:
		if text != "" && k.report.Len > 0 {
			text += "\n(kern's report: " + k.report.words() + ")"
		}
	default:
	}
	return text
}

// words keeps the first bytes of a stream that two writers share.
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
