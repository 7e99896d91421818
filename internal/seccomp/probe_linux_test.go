package seccomp

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The test binary is its own child, in two roles: "install" puts the filter on,
// hands the listener over and executes its arguments; "probe" tries something
// and says what came of it.
const (
	roleVar   = "SECCOMP_TEST_ROLE"
	probeVar  = "SECCOMP_TEST_PROBE"
	sigsysVar = "SECCOMP_TEST_SIGSYS" // what the probe does with SIGSYS: "", handled, ignored, blocked
)

func child(role string) {
	runtime.LockOSThread()
	var err error
	switch role {
	case "install":
		err = install(os.Args[1:])
	case "guarded", "not guarded":
		err = underGuard(role == "guarded")
	case "probe", "filtered probe":
		err = probe(os.Getenv(probeVar), os.Getenv(sigsysVar))
	default:
		err = fmt.Errorf("no role %q", role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, role+":", err)
		os.Exit(99)
	}
	os.Exit(0)
}

func install(argv []string) error {
	const socket = 3
	unix.CloseOnExec(socket)
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return err
	}
	p, err := Compile(runtime.GOARCH, testOptions)
	if err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	listener, err := Install(p.Raw())
	if err != nil {
		return err
	}
	if flags, err := unix.FcntlInt(uintptr(listener), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		return fmt.Errorf("the listener stays open on exec (flags %d, %v)", flags, err)
	}
	if err := unix.Sendmsg(socket, []byte{1}, unix.UnixRights(listener), nil, 0); err != nil {
		return err
	}
	if _, err := unix.Read(socket, make([]byte, 1)); err != nil {
		return err
	}
	os.Setenv(roleVar, "filtered probe")
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	return syscall.Exec(path, argv, os.Environ())
}

// probe prints what it found. A probe that prints "survived" after an escape
// was not killed.
func probe(what, sigsys string) error {
	if name, ok := strings.CutPrefix(what, "escape:"); ok {
		if err := treatSIGSYS(sigsys); err != nil {
			return err
		}
		errno := escape(name)
		if os.Getenv(roleVar) == "filtered probe" {
			time.Sleep(10 * killAfter) // the kill may come later than the answer
		}
		fmt.Println("survived:", name, errno)
		return nil
	}
	switch what {
	case "refusals":
		return refusals()
	case "own filter":
		allowAll := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: uint32(allow)}}
		if fd, errno := setFilter(0, &unix.SockFprog{Len: 1, Filter: &allowAll[0]}); errno != 0 {
			return fmt.Errorf("put an own filter on: %d, %w", fd, errno)
		}
		return probe("escape:mount", "")
	case "own listener":
		all := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: uint32(notify)}}
		_, errno := setFilter(unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, &unix.SockFprog{Len: 1, Filter: &all[0]})
		fmt.Println("own listener:", errno)
		fmt.Println("no_new_privs off:", unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0))
		return nil
	case "threads":
		return threads()
	case "thread escape":
		for range 20 {
			go func() { runtime.LockOSThread(); time.Sleep(time.Minute) }()
		}
		if err := treatSIGSYS(""); err != nil {
			return err
		}
		go func() { runtime.LockOSThread(); escape("mount") }()
		time.Sleep(5 * time.Second)
		fmt.Println("survived")
		return nil
	case "race":
		go func() {
			runtime.LockOSThread()
			for {
				_ = disposition(unix.SIGSYS, sigIgn)
				_ = disposition(unix.SIGSYS, sigDfl)
			}
		}()
		for range 1000 {
			escape("mount")
			time.Sleep(time.Millisecond)
		}
		fmt.Println("survived")
		return nil
	case "storm":
		return storm(2000, 8)
	case "hold":
		return hold()
	case "withdraw":
		return withdraw()
	}
	return fmt.Errorf("no probe %q", what)
}

const (
	sigDfl = 0
	sigIgn = 1
)

// disposition is rt_sigaction without the Go runtime's opinion.
func disposition(sig unix.Signal, handler uint64) error {
	action := [4]uint64{handler} // handler, flags, restorer, mask
	if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0); errno != 0 {
		return fmt.Errorf("set the disposition of %v: %w", sig, errno)
	}
	return nil
}

func treatSIGSYS(how string) error {
	switch how {
	case "": // as any program that is not in Go
		return disposition(unix.SIGSYS, sigDfl)
	case "handled": // the Go runtime does
		return nil
	case "ignored":
		return disposition(unix.SIGSYS, sigIgn)
	case "blocked":
		if err := disposition(unix.SIGSYS, sigDfl); err != nil {
			return err
		}
		set := unix.Sigset_t{}
		set.Val[0] = 1 << (uint(unix.SIGSYS) - 1)
		return unix.PthreadSigmask(unix.SIG_BLOCK, &set, nil)
	}
	return fmt.Errorf("no way %q to treat SIGSYS", how)
}

var nowhere = func() uintptr {
	p, err := unix.BytePtrFromString("/nonexistent/place")
	if err != nil {
		panic(err)
	}
	return uintptr(unsafe.Pointer(p))
}

const none = ^uintptr(0) // no descriptor, or every flag

// escapes has each escape call with arguments that do nothing where it is not
// filtered.
var escapes = []struct {
	name string
	nr   uintptr
	args [6]uintptr
}{
	{"ptrace", unix.SYS_PTRACE, [6]uintptr{0xffff, 0}},
	{"process_vm_readv", unix.SYS_PROCESS_VM_READV, [6]uintptr{1, 0, 0, 0, 0, 1}},
	{"process_vm_writev", unix.SYS_PROCESS_VM_WRITEV, [6]uintptr{1, 0, 0, 0, 0, 1}},
	{"kexec_load", unix.SYS_KEXEC_LOAD, [6]uintptr{0, 1000, 0, 0xffff}},
	{"kexec_file_load", unix.SYS_KEXEC_FILE_LOAD, [6]uintptr{none, none, 0, 0, 0xffff}},
	{"init_module", unix.SYS_INIT_MODULE, [6]uintptr{}},
	{"finit_module", unix.SYS_FINIT_MODULE, [6]uintptr{none, 0, 0xffff}},
	{"delete_module", unix.SYS_DELETE_MODULE, [6]uintptr{0, unix.O_NONBLOCK}},
	{"reboot", unix.SYS_REBOOT, [6]uintptr{}}, // without its magic numbers
	{"swapon", unix.SYS_SWAPON, [6]uintptr{0, none}},
	{"swapoff", unix.SYS_SWAPOFF, [6]uintptr{}},
	{"open_tree", unix.SYS_OPEN_TREE, [6]uintptr{none, 0, none}},
	{"move_mount", unix.SYS_MOVE_MOUNT, [6]uintptr{none, 0, none, 0, none}},
	{"fsopen", unix.SYS_FSOPEN, [6]uintptr{0, none}},
	{"fsconfig", unix.SYS_FSCONFIG, [6]uintptr{none, none}},
	{"fsmount", unix.SYS_FSMOUNT, [6]uintptr{none, none}},
	{"fspick", unix.SYS_FSPICK, [6]uintptr{none, 0, none}},
	{"mount_setattr", unix.SYS_MOUNT_SETATTR, [6]uintptr{none, 0, none}},
	{"bpf", unix.SYS_BPF, [6]uintptr{0xffff}},
	{"mount", unix.SYS_MOUNT, [6]uintptr{}},
	{"umount2", unix.SYS_UMOUNT2, [6]uintptr{0, none}},
	{"pivot_root", unix.SYS_PIVOT_ROOT, [6]uintptr{}},
	{"unshare", unix.SYS_UNSHARE, [6]uintptr{}}, // of nothing
	{"setns", unix.SYS_SETNS, [6]uintptr{none}},
	// Flags that exclude each other.
	{"clone with CLONE_NEWUSER", unix.SYS_CLONE, [6]uintptr{unix.CLONE_NEWUSER | unix.CLONE_FS}},
}

func escape(name string) error {
	for _, e := range escapes {
		if e.name == name {
			a := e.args
			switch name {
			case "mount", "pivot_root":
				a[0], a[1] = nowhere(), nowhere()
			}
			_, _, errno := unix.Syscall6(e.nr, a[0], a[1], a[2], a[3], a[4], a[5])
			return errno
		}
	}
	return otherEscape(name)
}

func refusals() error {
	for _, s := range []struct {
		name   string
		family int
	}{{"vsock", unix.AF_VSOCK}, {"alg", unix.AF_ALG}, {"netlink", unix.AF_NETLINK}} {
		_, err := unix.Socket(s.family, unix.SOCK_RAW, 0)
		if s.name == "vsock" {
			_, err = unix.Socket(s.family, unix.SOCK_STREAM, 0)
		}
		fmt.Printf("%s: %v\n", s.name, err)
	}
	var old unix.Rlimit
	fmt.Printf("limits of 1: %v\n", unix.Prlimit(1, unix.RLIMIT_CPU, nil, &old))
	fmt.Printf("own limits: %v\n", unix.Prlimit(0, unix.RLIMIT_CPU, nil, &old))
	fmt.Printf("set own limits: %v\n", unix.Prlimit(0, unix.RLIMIT_CPU, &old, nil))
	for _, c := range []struct {
		name string
		nr   uintptr
		args [3]uintptr
	}{
		{"clone3", unix.SYS_CLONE3, [3]uintptr{}},
		{"io_uring_setup", unix.SYS_IO_URING_SETUP, [3]uintptr{}},
		{"keyctl", unix.SYS_KEYCTL, [3]uintptr{none}},
		{"call -1", none, [3]uintptr{}},
	} {
		_, _, errno := unix.Syscall(c.nr, c.args[0], c.args[1], c.args[2])
		fmt.Printf("%s: %v\n", c.name, errno)
	}
	return nil
}

func threads() error {
	var wg sync.WaitGroup
	errs := make(chan error, 30)
	for range 30 {
		wg.Go(func() {
			runtime.LockOSThread()
			if out, err := exec.Command("sh", "-c", "echo a | cat").Output(); err != nil || string(out) != "a\n" {
				errs <- fmt.Errorf("a pipeline from a thread: %q, %w", out, err)
			}
		})
	}
	wg.Wait()
	close(errs)
	if err := <-errs; err != nil {
		return err
	}
	fmt.Println("done")
	return nil
}

// storm forks processes that do nothing but an escape. A fork of a Go program
// may only make raw calls, and does.
func storm(total, atOnce int) error {
	if err := disposition(unix.SIGSYS, sigDfl); err != nil {
		return err
	}
	place := nowhere()
	running := 0
	for done := 0; done < total; {
		for running < atOnce && done+running < total {
			pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
			if pid == 0 && errno == 0 {
				unix.RawSyscall6(unix.SYS_MOUNT, place, place, 0, 0, 0, 0)
				for {
					unix.RawSyscall(unix.SYS_EXIT_GROUP, 7, 0, 0)
				}
			}
			if errno != 0 {
				return fmt.Errorf("fork: %w", errno)
			}
			running++
		}
		var status unix.WaitStatus
		if _, err := unix.Wait4(-1, &status, 0, nil); err != nil {
			if err == unix.EINTR {
				continue
			}
			return fmt.Errorf("wait: %w", err)
		}
		running--
		done++
		if !status.Signaled() {
			fmt.Println("survived, exit", status.ExitStatus())
		}
	}
	fmt.Println("done")
	return nil
}
