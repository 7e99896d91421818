package shard

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// Part is the report of one shard, and how the caller named it.
type Part struct {
	Name   string
	Result *steps.Result
}

// Plan is one that a report has to be of.
type Plan struct {
	Sum string
	IDs []string // in the order of the list
}

// maxProblems bounds how many sentences there are of one kind.
const maxProblems = 20

// nowhere stands for the part of a step that is in no report.
const nowhere = -1

// Merge makes one result of many, which Check has passed. want is the plan that
// all of them have to be of, and policy the one they have to be held to; nil is
// what most of them say. from says for each step of the result which part it is
// of, or -1.
//
// What the reports lack closes the gate: a shard that is missing, there twice, of
// another plan or held to another policy, and a step that none or two of them
// have.
func Merge(parts []Part, want *Plan, policy *steps.PolicyRef, tool steps.Tool) (r *steps.Result, from []int) {
	m := &merging{parts: parts, by: map[int]int{}, owners: map[string][]int{}}
	m.r = &steps.Result{Schema: 1, Tool: tool, Steps: []steps.StepResult{}, Merged: &steps.Merged{Shards: []steps.MergedShard{}, Problems: []string{}}}
	m.choose(want)
	m.take()
	for _, n := range m.taken() {
		for _, id := range parts[n].Result.Shard.Steps {
			m.owners[id] = append(m.owners[id], n)
		}
	}
	m.steps()
	m.about()
	m.policy(policy)
	m.r.Verdict = m.verdict()
	return m.r, m.from
}

// merging is a result on its way.
type merging struct {
	parts   []Part
	r       *steps.Result
	plan    Plan
	of      int
	by      map[int]int      // part by number of shard
	missing []int            // numbers of shards
	owners  map[string][]int // parts by step
	from    []int
}

func (m *merging) problem(format string, args ...any) {
	m.r.Merged.Problems = append(m.r.Merged.Problems, fmt.Sprintf(format, args...))
}

// choose finds the plan and the number of shards: those of the most reports. Of
// equally many the answer does not depend on the order of the reports.
func (m *merging) choose(want *Plan) {
	type kind struct {
		sum, ids string
		of       int
	}
	count := map[kind]int{}
	best := kind{}
	for _, p := range m.parts {
		s := p.Result.Shard
		if s == nil || want != nil && !want.fits(s) {
			continue
		}
		k := kind{s.Plan, strings.Join(s.All, ","), s.Of}
		count[k]++
		if cmp.Or(cmp.Compare(count[k], count[best]), cmp.Compare(k.sum, best.sum), cmp.Compare(k.of, best.of), cmp.Compare(k.ids, best.ids)) > 0 {
			best, m.of, m.plan = k, s.Of, Plan{s.Plan, s.All}
		}
	}
	if want != nil {
		m.plan = *want
	}
	m.r.Merged.Of, m.r.Merged.Plan = m.of, m.plan.Sum
}

func (p *Plan) fits(s *steps.Shard) bool { return p.Sum == s.Plan && slices.Equal(p.IDs, s.All) }

// take sorts the reports into the shards they are of.
func (m *merging) take() {
	var foreign, twice []string
	for n, p := range m.parts {
		switch s := p.Result.Shard; {
		case s == nil:
			foreign = append(foreign, p.Name+" is the report of no shard")
		case !m.plan.fits(s):
			foreign = append(foreign, fmt.Sprintf("%s is of another plan: its sum is %.12s and not %.12s", p.Name, s.Plan, m.plan.Sum))
		case s.Of != m.of:
			foreign = append(foreign, fmt.Sprintf("%s is of %d shards and not of %d", p.Name, s.Of, m.of))
		default:
			if first, ok := m.by[s.Index]; ok {
				twice = append(twice, fmt.Sprintf("shard %d of %d is there twice: %s and %s", s.Index, m.of, m.parts[first].Name, p.Name))
				continue
			}
			m.by[s.Index] = n
		}
	}
	for i := 1; i <= m.of; i++ {
		if _, ok := m.by[i]; !ok {
			m.missing = append(m.missing, i)
		}
	}
	if len(m.missing) > 0 {
		m.problem("%s", m.missed())
	}
	if m.of == 0 {
		m.problem("there is no report of a shard of this plan")
	}
	m.some(twice)
	m.some(foreign)
}

// missed names the shards that no report is of.
func (m *merging) missed() string {
	if len(m.missing) == 1 {
		return fmt.Sprintf("shard %d of %d is missing", m.missing[0], m.of)
	}
	return fmt.Sprintf("shards %s of %d are missing", numbers(m.missing), m.of)
}

// some notes the first of many problems and counts the rest.
func (m *merging) some(list []string) {
	more := len(list) - maxProblems
	if more > 0 {
		list = list[:maxProblems]
	}
	m.r.Merged.Problems = append(m.r.Merged.Problems, list...)
	if more > 0 {
		m.problem("and %d more of these", more)
	}
}

// taken are the parts that are in the result, by the number of their shard.
func (m *merging) taken() []int {
	var out []int
	for i := 1; i <= m.of; i++ {
		if n, ok := m.by[i]; ok {
			out = append(out, n)
		}
	}
	return out
}

// steps puts the steps of all shards in the order of the list.
func (m *merging) steps() {
	results := map[int]map[string]*steps.StepResult{}
	for _, n := range m.taken() {
		results[n] = map[string]*steps.StepResult{}
		for i := range m.parts[n].Result.Steps {
			s := &m.parts[n].Result.Steps[i]
			results[n][s.ID] = s
		}
	}
	var unsaid, twice, nobody []string
	for _, id := range m.plan.IDs {
		owners := m.owners[id]
		if len(owners) > 1 {
			twice = append(twice, fmt.Sprintf("step %s is in shards %d and %d: were they split by different durations?",
				id, m.index(owners[0]), m.index(owners[1])))
		}
		var s steps.StepResult
		at := nowhere
		switch {
		case len(owners) == 0:
			s = absent(id, steps.StatusSkipped, "no report says what became of it: it is in none of the shards")
			if len(m.missing) > 0 {
				s.Reason = "no report says what became of it: " + m.missed()
			} else if m.of > 0 {
				nobody = append(nobody, fmt.Sprintf("step %s is in none of the shards: were they split by different durations?", id))
			}
		case results[owners[0]][id] == nil:
			var said bool
			if s, said = m.without(id, owners[0]); !said {
				unsaid = append(unsaid, fmt.Sprintf("shard %d of %d does not say what became of step %s", m.index(owners[0]), m.of, id))
			}
		default:
			s, at = *results[owners[0]][id], owners[0]
			s.Shard = m.index(at)
		}
		m.r.Steps, m.from = append(m.r.Steps, s), append(m.from, at)
	}
	m.some(twice)
	m.some(nobody)
	m.some(unsaid)
}

func (m *merging) index(part int) int { return m.parts[part].Result.Shard.Index }

// without is the result of a step that its shard has none of. said is false if
// the shard's own verdict does not explain it.
func (m *merging) without(id string, part int) (s steps.StepResult, said bool) {
	shard := fmt.Sprintf("shard %d of %d", m.index(part), m.of)
	switch m.parts[part].Result.Verdict {
	case steps.VerdictRefused:
		s, said = absent(id, steps.StatusSkipped, shard+" was refused, so nothing of it ran"), true
	case steps.VerdictCancelled:
		s, said = absent(id, steps.StatusCancelled, shard+" was cancelled before this step began"), true
	case steps.VerdictError:
		s, said = absent(id, steps.StatusError, "no verdict: "+shard+" has none"), true
	default:
		s = absent(id, steps.StatusSkipped, shard+" does not say what became of it")
	}
	s.Shard = m.index(part)
	return s, said
}

func absent(id, status, reason string) steps.StepResult {
	return steps.StepResult{ID: id, Name: id, Status: status, Reason: reason, Network: "none", EgressMode: "enforce", Workspace: "unchanged"}
}

// verdict is the first that applies to any of the reports, to their steps or to
// what they lack. A report's own word is never made better.
func (m *merging) verdict() string {
	said := []string{steps.VerdictOf(m.r.Steps)}
	for _, n := range m.taken() {
		said = append(said, m.parts[n].Result.Verdict)
	}
	if len(m.r.Merged.Problems) > 0 {
		said = append(said, steps.VerdictFail)
	}
	for _, v := range []string{steps.VerdictCancelled, steps.VerdictRefused, steps.VerdictError, steps.VerdictFail} {
		if slices.Contains(said, v) {
			return v
		}
	}
	return steps.VerdictPass
}

func numbers(list []int) string {
	more := ""
	if n := len(list) - maxProblems; n > 0 {
		list, more = list[:maxProblems], fmt.Sprintf(" and %d more", n)
	}
	words := make([]string, len(list))
	for i, n := range list {
		words[i] = fmt.Sprint(n)
	}
	return strings.Join(words, ", ") + more
}
