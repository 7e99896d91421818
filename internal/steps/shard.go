package steps

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/lazy"
)

// MaxShards is how many parts a plan can be split into: as many as a workflow's
// matrix can have jobs.
const MaxShards = 256

// MaxSteps is how many steps a file, and so a plan, can have.
const MaxSteps = maxSteps

// maxWeight bounds how long a step counts for, in milliseconds. Durations come
// from a file, and their sum must not overflow.
const maxWeight = maxTimeoutS * 1000

// Part says which part of a plan is to run.
type Part struct {
	Index, Of int // Index counts from 1
	// Durations are those of an earlier run, in milliseconds by id. Every part of
	// a run must be given the same.
	Durations map[string]int64
}

// ParsePart reads "i/n".
func ParsePart(text string) (Part, error) {
	i, n, ok := strings.Cut(text, "/")
	if !ok || !countShape().MatchString(i) || !countShape().MatchString(n) {
		return Part{}, fmt.Errorf("%.40q is not of the form i/n, such as 1/3", text)
	}
	index, errIndex := strconv.Atoi(i)
	of, errOf := strconv.Atoi(n)
	switch {
	case errors.Join(errIndex, errOf) != nil || of > MaxShards:
		return Part{}, fmt.Errorf("%.40q: a plan is split into at most %d parts", text, MaxShards)
	case index > of:
		return Part{}, fmt.Errorf("%.40q: there are only %d parts", text, of)
	}
	return Part{Index: index, Of: of}, nil
}

// countShape is a number as anybody would write it.
var countShape = lazy.Regexp(`^[1-9][0-9]*$`)

// DurationsOf gives how long the steps of an earlier run took. Those that did
// not run say nothing.
func DurationsOf(r *Result) map[string]int64 {
	out := map[string]int64{}
	for _, s := range r.Steps {
		if took := s.DurationMs; took > 0 && s.Status != StatusSkipped && s.Status != StatusCancelled {
			out[s.ID] = max(out[s.ID], min(took, maxWeight))
		}
	}
	return out
}

// cluster is steps that need each other, in whatever way: they run in one place.
type cluster struct {
	first  int // of the list
	weight int64
}

// splitPlan says for every step which part it is in, counted from 0. It looks at
// nothing but the list, the needs and the durations, so every machine comes to
// the same answer: the longest cluster goes first, to the part with the least to
// do; of equal ones the earlier, to the earlier part. A step of which no
// duration is known counts as much as the mean of the others.
func splitPlan(list []PlanStep, of int, durations map[string]int64) []int {
	root := clusters(list)
	var known, sum int64
	for _, s := range list {
		if d := durations[s.ID]; d > 0 {
			known, sum = known+1, sum+min(d, maxWeight)
		}
	}
	mean := int64(1)
	if known > 0 {
		mean = max(1, sum/known)
	}
	weights := map[int]int64{}
	for i, s := range list {
		d := min(durations[s.ID], maxWeight)
		if d <= 0 {
			d = mean
		}
		weights[root[i]] += d
	}
	var all []cluster
	for first, w := range weights {
		all = append(all, cluster{first, w})
	}
	slices.SortFunc(all, func(a, b cluster) int {
		return cmp.Or(cmp.Compare(b.weight, a.weight), cmp.Compare(a.first, b.first))
	})
	loads := make([]int64, of)
	part := map[int]int{}
	for _, c := range all {
		to := 0
		for i, load := range loads {
			if load < loads[to] {
				to = i
			}
		}
		part[c.first] = to
		loads[to] += c.weight
	}
	out := make([]int, len(list))
	for i := range list {
		out[i] = part[root[i]]
	}
	return out
}

// clusters gives for every step the first of the list that needs, or a kernel, tie
// it to.
func clusters(list []PlanStep) []int {
	at := make(map[string]int, len(list))
	up := make([]int, len(list))
	for i, s := range list {
		at[s.ID], up[i] = i, i
	}
	find := func(i int) int {
		for up[i] != i {
			up[i] = up[up[i]]
			i = up[i]
		}
		return i
	}
	tie := func(i, j int) {
		a, b := find(i), find(j)
		up[max(a, b)] = min(a, b)
	}
	kernels := map[string]int{}
	for i, s := range list {
		for _, n := range s.Needs {
			if j, ok := at[n]; ok {
				tie(i, j)
			}
		}
		if s.Kernel == "" {
			continue
		}
		if j, ok := kernels[s.Kernel]; ok {
			tie(i, j)
		} else {
			kernels[s.Kernel] = i
		}
	}
	out := make([]int, len(list))
	for i := range list {
		out[i] = find(i)
	}
	return out
}

// Sum tells plans apart: it is the same on every machine for the same steps. What
// only one machine decides is not in it: where a link leads, which variables
// are set, how package clients are configured, how the file is called.
func (p *Plan) Sum() (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, "untrusted-steps plan 1")
	for _, s := range p.Steps {
		s.PassEnvUnset, s.EgressPresets, s.Root.Dir = nil, nil, ""
		s.ImageDigest, s.ImageEnv, s.ImageUnused = "", nil, nil
		mounts := make([]box.Mount, 0, len(s.Mounts))
		for _, m := range s.Mounts {
			if as, ok := s.MountedAs[m.Target]; ok {
				m.Source = as
			}
			mounts = append(mounts, m)
		}
		s.Mounts = mounts
		b, err := encode(s)
		if err != nil {
			return "", fmt.Errorf("sum up the plan: step %s: %w", s.ID, err)
		}
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// IDs are those of the steps, in the order of the list.
func (p *Plan) IDs() []string {
	out := make([]string, 0, len(p.Steps))
	for _, s := range p.Steps {
		out = append(out, s.ID)
	}
	return out
}

// LeftOut says which of the steps run without what they need, since that was not
// asked for; "" if none does. They may find less in the workspace than they expect.
func (p *Plan) LeftOut() string {
	var list []string
	for _, s := range p.Steps {
		if len(s.NeedsLeftOut) > 0 {
			list = append(list, fmt.Sprintf("%s needs %s", s.ID, upToNames(s.NeedsLeftOut)))
		}
	}
	if n := len(list) - maxNamesNoted; n > 0 {
		list = append(list[:maxNamesNoted], fmt.Sprintf("and %d more", n))
	}
	if len(list) == 0 {
		return ""
	}
	return "--only leaves out what some steps need: " + strings.Join(list, "; ")
}

// keep leaves the steps of one part in the plan. parts says for every id of the
// whole file which part it is in.
func (p *Plan) keep(want Part, parts map[string]int) error {
	sum, err := p.Sum()
	if err != nil {
		return err
	}
	p.Shard = &Shard{Index: want.Index, Of: want.Of, Plan: sum, All: p.IDs()}
	p.Steps = slices.DeleteFunc(p.Steps, func(s PlanStep) bool { return parts[s.ID] != want.Index-1 })
	p.Shard.Steps = p.IDs()
	return nil
}
