package seccomp

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func guardMachine(t *testing.T, name string) (machine, map[uint32]rule) {
	t.Helper()
	p, err := CompileGuard(name)
	if err != nil {
		t.Fatal(err)
	}
	vm := loaded(t, p)
	a, err := architectureOf(name)
	if err != nil {
		t.Fatal(err)
	}
	calls, err := a.calls()
	if err != nil {
		t.Fatal(err)
	}
	rules, err := guardRules(a)
	if err != nil {
		t.Fatal(err)
	}
	return machine{t: t, vm: vm, arch: a, calls: calls}, rules
}

// onlyThese fails unless each rule holds to the bit, and all else is allowed, calls of
// another architecture too.
func (m machine) onlyThese(rules map[uint32]rule) {
	m.t.Helper()
	for n := range uint32(600) {
		r, ok := rules[n]
		if !ok {
			r = always(allow)
		}
		for _, args := range samples(r) {
			if got, want := m.answer(m.arch.audit, n, args[:]...), r.answer(args); got != want {
				m.t.Fatalf("call %d with %#x gives %s, its rule %q says %s", n, args, got, r, want)
			}
		}
		if got := m.answer(auditI386, n, 1, 1, 1); got != allow {
			m.t.Fatalf("call %d of another architecture gives %s", n, got)
		}
	}
}

func TestGuard(t *testing.T) {
	const high = uint64(1) << 32
	for _, arch := range []string{"amd64", "arm64"} {
		t.Run(arch, func(t *testing.T) {
			m, rules := guardMachine(t, arch)
			for _, c := range []struct {
				name string
				call string
				args []uint64
				want action
			}{
				{"a limit of the first process", "prlimit64", []uint64{1, 0, 8}, noPermission},
				{"a limit of it, with rubbish above its id", "prlimit64", []uint64{high | 1, 0, 8}, noPermission},
				{"a limit of one of its threads", "prlimit64", []uint64{7, 0, 8}, noPermission},
				{"a limit that lies at an address of 32 zero bits", "prlimit64", []uint64{7, 0, high}, noPermission},
				{"a limit of one's own", "prlimit64", []uint64{0, 0, 8}, allow},
				{"reading a limit of a child", "prlimit64", []uint64{7, 0, 0, 8}, allow},
				{"the priority of the first process", "setpriority", []uint64{0, 1, 19}, noPermission},
				{"the priority of every process of the user", "setpriority", []uint64{prioUser, 0, 19}, noPermission},
				{"one's own priority", "setpriority", []uint64{0, 0, 19}, allow},
				{"the I/O priority of the first process", "ioprio_set", []uint64{1, 1, 0}, noPermission},
				{"the processors of the first process", "sched_setaffinity", []uint64{1, 8, 8}, noPermission},
				{"one's own processors", "sched_setaffinity", []uint64{0, 8, 8}, allow},
				{"the scheduling of the first process", "sched_setattr", []uint64{1}, noPermission},
				{"the scheduler of the first process", "sched_setscheduler", []uint64{1}, noPermission},
				{"the scheduling parameters of the first process", "sched_setparam", []uint64{1}, noPermission},
				{"a call that is the engine's to judge", "mount", nil, allow},
				{"a socket that is the engine's to judge", "socket", []uint64{afVsock}, allow},
			} {
				if got := m.call(c.call, c.args...); got != c.want {
					t.Errorf("%s: %s(%#x) gives %s, want %s", c.name, c.call, c.args, got, c.want)
				}
			}
			// All else, whatever its number, and each rule to the bit.
			for _, n := range []uint32{600, x32Bit, x32Bit | 302, negatives, ^uint32(0)} {
				if got := m.answer(m.arch.audit, n, 1, 1, 1); got != allow {
					t.Errorf("call %#x gives %s", n, got)
				}
			}
			m.onlyThese(rules)
		})
	}
}

func TestGuardIsForArchitecturesThatThereAre(t *testing.T) {
	if p, err := CompileGuard("mips"); err == nil {
		t.Errorf("there is one of %d instructions for mips", p.Len())
	}
}

// TestGuardInTheKernel: installed without a listener, it holds for what the
// thread starts.
func TestGuardInTheKernel(t *testing.T) {
	run := func(role string) string {
		cmd := exec.CommandContext(t.Context(), self(t))
		cmd.Env = append(os.Environ(), roleVar+"="+role)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", role, err, out)
		}
		return string(out)
	}
	if got, want := run("guarded"), "limits of 1: operation not permitted\nown limits: <nil>\nset own limits: <nil>\nlisten: <nil>\n"; got != want {
		t.Error(cmp.Diff(want, got))
	}
	if os.Geteuid() == 0 { // nobody else may read them outside
		if got, want := run("not guarded"), "limits of 1: <nil>\nown limits: <nil>\nset own limits: <nil>\nlisten: <nil>\n"; got != want {
			t.Errorf("control: %s", cmp.Diff(want, got))
		}
	}
}

// underGuard is the child of the test above. It only reads process 1's limits.
func underGuard(guard bool) error {
	if guard {
		p, err := CompileGuard(runtime.GOARCH)
		if err != nil {
			return err
		}
		if err := InstallPlain(p.Raw()); err == nil && os.Geteuid() != 0 {
			return fmt.Errorf("it is installed without no_new_privs")
		}
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return err
		}
		if err := InstallPlain(p.Raw()); err != nil {
			return err
		}
	}
	var old unix.Rlimit
	fmt.Printf("limits of 1: %v\n", unix.Prlimit(1, unix.RLIMIT_CPU, nil, &old))
	fmt.Printf("own limits: %v\n", unix.Prlimit(0, unix.RLIMIT_CPU, nil, &old))
	fmt.Printf("set own limits: %v\n", unix.Prlimit(0, unix.RLIMIT_CPU, &old, nil))
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err == nil {
		err = unix.Listen(fd, 1)
		unix.Close(fd)
	}
	fmt.Printf("listen: %v\n", err)
	return nil
}
