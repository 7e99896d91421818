package boxinit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/moby/sys/capability"
)

// keepable are the capabilities that a step may keep where capDrop does not say
// ALL: over files and ids of its own user namespace, and low ports of its own
// loopback. None that opens raw sockets, sets up networks, mounts, traces or
// makes devices.
var keepable = []capability.Cap{
	capability.CAP_CHOWN, capability.CAP_DAC_OVERRIDE, capability.CAP_FOWNER, capability.CAP_FSETID,
	capability.CAP_KILL, capability.CAP_SETGID, capability.CAP_SETUID, capability.CAP_NET_BIND_SERVICE,
}

// Kept lists the capabilities, by number and sorted, that a step keeps over its
// own user namespace, for Prepare.Keep. Every engine asks here, so that capDrop
// means the same in each. With the default capDrop, ALL, there are none; a name
// that nobody knows is an error and not one capability fewer to drop.
func Kept(drop []string) ([]int, error) {
	known := map[string]capability.Cap{}
	for _, c := range capability.ListKnown() {
		known[CapName(c.String())] = c
	}
	dropped := map[capability.Cap]bool{}
	all := false
	for _, d := range drop {
		d = CapName(d)
		if d == "ALL" {
			all = true
			continue
		}
		c, ok := known[d]
		if !ok {
			return nil, fmt.Errorf("capDrop: there is no capability %q", d)
		}
		dropped[c] = true
	}
	if all {
		return nil, nil
	}
	var out []int
	for _, c := range keepable {
		if !dropped[c] {
			out = append(out, int(c))
		}
	}
	slices.Sort(out)
	return out, nil
}

// Lost names every capability that is not kept, for an engine that has to be
// told what to drop; ALL where nothing is kept.
func Lost(kept []int) []string {
	if len(kept) == 0 {
		return []string{"ALL"}
	}
	var out []string
	for _, c := range capability.ListKnown() {
		if !slices.Contains(kept, int(c)) {
			out = append(out, CapName(c.String()))
		}
	}
	return out
}

// CapName is a capability's name as capDrop spells it.
func CapName(s string) string { return strings.TrimPrefix(strings.ToUpper(s), "CAP_") }

// NameOf is the name of a capability by its number, as capDrop spells it.
func NameOf(c int) string { return CapName(capability.Cap(c).String()) }
