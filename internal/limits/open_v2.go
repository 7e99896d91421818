package limits

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

const (
	// maxRounds bounds how often a group is read again while it is emptied:
	// its processes may go on to fork.
	maxRounds = 100
	// maxAncestors bounds a walk from a process to its parents, and from a
	// group to the top.
	maxAncestors = 1000
)

// errNotOurs is a group we may not touch; above our own that is no news.
var errNotOurs = errors.New("no right to write its cgroup.procs")

// v2 looks for a place on cgroup2. Nothing is moved or made where the
// controllers are not there at all, such as on a host whose caps are cgroup1's.
func (s *search) v2() *Manager {
	for _, mnt := range s.mounts {
		if !mnt.v2 {
			continue
		}
		have, err := s.k.read(path.Join(mnt.point, "cgroup.controllers"))
		if err != nil {
			s.tried(mnt.point, err)
			continue
		}
		if missing := without(required, strings.Fields(have)); len(missing) > 0 {
			if !s.facts.v2 {
				continue // cgroup1 has them
			}
			// Nothing was handed down to this container.
			s.tried(mnt.point, fmt.Errorf("cgroup2 has no controller %s here", strings.Join(missing, ", ")))
			continue
		}
		own, err := mnt.locate(s.own[""])
		if err != nil {
			s.tried(mnt.point, err)
			continue
		}
		if path.Base(own.path) == LeafName {
			own = own.parent()
		}
		s.facts.own = own.path
		// The top of a control group namespace: whatever made it left no mark of a
		// container, as containerd leaves none.
		if own == mnt.top() && own.path == "/" && !s.realRoot(own) {
			s.facts.container = true
		}
		for _, c := range s.candidates(mnt, own) {
			if m, err := s.tryV2(c, own, mnt.top()); err == nil {
				return m
			} else if c == own || err != errNotOurs {
				s.tried(c.dir, err)
			}
		}
	}
	return nil
}

// candidates are the groups to try, best first: our own, then those above it.
//
// A unit of systemd that is not marked as delegated comes last, and for root
// never: systemd watches it, and one step killed for memory below it would
// make systemd stop the unit, which is our caller and the whole job. Older
// systemd marks none. Root then goes to the top of the hierarchy, where systemd
// leaves alone what it does not know; others go no higher than they must.
func (s *search) candidates(mnt mount, own spot) []spot {
	top := mnt.top()
	var above []spot
	for at := own; at.path != top.path && len(above) < maxAncestors; {
		at = at.parent()
		above = append(above, at)
	}
	root := s.facts.euid == 0
	if root {
		slices.Reverse(above)
	}
	switch {
	case s.k.delegated(own.dir) || !isUnit(own.path) || len(above) == 0:
		return append([]spot{own}, above...)
	case root:
		return above
	}
	return append(above, own)
}

// isUnit says whether systemd keeps processes in a group of that name.
func isUnit(group string) bool {
	return strings.HasSuffix(group, ".service") || strings.HasSuffix(group, ".scope")
}

// realRoot says whether a folder is the root of the whole hierarchy: the only
// group without this file, and the only one that may have processes and
// children with caps at once.
func (s *search) realRoot(at spot) bool {
	_, err := s.k.read(path.Join(at.dir, "cgroup.type"))
	return missingFile(err)
}

func (s *search) tryV2(at, own, top spot) (*Manager, error) {
	// Starting a process in a group below takes the right to write here, the
	// nearest group above both us and it.
	if !s.k.writable(path.Join(at.dir, "cgroup.procs")) {
		return nil, errNotOurs
	}
	undo, err := s.enable(at, own, top)
	if err != nil {
		return nil, err
	}
	m, err := s.use(true, place{spot: at, top: top, controllers: []string{"memory", "pids", "cpu"}})
	if err != nil {
		undo()
		return nil, err
	}
	return m, nil
}

// enable makes the controllers available to children of a group, and first
// empties the group where the kernel asks for that. undo moves everybody back.
func (s *search) enable(at, own, top spot) (undo func(), err error) {
	undo = func() {}
	control := path.Join(at.dir, "cgroup.subtree_control")
	have, err := s.words(at, "cgroup.controllers")
	if err != nil {
		return undo, err
	}
	if missing := without(required, have); len(missing) > 0 {
		return undo, fmt.Errorf("the controllers %s are not available in it", strings.Join(missing, ", "))
	}
	on, err := s.words(at, "cgroup.subtree_control")
	if err != nil {
		return undo, err
	}
	if missing := without(required, on); len(missing) > 0 {
		if !s.realRoot(at) {
			if undo, err = s.empty(at, own, top); err != nil {
				return undo, err
			}
		}
		// All or nothing: one controller that is not available fails them all.
		if err := s.k.write(control, "+"+strings.Join(missing, " +")); err != nil {
			undo()
			return func() {}, err
		}
		back := undo
		undo = func() {
			// Nobody can move back as long as children may have caps. Another
			// run's group is a reason to leave all as it is.
			children, err := s.k.list(at.dir)
			if err == nil && len(without(children, []string{LeafName})) == 0 {
				_ = s.k.write(control, "-"+strings.Join(missing, " -"))
				back()
			}
		}
		if on, err = s.words(at, "cgroup.subtree_control"); err != nil || len(without(required, on)) > 0 {
			undo()
			return func() {}, errors.Join(err, errors.New("cgroup.subtree_control does not read back as written"))
		}
	}
	if slices.Contains(have, "cpu") && !slices.Contains(on, "cpu") {
		// The kernel may refuse this one, for example because of real-time
		// processes; a CPU share never gates, and Enforced tells.
		_ = s.k.write(control, "+cpu")
	}
	return undo, nil
}

// empty moves the processes of a group into a leaf of it. It moves only what
// is our job's: in a group that was left to us everybody, else those below the
// topmost of our ancestors in it. A terminal whose window holds more than our
// shell is not taken apart.
func (s *search) empty(at, own, top spot) (undo func(), err error) {
	leaf := at.child(LeafName)
	made := false
	var moved []int
	undo = func() {
		for _, pid := range moved {
			_ = s.k.write(path.Join(at.dir, "cgroup.procs"), strconv.Itoa(pid))
		}
		if made {
			_ = s.k.rmdir(leaf.dir)
		}
	}
	// The root of a control group namespace is a container's own.
	everybody := s.k.delegated(at.dir) || at.path == "/" && at == top
	for range maxRounds {
		pids, err := procs(s.k, at.dir)
		if err == nil && len(pids) == 0 {
			return undo, nil
		}
		if err == nil && at != own && !everybody {
			err = errors.New("it has processes that are not ours")
		}
		for _, pid := range pids {
			switch {
			case err != nil:
			case pid == 0:
				err = errors.New("it has a process of another pid namespace")
			case !everybody && !s.ours(pid, own):
				err = fmt.Errorf("it has a process that is not of our job (%d)", pid)
			}
		}
		if err == nil && !made {
			if err = s.k.mkdir(leaf.dir); err == nil {
				made = true
			} else if exists(err) {
				err = nil
			}
		}
		for _, pid := range pids {
			if err != nil {
				break
			}
			err = s.k.write(path.Join(leaf.dir, "cgroup.procs"), strconv.Itoa(pid))
			switch {
			case err == nil:
				moved = append(moved, pid)
			case noProcess(err):
				err = nil
			case gone(err):
				// Another run that found no place here took its leaf away again: it is
				// made anew, as often as there are rounds.
				made, err = false, nil
			}
		}
		if err != nil {
			undo()
			return func() {}, err
		}
	}
	undo()
	return func() {}, errors.New("new processes appear in it faster than they can be moved")
}

// ours says whether a process is below the topmost of our ancestors that are
// in our own group: what our caller's job consists of.
func (s *search) ours(pid int, own spot) bool {
	top := s.owner.pid
	for range maxAncestors {
		parent, ok := s.parent(top)
		if !ok || !s.inside(parent, own) {
			break
		}
		top = parent
	}
	for range maxAncestors {
		if pid == top {
			return true
		}
		parent, ok := s.parent(pid)
		if !ok {
			return false
		}
		pid = parent
	}
	return false
}

func (s *search) parent(pid int) (int, bool) {
	text, err := s.k.read(s.cfg.proc(strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, false
	}
	stat, err := parseStat(text)
	return stat.parent, err == nil && stat.parent > 0
}

// inside says whether a process is in our own group or in the leaf that it may
// have been moved to a moment ago.
func (s *search) inside(pid int, own spot) bool {
	text, err := s.k.read(s.cfg.proc(strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return false
	}
	group := parseMembership(text)[""]
	return group == own.path || group == own.child(LeafName).path
}

func (s *search) words(at spot, file string) ([]string, error) {
	text, err := s.k.read(path.Join(at.dir, file))
	return strings.Fields(text), err
}

// without lists the wanted that are not among have.
func without(wanted, have []string) []string {
	var missing []string
	for _, w := range wanted {
		if !slices.Contains(have, w) {
			missing = append(missing, w)
		}
	}
	return missing
}
