package seccomp

import "testing"

// TestRefusing: who has a kernel without protection for process 1 cannot have it
// sent a signal by a file, and nobody is told of what is refused.
func TestRefusing(t *testing.T) {
	const high = uint64(1) << 32
	minus := func(n int64) uint64 { return uint64(-n) }
	for _, name := range []string{"amd64", "arm64"} {
		t.Run(name, func(t *testing.T) {
			p, err := CompileRefusing(name, Options{})
			if err != nil {
				t.Fatal(err)
			}
			a, err := architectureOf(name)
			if err != nil {
				t.Fatal(err)
			}
			calls, err := a.calls()
			if err != nil {
				t.Fatal(err)
			}
			m := machine{t: t, vm: loaded(t, p), arch: a, calls: calls}
			for _, c := range []struct {
				sentence string
				call     string
				args     []uint64
				want     action
			}{
				{"a file of the first process", "fcntl", []uint64{3, 8, 1}, noPermission},
				{"a file of its group", "fcntl", []uint64{3, 8, minus(1)}, noPermission},
				{"a file of its group, as 32 bits", "fcntl", []uint64{3, 8, 0xffffffff}, noPermission},
				{"a file of it, with rubbish above each number", "fcntl", []uint64{3, high | 8, high | 1}, noPermission},
				{"an owner by a pointer", "fcntl", []uint64{3, 15, 0x1000}, noPermission},
				{"a file of one's own", "fcntl", []uint64{3, 8, 12}, allow},
				{"a file of one's own group", "fcntl", []uint64{3, 8, minus(12)}, allow},
				{"a lock", "fcntl", []uint64{3, 6, 1}, allow},
				{"another number for a descriptor", "fcntl", []uint64{3, 0, 1}, allow},
				{"an owner by ioctl", "ioctl", []uint64{3, 0x8901, 0x1000}, noPermission},
				{"a group by ioctl", "ioctl", []uint64{3, high | 0x8902, 0x1000}, noPermission},
				{"to be told of readiness", "ioctl", []uint64{3, 0x5452, 0x1000}, allow},
				{"a call that leads out of a box", "mount", nil, noPermission},
				{"a limit of the first process", "prlimit64", []uint64{1, 0, 8}, noPermission},
				{"a call that a box does not have", "clone3", nil, noSuchCall},
				{"an ordinary one", "getpid", nil, allow},
			} {
				if got := m.call(c.call, c.args...); got != c.want {
					t.Errorf("%s: %s(%#x) gives %s, want %s", c.sentence, c.call, c.args, got, c.want)
				}
			}
			for _, n := range calls {
				if got := m.answer(a.audit, n); got == notify {
					t.Errorf("call %d is reported, and there is nobody to report to", n)
				}
			}
		})
	}
}
