package boxinit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/seccomp"
)

// Environ is the environment of a first process. The step's is another one, which
// comes with Start.
func Environ() []string {
	return []string{"GOTRACEBACK=none", "GODEBUG=asyncpreemptoff=1", "GOGC=off", "GOMAXPROCS=4"}
}

// Serve is the life of a box's first process after the box is built. It does
// not return: when it ends, the box ends.
//
// From here on nothing may need a new thread: a step that has used up its pids
// would make the runtime abort, and with it the box. So there are as many
// processors as there are waiting threads below, and no garbage collection, both by
// Environ.
func Serve(control int) { ServeIn(control, -1) }

// ServeIn is Serve for a box whose /proc does not let us write what is ours: tasks
// is a descriptor of the folder of our threads there; -1 is the one at its usual
// place.
func ServeIn(control, tasks int) {
	if os.Getenv("GOGC") != "off" || runtime.GOMAXPROCS(0) < 4 {
		die(control, "find", "the environment of the first process", errors.New("bug: it is not that of boxinit.Environ"))
	}
	if err := harden(); err != nil {
		die(control, "harden", "the first process", err)
	}
	if err := serve(control, tasks); err != nil && !errors.Is(err, io.EOF) {
		die(control, "serve", "the box", err)
	}
	os.Exit(0)
}

func die(control int, op, name string, err error) {
	_ = Send(control, Fail(op, name, err))
	os.Exit(1)
}

func serve(control, tasks int) error {
	m, _, err := Receive(control)
	if err != nil {
		return err
	}
	if m.Prepare == nil {
		return errors.New("expected prepare")
	}
	a, err := newApart(*m.Prepare)
	if err != nil {
		return err
	}
	// The step's thread exists, and every capability is gone, before we say
	// that we are ready: what is counted then is not counted against the step.
	runtime.LockOSThread()
	work, cut := make(chan job), make(chan error)
	go run(control, tasks, *m.Prepare, watchRoom(m.Prepare.Tmpfs), a, work, cut)
	if err := <-cut; err != nil {
		return err
	}
	// A port below 1024 takes a capability, so the sockets come first.
	sockets, failed := listenAll(*m.Prepare)
	if failed != nil {
		_ = Send(control, Message{Failed: failed})
		return io.EOF
	}
	if err := a.drop(dropAll, capsetAll, m.Prepare.Keep); err != nil {
		return err
	}
	var carrier *relay
	if m.Prepare.Relay {
		if carrier, err = carryAll(control, sockets, a); err != nil {
			return err
		}
		sockets = nil
	}
	if err := Send(control, Message{Ready: &Ready{}}, sockets...); err != nil {
		return err
	}
	closeAll(sockets)
	m, fds, err := Receive(control)
	if err != nil {
		return err
	}
	if m.Start == nil || len(fds) < 3 {
		return errors.New("expected start with three descriptors or more")
	}
	work <- job{*m.Start, fds, carrier}
	// Nothing more is expected from us but the end, and to count when a byte comes,
	// which is at the end of each piece of work. From here on both threads block in
	// raw system calls, which ask the runtime for nothing: while the step runs, the
	// runtime has no reason to start a thread, and a step that has used up its pids
	// cannot make it fail to.
	var b [1]byte
	for {
		n, _, e := unix.RawSyscall(unix.SYS_READ, uintptr(control), uintptr(unsafe.Pointer(&b[0])), 1)
		switch {
		case e == unix.EINTR:
		case e == 0 && n > 0:
			a.answer(control)
		default:
			exitGroup(0)
		}
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
		want = append([]Addr{{IP: []byte{127, 0, 0, 1}, Port: uint16(p.ProxyPort)}}, want...)
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

func listen(a Addr) (int, error) {
	var family int
	var sa unix.Sockaddr
	if ip, ok := a.ip4(); ok {
		family, sa = unix.AF_INET, &unix.SockaddrInet4{Port: int(a.Port), Addr: ip}
	} else if len(a.IP) == 16 {
		family, sa = unix.AF_INET6, &unix.SockaddrInet6{Port: int(a.Port), Addr: [16]byte(a.IP)}
	} else {
		return -1, unix.EINVAL
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
func addLoopback(i int, a Addr) error {
	ip, ok := a.ip4()
	if !ok || len(a.IP) != 4 {
		return errors.New("only IPv4 addresses can be added")
	}
	if answers(ip) {
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
func answers(ip [4]byte) bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.Bind(fd, &unix.SockaddrInet4{Addr: ip}) == nil
}

// job is the step's command with its standard streams, and what comes after them.
type job struct {
	start Start
	stdio []int
	relay *relay // nil where sockets are handed out
}

// run starts the step from a thread of its own, which carries what the step
// must inherit: no capabilities, the filter, no way to gain privileges. The
// thread is never given back, and a failure ends the box.
func run(control, tasks int, p Prepare, rooms []room, a *apart, work <-chan job, cut chan<- error) {
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
	if err := a.drop(dropOwn, capsetOwn, p.Keep); err != nil {
		fail(Fail("drop", "capabilities", err))
	}
	if err := raiseAmbient(p.Keep); err != nil {
		fail(Fail("keep", "capabilities", err))
	}
	if err := a.asStep(); err != nil {
		fail(Fail("look as", "the step", err))
	}
	path, failed := lookup(s)
	if err := a.asSelf(); err != nil {
		fail(Fail("be apart from", "the step", err))
	}
	if failed != nil {
		fail(Message{Failed: failed})
	}
	if s.AppArmor != "" {
		if err := confine(tasks, s.AppArmor); err != nil {
			m := Fail("enter", s.AppArmor, err)
			m.Failed.Named = "apparmor"
			fail(m)
		}
	}
	if len(s.CPUs) > 0 {
		// So that programs which count CPUs count those that the step has. It is
		// no bound: the step can undo it, and its share stays what cpus says.
		var set unix.CPUSet
		for _, c := range s.CPUs {
			set.Set(c)
		}
		_ = unix.SchedSetaffinity(0, &set)
	}
	// Before the filter, which forbids to change what we bound here.
	if err := boundFiles(s.FileBytes); err != nil {
		fail(Fail("bound", "the size of the step's files", err))
	}
	// Before the filter too, which lets nobody make a namespace.
	if err := a.enter(); err != nil {
		fail(Fail("count", "the step's processes", err))
	}
	if len(s.SetID) > 0 {
		if err := seccomp.InstallPlain(s.SetID); err != nil {
			fail(Fail("install", "the filter of set-id bits", err))
		}
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
	files := make([]uintptr, len(stdio))
	for i, fd := range stdio {
		files[i] = uintptr(fd)
	}
	pid, err := syscall.ForkExec(path, s.Argv, &syscall.ProcAttr{
		Dir:   s.Workdir,
		Env:   s.Env,
		Files: files,
		Sys:   a.birth(&syscall.SysProcAttr{Setsid: true}),
	})
	if aerr := a.leave(); aerr != nil {
		fail(Fail("be apart from", "the step", aerr))
	}
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
	if err := tell(control, Message{Started: &Started{Pid: pid}}); err != nil {
		exitGroup(1)
	}
	reap(control, pid, rooms, a, j.relay)
}

// confine makes the next program that this thread starts, or what it forks does,
// run under an AppArmor profile. The kernel refuses one that is not loaded.
func confine(tasks int, profile string) error {
	if tasks < 0 {
		fd, err := unix.Open("/proc/self/task", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		tasks = fd
	}
	defer unix.Close(tasks)
	fd, err := unix.Openat(tasks, fmt.Sprintf("%d/attr/apparmor/exec", unix.Gettid()), unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return errors.New("this kernel has no AppArmor")
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte("exec "+profile))
	if errors.Is(err, unix.ENOENT) {
		return errors.New("no profile of that name is loaded")
	}
	return err
}

// reap collects every orphan of the box and reports the step's own process.
func reap(control, step int, rooms []room, a *apart, carrier *relay) {
	for {
		var status uint32
		pid, _, e := unix.RawSyscall6(unix.SYS_WAIT4, ^uintptr(0), uintptr(unsafe.Pointer(&status)), unix.WALL, 0, 0, 0)
		switch {
		case e == unix.EINTR:
		case e != 0: // no child is left: the step has ended and was reported
			pause()
		case int(pid) == step:
			m := Message{Exited: &Exited{Status: status, Full: full(rooms), Counted: a.counted()}}
			if carrier != nil {
				carrier.ended(m)
			} else {
				_ = tell(control, m)
			}
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
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_LOOPBACK)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr); err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	return nil
}
