package seccomp

import (
	"fmt"
	"maps"
	"slices"

	"golang.org/x/net/bpf"
)

const (
	setIDBits = 0o6000
	creates   = 0x40 | 0x400000 // O_CREAT and O_TMPFILE, the same on both architectures
)

// modeArg is which argument of a call is a mode that may hold set-id bits: of a file
// that is there, or of one that is made. mkdir takes none.
var modeArg = map[string]int{
	"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2,
	"creat": 1, "mknod": 1, "mknodat": 2,
}

// openArgs are those of calls that make a file only if their flags say so; else what
// stands in the place of the mode is nobody's.
var openArgs = map[string]struct{ flags, mode int }{"open": {1, 2}, "openat": {2, 3}}

// CompileSetID makes the filter for a box that can write to a folder of the host. What
// it makes there belongs to whoever started the run: a file with the bit that lets
// everybody run it as that user would be a way to them for each user of the host. The
// bits are refused with EPERM, on files and folders alike; openat2, whose mode nobody
// can see from here, does not exist then. All else is allowed, calls of other
// architectures too, which the box's own filter answers.
func CompileSetID(arch string) (Program, error) {
	a, err := architectureOf(arch)
	if err != nil {
		return Program{}, err
	}
	rules, err := setIDRules(a)
	if err != nil {
		return Program{}, err
	}
	return onlyThese(a, rules)
}

// setIDRules gives the rule of each call that can set the bits, by its number.
func setIDRules(a architecture) (map[uint32]rule, error) {
	calls, err := a.calls()
	if err != nil {
		return nil, err
	}
	rules := map[uint32]rule{}
	for name, arg := range modeArg {
		if n, ok := calls[name]; ok { // the older ones have none on arm64
			rules[n] = rule{when: []condition{{low(arg), anyBit, setIDBits, noPermission}}, otherwise: allow}
		}
	}
	for name, arg := range openArgs {
		if n, ok := calls[name]; ok {
			rules[n] = rule{when: []condition{{low(arg.flags), noBit, creates, allow}, {low(arg.mode), anyBit, setIDBits, noPermission}}, otherwise: allow}
		}
	}
	for _, name := range []string{"fchmod", "fchmodat", "fchmodat2", "mknodat", "openat", "openat2"} {
		n, ok := calls[name]
		if !ok {
			return nil, fmt.Errorf("seccomp: bug: %s has no number on %s", name, a.name)
		}
		if name == "openat2" {
			rules[n] = always(noSuchCall)
		}
	}
	return rules, nil
}

// onlyThese is a filter that answers some calls of one architecture and allows the
// rest.
func onlyThese(a architecture, rules map[uint32]rule) (Program, error) {
	ins := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: a.audit, SkipTrue: 1},
		bpf.RetConstant{Val: uint32(allow)},
		bpf.LoadAbsolute{Off: offsetNumber, Size: 4},
	}
	for _, n := range slices.Sorted(maps.Keys(rules)) {
		l, err := leaf(rules[n])
		if err != nil {
			return Program{}, err
		}
		if len(l) > 255 { // more than a conditional jump can hold
			return Program{}, fmt.Errorf("seccomp: bug: the rule of system call %d is too long", n)
		}
		// A leaf always answers, so the number is still loaded after the jump.
		ins = append(ins, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: n, SkipTrue: uint8(len(l))})
		ins = append(ins, l...)
	}
	return programOf(append(ins, bpf.RetConstant{Val: uint32(allow)}))
}
