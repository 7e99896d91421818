package kern

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxinit"
	"github.com/untrusted-steps/untrusted-steps/internal/boxinit/entry"
	"github.com/untrusted-steps/untrusted-steps/internal/lazy"
)

// backstop is added to a step's deadline for kern's own timeout. Ours is the
// authority; kern's is for the case that we are gone and the box is not, and
// must never be the first.
const backstop = 60

// Paths says where the parts of a box are, as kern will see them.
type Paths struct {
	Name      string // of the box, for kern: random, never the step's id
	Rootfs    string // what becomes the box's root, read-only
	Step      string // the folder shown at box.StepDir
	Init      string // our own program
	Workspace string
	// Binds make up the root file system on top of Rootfs. All read-only.
	Binds []box.Mount
	// Protect are folders of the workspace that the box only reads, within it.
	Protect []string
	// Config is kern's configuration, where the step names profiles of it.
	Config string
	// Mounts are the step's own, with Source as kern will see it.
	Mounts []box.Mount
	// CapsInForce: the group we start kern in has memory and pids caps that
	// kern can see, so it may be told to insist on them.
	CapsInForce bool
}

// profileRule is what kern takes for a profile in place of a flag: nothing that
// begins as a flag does, or that it would take for another one.
var profileRule = lazy.Regexp(`^(vcpu|vgpio|vdisk):[A-Za-z0-9][A-Za-z0-9._-]*$`)

var nameRule = lazy.Regexp(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$`)

// Argv is what kern is told. Every element is one argument; nothing goes
// through a shell.
func Argv(s box.Spec, p Paths) ([]string, error) {
	if err := expressible(s); err != nil {
		return nil, err
	}
	switch {
	case len(s.Argv) == 0:
		return nil, errors.New("command: nothing to run")
	case s.TimeoutS == 0:
		return nil, errors.New("timeoutS: a box needs a deadline")
	case !nameRule().MatchString(p.Name):
		return nil, fmt.Errorf("box name %q: want letters, digits, . _ -", p.Name)
	}
	for what, at := range map[string]string{"root": p.Rootfs, "step folder": p.Step, "first process": p.Init, "workspace": p.Workspace} {
		if !path.IsAbs(at) {
			return nil, fmt.Errorf("%s %q: want an absolute path", what, at)
		}
	}
	// kern hands the root to the kernel inside a list of overlay options.
	if p.Rootfs == "/" || strings.ContainsAny(p.Rootfs, `:,\`) {
		return nil, fmt.Errorf("image: kern cannot use %s as a root", p.Rootfs)
	}
	a := []string{"kern", "box", p.Name, "--rootfs", p.Rootfs, "--read-only", "--rm", "-q", "--hostname", hostname(s.ID)}
	mounts := slices.Clone(p.Binds)
	for i := range mounts {
		mounts[i].ReadOnly = true
	}
	mounts = append(mounts,
		box.Mount{Source: p.Workspace, Target: box.WorkspaceTarget})
	for _, at := range p.Protect {
		mounts = append(mounts, box.Mount{Source: path.Join(p.Workspace, at), Target: path.Join(box.WorkspaceTarget, at), ReadOnly: true})
	}
	mounts = append(mounts,
		box.Mount{Source: p.Step, Target: box.StepDir, ReadOnly: true},
		box.Mount{Source: p.Init, Target: box.InitTarget, ReadOnly: true})
	mounts = append(mounts, p.Mounts...)
	for _, m := range mounts {
		arg, err := bind(m)
		if err != nil {
			return nil, err
		}
		a = append(a, "--mount", arg)
	}
	for _, t := range s.Tmpfs {
		a = append(a, "--tmpfs", t.Target+":"+strconv.FormatInt(t.Bytes, 10))
	}
	if s.ShmBytes > 0 {
		a = append(a, "--shm-size", strconv.FormatInt(s.ShmBytes, 10))
	}
	// kern's own default keeps more than a step may have, such as SETPCAP: what
	// it is told to drop is all that the first process will not keep.
	kept, err := boxinit.Kept(s.CapDrop)
	if err != nil {
		return nil, err
	}
	for _, c := range boxinit.Lost(kept) {
		a = append(a, "--cap-drop", c)
	}
	// One id only: a range would leave files that the caller cannot delete.
	a = append(a, "--no-uid-range")
	a = append(a, "--timeout", strconv.FormatInt(int64(math.Ceil(s.TimeoutS))+backstop, 10))
	if s.MemoryBytes > 0 {
		a = append(a, "--memory", strconv.FormatInt(s.MemoryBytes, 10))
	}
	if s.Pids > 0 {
		a = append(a, "--pids-limit", strconv.FormatInt(s.Pids, 10))
	}
	if s.CPUs > 0 {
		a = append(a, "--cpus", strconv.FormatFloat(s.CPUs, 'f', -1, 64))
	}
	// With a cap missing kern would ask for its own default one and refuse.
	if p.CapsInForce && s.MemoryBytes > 0 && s.Pids > 0 {
		a = append(a, "--require-limits")
	} else {
		a = append(a, "--allow-uncapped")
	}
	switch s.Network {
	case box.NetworkHost:
		a = append(a, "--network", "host")
	default:
		a = append(a, "--network", "none")
	}
	if s.Profile != "" {
		a = append(a, "--security-profile", s.Profile)
	}
	if s.AppArmor != "" {
		a = append(a, "--apparmor", s.AppArmor)
	}
	if len(s.KernProfiles) > 0 {
		a = append(append(a, "--config", p.Config), s.KernProfiles...)
	}
	if low := lowestPort(s.Listen); low < 1024 {
		// The first process has no capability to bind a low port with. In a
		// network of the box's own the rule protects nobody.
		a = append(a, "--sysctl", "net.ipv4.ip_unprivileged_port_start="+strconv.Itoa(low))
	}
	for _, ip := range s.Addrs {
		a = append(a, "--ip", ip.String()) // on loopback, with no route out
	}
	for _, kv := range boxinit.Environ() {
		a = append(a, "--env", kv)
	}
	return append(a, "--workdir", "/", "--", box.InitTarget, entry.Marker, box.ControlTarget), nil
}

// expressible says which key of a spec kern has no way to express. What is not
// filled in yet is not judged.
func expressible(s box.Spec) error {
	switch {
	case s.Root.Kind != box.RootHost && s.Root.Kind != box.RootDir:
		return fmt.Errorf("image: kern cannot show a root of kind %d", s.Root.Kind)
	case s.Root.Kind == box.RootDir && !path.IsAbs(s.Root.Dir):
		return fmt.Errorf("image: rootfs:%s is not an absolute path", s.Root.Dir)
	case s.Root.Kind == box.RootDir && path.Clean(s.Root.Dir) == "/":
		return errors.New("image: the host's own root is never a box's; write image: host")
	case !(s.TimeoutS >= 0 && s.TimeoutS <= 1e9):
		return fmt.Errorf("timeoutS: %g is not a time", s.TimeoutS)
	case s.MemoryBytes < 0:
		return fmt.Errorf("memoryMb: %d bytes", s.MemoryBytes)
	case s.Pids < 0 || s.Pids == 1:
		return fmt.Errorf("pids: kern needs at least 2, not %d", s.Pids)
	case s.CPUs < 0 || math.IsNaN(s.CPUs) || math.IsInf(s.CPUs, 0):
		return fmt.Errorf("cpus: %g", s.CPUs)
	case s.Profile != "" && s.Profile != "untrusted":
		return fmt.Errorf("securityProfile: kern knows %q only, not %q", "untrusted", s.Profile)
	case s.Network < box.NetworkNone || s.Network > box.NetworkHost:
		return fmt.Errorf("network: %d", s.Network)
	case s.ShmBytes < 0:
		return fmt.Errorf("shm: %d bytes", s.ShmBytes)
	case len(s.Addrs) > 0 && s.Network == box.NetworkHost:
		return errors.New("egressAllow: the host's own loopback is given no address")
	}
	for _, p := range s.KernProfiles {
		if !profileRule().MatchString(p) {
			return fmt.Errorf("profiles: %q is no profile of kern", p)
		}
	}
	if strings.HasPrefix(s.AppArmor, "-") {
		return fmt.Errorf("apparmor: %q is no name of a profile", s.AppArmor)
	}
	for _, at := range s.Protect {
		if !box.Within(at, box.WorkspaceTarget) || path.Clean(at) != at || at == box.WorkspaceTarget {
			return fmt.Errorf("kern: bug: %s is no folder of the workspace", at)
		}
	}
	for _, a := range s.Addrs {
		if !a.Is4() {
			return fmt.Errorf("egressAllow: engine kern cannot give a box's loopback the address %s: only IPv4 addresses can be added", a)
		}
	}
	if _, err := boxinit.Kept(s.CapDrop); err != nil {
		return err
	}
	for _, t := range s.Tmpfs {
		if err := target("tmpfs", t.Target); err != nil {
			return err
		}
		if strings.Contains(t.Target, ":") {
			return fmt.Errorf("tmpfs: %q: kern reads a colon as the start of the size", t.Target)
		}
		for _, m := range s.Mounts {
			// kern reaches the place by its name. A step that runs beside this
			// one and shares the folder could make a link of it meanwhile.
			if !m.ReadOnly && box.Within(t.Target, m.Target) {
				return fmt.Errorf("tmpfs: %s lies in the mount at %s, which the box may write; engine kern needs it elsewhere, or that mount read-only", t.Target, m.Target)
			}
		}
		if t.Bytes <= 0 { // kern reads 0 as "no bound"
			return fmt.Errorf("tmpfs: %s needs a size", t.Target)
		}
	}
	for _, m := range s.Mounts {
		if err := target("mounts", m.Target); err != nil {
			return err
		}
		// kern writes its own names into /etc when all is mounted: into a folder
		// of the host, if that is what is there and can be written.
		if !m.ReadOnly && (m.Target == "/etc" || slices.Contains(touched.files, m.Target)) {
			return fmt.Errorf("mounts: engine kern would write to what is mounted at %s; mount it read-only", m.Target)
		}
		for _, t := range s.Tmpfs {
			// kern mounts every tmpfs last, whatever the order of the words.
			if box.Within(m.Target, t.Target) {
				return fmt.Errorf("mounts: %s would be hidden by the tmpfs at %s, which kern mounts over it", m.Target, t.Target)
			}
		}
	}
	return nil
}

// lowestPort is the lowest port that is listened on; 1024 if none is low.
func lowestPort(list []netip.AddrPort) int {
	low := 1024
	for _, a := range list {
		low = min(low, int(a.Port()))
	}
	return low
}

// target refuses the places in a box that belong to kern or to us.
func target(key, t string) error {
	switch {
	case !path.IsAbs(t) || path.Clean(t) != t || strings.ContainsAny(t, "\x00\n"):
		return fmt.Errorf("%s: %q is not a clean absolute path", key, t)
	case t == "/" || t == box.StepDir || t == box.InitTarget || t == box.ControlTarget:
		return fmt.Errorf("%s: nothing can be mounted at %s", key, t)
	case box.Within(t, "/proc") || box.Within(t, "/sys") || box.Within(t, "/dev"):
		return fmt.Errorf("%s: nothing can be mounted in %s", key, t)
	}
	return nil
}

// bind is one mount in kern's named fields, which carry any path when quoted;
// the short form cannot carry a colon.
func bind(m box.Mount) (string, error) {
	// A source without a slash would be a named volume, made on the spot.
	if !path.IsAbs(m.Source) || strings.ContainsAny(m.Source, "\x00\n\r") {
		return "", fmt.Errorf("mounts: source %q is not an absolute path that kern can be given", m.Source)
	}
	if strings.ContainsAny(m.Target, "\x00\n\r") {
		return "", fmt.Errorf("mounts: target %q cannot be given to kern", m.Target)
	}
	s := "type=bind," + field("src="+m.Source) + "," + field("dst="+m.Target)
	if m.ReadOnly {
		s += ",ro"
	}
	return s, nil
}

// field quotes one field of comma-separated values where it needs it.
func field(s string) string {
	if !strings.ContainsAny(s, `",`) {
		return s
	}
	return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
}

// hostname makes what kern takes for one out of a step's id: no underscore,
// no dot or dash at an end.
func hostname(id string) string {
	h := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.':
			return r
		}
		return '-'
	}, id)
	h = strings.Trim(h[:min(len(h), 63)], ".-")
	if h == "" {
		return "box"
	}
	return h
}
