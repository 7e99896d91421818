package seccomp

import "fmt"

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
	return onlyThese(a, rules)
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
