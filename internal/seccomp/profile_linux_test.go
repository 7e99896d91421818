package seccomp

import (
	"slices"
	"strings"
	"testing"

	docker "github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestProfilesThatAreNotUnderstoodAreRefused(t *testing.T) {
	clause := func(action specs.LinuxSeccompAction, name string, args ...specs.LinuxSeccompArg) *docker.Syscall {
		return &docker.Syscall{LinuxSyscall: specs.LinuxSyscall{Names: []string{name}, Action: action, Args: args}}
	}
	for _, test := range []struct {
		name string
		edit func(*docker.Seccomp)
		want string
	}{
		{"a profile that allows by default", func(p *docker.Seccomp) { p.DefaultAction = specs.ActAllow }, "default action"},
		{"an action other than allow", func(p *docker.Seccomp) {
			p.Syscalls = append(p.Syscalls, clause(specs.ActTrap, "read"))
		}, "is not understood"},
		{"a refusal under a condition", func(p *docker.Seccomp) {
			p.Syscalls = append(p.Syscalls, clause(specs.ActErrno, "socket", specs.LinuxSeccompArg{Op: specs.OpEqualTo}))
		}, "is not understood"},
		{"a condition on an argument of unknown width", func(p *docker.Seccomp) {
			p.Syscalls = append(p.Syscalls, clause(specs.ActAllow, "ioctl", specs.LinuxSeccompArg{Index: 1, Op: specs.OpEqualTo}))
		}, "is not understood"},
		{"two conditions at once", func(p *docker.Seccomp) {
			p.Syscalls = append(p.Syscalls, clause(specs.ActAllow, "socket", specs.LinuxSeccompArg{}, specs.LinuxSeccompArg{}))
		}, "at once"},
		{"an unknown comparison", func(p *docker.Seccomp) {
			p.Syscalls = append(p.Syscalls, clause(specs.ActAllow, "socket", specs.LinuxSeccompArg{Op: "SCMP_CMP_ODD"}))
		}, "comparison"},
		{"a clone that is always allowed", func(p *docker.Seccomp) {
			p.Syscalls = append(p.Syscalls, clause(specs.ActAllow, "clone"))
		}, "namespace flags"},
		{"a condition where ours allows", func(p *docker.Seccomp) {
			for _, s := range p.Syscalls {
				s.Names = slices.DeleteFunc(slices.Clone(s.Names), func(n string) bool { return n == "prlimit64" })
			}
			p.Syscalls = append(p.Syscalls, clause(specs.ActErrno, "prlimit64"))
		}, "prlimit64"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := docker.DefaultProfile()
			if _, _, _, err := decide(amd64, testOptions, p); err != nil {
				t.Fatalf("before the edit: %v", err) // positive control
			}
			test.edit(p)
			_, _, _, err := decide(amd64, testOptions, p)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error with %q", err, test.want)
			}
		})
	}
}

func TestClausesCountAsTheySay(t *testing.T) {
	v := func(a, b uint64) *docker.KernelVersion { return &docker.KernelVersion{Kernel: a, Major: b} }
	for _, test := range []struct {
		name   string
		kernel string
		s      docker.Syscall
		want   bool
	}{
		{"a clause without conditions counts", "", docker.Syscall{}, true},
		{"a clause for a capability does not", "6.8", docker.Syscall{Includes: &docker.Filter{Caps: []string{"CAP_BPF"}}}, false},
		{"a clause against a capability counts", "6.8", docker.Syscall{Excludes: &docker.Filter{Caps: []string{"CAP_BPF"}}}, true},
		{"a clause for this architecture counts", "6.8", docker.Syscall{Includes: &docker.Filter{Arches: []string{"amd64"}}}, true},
		{"a clause for another does not", "6.8", docker.Syscall{Includes: &docker.Filter{Arches: []string{"s390x"}}}, false},
		{"a clause against this architecture does not", "6.8", docker.Syscall{Excludes: &docker.Filter{Arches: []string{"amd64"}}}, false},
		{"a clause for older kernels counts on this one", "6.8.0-1", docker.Syscall{Includes: &docker.Filter{MinKernel: v(4, 8)}}, true},
		{"a clause for this kernel counts", "6.8-rc1", docker.Syscall{Includes: &docker.Filter{MinKernel: v(6, 8)}}, true},
		{"a clause for a newer kernel does not", "6.8", docker.Syscall{Includes: &docker.Filter{MinKernel: v(6, 10)}}, false},
		{"a clause for any kernel does not on an unknown one", "", docker.Syscall{Includes: &docker.Filter{MinKernel: v(4, 8)}}, false},
		{"a clause against newer kernels does not on one", "6.8", docker.Syscall{Excludes: &docker.Filter{MinKernel: v(4, 8)}}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			k, err := kernelVersion(test.kernel)
			if err != nil {
				t.Fatal(err)
			}
			if got := applies(&test.s, amd64, k); got != test.want {
				t.Errorf("counts: %t, want %t", got, test.want)
			}
		})
	}
	for _, bad := range []string{"6", "six.one", ".", "6.", "-1.2"} {
		if _, err := Compile("amd64", Options{Kernel: bad}); err == nil {
			t.Errorf("kernel release %q is accepted", bad)
		}
	}
	if _, err := Compile("riscv64", Options{}); err == nil {
		t.Error("an architecture that is not known is accepted")
	}
}
