package limits

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Manager makes the groups of one run. It is safe for concurrent use.
type Manager struct {
	cfg    Config
	k      kernel
	v2     bool
	places []place
	owner  owner
	seq    atomic.Uint64
	unseen []string
	noPeak bool // the kernel keeps no peak of something; it is sampled

	mu   sync.Mutex
	open map[*Group]struct{}
}

// The kinds of control group, as the report names them.
const (
	Kind2 = "cgroup2"
	Kind1 = "cgroup1"
)

// Kind is Kind2 or Kind1.
func (m *Manager) Kind() string {
	if m.v2 {
		return Kind2
	}
	return Kind1
}

// Where names the folders in which groups are made, for people.
func (m *Manager) Where() []string {
	var dirs []string
	for _, p := range m.places {
		dirs = append(dirs, p.dir)
	}
	return dirs
}

// Unseen names the fault types that this kernel is too old to count, each with
// why: their caps hold, but nobody can tell that they were hit. Usually none.
func (m *Manager) Unseen() []string { return slices.Clone(m.unseen) }

// findUnseen looks at a new group for the files an old kernel lacks.
func (m *Manager) findUnseen(g *Group) error {
	if _, err := g.readOOMKills(); missingFile(err) || errors.Is(err, errNoField) {
		m.unseen = append(m.unseen, unseenOOM)
	} else if err != nil {
		return err
	}
	if _, err := g.readPidsRefused(); missingFile(err) || errors.Is(err, errNoField) {
		m.unseen = append(m.unseen, unseenPids)
	} else if err != nil {
		return err
	}
	for _, file := range []string{g.file("memory", m.peakMemoryFile()), g.file("pids", "pids.peak")} {
		if _, err := m.k.read(file); missingFile(err) {
			m.noPeak = true
		} else if err != nil {
			return err
		}
	}
	// A group that somebody took away meanwhile has none of the files, and says
	// nothing of the kernel.
	for _, at := range g.spots {
		if _, err := m.k.list(at.dir); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) peakMemoryFile() string {
	if m.v2 {
		return "memory.peak"
	}
	return "memory.max_usage_in_bytes"
}

// New makes a group for a step, with its caps written and read back. The pids
// cap leaves room for what an engine starts first until ExcludeInit is called.
func (m *Manager) New(id string, c Caps) (*Group, error) {
	if !idPattern().MatchString(id) {
		return nil, fmt.Errorf("limits: %q cannot name a group", id)
	}
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("limits of %s: %w", id, err)
	}
	name := groupName(m.owner, m.cfg.RunID, m.seq.Add(1), id)
	g := &Group{m: m, name: name, caps: c, at: map[string]spot{}}
	err := g.make()
	if err == nil {
		err = g.writeCaps()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make a control group for %s: %w", id, err), g.Close())
	}
	m.mu.Lock()
	m.open[g] = struct{}{}
	m.mu.Unlock()
	return g, nil
}

func (g *Group) make() error {
	k := g.m.k
	for _, p := range g.m.places {
		if !g.m.v2 && g.caps.CPUs == 0 && slices.Equal(p.controllers, []string{"cpu"}) {
			continue // nothing to cap, nothing to count: each folder costs time
		}
		at := p.child(g.name)
		if err := k.mkdir(at.dir); err != nil {
			return err
		}
		g.spots = append(g.spots, at)
		for _, c := range p.controllers {
			g.at[c] = at
		}
	}
	if g.m.v2 {
		if _, err := k.read(g.file("cpu", "cpu.max")); err != nil {
			delete(g.at, "cpu")
		}
		if _, real := k.(hostKernel); real {
			f, err := os.Open(g.spots[0].dir)
			if err != nil {
				return err
			}
			g.fd = f
		}
	}
	return nil
}

// closePatience bounds how long Close and Sweep wait for the processes of one group
// that they killed to be gone.
const closePatience = 5 * time.Second

// Close ends and removes the groups that are still there.
func (m *Manager) Close() error {
	m.mu.Lock()
	var left []*Group
	for g := range m.open {
		left = append(left, g)
	}
	m.mu.Unlock()
	var errs []error
	for _, g := range left {
		errs = append(errs, g.end(context.Background()))
	}
	return errors.Join(errs...)
}

// end kills and removes a group.
func (g *Group) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closePatience)
	defer cancel()
	if err := g.Kill(ctx); err != nil {
		return err
	}
	return g.Close()
}

// file is a control file of one controller's group.
func (g *Group) file(controller, name string) string {
	return path.Join(g.at[controller].dir, name)
}
