package steps

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// ownOfCell are the keys that the cells of one kernel may have each for itself.
var ownOfCell = []string{"id", "name", "run", "command", "code", "language", "kernel", "needs", "timeoutS", "maxOutputBytes", "tolerate", "expect"}

// kernels refuses cells that cannot share an interpreter: all else than the keys
// above shapes the one box that they have, or judges what they write together.
func (c *checker) kernels(list []*step) {
	first := map[string]*step{}
	for _, s := range list {
		if s.Kernel == "" {
			continue
		}
		if v, ok := s.written["retries"]; ok && s.Retries > 0 {
			c.wrong(v, "a cell of a kernel cannot be tried again: the interpreter is no longer what it was", "no retries, or no kernel")
		}
		f := first[s.Kernel]
		if f == nil {
			first[s.Kernel] = s
			continue
		}
		for _, k := range stepKeys {
			// Of retries it is said already that no cell of a kernel has any.
			if slices.Contains(ownOfCell, k.name) || k.name == "retries" || s.bad[k.name] || f.bad[k.name] || same(f, s, k.name) {
				continue
			}
			what := fmt.Sprintf("%s is not the same as in the other cells of the kernel %s", k.name, quoted(s.Kernel))
			as := fmt.Sprintf("%s as in the step on line %d", k.name, f.at.line)
			if v, ok := s.own[k.name]; ok {
				c.wrong(v, what, as, "cells of a kernel share one box; write it under defaults, or give the cell no kernel")
			} else {
				c.add(s.own["kernel"].at(s.at), what, "", as, "cells of a kernel share one box; write it under defaults, or give the cell no kernel")
			}
		}
	}
	if len(c.errs) == 0 {
		c.kernelRings(list)
	}
}

// at is where a value stands; one that is not there stands where the step does.
func (v value) at(other pos) pos {
	if v.pos == (pos{}) {
		return other
	}
	return v.pos
}

// same says whether two steps mean the same by a key.
func same(a, b *step, key string) bool {
	if key == "tmpfs" { // its places in the file differ
		la, sa := a.memoryFiles()
		lb, sb := b.memoryFiles()
		return a.MemoryMb != b.MemoryMb || sa == sb && slices.Equal(la, lb) // sizes follow from that, and it is told
	}
	// Of these a list of nothing is not what no list is.
	if key == "setupEgress" && a.setupListed != b.setupListed || key == "setupCache" && a.setupKept != b.setupKept {
		return false
	}
	va, vb := reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem()
	for i := range va.NumField() {
		if name, _, _ := strings.Cut(va.Type().Field(i).Tag.Get("json"), ","); name == key {
			x, y := va.Field(i), vb.Field(i)
			if x.Kind() == reflect.Slice && x.Len() == 0 && y.Len() == 0 {
				return true
			}
			return reflect.DeepEqual(x.Interface(), y.Interface())
		}
	}
	return false // no field of that name: nobody knows
}

// kernelRings refuses a step that would have to run between two cells of a kernel,
// or a cell that needs one that stands after it.
func (c *checker) kernelRings(list []*step) {
	plan := make([]PlanStep, len(list))
	at := map[string]int{}
	for i, s := range list {
		plan[i] = PlanStep{ID: s.ID, Needs: s.Needs, Kernel: s.Kernel}
		at[s.ID] = i
	}
	for i, s := range list {
		for k, id := range s.Needs {
			if j := at[id]; s.Kernel != "" && list[j].Kernel == s.Kernel && j > i {
				c.add(s.needAt(k), fmt.Sprintf("the cell needs one that runs after it in the kernel %s", quoted(s.Kernel)), id, "cells in the order in which they need each other")
				return
			}
		}
	}
	units, cells := together(plan)
	if c.kernelGaps(list, units, cells); len(c.errs) > 0 {
		return
	}
	todo := newSchedule(units)
	for s := todo.next(); s != nil; s = todo.next() {
		delete(at, s.ID)
		for _, cell := range cells[s.ID] {
			delete(at, cell.ID)
		}
		todo.finish(s.ID)
	}
	for _, s := range list { // the first that could never run
		if _, stuck := at[s.ID]; !stuck || s.Kernel == "" {
			continue
		}
		for k, id := range s.Needs {
			if j, waits := at[id]; waits && list[j].Kernel != s.Kernel {
				c.add(s.needAt(k), fmt.Sprintf("%s would have to run between cells of the kernel %s, which run in one go", quoted(id), quoted(s.Kernel)), id,
					"steps that run before or after all cells of the kernel")
				return
			}
		}
	}
}

// kernelGaps refuses a step that stands between two cells of a kernel and would run
// before or after both, though nothing in the file says so: steps run in the order of
// the list, and cells of a kernel in one go. What needs order is told by needs.
func (c *checker) kernelGaps(list []*step, units []PlanStep, cells map[string][]PlanStep) {
	unit := make(map[string]string, len(list))
	for _, u := range units {
		unit[u.ID] = u.ID
		for _, cell := range cells[u.ID] {
			unit[cell.ID] = u.ID
		}
	}
	last := map[string]int{} // of each kernel
	for i, s := range list {
		if s.Kernel != "" {
			last[s.Kernel] = i
		}
	}
	needs, wanted := map[string][]string{}, map[string][]string{}
	for _, u := range units {
		needs[u.ID] = u.Needs
		for _, n := range u.Needs {
			wanted[n] = append(wanted[n], u.ID)
		}
	}
	begun := map[string]bool{}
	for i, s := range list {
		if s.Kernel == "" || begun[s.Kernel] {
			continue
		}
		begun[s.Kernel] = true
		var ordered map[string]bool
		for _, b := range list[i+1 : max(last[s.Kernel], i+1)] {
			if b.Kernel == s.Kernel {
				continue
			}
			if ordered == nil {
				ordered = reached(s.ID, needs)
				for id := range reached(s.ID, wanted) {
					ordered[id] = true
				}
			}
			if !ordered[unit[b.ID]] {
				c.add(b.at, fmt.Sprintf("the step stands between cells of the kernel %s, which run in one go", quoted(s.Kernel)), b.ID,
					"a place before the first cell or after the last one", "or write needs: of a cell, and the step runs after them all; in a cell, and it runs before")
				return
			}
		}
	}
}

// reached are the ids that lead from one, itself not counted unless it is in a ring.
func reached(from string, to map[string][]string) map[string]bool {
	out := map[string]bool{}
	for todo := []string{from}; len(todo) > 0; {
		id := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, n := range to[id] {
			if !out[n] {
				out[n] = true
				todo = append(todo, n)
			}
		}
	}
	return out
}
