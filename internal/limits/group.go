package limits

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Group is the control group of one step. Its methods may be called from
// several goroutines.
type Group struct {
	m        *Manager // nil: nothing is capped
	name     string
	caps     Caps
	at       map[string]spot // by controller
	spots    []spot          // each place once
	fd       *os.File        // v2: the folder
	enforced []string

	mu          sync.Mutex
	spare       int64         // allowed beyond the step's, for a kernel of the box's own
	first       int64         // processes and threads of the box's first process
	peakAtFirst int64         // the kernel's own peak when the first process stood ready
	cpuAtFirst  time.Duration // what building the box took
	sampledPids int64
	sampledMem  int64
	refused     *uint64 // what pids.events said before Kill made it say more
	closed      bool
}

// None is the group of a step that nothing caps.
func None() *Group { return &Group{} }

// CgroupFD is the folder to be born in (SysProcAttr.CgroupFD), or -1.
func (g *Group) CgroupFD() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.fd == nil || g.closed {
		return -1
	}
	return int(g.fd.Fd())
}

// By is Kind2, Kind1, or "" where nothing is capped.
func (g *Group) By() string {
	if g.m == nil {
		return ""
	}
	return g.m.Kind()
}

// Enforced names the caps in force: memory, pids, cpu.
func (g *Group) Enforced() []string { return slices.Clone(g.enforced) }

// Join moves a waiting process, all its threads with it, into the group and
// sees that it is there. On cgroup2 it does nothing: a process is born in the
// group there, which leaves no moment outside it.
func (g *Group) Join(pid int) error {
	if g.m == nil || g.m.v2 {
		return nil
	}
	if pid <= 0 {
		return fmt.Errorf("join %s: %d is not a process (0 would be ourselves)", g.name, pid)
	}
	if in, err := g.Contains(pid); err == nil && in {
		return nil // born here
	}
	for _, at := range g.spots {
		if err := g.m.k.write(path.Join(at.dir, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("move process %d into its control group: %w", pid, err)
		}
	}
	in, err := g.Contains(pid)
	if err != nil {
		return err
	}
	if !in {
		return fmt.Errorf("process %d was moved into its control group %s but is not in it", pid, g.name)
	}
	return nil
}

// Contains says whether a process is in the group, or below it, for every
// controller in use. A group that caps nothing contains nothing.
func (g *Group) Contains(pid int) (bool, error) {
	if g.m == nil {
		return false, nil
	}
	groups, err := g.groupsOf(pid)
	if err != nil {
		return false, err
	}
	for _, in := range groups {
		if !in {
			return false, nil
		}
	}
	return len(groups) > 0, nil
}

// groupsOf says for each hierarchy whether a process is in our part of it.
func (g *Group) groupsOf(pid int) ([]bool, error) {
	text, err := g.m.k.read(g.m.cfg.proc(strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return nil, fmt.Errorf("find the control group of process %d: %w", pid, err)
	}
	of := parseMembership(text)
	if g.m.v2 {
		group, known := of[""]
		_, in := below(g.spots[0].path, group)
		return []bool{known && in}, nil
	}
	var list []bool
	for c, at := range g.at {
		group, known := of[c]
		_, in := below(at.path, group)
		list = append(list, known && in)
	}
	return list, nil
}

// ExcludeInit sets the pids cap so that it is the step's own: it is called
// once when the box's first process stands ready and nothing of the step has
// run. What is in the group then does not count, nor the CPU time used by then.
func (g *Group) ExcludeInit() error {
	if g.m == nil {
		return nil
	}
	k := g.m.k
	now, err := readNumber(k, g.file("pids", "pids.current"))
	if err != nil {
		return fmt.Errorf("count the box's first process: %w", err)
	}
	if now == 0 {
		return errors.New("the box's first process is not in its control group: nothing is")
	}
	peak, err := readNumber(k, g.file("pids", "pids.peak"))
	if err != nil && !missingFile(err) {
		return fmt.Errorf("count the box's first process: %w", err)
	}
	cpu, err := g.cpuTime()
	if err != nil {
		return fmt.Errorf("read the CPU time of the box's first process: %w", err)
	}
	g.mu.Lock()
	g.first, g.peakAtFirst, g.sampledPids, g.cpuAtFirst = now, peak, now, cpu
	g.mu.Unlock()
	if g.caps.Pids > 0 {
		n := g.caps.Pids + now + g.spareNow()
		if err := set(k, g.file("pids", "pids.max"), n, n); err != nil {
			return fmt.Errorf("set the step's pids cap: %w", err)
		}
	}
	return nil
}

// Spare raises the cap on processes for a box that has a kernel of its own. What
// that kernel is made of are threads here, and they are more than the processes
// in it: it is that kernel that holds the step to its cap, and what stands here
// bounds that kernel. It is called before anything is in the group.
func (g *Group) Spare(n int64) error {
	if g.m == nil || g.caps.Pids == 0 {
		return nil
	}
	if n < 0 || n > maxPids-g.caps.Pids-startupPids {
		return fmt.Errorf("limits: bug: %d processes cannot be spared", n)
	}
	g.mu.Lock()
	g.spare = n
	g.mu.Unlock()
	n += g.caps.Pids + startupPids
	if err := set(g.m.k, g.file("pids", "pids.max"), n, n); err != nil {
		return fmt.Errorf("raise the cap on processes for the box's kernel: %w", err)
	}
	return nil
}

func (g *Group) spareNow() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.spare
}

// Empty says whether no live process is in the group or below it.
func (g *Group) Empty() (bool, error) {
	if g.m == nil {
		return true, nil
	}
	k := g.m.k
	if len(g.spots) == 0 {
		return true, nil
	}
	if g.m.v2 {
		n, err := readField(k, path.Join(g.spots[0].dir, "cgroup.events"), "populated")
		if gone(err) {
			return true, nil
		}
		return n == 0, err
	}
	pids, err := g.pids()
	return len(pids) == 0, err
}

// pids lists the processes in the group and below it, each once.
func (g *Group) pids() ([]int, error) {
	var all []int
	for _, at := range g.spots {
		err := walk(g.m.k, at.dir, 0, func(dir string) error {
			here, err := procs(g.m.k, dir)
			all = append(all, here...)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// Close removes the group. It is an error if something is still in it. It is
// safe to call twice.
func (g *Group) Close() error {
	if g.m == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	var errs []error
	for _, at := range g.spots {
		// The kernel removes no group that has processes or groups in it, so the
		// usual one needs no look first.
		err := g.m.k.rmdir(at.dir)
		if busy(err) {
			if empty, err := g.Empty(); err == nil && !empty {
				return fmt.Errorf("remove control group %s: it still has processes", g.name)
			}
			err = remove(g.m.k, at.dir)
		}
		if !gone(err) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove control group: %w", err)
	}
	g.closed = true
	if g.fd != nil {
		_ = g.fd.Close()
	}
	g.m.mu.Lock()
	delete(g.m.open, g)
	g.m.mu.Unlock()
	return nil
}
