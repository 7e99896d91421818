package limits

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// hostID and hostRun stand in the name of what root makes for one process, where
// a group of ours has the step's id and the run's.
const hostID, hostRun = "host", "host"

// NameFor is the name of what is made for one process on this machine, such as
// the group that root gives it. It is another for every process there ever was.
func NameFor(cfg Config, pid int) (string, error) {
	cfg.RunID = hostRun
	cfg, err := cfg.complete()
	if err != nil {
		return "", err
	}
	o, err := self(cfg)
	if err != nil {
		return "", fmt.Errorf("tell this process apart: %w", err)
	}
	text, err := cfg.kernel.read(cfg.proc(strconv.Itoa(pid), "stat"))
	if err != nil {
		return "", fmt.Errorf("tell process %d apart: %w", pid, err)
	}
	stat, err := parseStat(text)
	if err != nil {
		return "", fmt.Errorf("tell process %d apart: %w", pid, err)
	}
	o.pid, o.start = pid, stat.start
	return groupName(o, hostRun, 0, hostID), nil
}

// Gone says whether the process that a name of NameFor is about has certainly
// ended. It is false for every other name.
func Gone(cfg Config, name string) bool {
	o, ok := parseName(name)
	if !ok || !strings.HasSuffix(name, "-"+hostRun+"-0-"+hostID+nameSuffix) {
		return false
	}
	cfg.RunID = hostRun
	cfg, err := cfg.complete()
	if err != nil {
		return false
	}
	own, err := self(cfg)
	if err != nil {
		return false
	}
	return (&Manager{cfg: cfg, k: cfg.kernel, owner: own}).dead(o)
}

// Site is where root can make a group for somebody's run.
type Site struct {
	Kind string
	// Parents are the folders to make it in: the top of cgroup2, or the process's
	// own group in each hierarchy of cgroup1.
	Parents []string
	// Own are the groups that the process is in now, one beside each parent.
	Own []string
	// Off are the controllers that the top of cgroup2 does not hand down yet.
	Off []string
	// CPUOff: nor does it hand down CPU time, which it has. Nobody is refused for that.
	CPUOff bool
	// Keep are the limits that the process has in its own group of cgroup2, from any
	// group on the way there: at the top it would be rid of what an administrator
	// gave the service that it belongs to.
	Keep []Limit
}

// Limit is a file of a group, and what is in it.
type Limit struct{ File, Value string }

// FindSite finds it for a process. Nothing is tried: only root can.
func FindSite(cfg Config, pid int) (Site, error) {
	cfg.RunID = hostRun
	cfg, err := cfg.complete()
	if err != nil {
		return Site{}, err
	}
	s, err := look(cfg)
	if err != nil {
		return Site{}, err
	}
	text, err := s.k.read(cfg.proc(strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return Site{}, fmt.Errorf("find the control group of process %d: %w", pid, err)
	}
	s.own = parseMembership(text)
	if s.facts.readOnly {
		return Site{}, errors.New("the control group file system is read-only")
	}
	if s.facts.v2 {
		return s.site2()
	}
	return s.site1()
}

func (s *search) site1() (Site, error) {
	places, err := s.v1Places(append(slices.Clone(required), "cpu", "cpuacct"))
	if err != nil {
		places, err = s.v1Places(required)
	}
	if err != nil {
		return Site{}, err
	}
	site := Site{Kind: Kind1}
	for _, p := range places {
		site.Parents, site.Own = append(site.Parents, p.dir), append(site.Own, p.dir)
	}
	return site, nil
}

// site2 takes the top: systemd leaves alone there what it does not know, and
// every group below has processes of others, or is somebody's.
func (s *search) site2() (Site, error) {
	why := errors.New("cgroup2 is not mounted")
	for _, mnt := range s.mounts {
		if !mnt.v2 || mnt.readOnly {
			continue
		}
		top := mnt.top()
		have, err := s.words(top, "cgroup.controllers")
		if err != nil {
			why = err
			continue
		}
		if missing := without(required, have); len(missing) > 0 {
			why = fmt.Errorf("cgroup2 has no controller %s here", strings.Join(missing, " and "))
			continue
		}
		own, err := mnt.locate(s.own[""])
		if err != nil {
			why = err
			continue
		}
		on, err := s.words(top, "cgroup.subtree_control")
		if err != nil {
			why = err
			continue
		}
		site := Site{Kind: Kind2, Parents: []string{top.dir}, Own: []string{own.dir}, Off: without(required, on),
			CPUOff: slices.Contains(have, "cpu") && !slices.Contains(on, "cpu")}
		if pids, err := procs(s.k, top.dir); len(site.Off) > 0 && !s.realRoot(top) && (err != nil || len(pids) > 0) {
			why = fmt.Errorf("the control group of this container holds processes and hands down no %s", strings.Join(site.Off, " and no "))
			continue
		}
		if site.Keep, err = s.limitsOf(top.dir, own.dir); err != nil {
			why = err
			continue
		}
		return site, nil
	}
	return Site{}, why
}

// limitFiles are those of cgroup2 that take something away.
var limitFiles = []string{"memory.max", "memory.high", "memory.swap.max", "pids.max", "cpu.max"}

// limitsOf are the tightest limits of a group and of those above it, but the top.
func (s *search) limitsOf(top, dir string) (list []Limit, err error) {
	for _, name := range limitFiles {
		least, tightest := 0.0, ""
		for at := dir; at != top && at != "/"; at = path.Dir(at) {
			text, err := s.k.read(path.Join(at, name))
			if missingFile(err) { // the controller is off there
				continue
			}
			if err != nil {
				return nil, err
			}
			text = strings.TrimSpace(text)
			value, of, _ := strings.Cut(text, " ")
			if value == "max" {
				continue
			}
			n, err := strconv.ParseFloat(value, 64)
			if period, perr := strconv.ParseFloat(of, 64); err == nil && of != "" {
				n, err = n/period, perr
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", path.Join(at, name), err)
			}
			if tightest == "" || n < least {
				least, tightest = n, text
			}
		}
		if tightest != "" {
			list = append(list, Limit{name, tightest})
		}
	}
	return list, nil
}

// Members lists the processes in groups and below them, each once, but for those
// of boxes: what caps a step is no place to be moved out of. A group that is not
// there has none.
func Members(dirs []string) ([]int, error) {
	var all []int
	err := members(dirs, func(pids []int, box string) {
		if box == "" {
			all = append(all, pids...)
		}
	})
	slices.Sort(all)
	return slices.Compact(all), err
}

// InUse is the group of a box below groups which has processes, or whose run has
// not certainly ended; empty if there is none.
func InUse(cfg Config, dirs []string) (box string, err error) {
	cfg.RunID = hostRun
	if cfg, err = cfg.complete(); err != nil {
		return "", err
	}
	own, err := self(cfg)
	if err != nil {
		return "", err
	}
	m := &Manager{cfg: cfg, k: cfg.kernel, owner: own}
	err = members(dirs, func(pids []int, name string) {
		if o, ok := parseName(name); ok && (len(pids) > 0 || !m.dead(o)) {
			box = name
		}
	})
	return box, err
}

// members tells of each group below some what is in it, and of which box it is.
func members(dirs []string, tell func(pids []int, box string)) error {
	k := hostKernel{}
	for _, top := range dirs {
		err := walk(k, top, 0, func(dir string) error {
			pids, err := procs(k, dir)
			if err != nil {
				return err
			}
			box := ""
			for at := dir; at != top && box == ""; at = path.Dir(at) {
				if _, ok := parseName(path.Base(at)); ok {
					box = path.Base(at)
				}
			}
			tell(pids, box)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Clear ends what is in groups that were made for a process which is gone, one
// folder for each hierarchy, and removes the groups below. The folders stay: they
// are root's to remove.
func Clear(cfg Config, dirs []string) error {
	cfg.RunID = hostRun
	cfg, err := cfg.complete()
	if err != nil {
		return err
	}
	s, err := look(cfg)
	if err != nil {
		return err
	}
	m := &Manager{cfg: cfg, k: s.k, owner: s.owner}
	g := &Group{m: m, name: path.Base(dirs[0]), at: map[string]spot{}}
	for _, dir := range dirs {
		i := slices.IndexFunc(s.mounts, func(mnt mount) bool {
			rel, ok := below(mnt.point, dir)
			return ok && rel != "."
		})
		if i < 0 {
			return fmt.Errorf("%s is in no control group file system", dir)
		}
		mnt := s.mounts[i]
		rel, _ := below(mnt.point, dir)
		at := spot{dir: dir, path: path.Join(mnt.root, rel)}
		m.v2 = mnt.v2
		g.spots = append(g.spots, at)
		for _, c := range mnt.controllers {
			g.at[c] = at
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	if err := g.Kill(ctx); err != nil {
		return err
	}
	var errs []error
	for _, at := range g.spots {
		errs = append(errs, RemoveBelow(at.dir))
	}
	return errors.Join(errs...)
}

// RemoveBelow removes the groups below one that have no processes any more.
func RemoveBelow(dir string) error {
	k := hostKernel{}
	children, err := k.list(dir)
	if err != nil && !gone(err) {
		return err
	}
	var errs []error
	for _, c := range children {
		errs = append(errs, remove(k, path.Join(dir, c)))
	}
	return errors.Join(errs...)
}
