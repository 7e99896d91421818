package seccomp

import (
	"bytes"
	"encoding/binary"
	"testing"

	docker "github.com/moby/profiles/seccomp"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

var testOptions = Options{Kernel: "6.11.0-1018-azure"}

// machine runs a compiled filter as the kernel would.
type machine struct {
	t     testing.TB
	vm    *bpf.VM
	arch  architecture
	calls map[string]uint32
	rules map[string]rule
}

func newMachine(t testing.TB, name string) machine {
	t.Helper()
	p, err := Compile(name, testOptions)
	if err != nil {
		t.Fatal(err)
	}
	vm := loaded(t, p)
	a, err := architectureOf(name)
	if err != nil {
		t.Fatal(err)
	}
	calls, rules, _, err := decide(a, testOptions, docker.DefaultProfile())
	if err != nil {
		t.Fatal(err)
	}
	return machine{t, vm, a, calls, rules}
}

// loaded is a program through its encoding, as a box gets it.
func loaded(t testing.TB, p Program) *bpf.VM {
	t.Helper()
	p, err := ParseProgram(p.Raw())
	if err != nil {
		t.Fatal(err)
	}
	ins, ok := bpf.Disassemble(p.raw)
	if !ok {
		t.Fatal("the filter does not disassemble")
	}
	vm, err := bpf.NewVM(ins)
	if err != nil {
		t.Fatal(err)
	}
	return vm
}

// answer runs the filter. The machine of x/net reads words most significant
// byte first; the kernel's structure has the low half of an argument first. So
// each half is written big-endian, the low one first.
func (m machine) answer(audit, number uint32, args ...uint64) action {
	m.t.Helper()
	var data []byte
	word := func(v uint32) { data = binary.BigEndian.AppendUint32(data, v) }
	word(number)
	word(audit)
	word(0xdead) // the instruction pointer decides nothing
	word(0xbeef)
	for i := range 6 {
		var v uint64
		if i < len(args) {
			v = args[i]
		}
		word(uint32(v))
		word(uint32(v >> 32))
	}
	n, err := m.vm.Run(data)
	if err != nil {
		m.t.Fatal(err)
	}
	return action(n)
}

func (m machine) call(name string, args ...uint64) action {
	m.t.Helper()
	n, ok := m.calls[name]
	if !ok {
		m.t.Fatalf("%s has no system call %s", m.arch.name, name)
	}
	return m.answer(m.arch.audit, n, args...)
}

func onBoth(t *testing.T, f func(*testing.T, machine)) {
	for _, name := range []string{"amd64", "arm64"} {
		t.Run(name, func(t *testing.T) { f(t, newMachine(t, name)) })
	}
}

func TestEachEscapeCallIsReported(t *testing.T) {
	if n := len(EscapeCalls()); n != 24 {
		t.Fatalf("there are %d escape calls, the contract names 24", n)
	}
	onBoth(t, func(t *testing.T, m machine) {
		for _, name := range EscapeCalls() {
			for _, args := range [][]uint64{{}, {1, 1, 1, 1, 1, 1}, {^uint64(0), ^uint64(0), ^uint64(0)}} {
				if got := m.call(name, args...); got != notify {
					t.Errorf("%s(%x) gives %s, want %s", name, args, got, notify)
				}
			}
		}
	})
}

func TestCalls(t *testing.T) {
	const (
		high      = uint64(1) << 32
		someFlags = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_THREAD |
			unix.CLONE_SYSVSEM | unix.CLONE_SETTLS | unix.CLONE_PARENT_SETTID | unix.CLONE_CHILD_CLEARTID
	)
	for _, test := range []struct {
		name string
		call string
		args []uint64
		want action
	}{
		{"a fork is allowed", "clone", []uint64{uint64(unix.SIGCHLD)}, allow},
		{"a thread is allowed", "clone", []uint64{someFlags}, allow},
		{"posix_spawn is allowed", "clone", []uint64{unix.CLONE_VM | unix.CLONE_VFORK | uint64(unix.SIGCHLD)}, allow},
		{"a clone with a pidfd is allowed", "clone", []uint64{unix.CLONE_PIDFD | uint64(unix.SIGCHLD)}, allow},
		{"a clone with a mount namespace is reported", "clone", []uint64{unix.CLONE_NEWNS}, notify},
		{"a clone with a cgroup namespace is reported", "clone", []uint64{unix.CLONE_NEWCGROUP}, notify},
		{"a clone with a uts namespace is reported", "clone", []uint64{unix.CLONE_NEWUTS}, notify},
		{"a clone with an ipc namespace is reported", "clone", []uint64{unix.CLONE_NEWIPC}, notify},
		{"a clone with a user namespace is reported", "clone", []uint64{unix.CLONE_NEWUSER}, notify},
		{"a clone with a pid namespace is reported", "clone", []uint64{unix.CLONE_NEWPID}, notify},
		{"a clone with a network namespace is reported", "clone", []uint64{unix.CLONE_NEWNET}, notify},
		{"a namespace flag among others is reported", "clone", []uint64{someFlags | unix.CLONE_NEWUSER}, notify},
		{"a namespace flag under high bits is reported", "clone", []uint64{high | unix.CLONE_NEWUSER}, notify},
		{"clone3 does not exist", "clone3", []uint64{1, 2}, noSuchCall},

		{"a VM socket has no address family", "socket", []uint64{unix.AF_VSOCK, unix.SOCK_STREAM}, noAddressFamily},
		{"a VM socket under high bits has none either", "socket", []uint64{high | unix.AF_VSOCK}, noAddressFamily},
		{"an internet socket is allowed", "socket", []uint64{unix.AF_INET, unix.SOCK_STREAM}, allow},
		{"an IPv6 socket is allowed", "socket", []uint64{unix.AF_INET6}, allow},
		{"a UNIX socket is allowed", "socket", []uint64{unix.AF_UNIX}, allow},
		{"a netlink socket is allowed, as Docker has it", "socket", []uint64{unix.AF_NETLINK}, allow},
		{"a kernel crypto socket is not, as Docker has it", "socket", []uint64{unix.AF_ALG}, noSuchCall},
		{"a kernel crypto socket under high bits is not", "socket", []uint64{high | unix.AF_ALG}, noSuchCall},
		{"an address family of the future is not", "socket", []uint64{60}, noSuchCall},

		{"the plain personality is allowed", "personality", []uint64{0}, allow},
		{"asking for the personality is allowed", "personality", []uint64{0xffffffff}, allow},
		{"a fixed memory layout is not", "personality", []uint64{0x0040000}, noSuchCall},
		{"executable reads are not", "personality", []uint64{0x0400000}, noSuchCall},

		{"one's own limits can be set", "prlimit64", []uint64{0, unix.RLIMIT_CPU, 0x7f0000001000, 0}, allow},
		{"one's own limits can be read", "prlimit64", []uint64{0, unix.RLIMIT_CPU, 0, 0x7f0000001000}, allow},
		{"the first process's limits cannot be set", "prlimit64", []uint64{1, unix.RLIMIT_CPU, 0x7f0000001000, 0}, noPermission},
		{"nor under high bits, which the kernel drops", "prlimit64", []uint64{high | 1, unix.RLIMIT_CPU, 0x7f0000001000, 0}, noPermission},
		{"nor can they be read", "prlimit64", []uint64{1, unix.RLIMIT_CPU, 0, 0x1000}, noPermission},
		{"nor set by the id of one of its threads", "prlimit64", []uint64{4, unix.RLIMIT_CPU, 0x7f0000001000, 0}, noPermission},
		{"nor by a page at a multiple of 4 GiB", "prlimit64", []uint64{4, unix.RLIMIT_CPU, 5 * high, 0}, noPermission},
		{"another's limits can be read", "prlimit64", []uint64{77, unix.RLIMIT_CPU, 0, 0x1000}, allow},

		{"a child's priority can be set", "setpriority", []uint64{unix.PRIO_PROCESS, 77, 10}, allow},
		{"the first process's cannot", "setpriority", []uint64{unix.PRIO_PROCESS, 1, 19}, noPermission},
		{"nor its group's", "setpriority", []uint64{unix.PRIO_PGRP, 1, 19}, noPermission},
		{"nor that of all of the user's", "setpriority", []uint64{unix.PRIO_USER, 0, 19}, noPermission},
		{"a child's io priority can be set", "ioprio_set", []uint64{1, 77, 0}, allow},
		{"the first process's cannot ", "ioprio_set", []uint64{1, 1, 0}, noPermission},
		{"nor the io priority of all of the user's", "ioprio_set", []uint64{3, 0, 0}, noPermission},
		{"one's own affinity can be set", "sched_setaffinity", []uint64{0, 8, 1}, allow},
		{"the first process's affinity cannot", "sched_setaffinity", []uint64{1, 8, 1}, noPermission},
		{"nor its scheduler", "sched_setscheduler", []uint64{1}, noPermission},
		{"nor its scheduling parameters", "sched_setparam", []uint64{1}, noPermission},
		{"nor its scheduling attributes", "sched_setattr", []uint64{1}, noPermission},
	} {
		t.Run(test.name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, m machine) {
				if got := m.call(test.call, test.args...); got != test.want {
					t.Errorf("%s(%#x) gives %s, want %s", test.call, test.args, got, test.want)
				}
			})
		})
	}
}

func TestCallsThatDoNotExist(t *testing.T) {
	onBoth(t, func(t *testing.T, m machine) {
		for _, name := range []string{
			"clone3", "io_uring_setup", "io_uring_enter", "io_uring_register", "userfaultfd", "perf_event_open",
			"add_key", "request_key", "keyctl", "syslog", "open_by_handle_at",
			// What Docker's default leaves out.
			"kcmp", "pidfd_getfd", "process_madvise", "acct", "quotactl", "settimeofday", "clock_settime", "chroot",
			"sethostname", "setdomainname", "vhangup", "fanotify_init", "mbind", "move_pages", "open_tree_attr",
		} {
			if got := m.call(name, 1, 2, 3); got != noSuchCall {
				t.Errorf("%s gives %s, want %s", name, got, noSuchCall)
			}
		}
	})
}

func TestOrdinaryCallsAreAllowed(t *testing.T) {
	onBoth(t, func(t *testing.T, m machine) {
		for _, name := range []string{
			"read", "write", "openat", "close", "newfstatat", "statx", "mmap", "mprotect", "munmap", "brk", "execve", "execveat",
			"exit", "exit_group", "wait4", "waitid", "kill", "tgkill", "futex", "getpid", "gettid", "getppid", "pipe2", "dup3",
			"epoll_pwait", "ppoll", "getrandom", "memfd_create", "rseq", "membarrier", "set_robust_list", "seccomp", "prctl",
			"landlock_restrict_self", "inotify_init1", "eventfd2", "timerfd_create", "sendmsg", "recvmsg", "connect", "bind", "listen",
			"accept4", "socketpair", "getdents64", "unlinkat", "renameat2", "fchmodat2", "utimensat", "sched_yield", "sysinfo",
			"pidfd_open", "pidfd_send_signal", "copy_file_range", "io_setup", "io_submit", "close_range", "faccessat2", "mknodat",
			"rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sync_file_range", "fadvise64", "lseek", "fcntl", "statfs",
		} {
			if got := m.call(name); got != allow {
				t.Errorf("%s gives %s, want %s", name, got, allow)
			}
		}
	})
}

func TestCallsOfAnotherArchitectureAreReported(t *testing.T) {
	onBoth(t, func(t *testing.T, m machine) {
		for _, audit := range []uint32{auditAMD64, auditARM64, auditI386, auditARM, 0, 0xffffffff} {
			if audit == m.arch.audit {
				continue
			}
			for _, n := range []uint32{0, 1, 20, 39, 172, 10000, x32Bit | 39, ^uint32(0)} {
				if got := m.answer(audit, n); got != notify {
					t.Errorf("call %d of architecture 0x%x gives %s, want %s", n, audit, got, notify)
				}
			}
		}
	})
}

func TestNumbersThatBelongToNoCall(t *testing.T) {
	x := newMachine(t, "amd64")
	for _, n := range []uint32{x32Bit, x32Bit | 39, x32Bit | 547, x32Bit | 100000, 0x7fffffff} {
		if got := x.answer(auditAMD64, n); got != notify {
			t.Errorf("x32 call 0x%x gives %s, want %s", n, got, notify)
		}
	}
	onBoth(t, func(t *testing.T, m machine) {
		// -1 is how a program calls what its headers do not know.
		for _, n := range []uint32{600, 10000, 0x3fffffff, 0x80000000, 0x80000000 | x32Bit | 39, ^uint32(0)} {
			if got := m.answer(m.arch.audit, n); got != noSuchCall {
				t.Errorf("call 0x%x gives %s, want %s", n, got, noSuchCall)
			}
		}
	})
}

// TestFilterDoesWhatTheRulesSay compares the machine code with the rules it was
// made from: every number, and for each comparison the values on both sides of
// it in both halves of its argument.
func TestFilterDoesWhatTheRulesSay(t *testing.T) {
	onBoth(t, func(t *testing.T, m machine) {
		names := map[uint32]string{}
		for name, n := range m.calls {
			names[n] = name
		}
		for n := range uint32(1100) {
			r, ok := m.rules[names[n]]
			if !ok {
				r = always(noSuchCall)
			}
			for _, args := range samples(r) {
				if got, want := m.answer(m.arch.audit, n, args[:]...), r.answer(args); got != want {
					t.Fatalf("call %d (%s) with %#x gives %s, its rule %q says %s", n, names[n], args, got, r, want)
				}
			}
		}
	})
}

func samples(r rule) [][6]uint64 {
	out := [][6]uint64{{}, {1, 1, 1, 1, 1, 1}, {^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}}
	for _, c := range r.when {
		for _, v := range []uint32{c.value - 1, c.value, c.value + 1, 0, ^uint32(0)} {
			for _, other := range out[:3] {
				args := other
				shift := 32 * (c.word % 2)
				args[c.word/2] = args[c.word/2]&^(uint64(0xffffffff)<<shift) | uint64(v)<<shift
				out = append(out, args)
			}
		}
	}
	return out
}

func TestParseProgramRefusesWhatIsNoFilter(t *testing.T) {
	p, err := Compile("amd64", testOptions)
	if err != nil {
		t.Fatal(err)
	}
	good := p.Raw()
	if _, err := ParseProgram(good); err != nil {
		t.Fatal(err) // positive control
	}
	for name, raw := range map[string][]byte{
		"nothing":               nil,
		"a cut one":             good[:len(good)-3],
		"one without its end":   good[:len(good)-8],
		"too many instructions": bytes.Repeat(good[len(good)-8:], maxInstructions+1),
		"an unknown one":        append([]byte{0xff, 0xff, 0, 0, 0, 0, 0, 0}, good...),
	} {
		if _, err := ParseProgram(raw); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func TestNamesOfCalls(t *testing.T) {
	x, err := newNamer(amd64)
	if err != nil {
		t.Fatal(err)
	}
	a, err := newNamer(arm64)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		n    namer
		call callData
		want string
	}{
		{x, callData{Number: 165, Arch: auditAMD64}, "mount"},
		{a, callData{Number: 40, Arch: auditARM64}, "mount"},
		{x, callData{Number: 56, Arch: auditAMD64, Args: [6]uint64{0x10020011}}, "clone with CLONE_NEWNS|CLONE_NEWUSER"},
		{x, callData{Number: 20, Arch: auditI386}, "i386 system call 20"},
		{x, callData{Number: 0x40000027, Arch: auditAMD64}, "x32 system call 39"},
		{a, callData{Number: 21, Arch: auditARM}, "arm system call 21"},
		{a, callData{Number: 5, Arch: 0x1234}, "system call 5 of architecture 0x1234"},
		{x, callData{Number: 7, Arch: auditAMD64}, "system call 7"},
	} {
		if got := test.n.name(test.call); got != test.want {
			t.Errorf("%+v is named %q, want %q", test.call, got, test.want)
		}
	}
}

func TestFilterIsSmall(t *testing.T) {
	onBoth(t, func(t *testing.T, m machine) {
		p, err := Compile(m.arch.name, testOptions)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d instructions", p.Len())
		if p.Len() > 400 {
			t.Errorf("%d instructions, want at most 400", p.Len())
		}
	})
}

func BenchmarkCompile(b *testing.B) {
	for b.Loop() {
		if _, err := Compile("amd64", testOptions); err != nil {
			b.Fatal(err)
		}
	}
}
