package seccomp

import "testing"

func TestSetID(t *testing.T) {
	const high = uint64(1) << 32
	for _, arch := range []string{"amd64", "arm64"} {
		t.Run(arch, func(t *testing.T) {
			p, err := CompileSetID(arch)
			if err != nil {
				t.Fatal(err)
			}
			a, err := architectureOf(arch)
			if err != nil {
				t.Fatal(err)
			}
			calls, err := a.calls()
			if err != nil {
				t.Fatal(err)
			}
			rules, err := setIDRules(a)
			if err != nil {
				t.Fatal(err)
			}
			m := machine{t: t, vm: loaded(t, p), arch: a, calls: calls}
			for _, c := range []struct {
				name string
				call string
				args []uint64
				want action
			}{
				{"set-user-id", "fchmod", []uint64{3, 0o4755}, noPermission},
				{"set-group-id", "fchmodat", []uint64{0, 0, 0o2755}, noPermission},
				{"rubbish above a mode", "fchmod", []uint64{3, high | 0o755}, allow},
				{"a bit that hides beneath rubbish", "fchmod", []uint64{3, high | 0o4755}, noPermission},
				{"the newest call", "fchmodat2", []uint64{0, 0, 0o4755, 0}, noPermission},
				{"sticky", "fchmod", []uint64{3, 0o1777}, allow},
				{"a file that is born with it", "openat", []uint64{0, 0, 0x41, 0o4755}, noPermission},
				{"a file without a name that is", "openat", []uint64{0, 0, 0x410001, 0o4755}, noPermission},
				{"a mode that nobody reads", "openat", []uint64{0, 0, 0, 0o7777}, allow},
				{"a plain file", "openat", []uint64{0, 0, 0x41, 0o644}, allow},
				{"a mode behind a pointer", "openat2", []uint64{0, 0, 0, 24}, noSuchCall},
				{"a node", "mknodat", []uint64{0, 0, 0o104755, 0}, noPermission},
				{"a folder, which is born with none", "mkdirat", []uint64{0, 0, 0o4755}, allow},
				{"what others judge", "mount", nil, allow},
			} {
				if got := m.call(c.call, c.args...); got != c.want {
					t.Errorf("%s: %s(%#x) gives %s, want %s", c.name, c.call, c.args, got, c.want)
				}
			}
			if want := map[string]int{"amd64": 10, "arm64": 6}[arch]; len(rules) != want {
				t.Errorf("%d calls have a rule, want %d", len(rules), want)
			}
			m.onlyThese(rules)
		})
	}
}
