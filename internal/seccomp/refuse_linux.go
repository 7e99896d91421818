package seccomp

import (
	"fmt"

	"golang.org/x/net/bpf"

	docker "github.com/moby/profiles/seccomp"
)

// CompileRefusing makes the filter of Compile for a box whose kernel has nobody to
// report to: what would be reported, and its caller ended, is refused with EPERM.
func CompileRefusing(arch string, opt Options) (Program, error) {
	a, err := architectureOf(arch)
	if err != nil {
		return Program{}, err
	}
	calls, rules, _, err := decide(a, opt, docker.DefaultProfile())
	if err != nil {
		return Program{}, err
	}
	if err := withOwners(rules); err != nil {
		return Program{}, err
	}
	ins, err := assemble(a, calls, rules)
	if err != nil {
		return Program{}, err
	}
	for i := range ins {
		if r, ok := ins[i].(bpf.RetConstant); ok && action(r.Val) == notify {
			ins[i] = bpf.RetConstant{Val: uint32(noPermission)}
		}
	}
	return programOf(ins)
}

// What says who is sent a signal when a file can be read or written.
const (
	setOwner      = 8      // fcntl F_SETOWN, with an id, or less than 0 for a group's
	setOwnerEx    = 15     // fcntl F_SETOWN_EX, with a pointer to one
	ioctlSetOwner = 0x8901 // FIOSETOWN, the same
	ioctlSetGroup = 0x8902 // SIOCSPGRP, the same
)

// owners are conditions for a kernel that gives process 1 no protection from
// signals, as gVisor's. It lets whoever is 0 have any process sent any signal by a
// file's readiness: a step could end the box's first process with it, or stop it.
// What F_SETOWN names can be seen; where a pointer names it nothing can, and few
// programs use those.
var owners = map[string][]condition{
	"fcntl": {
		{low(1), equals, setOwnerEx, noPermission},
		{low(1), differs, setOwner, allow},
		{low(2), equals, firstProcess, noPermission},
		{low(2), equals, ^uint32(firstProcess) + 1, noPermission}, // its group
	},
	"ioctl": {
		{low(1), equals, ioctlSetOwner, noPermission},
		{low(1), equals, ioctlSetGroup, noPermission},
	},
}

// withOwners puts these conditions before what there is.
func withOwners(rules map[string]rule) error {
	for name, when := range owners {
		if r, ok := rules[name]; !ok || !r.equal(always(allow)) {
			return fmt.Errorf("seccomp: bug: %s is not allowed with any argument, which our own conditions on it expect", name)
		}
		rules[name] = rule{when: when, otherwise: allow}
	}
	return nil
}
