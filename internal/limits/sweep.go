package limits

import (
	"errors"
	"slices"
	"strconv"
)

const (
	// maxSwept bounds how many groups of a hierarchy are looked at.
	maxSwept = 8192
	// maxSweepDepth bounds how deep; a service of a container of a machine
	// manager is at about six.
	maxSweepDepth = 10
)

// Sweep ends and removes what runs that were killed have left behind: groups
// whose name records an owner that is certainly dead. A name alone proves
// nothing; a run we cannot judge, such as one of another pid namespace, is
// left alone. Root looks through the whole hierarchy, others in their own part.
func (m *Manager) Sweep() (removed []string, err error) {
	found := map[string]*Group{}
	for _, p := range m.places {
		from := p.spot
		if m.cfg.EUID() == 0 {
			from = p.top
		}
		budget := maxSwept
		m.findDead(from, 0, &budget, func(name string, at spot) {
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
	}
	var errs []error
	for _, g := range found {
		if err := g.end(); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, g.name)
	}
	slices.Sort(removed)
	return removed, errors.Join(errs...)
}

// findDead calls found for each group below from that a dead run has made.
// What cannot be read is passed over: it is nothing of ours.
func (m *Manager) findDead(from spot, depth int, budget *int, found func(string, spot)) {
	children, err := m.k.list(from.dir)
	if err != nil || depth > maxSweepDepth {
		return
	}
	for _, name := range children {
		if *budget--; *budget < 0 {
			return
		}
		at := from.child(name)
		o, ours := parseName(name)
		switch {
		case !ours:
			m.findDead(at, depth+1, budget, found)
		case m.dead(o):
			found(name, at)
		}
	}
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
