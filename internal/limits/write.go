package limits

import (
	"fmt"
	"strconv"
	"strings"
)

// writeCaps puts the caps in force. Memory and pids must read back as written;
// a CPU share that the kernel refuses is left out of Enforced.
func (g *Group) writeCaps() error {
	k := g.m.k
	if g.caps.MemoryBytes > 0 {
		write := g.writeMemory1
		if g.m.v2 {
			write = g.writeMemory2
		}
		if err := write(wholePages(g.caps.MemoryBytes)); err != nil {
			return fmt.Errorf("cap memory: %w", err)
		}
		g.enforced = append(g.enforced, "memory")
	}
	if g.caps.Pids > 0 {
		n := g.caps.Pids + startupPids
		if err := set(k, g.file("pids", "pids.max"), n, n); err != nil {
			return fmt.Errorf("cap pids: %w", err)
		}
		g.enforced = append(g.enforced, "pids")
	}
	if _, have := g.at["cpu"]; have && g.caps.CPUs > 0 {
		write := g.writeCPU1
		if g.m.v2 {
			write = g.writeCPU2
		}
		if write(cpuQuota(g.caps.CPUs)) == nil {
			g.enforced = append(g.enforced, "cpu")
		}
	}
	return nil
}

func (g *Group) writeMemory2(bytes int64) error {
	k := g.m.k
	if err := set(k, g.file("memory", "memory.max"), bytes, bytes); err != nil {
		return err
	}
	// Without this the cap only means that the step starts to swap. Kernels
	// that cannot swap have no such file.
	if err := set(k, g.file("memory", "memory.swap.max"), 0, 0); err != nil && !missingFile(err) {
		return err
	}
	// With one process killed and the rest going on, a step could end well
	// after it was out of memory; and pages of a tmpfs belong to nobody, so
	// the kernel might pick our own first process.
	return set(k, g.file("memory", "memory.oom.group"), 1, 1)
}

func (g *Group) writeMemory1(bytes int64) error {
	k := g.m.k
	// A group that does not count its children would let them out of the cap.
	// Newer kernels always do.
	if n, err := readNumber(k, g.file("memory", "memory.use_hierarchy")); err == nil && n != 1 {
		if err := set(k, g.file("memory", "memory.use_hierarchy"), 1, 1); err != nil {
			return err
		}
	}
	if err := set(k, g.file("memory", "memory.limit_in_bytes"), bytes, bytes); err != nil {
		return err
	}
	// Inherited from above: with the killer off, a step at its cap would hang
	// instead of being killed.
	off, err := readField(k, g.file("memory", "memory.oom_control"), "oom_kill_disable")
	if err != nil {
		return err
	}
	if off != 0 {
		if err := k.write(g.file("memory", "memory.oom_control"), "0"); err != nil {
			return err
		}
		if off, err = readField(k, g.file("memory", "memory.oom_control"), "oom_kill_disable"); err != nil || off != 0 {
			return fmt.Errorf("memory.oom_control still has the OOM killer off (%v)", err)
		}
	}
	// Memory and swap together may not be more than memory alone.
	err = set(k, g.file("memory", "memory.memsw.limit_in_bytes"), bytes, bytes)
	if err != nil && !missingFile(err) {
		return err
	}
	swappable := err != nil // no such file: the kernel does not count swap
	if err := set(k, g.file("memory", "memory.swappiness"), 0, 0); err != nil && swappable && !missingFile(err) {
		return err
	}
	return nil
}

func (g *Group) writeCPU2(quota int64) error {
	want := fmt.Sprintf("%d %d", quota, cpuPeriod)
	file := g.file("cpu", "cpu.max")
	if err := g.m.k.write(file, want); err != nil {
		return err
	}
	got, err := g.m.k.read(file)
	if err != nil {
		return err
	}
	if strings.TrimSpace(got) != want {
		return fmt.Errorf("%s reads back %s", file, strconv.Quote(got))
	}
	return nil
}

func (g *Group) writeCPU1(quota int64) error {
	if err := set(g.m.k, g.file("cpu", "cpu.cfs_period_us"), cpuPeriod, cpuPeriod); err != nil {
		return err
	}
	return set(g.m.k, g.file("cpu", "cpu.cfs_quota_us"), quota, quota)
}
