package limits

import (
	"fmt"
	"slices"
	"strings"
)

// v1 looks for places on cgroup1. Nobody has to move there: a group may have
// processes and children at once.
func (s *search) v1() *Manager {
	must, err := s.v1Places(required)
	if err != nil {
		if !s.facts.v2 {
			s.tried("cgroup1", err)
		}
		return nil
	}
	if s.facts.own == "" {
		s.facts.own = s.own["memory"]
	}
	// CPU share and accounting are worth having, and never gate.
	if all, err := s.v1Places(append(slices.Clone(required), "cpu", "cpuacct")); err == nil && len(all) > 0 {
		if m, err := s.use(false, all...); err == nil {
			return m
		}
	}
	m, err := s.use(false, must...)
	if err != nil {
		s.tried("cgroup1", err)
		return nil
	}
	return m
}

// v1Places finds our own group in the hierarchy of each controller.
// Controllers that are mounted together share a place.
func (s *search) v1Places(controllers []string) ([]place, error) {
	var places []place
	for _, c := range controllers {
		p, err := s.v1Place(c)
		if err != nil {
			return nil, err
		}
		if i := slices.IndexFunc(places, func(q place) bool { return q.dir == p.dir }); i >= 0 {
			places[i].controllers = append(places[i].controllers, c)
		} else {
			places = append(places, p)
		}
	}
	return places, nil
}

func (s *search) v1Place(controller string) (place, error) {
	group, ok := s.own[controller]
	if !ok {
		return place{}, fmt.Errorf("controller %s is not on cgroup1", controller)
	}
	why := []string{"it is not mounted"}
	for _, readOnly := range []bool{false, true} {
		for _, mnt := range slices.Backward(s.mounts) {
			if mnt.v2 || mnt.readOnly != readOnly || !slices.Contains(mnt.controllers, controller) {
				continue
			}
			at, err := mnt.locate(group)
			if err == nil {
				return place{spot: at, top: mnt.top(), controllers: []string{controller}}, nil
			}
			why = append(why, err.Error())
		}
	}
	return place{}, fmt.Errorf("controller %s: %s", controller, strings.Join(why[min(1, len(why)-1):], "; "))
}
