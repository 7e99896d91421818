package boxinit

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/seccomp"
)

// Marker is the argument that makes this program a box's first process. What
// follows it is the path of the control socket.
const Marker = "untrusted-steps-box-init"

// IsChild says whether this process was started to be a box's first process by
// an engine that can only name a socket. It must be asked before anything else
// in main.
func IsChild(args []string) bool { return len(args) == 3 && args[1] == Marker }

// Main connects to the control socket named in the arguments and serves the
// box. It does not return.
func Main(args []string) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: args[2]})
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "untrusted-steps: box init: connect to %s: %v\n", args[2], err)
		os.Exit(1)
	}
	Serve(fd)
}

// Serve is the life of a box's first process after the box is built. It does
// not return: when it ends, the box ends.
func Serve(control int) {
	// From here on nothing may need a new thread: a step that has used up its
	// pids would make the runtime abort, and with it the box. So no garbage
	// collection, and as many processors as there are waiting threads below.
	// An engine that can sets both in our environment, which costs less.
	if os.Getenv("GOGC") != "off" {
		debug.SetGCPercent(-1)
	}
	if runtime.GOMAXPROCS(0) < 4 {
		runtime.GOMAXPROCS(4)
	}
	if err := harden(); err != nil {
		die(control, "harden", "the first process", err)
	}
	if err := serve(control); err != nil && !errors.Is(err, io.EOF) {
		die(control, "serve", "the box", err)
	}
	os.Exit(0)
}

func die(control int, op, name string, err error) {
	_ = Send(control, Fail(op, name, err))
	os.Exit(1)
}

func serve(control int) error {
	m, _, err := Receive(control)
	if err != nil {
		return err
	}
	if m.Prepare == nil {
		return errors.New("expected prepare")
	}
	// The step's thread exists, and every capability is gone, before we say
	// that we are ready: what is counted then is not counted against the step.
	runtime.LockOSThread()
	work, cut := make(chan job), make(chan error)
	go run(control, *m.Prepare, watchRoom(m.Prepare.Tmpfs), work, cut)
	if err := <-cut; err != nil {
		return err
	}
	// A port below 1024 takes a capability, so the sockets come first.
	sockets, failed := listenAll(*m.Prepare)
	if failed != nil {
		_ = Send(control, Message{Failed: failed})
		return io.EOF
	}
	if err := dropAll(m.Prepare.Keep); err != nil {
		return err
	}
	if err := Send(control, Message{Ready: &Ready{}}, sockets...); err != nil {
		return err
	}
	closeAll(sockets)
	m, fds, err := Receive(control)
	if err != nil {
		return err
	}
	if m.Start == nil || len(fds) != 3 {
		return errors.New("expected start with three descriptors")
	}
	work <- job{*m.Start, fds}
	// Nothing more is expected from us but the end. From here on both threads
	// block in raw system calls, which ask the runtime for nothing: while the
	// step runs, the runtime has no reason to start a thread, and a step that
	// has used up its pids cannot make it fail to.
	var b [1]byte
	for {
		n, _, e := unix.RawSyscall(unix.SYS_READ, uintptr(control), uintptr(unsafe.Pointer(&b[0])), 1)
		if e == unix.EINTR || (e == 0 && n > 0) {
			continue
		}
		exitGroup(0)
	}
}

// listenAll makes the sockets on which the box finds its way out.
func listenAll(p Prepare) (fds []int, failed *Failed) {
	for i, a := range p.Addrs {
		if err := addLoopback(i, a); err != nil {
			closeAll(fds)
			return nil, Fail("add", a.String()+" to loopback", err).Failed
		}
	}
	want := p.Listen
	if p.ProxyPort != 0 {
		want = append([]netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(p.ProxyPort))}, want...)
	}
	for _, a := range want {
		fd, err := listen(a)
		if err != nil {
			closeAll(fds)
			return nil, Fail("listen on", a.String(), err).Failed
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

func listen(a netip.AddrPort) (int, error) {
	family, sa := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().Unmap().As4()})
	if a.Addr().Is6() && !a.Addr().Is4In6() {
		family, sa = unix.AF_INET6, &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err == nil {
		err = unix.Bind(fd, sa)
	}
	if err == nil {
		err = unix.Listen(fd, 4096)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// addLoopback gives the box's loopback one more address.
func addLoopback(i int, a netip.Addr) error {
	if !a.Is4() {
		return errors.New("only IPv4 addresses can be added")
	}
	if answers(a) {
		return nil // the engine gave it, and we may not
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq(fmt.Sprintf("lo:%d", i+1))
	if err != nil {
		return err
	}
	ip := a.As4()
	if err := ifr.SetInet4Addr(ip[:]); err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFADDR, ifr); err != nil {
		return err
	}
	if err := ifr.SetInet4Addr([]byte{255, 255, 255, 255}); err != nil {
		return err
	}
	// The kernel gave the address its class's mask, which would make the box's
	// loopback answer for the whole network.
	return unix.IoctlIfreq(fd, unix.SIOCSIFNETMASK, ifr)
}

// answers says whether an address is one of the box's own already.
func answers(a netip.Addr) bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.Bind(fd, &unix.SockaddrInet4{Addr: a.As4()}) == nil
}

// job is the step's command with its standard streams.
type job struct {
	start Start
	stdio []int
}

// run starts the step from a thread of its own, which carries what the step
// must inherit: no capabilities, the filter, no way to gain privileges. The
// thread is never given back, and a failure ends the box.
func run(control int, p Prepare, rooms []room, work <-chan job, cut chan<- error) {
	runtime.LockOSThread()
	var err error
	if p.CgroupNS {
		// Now, not at the birth of the box: the namespace's root is the group
		// its maker is in, and by now we are in the step's.
		if err = unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
			err = fmt.Errorf("make a control group namespace: %w", err)
		}
	}
	if err == nil {
		err = cutBounding(p.Keep)
	}
	cut <- err
	j := <-work
	s, stdio := j.start, j.stdio
	fail := func(m Message) {
		_ = Send(control, m)
		exitGroup(0)
	}
	if err := dropOwn(p.Keep); err != nil {
		fail(Fail("drop", "capabilities", err))
	}
	if err := raiseAmbient(p.Keep); err != nil {
		fail(Fail("keep", "capabilities", err))
	}
	path, failed := lookup(s)
	if failed != nil {
		fail(Message{Failed: failed})
	}
	// Before the filter, which forbids to change what we bound here.
	if err := boundFiles(s.FileBytes); err != nil {
		fail(Fail("bound", "the size of the step's files", err))
	}
	if len(s.Guard) > 0 {
		if err := seccomp.InstallPlain(s.Guard); err != nil {
			fail(Fail("install", "the guard of the first process", err))
		}
	}
	if len(s.Filter) > 0 {
		listener, err := seccomp.Install(s.Filter)
		if err != nil {
			fail(Fail("install", "the system call filter", err))
		}
		err = Send(control, Message{Filtered: &Filtered{}}, listener)
		unix.Close(listener)
		if err != nil {
			exitGroup(1)
		}
	}
	pid, err := syscall.ForkExec(path, s.Argv, &syscall.ProcAttr{
		Dir:   s.Workdir,
		Env:   s.Env,
		Files: []uintptr{uintptr(stdio[0]), uintptr(stdio[1]), uintptr(stdio[2])},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if errors.Is(err, syscall.ENOENT) {
		// The file is there: lookup has just seen it. What is missing is named
		// inside it.
		fail(Fail("interpreter", s.Argv[0], err))
	}
	if err != nil {
		fail(Fail("exec", s.Argv[0], err))
	}
	for _, fd := range stdio {
		unix.Close(fd)
	}
	if err := Send(control, Message{Started: &Started{Pid: pid}}); err != nil {
		exitGroup(1)
	}
	reap(control, pid, rooms)
}

// reap collects every orphan of the box and reports the step's own process.
func reap(control, step int, rooms []room) {
	for {
		var status uint32
		pid, _, e := unix.RawSyscall6(unix.SYS_WAIT4, ^uintptr(0), uintptr(unsafe.Pointer(&status)), unix.WALL, 0, 0, 0)
		switch {
		case e == unix.EINTR:
		case e != 0: // no child is left: the step has ended and was reported
			pause()
		case int(pid) == step:
			_ = Send(control, Message{Exited: &Exited{Status: status, Full: full(rooms)}})
		}
	}
}

func pause() {
	for {
		unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
}

func exitGroup(code int) {
	for {
		unix.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(code), 0, 0)
	}
}

// lookup finds the command as the box sees it. It is what a shell would do,
// with errors that name what is missing.
func lookup(s Start) (string, *Failed) {
	st, err := os.Stat(s.Workdir)
	if err == nil && !st.IsDir() {
		err = syscall.ENOTDIR
	}
	if err == nil {
		err = unix.Faccessat(unix.AT_FDCWD, s.Workdir, unix.X_OK, unix.AT_EACCESS)
	}
	if err != nil {
		return "", Fail("workdir", s.Workdir, err).Failed
	}
	name := s.Argv[0]
	if strings.Contains(name, "/") {
		p := name
		if !filepath.IsAbs(p) {
			p = filepath.Join(s.Workdir, p)
		}
		if err := executable(p); err != nil {
			return "", Fail("exec", name, err).Failed
		}
		return p, nil
	}
	first := error(syscall.ENOENT)
	for _, dir := range filepath.SplitList(pathOf(s.Env)) {
		if !filepath.IsAbs(dir) {
			continue // an empty or relative entry would run what the step wrote
		}
		p := filepath.Join(dir, name)
		err := executable(p)
		if err == nil {
			return p, nil
		}
		if errors.Is(err, syscall.EACCES) {
			first = syscall.EACCES
		}
	}
	return "", Fail("exec", name, first).Failed
}

func pathOf(env []string) string {
	path := ""
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	return path
}

func executable(p string) error {
	st, err := os.Stat(p)
	if err != nil {
		var en syscall.Errno
		if errors.As(err, &en) {
			return en
		}
		return err
	}
	if st.IsDir() || st.Mode()&0o111 == 0 {
		return syscall.EACCES
	}
	return nil
}

// LoopbackUp brings the box's own loopback up. An engine that made the network
// namespace calls it; it is here because both the address and its use are.
func LoopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING | uint16(net.FlagLoopback))
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr); err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	return nil
}
