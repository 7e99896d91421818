package limits

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
)

const (
	// maxSwept bounds how many groups of a hierarchy are looked at.
	maxSwept = 8192
	// maxSweepDepth bounds how deep; a service of a container of a machine
	// manager is at about six.
	maxSweepDepth = 10
	// maxSaid bounds how many that could not be removed are told one by one.
	maxSaid = 5
	// sweepPatience bounds all of it. Any user can make groups that look like those
	// of dead runs and take their time to end, and nobody's run waits for those.
	sweepPatience = 10 * time.Second
)

// Sweep ends and removes what runs that were killed have left behind: groups
// whose name records an owner that is certainly dead. A name alone proves
// nothing; a run we cannot judge, such as one of another pid namespace, is
// left alone. Root looks through the whole hierarchy, others in their own part.
// What could not be ended in time is left to the next run, and said.
func (m *Manager) Sweep() (removed []string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), sweepPatience)
	defer cancel()
	return m.sweep(ctx)
}

func (m *Manager) sweep(ctx context.Context) (removed []string, err error) {
	found := map[string]*Group{}
	var errs []error
	for _, p := range m.places {
		from := p.spot
		if m.cfg.EUID() == 0 {
			from = p.top
		}
		budget := maxSwept
		all := m.findDead(ctx, from, 0, &budget, func(name string, at spot) {
			// The same name under another parent is another group.
			key := name
			for found[key] != nil && m.v2 {
				key += "+"
			}
			g := found[key]
			if g == nil {
				g = &Group{m: m, name: name, at: map[string]spot{}}
				found[key] = g
			}
			g.spots = append(g.spots, at)
			for _, c := range p.controllers {
				g.at[c] = at
			}
		})
		switch {
		case all:
		case budget < 0:
			errs = append(errs, fmt.Errorf("look for control groups that are left below %s: there are more than %d groups: not all of it was looked through", from.dir, maxSwept))
		default:
			errs = append(errs, fmt.Errorf("look for control groups that are left below %s: the time for it is up: not all of it was looked through", from.dir))
		}
	}
	left, said, more := 0, 0, 0
	// In no order: those of one user do not keep the others from their turn for good.
	for _, g := range found {
		if ctx.Err() != nil {
			left++
			continue
		}
		if err := g.end(ctx); err != nil {
			if said++; said > maxSaid {
				more++
			} else {
				errs = append(errs, err)
			}
			continue
		}
		removed = append(removed, g.name)
	}
	if more > 0 {
		errs = append(errs, fmt.Errorf("the same with %d more", more))
	}
	if left > 0 {
		errs = append(errs, fmt.Errorf("the time for it is up, and %d more are left to the next run", left))
	}
	slices.Sort(removed)
	return removed, errors.Join(errs...)
}

// findDead calls found for each group below from that a dead run has made.
// What cannot be read is passed over: it is nothing of ours. It says whether it got
// to the end: by time and budget, not by depth, below which nobody has groups of ours.
func (m *Manager) findDead(ctx context.Context, from spot, depth int, budget *int, found func(string, spot)) (all bool) {
	if depth > maxSweepDepth {
		return true
	}
	children, err := m.k.list(from.dir)
	if err != nil {
		return true
	}
	for _, name := range children {
		if *budget--; *budget < 0 || ctx.Err() != nil {
			return false
		}
		at := from.child(name)
		o, ours := parseName(name)
		switch {
		case !ours:
			if !m.findDead(ctx, at, depth+1, budget, found) {
				return false
			}
		case m.dead(o):
			found(name, at)
		}
	}
	return true
}

// dead says whether a run's own process is certainly gone.
func (m *Manager) dead(o owner) bool {
	if o.world != m.owner.world || o == m.owner {
		return false
	}
	if m.k.missing(o.pid) {
		return true
	}
	text, err := m.k.read(m.cfg.proc(strconv.Itoa(o.pid), "stat"))
	if err != nil {
		return false // hidden from us, perhaps
	}
	stat, err := parseStat(text)
	if err != nil {
		return false
	}
	return stat.start != o.start || stat.state == 'Z' || stat.state == 'X'
}
