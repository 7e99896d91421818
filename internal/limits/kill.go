package limits

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"
)

// Kill ends every process in the group and returns once none is left, or with
// an error when ctx ends. Processes that fork without end, ignore signals,
// start new sessions or hide from their parents are all in the group still.
// Nothing may be started in the group afterwards.
func (g *Group) Kill(ctx context.Context) error {
	if g.m == nil {
		return nil
	}
	once, err := g.killer()
	if err != nil {
		return err
	}
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, 10*time.Millisecond) {
		empty, err := g.Empty()
		switch {
		case err != nil:
			return fmt.Errorf("see whether control group %s is empty: %w", g.name, err)
		case empty:
			return nil
		}
		// Once more even where one write does it all: a process may have been
		// on its way in.
		killErr := once()
		if err := ctx.Err(); err != nil {
			left, _ := g.pids()
			return errors.Join(fmt.Errorf("end control group %s: %w: still there: processes %v", g.name, err, left), killErr)
		}
		g.m.k.sleep(pause)
	}
}

// killer chooses how: with one write where the kernel has that, else by making
// new processes impossible first and then ending one after the other. In a group
// that root made for us that file is root's: then it takes the patience alone.
func (g *Group) killer() (func() error, error) {
	k := g.m.k
	if g.m.v2 {
		dir := g.spots[0].dir
		kill := path.Join(dir, "cgroup.kill")
		if _, err := k.list(dir); gone(err) {
			return func() error { return nil }, nil
		}
		if err := k.write(kill, "1"); err == nil {
			return func() error { return k.write(kill, "1") }, nil
		}
		// Before 5.14. A frozen process cannot fork, and still dies.
		if err := k.write(path.Join(dir, "cgroup.freeze"), "1"); err != nil && !gone(err) && !denied(err) {
			return nil, fmt.Errorf("freeze control group %s: %w", g.name, err)
		}
		return g.killEach, nil
	}
	if _, have := g.at["pids"]; have {
		// Forks that fail from here on are our doing: keep what was counted.
		if refused, err := g.pidsRefused(); err == nil {
			g.mu.Lock()
			g.refused = &refused
			g.mu.Unlock()
		}
		if err := k.write(g.file("pids", "pids.max"), "0"); err != nil && !gone(err) && !denied(err) {
			return nil, fmt.Errorf("forbid new processes in control group %s: %w", g.name, err)
		}
	}
	return g.killEach, nil
}

// killEach ends each process that is there now. Between reading a list and
// sending a signal a process may end and its id go to a stranger: the process
// is held by a descriptor first and then looked at again.
func (g *Group) killEach() error {
	pids, err := g.pids()
	if err != nil {
		return err
	}
	var errs []error
	for _, pid := range pids {
		if pid <= 0 {
			errs = append(errs, fmt.Errorf("control group %s has a process of another pid namespace", g.name))
			continue
		}
		errs = append(errs, g.m.k.kill(pid, func() (bool, error) {
			in, err := g.groupsOf(pid)
			if gone(err) || noProcess(err) {
				return false, nil
			}
			return slices.Contains(in, true), err
		}))
	}
	return errors.Join(errs...)
}
