package limits

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// place is where groups are made: one folder on cgroup2, one for each
// hierarchy on cgroup1.
type place struct {
	spot
	top         spot // the mount's own folder
	controllers []string
}

// search looks for a place, and remembers why others would not do.
type search struct {
	cfg    Config
	k      kernel
	owner  owner
	mounts []mount
	own    membership
	facts  facts
}

// Open finds out how this host lets us make groups. A host that does not is a
// *Refusal. It may move this process, and others of its job, into the leaf
// named LeafName of their own group.
func Open(cfg Config) (*Manager, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	s, err := look(cfg)
	if err != nil {
		return nil, err
	}
	if m := s.v2(); m != nil {
		return m, nil
	}
	if m := s.v1(); m != nil {
		return m, nil
	}
	return nil, refuse(s.facts)
}

func look(cfg Config) (*search, error) {
	s := &search{cfg: cfg, k: cfg.kernel}
	mountinfo, err := s.k.read(cfg.proc("self", "mountinfo"))
	if err != nil {
		return nil, fmt.Errorf("find control groups: %w", err)
	}
	groups, err := s.k.read(cfg.proc("self", "cgroup"))
	if err != nil {
		return nil, fmt.Errorf("find our own control group: %w", err)
	}
	if s.owner, err = self(cfg); err != nil {
		return nil, fmt.Errorf("tell this run apart: %w", err)
	}
	s.mounts = parseMountinfo(mountinfo)
	s.own = parseMembership(groups)

	f := &s.facts
	f.euid = cfg.EUID()
	f.command = cfg.Command
	f.mounted = len(s.mounts) > 0
	_, memoryOn1 := s.own["memory"]
	f.v2 = !memoryOn1 && slices.ContainsFunc(s.mounts, func(m mount) bool { return m.v2 })
	f.readOnly = f.mounted && !slices.ContainsFunc(s.mounts, func(m mount) bool { return !m.readOnly })
	if text, err := s.k.read(cfg.proc("cgroups")); err == nil {
		f.off = slices.DeleteFunc(disabledControllers(text), func(c string) bool { return !slices.Contains(required, c) })
	}
	f.systemd = cfg.Exists("/run/systemd/system")
	f.pod = cfg.Pod || cfg.Exists("/var/run/secrets/kubernetes.io")
	f.container = f.pod || slices.ContainsFunc([]string{"/.dockerenv", "/run/.containerenv"}, cfg.Exists)
	f.runtimeDir, f.runtimeDirSet = runtimeDir(cfg)
	return s, nil
}

// runtimeDir finds the folder of a user manager that answers, and says whether
// the caller's environment already names it.
func runtimeDir(cfg Config) (dir string, named bool) {
	answers := func(dir string) bool {
		return dir != "" && cfg.Dial(path.Join(dir, "systemd", "private")) == nil
	}
	if answers(cfg.XDGRuntimeDir) {
		return cfg.XDGRuntimeDir, true
	}
	if usual := fmt.Sprintf("/run/user/%d", cfg.EUID()); answers(usual) {
		return usual, false
	}
	return "", false
}

// self is this process as an owner of groups.
func self(cfg Config) (owner, error) {
	k := cfg.kernel
	boot, err := k.read(cfg.proc("sys", "kernel", "random", "boot_id"))
	if err != nil {
		return owner{}, err
	}
	pidNamespace, err := k.link(cfg.proc("self", "ns", "pid"))
	if err != nil {
		return owner{}, err
	}
	timeNamespace, err := k.link(cfg.proc("self", "ns", "time"))
	if err != nil && !missingFile(err) { // kernels before 5.6 have none
		return owner{}, err
	}
	pid := cfg.PID()
	if shown, err := k.link(cfg.proc("self")); err != nil || shown != strconv.Itoa(pid) {
		return owner{}, fmt.Errorf("%s is of another pid namespace than process %d (it shows %q)", cfg.Proc, pid, shown)
	}
	text, err := k.read(cfg.proc(strconv.Itoa(pid), "stat"))
	if err != nil {
		return owner{}, err
	}
	stat, err := parseStat(text)
	if err != nil {
		return owner{}, err
	}
	return owner{world: world(strings.TrimSpace(boot), pidNamespace, timeNamespace), pid: pid, start: stat.start}, nil
}

// tried notes why a place would not do.
func (s *search) tried(where string, err error) {
	s.facts.why = append(s.facts.why, fmt.Sprintf("%s: %v", where, err))
}

// required are the controllers without which there is no cap on what a step
// can take.
var required = []string{"memory", "pids"}

// use makes a manager of the places, if a group made there works.
func (s *search) use(v2 bool, places ...place) (*Manager, error) {
	m := &Manager{cfg: s.cfg, k: s.k, v2: v2, places: places, owner: s.owner, open: map[*Group]struct{}{}}
	g, err := m.New(probeID, Caps{MemoryBytes: probeMemory, Pids: probePids})
	if err != nil {
		return nil, err
	}
	return m, errors.Join(m.findUnseen(g), g.Close())
}

const (
	probeID     = "probe"
	probeMemory = 64 << 20
	probePids   = 16
)

// UserManager finds the folder of a user manager that answers, and says whether
// XDGRuntimeDir names it already.
func UserManager(cfg Config) (dir string, named bool) {
	cfg.RunID = probeID
	cfg, err := cfg.complete()
	if err != nil {
		return "", false
	}
	return runtimeDir(cfg)
}
