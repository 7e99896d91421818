package seccomp

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"

	docker "github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// profile is what a profile comes to on one architecture for a container that
// holds no capability: a rule by name, ENOSYS for what is not named.
type profile struct {
	rules   map[string]rule
	unknown []string // named by it, absent from the architecture; sorted
}

// resolve reads a profile in Docker's form. Whatever it does not understand is
// an error: a clause that is skipped may be the one that narrows.
func resolve(p *docker.Seccomp, a architecture, kernel docker.KernelVersion, calls map[string]uint32) (profile, error) {
	if p.DefaultAction != specs.ActErrno {
		return profile{}, fmt.Errorf("default action %s is not %s", p.DefaultAction, specs.ActErrno)
	}
	out := profile{rules: map[string]rule{}}
	free := map[string]bool{} // allowed with any argument, which beats all conditions
	for _, s := range p.Syscalls {
		if !applies(s, a, kernel) {
			continue
		}
		for _, name := range s.Names {
			if _, ok := calls[name]; !ok {
				out.unknown = append(out.unknown, name)
				continue
			}
			r, ok := out.rules[name]
			if !ok {
				r = always(noSuchCall)
			}
			switch {
			case s.Action == specs.ActErrno && len(s.Args) == 0:
				// It is refused, which it is anyway.
			case s.Action != specs.ActAllow:
				return profile{}, fmt.Errorf("%s: action %s with %d conditions is not understood", name, s.Action, len(s.Args))
			case len(s.Args) == 0:
				free[name] = true
			case len(s.Args) == 1:
				c, err := translate(name, s.Args[0])
				if err != nil {
					return profile{}, err
				}
				r.when = append(r.when, c)
			default:
				return profile{}, fmt.Errorf("%s: %d conditions at once are not understood", name, len(s.Args))
			}
			if free[name] {
				r = always(allow)
			}
			out.rules[name] = r
		}
	}
	sort.Strings(out.unknown)
	out.unknown = slices.Compact(out.unknown)
	return out, nil
}

// applies says whether a clause counts for who holds these capabilities; in a
// box nobody holds any.
func applies(s *docker.Syscall, a architecture, kernel docker.KernelVersion, held ...string) bool {
	if in := s.Includes; in != nil {
		for _, c := range in.Caps {
			if !slices.Contains(held, c) {
				return false
			}
		}
		if len(in.Arches) > 0 && !slices.Contains(in.Arches, a.name) {
			return false
		}
		if in.MinKernel != nil && older(kernel, *in.MinKernel) {
			return false
		}
	}
	if ex := s.Excludes; ex != nil {
		for _, c := range ex.Caps {
			if slices.Contains(held, c) {
				return false
			}
		}
		if slices.Contains(ex.Arches, a.name) {
			return false
		}
		if ex.MinKernel != nil && !older(kernel, *ex.MinKernel) {
			return false
		}
	}
	return true
}

func translate(name string, a specs.LinuxSeccompArg) (condition, error) {
	narrow, ok := narrowArguments[name]
	if !ok || uint(narrow) != a.Index || a.Value > math.MaxUint32 || a.ValueTwo != 0 {
		return condition{}, fmt.Errorf("%s: a condition on argument %d (%s 0x%x) is not understood", name, a.Index, a.Op, a.Value)
	}
	c := condition{word: low(narrow), value: uint32(a.Value), then: allow}
	switch a.Op {
	case specs.OpEqualTo:
		c.test = equals
	case specs.OpLessThan:
		c.test = below
	case specs.OpMaskedEqual: // (argument & Value) == ValueTwo, which is 0
		c.test = noBit
	default:
		return condition{}, fmt.Errorf("%s: comparison %s is not understood", name, a.Op)
	}
	return c, nil
}

func older(k, than docker.KernelVersion) bool {
	return k.Kernel < than.Kernel || k.Kernel == than.Kernel && k.Major < than.Major
}

// kernelVersion reads the first two numbers of a release such as
// "6.11.0-1018-azure".
func kernelVersion(release string) (docker.KernelVersion, error) {
	if release == "" {
		return docker.KernelVersion{}, nil
	}
	var v docker.KernelVersion
	major, rest, ok := strings.Cut(release, ".")
	digits := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	if digits >= 0 {
		rest = rest[:digits]
	}
	var err1, err2 error
	v.Kernel, err1 = strconv.ParseUint(major, 10, 16)
	v.Major, err2 = strconv.ParseUint(rest, 10, 16)
	if !ok || err1 != nil || err2 != nil {
		return v, fmt.Errorf("kernel release %q is not a version", release)
	}
	return v, nil
}
