package native

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxinit"
	"github.com/untrusted-steps/untrusted-steps/internal/idmap"
	"github.com/untrusted-steps/untrusted-steps/internal/memfd"
	"github.com/untrusted-steps/untrusted-steps/internal/native/build"
	"github.com/untrusted-steps/untrusted-steps/internal/rootfs"
	"github.com/untrusted-steps/untrusted-steps/internal/seccomp"
	"github.com/untrusted-steps/untrusted-steps/internal/stage"
)

// Engine builds boxes out of namespaces.
type Engine struct {
	Version string
	// View reads the host for image host; network says whether names resolve.
	View func(hostname string, network bool) rootfs.View

	mapper idmap.Mapper
	once   sync.Once
	filter []byte
	ferr   error
	self   *os.File // this program, sealed
	sferr  error
}

// Info describes the engine. Nothing is hidden from it: every process of a
// step, however deep, reports a forbidden system call to us before it dies.
func (e *Engine) Info() box.Info { return box.Info{Name: "native", Version: e.Version} }

// Check says whether this engine can build the box.
func (e *Engine) Check(s box.Spec) error {
	if err := expressible(s); err != nil {
		return err
	}
	_, err := boxinit.Kept(s.CapDrop)
	return err
}

// Close lets go of what is kept between boxes.
func (e *Engine) Close() {
	e.mapper.Close()
	if e.self != nil {
		_ = e.self.Close()
	}
}

func (e *Engine) prepare() error {
	e.once.Do(func() {
		p, err := seccomp.Compile(runtime.GOARCH, seccomp.Options{})
		if err != nil {
			e.ferr = err
			return
		}
		e.filter = p.Raw()
		e.self, e.sferr = ownCopy()
	})
	return errors.Join(e.ferr, e.sferr)
}

// Start builds a box. On success the first process waits in it, ready.
func (e *Engine) Start(ctx context.Context, s box.Spec, p box.Placement) (*box.Built, error) {
	if err := e.prepare(); err != nil {
		return nil, err
	}
	if err := e.Check(s); err != nil {
		return nil, err
	}
	kept, err := boxinit.Kept(s.CapDrop)
	if err != nil {
		return nil, err
	}
	// Whatever was inherited without close-on-exec stops here.
	if err := unix.CloseRange(3, 1<<31-1, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return nil, fmt.Errorf("protect inherited descriptors: %w", err)
	}
	set := plan(s, e.View(box.Hostname(s.ID), s.Network == box.NetworkHost))

	root := idmap.Needed()
	var trees []int
	defer func() {
		for _, fd := range trees {
			unix.Close(fd)
		}
	}()
	if root {
		if trees, err = e.openTrees(set, s.Overlay); err != nil {
			return nil, err
		}
	}
	ours, theirs, err := boxinit.Pair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	var child *child
	err = p.Born(func() (err error) {
		child, err = e.spawn(theirs, root, set.HostNetwork, p)
		return err
	})
	if err != nil {
		ours.Close()
		return nil, err
	}
	fail := func(err error) (*box.Built, error) {
		child.kill()
		ours.Close()
		<-child.ended
		return nil, err
	}
	if err := p.Join(child.pid); err != nil {
		return fail(fmt.Errorf("place the box in its control group: %w", err))
	}
	raw, err := json.Marshal(set)
	if err != nil {
		return fail(fmt.Errorf("native: bug: encode setup: %w", err))
	}
	stop := context.AfterFunc(ctx, child.kill)
	defer stop()
	if err := boxinit.Send(int(ours.Fd()), boxinit.Message{Setup: raw}, trees...); err != nil {
		return fail(child.explain(err))
	}
	return &box.Built{
		Control: ours, InitPID: child.pid, Filter: e.filter, Keep: kept, CgroupNS: true, AppArmor: s.AppArmor,
		Ended: child.ended, Kill: child.kill, Close: ours.Close, Note: child.words,
	}, nil
}

// openTrees opens every source with root's eyes and maps the ids of those that
// the box may write.
func (e *Engine) openTrees(set build.Setup, o *box.Overlay) (trees []int, err error) {
	defer func() {
		if err != nil {
			for _, fd := range trees {
				unix.Close(fd)
			}
			trees = nil
		}
	}()
	owner := func(st *unix.Stat_t) (int, error) {
		return e.mapper.Owner(idmap.Ids{UID: int(st.Uid), GID: int(st.Gid)})
	}
	for _, m := range set.Sources() {
		var fd int
		owner := owner
		if o != nil && m.Target == box.WorkspaceTarget {
			// Of all its layers, or a file of one could not be changed in another.
			owner = func(*unix.Stat_t) (int, error) { return e.mapper.Owner(idmap.Ids{UID: o.UID, GID: o.GID}) }
		}
		if o != nil && o.Tree != nil && m.Source == o.Base && !m.ReadOnly {
			if fd, err = o.Tree(); err == nil {
				if err = m.Shown(owner).Dress(fd); err != nil {
					unix.Close(fd)
				}
			}
		} else {
			fd, err = stage.Open(m.Shown(owner))
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

type child struct {
	pid    int
	cmd    *exec.Cmd
	pidfd  int
	ended  chan box.ProcessEnd
	stderr *words
}

// spawn starts this program in new namespaces. It has done nothing yet when
// spawn returns: it waits for the setup message.
func (e *Engine) spawn(control *os.File, root, hostNetwork bool, p box.Placement) (*child, error) {
	c := &child{ended: make(chan box.ProcessEnd, 1), stderr: &words{max: 8 << 10}, pidfd: -1}
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
		// Without this the exec would take the capabilities over the new
		// namespace that the mounts need.
		Credential: &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: !root},
		Setsid:     true,
		PidFD:      &c.pidfd,
	}
	if fd := p.CgroupFD(); fd >= 0 {
		attr.UseCgroupFD, attr.CgroupFD = true, fd
	}
	c.cmd = &exec.Cmd{
		// Descriptor 4 in the child is the copy; it is closed on the exec's far side.
		Path: "/proc/self/fd/4", Args: []string{"untrusted-steps", build.Marker}, Env: boxinit.Environ(), Dir: "/",
		ExtraFiles: []*os.File{control, e.self}, Stderr: c.stderr, SysProcAttr: attr, WaitDelay: 2 * time.Second,
	}
	if err := c.cmd.Start(); err != nil {
		return nil, startError(err)
	}
	c.pid = c.cmd.Process.Pid
	go func() {
		err := c.cmd.Wait()
		end := box.ProcessEnd{}
		if ws, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus); ok {
			if ws.Signaled() {
				end.Signal = int(ws.Signal())
			} else {
				end.Code = ws.ExitStatus()
			}
		} else {
			end.Err = err
		}
		if c.pidfd >= 0 {
			unix.Close(c.pidfd)
		}
		c.ended <- end
		close(c.ended)
	}()
	return c, nil
}

func (c *child) kill() { _ = c.cmd.Process.Kill() }

func (c *child) words() string { return c.stderr.String() }

func (c *child) explain(err error) error {
	if w := strings.TrimSpace(c.words()); w != "" {
		return fmt.Errorf("%w (the box's first process said: %s)", err, w)
	}
	return err
}

// ErrNamespaces: this host lets us make no namespaces.
var ErrNamespaces = errors.New("make namespaces")

// Restricted says whether a box could not be built since this host keeps
// namespaces, or what is done in them and for them, from us. Some hosts refuse to
// make them; others make them and refuse the first mount, which AppArmor does on
// Ubuntu. Root of a container may make no mount at all, and maps no ids where its
// files lie in the container's own layers.
func Restricted(err error) bool {
	var inside *boxinit.Failed
	denied := errors.Is(err, syscall.EPERM)
	return errors.Is(err, ErrNamespaces) ||
		errors.Is(err, stage.ErrMounts) && (denied || errors.Is(err, syscall.EINVAL)) ||
		errors.As(err, &inside) && (denied || errors.Is(err, syscall.EACCES))
}

// startError says what usually is behind a clone that fails.
func startError(err error) error {
	switch {
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES), errors.Is(err, syscall.ENOSYS):
		// No such call: clone3, which a box is born in its control group with, and
		// which Docker's own filter answers so.
		return fmt.Errorf("%w: %w: unprivileged user namespaces are off or restricted here "+
			"(sysctl kernel.unprivileged_userns_clone, AppArmor with kernel.apparmor_restrict_unprivileged_userns, or a container's seccomp filter)", ErrNamespaces, err)
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("%w: %w: user.max_user_namespaces is reached", ErrNamespaces, err)
	}
	// The program itself, or a kernel without them: no setting helps.
	return fmt.Errorf("start the box's first process in namespaces of its own: %w", err)
}

// words keeps the first bytes of what the first process says on its way down.
type words struct {
	mu  sync.Mutex
	buf bytes.Buffer
	max int
}

func (w *words) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if room := w.max - w.buf.Len(); room > 0 {
		w.buf.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

func (w *words) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}

// ownCopy is this very program in memory, sealed. A box's first process is
// started from it and not from the file: a step can start whatever its own first
// process was (/proc/self/exe), and through that reach the file on the host,
// which belongs to the caller. Here it finds memory that cannot be written.
func ownCopy() (*os.File, error) {
	src, err := os.Open("/proc/self/exe")
	if err != nil {
		return nil, fmt.Errorf("open this program's own file: %w", err)
	}
	defer src.Close()
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("box-init", flags|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("box-init", flags)
	}
	if err != nil {
		return nil, fmt.Errorf("copy this program to memory: %w", err)
	}
	dst := os.NewFile(uintptr(fd), "box-init")
	_, err = io.Copy(dst, src)
	if err == nil {
		err = dst.Chmod(0o555)
	}
	if err == nil {
		err = memfd.Seal(uintptr(fd))
	}
	if err != nil {
		dst.Close()
		return nil, fmt.Errorf("copy this program to memory: %w", err)
	}
	return dst, nil
}
