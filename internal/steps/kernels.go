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
			if slices.Contains(ownOfCell, k.name) || s.bad[k.name] || f.bad[k.name] || same(f, s, k.name) {
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
