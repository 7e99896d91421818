package seccomp

import (
	"fmt"
	"maps"
	"slices"

	"golang.org/x/net/bpf"
)

// guardedCalls are those of the guards that keep a step's hands off the box's
// first process.
var guardedCalls = []string{
	"prlimit64", "setpriority", "ioprio_set",
	"sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler",
}

// CompileGuard makes the filter for a box whose engine has a filter of its own
// that knows nothing of our first process. It refuses what the guards of
// [Compile] refuse to do to that process (EPERM) and allows all else, the calls
// of other architectures included: where two filters disagree the kernel takes
// the stricter answer, and what to make of those is the engine's to say.
func CompileGuard(arch string) (Program, error) {
	a, err := architectureOf(arch)
	if err != nil {
		return Program{}, err
	}
	rules, err := guardRules(a)
	if err != nil {
		return Program{}, err
	}
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
			return Program{}, fmt.Errorf("seccomp: bug: the guard of system call %d is too long", n)
		}
		// A leaf always answers, so the number is still loaded after the jump.
		ins = append(ins, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: n, SkipTrue: uint8(len(l))})
		ins = append(ins, l...)
	}
	return programOf(append(ins, bpf.RetConstant{Val: uint32(allow)}))
}

// guardRules gives the rule of each guarded call by its number.
func guardRules(a architecture) (map[uint32]rule, error) {
	calls, err := a.calls()
	if err != nil {
		return nil, err
	}
	rules := map[uint32]rule{}
	for _, name := range guardedCalls {
		n, ok := calls[name]
		if !ok || len(guards[name]) == 0 {
			return nil, fmt.Errorf("seccomp: bug: %s has no number or no guard on %s", name, a.name)
		}
		rules[n] = rule{when: guards[name], otherwise: allow}
	}
	return rules, nil
}
