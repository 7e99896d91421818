package limits

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Stats reads the counters. An error means that nobody knows, not that nothing
// happened.
func (g *Group) Stats() (Stats, error) {
	if g.m == nil {
		return Stats{}, nil
	}
	var s Stats
	var errs [6]error
	s.OOMKills, errs[0] = g.oomKills()
	s.PidsRefused, errs[1] = g.pidsRefused()
	s.CurrentPids, errs[2] = readNumber(g.m.k, g.file("pids", "pids.current"))
	s.PeakMemory, errs[3] = g.peakMemory()
	s.PeakPids, errs[4] = g.peakPids()
	s.CPU, errs[5] = g.cpuTime()
	g.mu.Lock()
	s.CPU = max(s.CPU-g.cpuAtFirst, 0)
	s.PeakSampled = g.sampledMem > 0
	g.mu.Unlock()
	if err := errors.Join(errs[:]...); err != nil {
		return Stats{}, fmt.Errorf("read the counters of control group %s: %w", g.name, err)
	}
	return s, nil
}

// Sample takes one more sample of what the kernel keeps no peak of. It is for the
// last moment before the step is ended, when it still has what it has.
func (g *Group) Sample() {
	if g.m != nil && g.m.noPeak {
		_, _ = g.peakMemory()
		_, _ = g.peakPids()
	}
}

// oomKills counts processes that the OOM killer ended. What the kernel is too
// old to count is 0, and named by Manager.Unseen.
func (g *Group) oomKills() (uint64, error) {
	if slices.Contains(g.m.unseen, unseenOOM) {
		return 0, nil
	}
	return g.readOOMKills()
}

func (g *Group) readOOMKills() (uint64, error) {
	if !g.m.v2 {
		n, err := readField(g.m.k, g.file("memory", "memory.oom_control"), "oom_kill")
		return uint64(max(n, 0)), err
	}
	text, err := g.m.k.read(g.file("memory", "memory.events"))
	if err != nil {
		return 0, err
	}
	kills, err := field(text, "oom_kill")
	if err != nil {
		return 0, fmt.Errorf("memory.events: %w", err)
	}
	// A group kill counts each process as a kill too: only if none was counted
	// does it say something new.
	if group, err := field(text, "oom_group_kill"); err == nil && kills == 0 {
		kills = group
	}
	return uint64(max(kills, 0)), nil
}

// pidsRefused counts forks refused at the cap.
func (g *Group) pidsRefused() (uint64, error) {
	g.mu.Lock()
	before := g.refused
	g.mu.Unlock()
	if before != nil {
		return *before, nil
	}
	if slices.Contains(g.m.unseen, unseenPids) {
		return 0, nil
	}
	return g.readPidsRefused()
}

func (g *Group) readPidsRefused() (uint64, error) {
	n, err := readField(g.m.k, g.file("pids", "pids.events"), "max")
	return uint64(max(n, 0)), err
}

func (g *Group) cpuTime() (time.Duration, error) {
	if g.m.v2 {
		n, err := readField(g.m.k, g.file("memory", "cpu.stat"), "usage_usec")
		return time.Duration(n) * time.Microsecond, err
	}
	if _, have := g.at["cpuacct"]; !have {
		return 0, nil
	}
	n, err := readNumber(g.m.k, g.file("cpuacct", "cpuacct.usage"))
	return time.Duration(n), err
}

func (g *Group) peakMemory() (int64, error) {
	n, err := readNumber(g.m.k, g.file("memory", g.m.peakMemoryFile()))
	if !missingFile(err) || !g.m.noPeak {
		return n, err
	}
	now, err := readNumber(g.m.k, g.file("memory", "memory.current"))
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sampledMem = max(g.sampledMem, now)
	return g.sampledMem, err
}

// peakPids is the highest number of the step's own processes and threads. The
// kernel's peak may be from before the step, when the engine built the box; it
// tells of the step only once it has grown since.
func (g *Group) peakPids() (int64, error) {
	now, err := readNumber(g.m.k, g.file("pids", "pids.current"))
	if err != nil {
		return 0, err
	}
	peak, err := readNumber(g.m.k, g.file("pids", "pids.peak"))
	if err != nil && !(missingFile(err) && g.m.noPeak) {
		return 0, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sampledPids = max(g.sampledPids, now)
	if peak > g.peakAtFirst {
		g.sampledPids = max(g.sampledPids, peak)
	}
	return max(g.sampledPids-g.first, 0), nil
}
