package probe

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const none = ^uintptr(0) // no descriptor, or every flag

// call is a system call with arguments that do nothing where it is let through.
type call struct {
	name string
	nr   uintptr
	args [6]uintptr
}

// escapes are the calls that only lead out of a box.
var escapes = []call{
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
}

// absent are the calls that do not exist in a box.
var absent = []call{
	{"clone3", unix.SYS_CLONE3, [6]uintptr{}},
	{"io_uring_setup", unix.SYS_IO_URING_SETUP, [6]uintptr{}},
	{"io_uring_enter", unix.SYS_IO_URING_ENTER, [6]uintptr{none}},
	{"io_uring_register", unix.SYS_IO_URING_REGISTER, [6]uintptr{none}},
	{"userfaultfd", unix.SYS_USERFAULTFD, [6]uintptr{none}},
	{"perf_event_open", unix.SYS_PERF_EVENT_OPEN, [6]uintptr{}},
	{"add_key", unix.SYS_ADD_KEY, [6]uintptr{}},
	{"request_key", unix.SYS_REQUEST_KEY, [6]uintptr{}},
	{"keyctl", unix.SYS_KEYCTL, [6]uintptr{none}},
	{"syslog", unix.SYS_SYSLOG, [6]uintptr{none}},
	{"open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, [6]uintptr{none}},
}

// refusedCalls are calls over the machine or over other processes, with
// arguments that would do it: only a box that refuses them is safe to ask.
var refusedCalls = []struct {
	name string
	do   func() error
}{
	{"acct", func() error { return path1(unix.SYS_ACCT, "/tmp") }},
	{"chroot", func() error { return path1(unix.SYS_CHROOT, "/tmp") }},
	{"sethostname", func() error { return unix.Sethostname([]byte("other")) }},
	{"setdomainname", func() error { return unix.Setdomainname([]byte("other")) }},
	{"settimeofday", func() error {
		var now unix.Timeval
		if err := unix.Gettimeofday(&now); err != nil {
			return err
		}
		return unix.Settimeofday(&now)
	}},
	{"clock_settime", func() error {
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_REALTIME, &now); err != nil {
			return err
		}
		return unix.ClockSettime(unix.CLOCK_REALTIME, &now)
	}},
	{"adjtimex", func() error {
		_, err := unix.Adjtimex(&unix.Timex{Modes: unix.ADJ_TICK, Tick: 10000})
		return err
	}},
	{"kcmp", func() error {
		_, _, e := unix.Syscall6(unix.SYS_KCMP, 1, 1, 0, 0, 0, 0)
		return failure(e)
	}},
	{"pidfd_getfd", func() error {
		fd, err := unix.PidfdOpen(1, 0)
		if err != nil {
			return err
		}
		_, err = unix.PidfdGetfd(fd, 0, 0)
		return err
	}},
	{"fanotify_init", func() error {
		_, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT, 0)
		return err
	}},
	{"vhangup", func() error {
		_, _, e := unix.Syscall(unix.SYS_VHANGUP, 0, 0, 0)
		return failure(e)
	}},
	{"raise a limit", func() error {
		var now unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_CORE, &now); err != nil {
			return err
		}
		return unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: now.Cur, Max: now.Max + 1<<20})
	}},
}

func path1(nr uintptr, path string) error {
	p, err := unix.BytePtrFromString(path)
	if err != nil {
		return err
	}
	_, _, e := unix.Syscall(nr, uintptr(unsafe.Pointer(p)), 0, 0)
	return failure(e)
}

func failure(e unix.Errno) error {
	if e != 0 {
		return e
	}
	return nil
}

// CloneFlags are the namespace flags of clone.
var CloneFlags = []struct {
	Name string
	Flag uintptr
}{
	{"CLONE_NEWNS", unix.CLONE_NEWNS}, {"CLONE_NEWCGROUP", unix.CLONE_NEWCGROUP}, {"CLONE_NEWUTS", unix.CLONE_NEWUTS},
	{"CLONE_NEWIPC", unix.CLONE_NEWIPC}, {"CLONE_NEWUSER", unix.CLONE_NEWUSER}, {"CLONE_NEWPID", unix.CLONE_NEWPID},
	{"CLONE_NEWNET", unix.CLONE_NEWNET},
}

func names(list []call) []string {
	var out []string
	for _, c := range list {
		out = append(out, c.name)
	}
	return out
}

// Escapes, Absent and Refused name the calls that the ops escape and call know.
// They are written down here once more, apart from the product's own lists.
func Escapes() []string { return names(escapes) }

// Absent names the calls that answer ENOSYS in a box.
func Absent() []string { return names(absent) }

// Refused names calls that a box refuses one way or another.
func Refused() []string {
	var out []string
	for _, c := range refusedCalls {
		out = append(out, c.name)
	}
	return out
}

// nowhere is a path that leads nowhere, at an address that stays.
func nowhere() uintptr {
	p, err := unix.BytePtrFromString("/nonexistent/place")
	if err != nil {
		panic(err)
	}
	keep = append(keep, p)
	return uintptr(unsafe.Pointer(p))
}

var keep []*byte

var calls = []action{
	// escape makes a forbidden call as a program does that is not in Go. It
	// answers only if it survives, after a while, for a kill may come late.
	{"escape", 1, func(a []string) Answer {
		runtime.LockOSThread()
		if err := disposition(unix.SIGSYS, 0); err != nil {
			return failed(err)
		}
		return survived(escape(a[0]))
	}},
	// escape and go on makes it and does not wait for a kill.
	{"escape and go on", 1, func(a []string) Answer {
		ans := failed(escape(a[0]))
		ans.Text = "survived"
		return ans
	}},
	// escape handled makes it with a handler for SIGSYS in place.
	{"escape handled", 1, func(a []string) Answer {
		runtime.LockOSThread()
		return survived(escape(a[0]))
	}},
	{"escape ignored", 1, func(a []string) Answer {
		runtime.LockOSThread()
		if err := disposition(unix.SIGSYS, 1); err != nil {
			return failed(err)
		}
		return survived(escape(a[0]))
	}},
	{"call", 1, func(a []string) Answer {
		for _, c := range refusedCalls {
			if c.name == a[0] {
				return failed(c.do())
			}
		}
		for _, c := range absent {
			if c.name == a[0] {
				_, _, e := unix.Syscall6(c.nr, c.args[0], c.args[1], c.args[2], c.args[3], c.args[4], c.args[5])
				return failed(e)
			}
		}
		return Answer{Err: "no call " + a[0]}
	}},
	// clone makes a process with the given flags, which ends at once.
	{"clone", 1, func(a []string) Answer {
		runtime.LockOSThread()
		if err := disposition(unix.SIGSYS, 0); err != nil {
			return failed(err)
		}
		err := clone(uintptr(number(a[0])))
		if err == nil {
			return Answer{Text: "survived"}
		}
		return survived(err)
	}},
	{"unshare", 1, func(a []string) Answer {
		runtime.LockOSThread()
		if err := disposition(unix.SIGSYS, 0); err != nil {
			return failed(err)
		}
		return survived(unix.Unshare(number(a[0])))
	}},
	// setns joins the namespace that a file names.
	{"setns", 1, func(a []string) Answer {
		runtime.LockOSThread()
		fd, err := unix.Open(a[0], unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return failed(err)
		}
		if err := disposition(unix.SIGSYS, 0); err != nil {
			return failed(err)
		}
		return survived(unix.Setns(fd, 0))
	}},
	// own filter puts a filter on that allows all.
	{"own filter", 0, func([]string) Answer {
		runtime.LockOSThread()
		allow := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}}
		prog := unix.SockFprog{Len: 1, Filter: &allow[0]}
		_, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
		return failed(e)
	}},
	{"allow new privileges", 0, func([]string) Answer { return failed(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0)) }},
	{"take capabilities", 0, func([]string) Answer {
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		data := [2]unix.CapUserData{{Effective: 1 << unix.CAP_SYS_ADMIN, Permitted: 1 << unix.CAP_SYS_ADMIN}}
		return failed(unix.Capset(&hdr, &data[0]))
	}},
	{"take ambient", 0, func([]string) Answer {
		return failed(unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_NET_ADMIN, 0, 0))
	}},
	{"limit cpu of", 1, func(a []string) Answer {
		return failed(unix.Prlimit(number(a[0]), unix.RLIMIT_CPU, &unix.Rlimit{Cur: 3600, Max: 3600}, nil))
	}},
	{"memfd program", 0, func([]string) Answer {
		fd, err := unix.MemfdCreate("p", 0)
		if err != nil {
			return failed(err)
		}
		self, err := os.ReadFile("/proc/self/exe")
		if err != nil {
			return failed(err)
		}
		f := os.NewFile(uintptr(fd), "p")
		if _, err := f.Write(self); err != nil {
			return failed(err)
		}
		out, err := exec.Command(fmt.Sprintf("/proc/self/fd/%d", fd), Args(Do("ids"))...).CombinedOutput()
		ans := failed(err)
		ans.Text = string(out)
		return ans
	}},
	{"personality", 1, func(a []string) Answer {
		_, _, e := unix.Syscall(unix.SYS_PERSONALITY, uintptr(number(a[0])), 0, 0)
		return failed(e)
	}},
	{"membarrier", 0, func([]string) Answer {
		_, _, e := unix.Syscall(unix.SYS_MEMBARRIER, 0, 0, 0)
		return failed(e)
	}},
}

// survived is the answer of a caller that was not killed, or not yet.
func survived(err error) Answer {
	time.Sleep(700 * time.Millisecond)
	a := failed(err)
	a.Text = "survived"
	return a
}

func escape(name string) error {
	for _, c := range escapes {
		if c.name != name {
			continue
		}
		a := c.args
		switch name {
		case "mount", "pivot_root":
			a[0], a[1] = nowhere(), nowhere()
		}
		_, _, e := unix.Syscall6(c.nr, a[0], a[1], a[2], a[3], a[4], a[5])
		return e
	}
	return foreign(name)
}

// clone makes raw calls only: the child shares nothing with the runtime.
func clone(flags uintptr) error {
	pid, _, e := unix.RawSyscall6(unix.SYS_CLONE, flags|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if e != 0 {
		return e
	}
	if pid == 0 {
		for {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	var ws unix.WaitStatus
	_, err := unix.Wait4(int(pid), &ws, 0, nil)
	return err
}

// disposition is rt_sigaction without the Go runtime's opinion: 0 is the
// default, 1 is to ignore.
func disposition(sig unix.Signal, handler uint64) error {
	action := [4]uint64{handler} // handler, flags, restorer, mask
	if _, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0); e != 0 {
		return fmt.Errorf("set the disposition of %v: %w", sig, e)
	}
	return nil
}
