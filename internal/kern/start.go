package kern

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxinit"
	"github.com/untrusted-steps/untrusted-steps/internal/idmap"
	"github.com/untrusted-steps/untrusted-steps/internal/rootfs"
)

// buildTimeout bounds the time from kern's start to the first process's first
// word. It is generous: an emulated machine takes seconds.
const buildTimeout = 60 * time.Second

// Start builds a box. On success the first process waits in it, ready.
func (e *Engine) Start(ctx context.Context, s box.Spec, p box.Placement) (*box.Built, error) {
	if err := e.Check(s); err != nil {
		return nil, err
	}
	return e.build(ctx, s, p)
}

// build is Start without the check.
func (e *Engine) build(ctx context.Context, s box.Spec, p box.Placement) (*box.Built, error) {
	kept, err := boxinit.Kept(s.CapDrop)
	if err != nil {
		return nil, err
	}
	bin, err := e.verified(ctx)
	if err != nil {
		return nil, err
	}
	view := rootfs.View{}
	if e.opts.View != nil {
		view = e.opts.View(hostname(s.ID), s.Network == box.NetworkHost).WithHosts(s.Hosts)
	}
	list, err := sources(s, view, hostFiles{})
	if err != nil {
		return nil, err
	}
	if s.Root.Kind == box.RootHost {
		if err := clash(s, view, list); err != nil {
			return nil, err
		}
	}
	if err := judge(mountPoints(s, list)); err != nil {
		return nil, err
	}
	root := idmap.Needed()
	staged := root || s.Overlay != nil
	id := idmap.Ids{UID: os.Geteuid(), GID: os.Getegid()}
	if root {
		id = idmap.Box
	}
	f, err := makeFolder(e.opts.Temp, id, s.Script)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*box.Built, error) {
		return nil, errors.Join(err, f.remove())
	}
	self, base := e.program(), "/"
	if !root {
		// Whoever walks the path must end at a file that has one.
		if self, err = filepath.EvalSymlinks(self); err != nil {
			return fail(fmt.Errorf("find this program's own file: %w", err))
		}
	}
	if !staged {
		base = f.dir
	}
	l := lay(s, view, list, base, f.step(), self, staged)
	if l.Paths.Name, err = boxName(); err != nil {
		return fail(err)
	}
	if len(s.KernProfiles) > 0 {
		text, err := e.config()
		if err != nil {
			return fail(err)
		}
		l.Parts.Files, l.Paths.Config = with(l.Parts.Files, configName, text), filepath.Join(base, configName)
	}
	for _, at := range s.Protect {
		l.Paths.Protect = append(l.Paths.Protect, strings.TrimPrefix(at, box.WorkspaceTarget+"/"))
	}
	if !staged {
		// kern walks these by their names, and what is there was written by a
		// step's setup.
		for _, at := range l.Paths.Protect {
			if dir, err := (hostFiles{}).IsDir(filepath.Join(s.Workspace, at), false); err != nil || !dir {
				return fail(fmt.Errorf("protect %s: it is not a folder (%v)", at, err))
			}
		}
	}
	l.Paths.CapsInForce = p.By() == "cgroup2"
	o := order{Env: environment(filepath.Join(base, runtimeName), filepath.Join(base, homeName), startedFD, aliveFD)}
	if o.Argv, err = Argv(s, l.Paths); err != nil {
		return fail(err)
	}
	var trees []*os.File
	defer func() {
		for _, t := range trees {
			t.Close()
		}
	}()
	if staged {
		o.Stage = &stage{UID: id.UID, GID: id.GID, Trees: l.Trees, Parts: l.Parts, Own: s.Overlay != nil}
	}
	switch {
	case root:
		if trees, err = e.openTrees(list, f.step(), self); err != nil {
			return fail(err)
		}
	case staged:
		for _, src := range onStage(list, f.step(), source{Path: self, ReadOnly: true}) {
			o.Stage.Open = append(o.Stage.Open, opening{Path: src.Path, ReadOnly: src.ReadOnly, Links: resolve(src) == 0})
		}
	}
	if staged {
		// The launcher makes the parts.
	} else if err := l.Parts.make(f.dir, func(string) error { return nil }); err != nil {
		return fail(fmt.Errorf("make the box's folder: %w", err))
	}
	listener, err := listen(f.control(), id)
	if err != nil {
		return fail(err)
	}
	defer listener.Close()
	var k *running
	err = p.Born(func() (err error) {
		k, err = spawn(bin, trees, o.Stage, p)
		return err
	})
	if err != nil {
		return fail(err)
	}
	k.name, k.env, k.bin, k.folder, k.staged = l.Paths.Name, environment(filepath.Join(f.dir, runtimeName), filepath.Join(f.dir, homeName), 0, 0), bin, f, staged
	undo := func(err error) (*box.Built, error) {
		return nil, errors.Join(k.explain(err), k.close())
	}
	if err := p.Join(k.pid); err != nil {
		return undo(fmt.Errorf("place the box in its control group: %w", err))
	}
	raw, err := json.Marshal(o)
	if err != nil {
		return undo(fmt.Errorf("kern: bug: encode the order: %w", err))
	}
	stop := context.AfterFunc(ctx, k.kill)
	defer stop()
	if err := k.order(raw); err != nil {
		return undo(err)
	}
	control, pid, err := accept(ctx, listener, k.gone, id)
	if err != nil {
		return undo(err)
	}
	k.control = control
	if k.first, err = hold(control, pid); err != nil {
		return undo(fmt.Errorf("look at the box's first process: %w", err))
	}
	// From here on nobody can connect any more: the name is gone, in the box
	// too, and so is the listener.
	if err := os.Remove(f.control()); err != nil {
		return undo(fmt.Errorf("remove the box's control socket: %w", err))
	}
	// A cancel that came meanwhile is at work on another thread: nobody may take
	// the box for one that was killed from outside.
	if !stop() {
		return undo(ctx.Err())
	}
	return &box.Built{
		Control: control, InitPID: pid, Keep: kept, Guard: e.guard,
		Ended: k.ended, Kill: k.kill, Close: k.close, Note: k.note,
	}, nil
}

// boxName is a name that no other box has: not the step's id, which comes back
// in a retried job.
func boxName() (string, error) {
	b := make([]byte, 6)
	if _, err := rand.Read(b); err != nil {
		return "", fmt.Errorf("name the box: %w", err)
	}
	return "us-" + hex.EncodeToString(b), nil
}

// openTrees opens every source with root's eyes, without following a link that
// an earlier step may have put in its way, and maps the ids of those that the
// box may write.
func (e *Engine) openTrees(list []source, step, self string) (trees []*os.File, err error) {
	defer func() {
		if err != nil {
			for _, t := range trees {
				t.Close()
			}
			trees = nil
		}
	}()
	program := source{Path: self, ReadOnly: true}
	if st, err := os.Stat(self); err != nil || st.Mode()&0o005 != 0o005 {
		program.Mapped = true // the box's id could not run it otherwise
	}
	for _, src := range onStage(list, step, program) {
		t, err := e.openTree(src)
		if err != nil {
			if src.Named != "" {
				return trees, &box.StartupError{Why: fmt.Sprintf("%s: cannot show %s: %v", src.Named, src.Path, err)}
			}
			return trees, fmt.Errorf("open %s for the box: %w", src.Path, err)
		}
		trees = append(trees, t)
	}
	return trees, nil
}

// onStage is all that goes onto a stage, in the order of its trees.
func onStage(list []source, step string, program source) (all []source) {
	for _, src := range list {
		all = append(all, src.opened()...)
	}
	return append(all, source{Path: step, ReadOnly: true}, program)
}

func (e *Engine) openTree(src source) (*os.File, error) {
	if src.Tree != nil {
		fd, err := src.Tree()
		if err != nil {
			return nil, err
		}
		return e.dressed(fd, src)
	}
	at, err := unix.Openat2(unix.AT_FDCWD, src.Path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: resolve(src)})
	if err != nil {
		return nil, err
	}
	defer unix.Close(at)
	fd, err := unix.OpenTree(at, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_EMPTY_PATH)
	if err != nil {
		return nil, err
	}
	return e.dressed(fd, src)
}

// dressed gives a source's mount the attributes and the owner it has in the box.
func (e *Engine) dressed(fd int, src source) (*os.File, error) {
	t := os.NewFile(uintptr(fd), src.Path)
	if err := dress(fd, src.ReadOnly); err != nil {
		t.Close()
		return nil, err
	}
	if !src.Mapped {
		return t, nil
	}
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	userns := -1
	if err == nil {
		owner := idmap.Ids{UID: int(st.Uid), GID: int(st.Gid)}
		if src.Owner != nil {
			owner = *src.Owner
		}
		userns, err = e.mapper.Owner(owner)
	}
	if err == nil {
		err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(userns)})
	}
	if err != nil {
		t.Close()
		return nil, fmt.Errorf("map ids: %w", err)
	}
	return t, nil
}

// resolve says how a source's path may be walked. What a step names was a real
// path when it was checked; a link in it now was put there since.
func resolve(src source) uint64 {
	if src.Named != "" || src.Target == box.WorkspaceTarget {
		return unix.RESOLVE_NO_SYMLINKS
	}
	return 0
}

// hostFiles looks at the host's own files.
type hostFiles struct{}

func (hostFiles) IsDir(path string, follow bool) (bool, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC}
	if !follow {
		how.Resolve = unix.RESOLVE_NO_SYMLINKS
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &how)
	if errors.Is(err, unix.ELOOP) && !follow {
		return false, errors.New("a link is in the way, which was not there when it was checked")
	}
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, err
	}
	return st.Mode&unix.S_IFMT == unix.S_IFDIR, nil
}

// explain adds kern's own words to an error, since they say why.
func (k *running) explain(err error) error {
	k.kill()
	select {
	case <-k.gone:
	case <-time.After(reapGrace):
	}
	k.mu.Lock()
	if k.killed {
		err = fmt.Errorf("%w (kern was %s)", err, k.setup)
	}
	k.mu.Unlock()
	w := strings.TrimSpace(k.words.String())
	if _, why, ours := strings.Cut(w, overlayFailed+": "); ours {
		return fmt.Errorf("%w: %s", box.ErrNoOverlay, oneLine(why))
	}
	if w != "" {
		return fmt.Errorf("%w (kern said: %s)", err, oneLine(w))
	}
	return err
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// listen makes the socket on which the box's first process reports. Only the
// id that kern runs as can connect to it, and only from below a folder that is
// ours alone.
func listen(path string, id idmap.Ids) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("make the box's control socket: %w", err)
	}
	l := os.NewFile(uintptr(fd), path)
	err = unix.Bind(fd, &unix.SockaddrUnix{Name: path})
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err == nil && id.UID != os.Geteuid() {
		err = os.Chown(path, id.UID, id.GID)
	}
	if err == nil {
		err = unix.Listen(fd, 1)
	}
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("make the box's control socket %s: %w", path, err)
	}
	return l, nil
}

// accept waits for the first process to report, for kern to end, or for the
// time to be up.
func accept(ctx context.Context, l *os.File, gone <-chan struct{}, id idmap.Ids) (*os.File, int, error) {
	type result struct {
		fd  int
		err error
	}
	raw, err := l.SyscallConn()
	if err != nil {
		return nil, 0, err
	}
	if err := l.SetDeadline(time.Now().Add(buildTimeout)); err != nil {
		return nil, 0, fmt.Errorf("wait for the box's first process: %w", err)
	}
	got := make(chan result, 1)
	go func() {
		var r result
		err := raw.Read(func(fd uintptr) bool {
			r.fd, _, r.err = unix.Accept4(int(fd), unix.SOCK_CLOEXEC)
			return r.err != unix.EAGAIN
		})
		if err != nil {
			r = result{fd: -1, err: err}
		}
		got <- r
	}()
	var why error
	var r result
	select {
	case r = <-got:
	case <-gone:
		why = errors.New("kern ended before the box's first process reported")
	case <-ctx.Done():
		why = ctx.Err()
	}
	if why != nil {
		_ = l.SetDeadline(time.Unix(1, 0))
		if r := <-got; r.err == nil {
			unix.Close(r.fd)
		}
		return nil, 0, why
	}
	if errors.Is(r.err, os.ErrDeadlineExceeded) {
		return nil, 0, fmt.Errorf("the box's first process did not report within %s", buildTimeout)
	}
	if r.err != nil {
		return nil, 0, fmt.Errorf("wait for the box's first process: %w", r.err)
	}
	control := os.NewFile(uintptr(r.fd), "control")
	cred, err := unix.GetsockoptUcred(r.fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err == nil && (int(cred.Uid) != id.UID || cred.Pid <= 0) {
		err = fmt.Errorf("it runs as %d and not as %d", cred.Uid, id.UID)
	}
	if err != nil {
		control.Close()
		return nil, 0, fmt.Errorf("look at the box's first process: %w", err)
	}
	return control, int(cred.Pid), nil
}

// hold opens the first process, so that it can be ended and seen to be gone
// whatever becomes of its number. Nobody but the first process has the other
// end of its socket: if that is open afterwards, what was opened is what spoke.
func hold(control *os.File, pid int) (int, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1, err
	}
	p := []unix.PollFd{{Fd: int32(control.Fd()), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(p, 0)
	if err == nil && n > 0 && p[0].Revents&(unix.POLLHUP|unix.POLLRDHUP|unix.POLLERR) != 0 {
		err = errors.New("it is gone")
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// exitOf says how a process ended.
func exitOf(state *os.ProcessState, err error) box.ProcessEnd {
	if state != nil {
		if ws, ok := state.Sys().(syscall.WaitStatus); ok {
			if ws.Signaled() {
				return box.ProcessEnd{Signal: int(ws.Signal())}
			}
			return box.ProcessEnd{Code: ws.ExitStatus()}
		}
	}
	return box.ProcessEnd{Err: err}
}
