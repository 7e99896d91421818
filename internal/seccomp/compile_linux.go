package seccomp

import (
	"fmt"

	docker "github.com/moby/profiles/seccomp"
)

// Options is what a filter depends on beside the architecture.
type Options struct {
	// Kernel is the release of the running kernel, as uname gives it. Clauses
	// of the profile that ask for a newer one are left out; empty leaves out
	// all that ask for any.
	Kernel string
}

// Compile makes the filter of a box for GOARCH arch, which need not be this
// machine's.
func Compile(arch string, opt Options) (Program, error) {
	a, err := architectureOf(arch)
	if err != nil {
		return Program{}, err
	}
	calls, rules, _, err := decide(a, opt, docker.DefaultProfile())
	if err != nil {
		return Program{}, fmt.Errorf("compile the system call filter for %s: %w", arch, err)
	}
	ins, err := assemble(a, calls, rules)
	if err != nil {
		return Program{}, fmt.Errorf("assemble the system call filter for %s: %w", arch, err)
	}
	return programOf(ins)
}

// Unknown lists the names in Docker's profile that arch has no call for,
// sorted: mostly calls of 32-bit machines. A name that is new here and not one
// of those is missing from our table of numbers and does not exist in a box.
func Unknown(arch string) ([]string, error) {
	a, err := architectureOf(arch)
	if err != nil {
		return nil, err
	}
	_, _, unknown, err := decide(a, Options{}, docker.DefaultProfile())
	return unknown, err
}

// decide gives the number and the rule of every call of the architecture.
func decide(a architecture, opt Options, base *docker.Seccomp) (calls map[string]uint32, rules map[string]rule, unknown []string, err error) {
	kernel, err := kernelVersion(opt.Kernel)
	if err != nil {
		return nil, nil, nil, err
	}
	if calls, err = a.calls(); err != nil {
		return nil, nil, nil, err
	}
	p, err := resolve(base, a, kernel, calls)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("read Docker's profile: %w", err)
	}
	rules = make(map[string]rule, len(calls))
	for name := range calls {
		rules[name] = always(noSuchCall)
	}
	for name, r := range p.rules {
		if rules[name], err = guarded(name, r); err != nil {
			return nil, nil, nil, err
		}
	}
	// A clone that the profile refuses is one with a namespace flag.
	clone := rules["clone"]
	if len(clone.when) == 0 {
		return nil, nil, nil, fmt.Errorf("read Docker's profile: it does not tell namespace flags of clone apart")
	}
	clone.otherwise = notify
	rules["clone"] = clone

	for _, list := range []struct {
		names []string
		rule  rule
	}{{absentCalls, always(noSuchCall)}, {escapeCalls, always(notify)}} {
		for _, name := range list.names {
			if _, ok := calls[name]; !ok {
				return nil, nil, nil, fmt.Errorf("seccomp: bug: %s has no number on %s", name, a.name)
			}
			rules[name] = list.rule
		}
	}
	return calls, rules, p.unknown, nil
}

// guarded puts our guards before what the profile says.
func guarded(name string, r rule) (rule, error) {
	g, ok := guards[name]
	if !ok {
		return r, nil
	}
	for _, c := range g {
		// A guard that allows would undo a condition of the profile.
		if c.then == allow && !r.equal(always(allow)) {
			return rule{}, fmt.Errorf("the profile no longer allows %s with any argument, which our own conditions on it expect", name)
		}
	}
	return rule{when: append(append([]condition(nil), g...), r.when...), otherwise: r.otherwise}, nil
}
