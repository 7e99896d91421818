package boxtest

import (
	"slices"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/probe"
)

// procFacts are about /proc, /sys, /dev and control groups.
func (s *suite) procFacts(t *testing.T) {
	t.Run("H94 what /proc tells of the kernel is masked", func(t *testing.T) {
		t.Parallel()
		paths := []string{"/proc/kcore", "/proc/kallsyms", "/proc/kmsg", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/proc/latency_stats", "/proc/timer_stats",
			"/proc/interrupts", "/proc/modules", "/proc/kpagecount", "/proc/kpageflags", "/proc/vmallocinfo"}
		ops := []probe.Op{probe.Do("read", "/proc/cpuinfo"), probe.Do("ls", "/proc/acpi"), probe.Do("ls", "/proc/scsi"), probe.Do("ls", "/proc/asound")}
		for _, p := range paths {
			ops = append(ops, probe.Do("read", p))
		}
		a := s.ask(t, ops...)
		works(t, "read /proc/cpuinfo", a[0])
		for i := 1; i < 4; i++ {
			if len(a[i].List) != 0 && !slices.Contains(s.differ.ProcShown, ops[i].Args[0]) {
				t.Errorf("%s shows %q", ops[i].Args[0], a[i].List)
			}
		}
		for i, p := range paths {
			// The kernel answers some with addresses that are all zero.
			text := strings.TrimSpace(a[4+i].Text)
			if p == "/proc/kallsyms" && strings.HasPrefix(text, "0000000000000000 ") {
				continue
			}
			if text != "" && !slices.Contains(s.differ.ProcShown, p) {
				t.Errorf("%s tells %s", p, clip(text))
			}
		}
	})

	t.Run("H94 H95 nothing of /proc and /sys can be written", func(t *testing.T) {
		t.Parallel()
		var ops []probe.Op
		for _, p := range []string{"/proc/sysrq-trigger", "/proc/sys/kernel/hostname", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/drop_caches",
			"/proc/sys/kernel/ns_last_pid", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv4/ping_group_range", "/proc/sys/net/ipv4/tcp_rmem", "/proc/sys/fs/nr_open", "/proc/sys/fs/mount-max",
			"/proc/sys/kernel/yama/ptrace_scope", "/proc/sys/kernel/randomize_va_space", "/proc/sys/fs/binfmt_misc/register", "/proc/irq/0/smp_affinity",
			"/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/cgroup.subtree_control", "/sys/kernel/uevent_helper", "/sys/kernel/mm/transparent_hugepage/enabled"} {
			ops = append(ops, probe.Do("open", p, "w"))
		}
		a := s.ask(t, append(ops, probe.Do("overwrite", "/proc/self/comm", "mine"))...)
		for i, op := range ops {
			if slices.Contains(s.differ.ProcShown, op.Args[0]) {
				continue
			}
			wantErr(t, "open "+op.Args[0]+" for writing", a[i], "EROFS", "EACCES", "EPERM", "ENOENT")
		}
		works(t, "write to /proc/self/comm", a[len(ops)])
	})

	t.Run("H95 H96 there is no control group to write to or to move to", func(t *testing.T) {
		t.Parallel()
		a := s.ask(t, probe.Do("ls", "/sys/fs/cgroup"), probe.Do("read", "/proc/self/cgroup"), probe.Do("read", "/proc/self/mountinfo"), probe.Do("mkdir", "/sys/fs/cgroup/mine"))
		if len(a[0].List) != 0 && !s.differ.SysShown {
			t.Errorf("/sys/fs/cgroup shows %q", a[0].List)
		}
		for line := range strings.Lines(a[1].Text) {
			parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
			if len(parts) != 3 || parts[2] != "/" {
				t.Errorf("/proc/self/cgroup tells of the host: %q", line)
			}
		}
		for _, kind := range []string{" - cgroup ", " - cgroup2 ", " - sysfs ", " - securityfs ", " - debugfs ", " - bpf "} {
			if strings.Contains(a[2].Text, kind) && !s.differ.SysShown {
				t.Errorf("the box has a mount of kind%s", kind)
			}
		}
		refused(t, "make a control group", a[3])
	})

	t.Run("H97 mounting a fresh proc, sysfs or cgroup2 is escape_blocked", func(t *testing.T) {
		t.Parallel()
		s.escaped(t, s.run(t, s.probing(t, probe.Do("escape", "mount"))), "mount")
	})

	t.Run("H98 devices of the host are absent, harmless ones work", func(t *testing.T) {
		t.Parallel()
		absent := []string{"/dev/mem", "/dev/kmem", "/dev/port", "/dev/kvm", "/dev/fuse", "/dev/net/tun", "/dev/loop-control", "/dev/loop0", "/dev/sda", "/dev/vda", "/dev/nvme0",
			"/dev/kmsg", "/dev/vsock", "/dev/vhost-net", "/dev/uinput", "/dev/mapper/control"}
		var ops []probe.Op
		for _, p := range absent {
			ops = append(ops, probe.Do("open", p, "r"))
		}
		ops = append(ops, probe.Do("open", "/dev/null", "rw"), probe.Do("open", "/dev/zero", "r"), probe.Do("open", "/dev/urandom", "r"), probe.Do("open", "/dev/full", "w"))
		a := s.ask(t, ops...)
		for i, p := range absent {
			wantErr(t, "open "+p, a[i], "ENOENT", "ENOTDIR")
		}
		for i := len(absent); i < len(ops); i++ {
			works(t, "open "+ops[i].Args[0], a[i])
		}
	})

	t.Run("A11 F75 the box's first process cannot be looked into", func(t *testing.T) {
		t.Parallel()
		var ops []probe.Op
		for _, n := range []string{"environ", "mem", "maps", "auxv", "stack", "syscall", "io", "fd/0", "fd/3", "exe", "root/etc/passwd", "cwd/etc/passwd", "ns/net", "ns/user", "ns/mnt", "pagemap"} {
			// Some of them open and then refuse to be read.
			ops = append(ops, probe.Do("read", "/proc/1/"+n))
		}
		ops = append(ops, probe.Do("stat", "/proc/1/root/etc"), probe.Do("open", "/proc/1/mem", "w"), probe.Do("open", "/proc/1/task/1/mem", "rw"), probe.Do("open", "/proc/1/exe", "w"))
		a := s.ask(t, append(ops, probe.Do("open", "/proc/self/environ", "r"), probe.Do("open", "/proc/self/mem", "rw"), probe.Do("open", "/proc/self/ns/net", "r"))...)
		for i, op := range ops {
			if slices.Contains(s.differ.InitShown, op.Args[0]) {
				continue
			}
			wantErr(t, op.Do+" "+op.Args[0], a[i], "EACCES", "EPERM", "ENOENT", "EROFS")
		}
		for i := len(ops); i < len(a); i++ {
			works(t, "look into oneself", a[i])
		}
	})

	t.Run("G93 a program cannot be changed while it runs", func(t *testing.T) {
		t.Parallel()
		a := s.ask(t, probe.Do("open", "/proc/self/exe", "w"), probe.Do("open", "/proc/self/exe", "r"))
		wantErr(t, "open /proc/self/exe for writing", a[0], "EROFS", "ETXTBSY", "EACCES")
		works(t, "open it for reading", a[1])
	})
}
