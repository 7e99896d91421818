package shard

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// about fills in what there is to say of all runs together: hosts, times, notes
// and why some refused.
func (m *merging) about() {
	taken := m.taken()
	files := map[string]bool{}
	var hosts []steps.Host
	var notes noted
	for _, n := range taken {
		r := m.parts[n].Result
		files[r.File] = true
		m.r.File = r.File
		hosts = append(hosts, r.Host)
		for _, p := range r.Host.Proof {
			p.How = fmt.Sprintf("shard %d: %s", r.Shard.Index, p.How)
			m.r.Host.Proof = append(m.r.Host.Proof, p)
		}
		for _, note := range r.Notes {
			notes.add(r.Shard.Index, note)
		}
		if r.Tool != m.r.Tool {
			notes.add(r.Shard.Index, strings.TrimSpace("run by "+r.Tool.Name+" "+r.Tool.Version))
		}
		of := steps.MergedShard{
			Index: r.Shard.Index, Verdict: r.Verdict, Steps: len(r.Steps), Host: withoutProof(r.Host), StartedAt: r.StartedAt, DurationMs: r.DurationMs,
		}
		if r.Policy != nil {
			of.Policy = r.Policy.SHA256
		}
		m.r.Merged.Shards = append(m.r.Merged.Shards, of)
		m.refused(r)
	}
	if len(files) > 1 { // by its place in each checkout; no finding can point at two
		m.r.File = ""
	}
	m.r.Notes = notes.sentences()
	h := &m.r.Host
	h.OS, h.Kernel = shared(hosts, func(h steps.Host) string { return h.OS }), shared(hosts, func(h steps.Host) string { return h.Kernel })
	h.Arch, h.Cgroup = shared(hosts, func(h steps.Host) string { return h.Arch }), shared(hosts, func(h steps.Host) string { return h.Cgroup })
	h.Runner = shared(hosts, func(h steps.Host) string { return h.Runner })
	m.times(taken)
}

func withoutProof(h steps.Host) steps.Host {
	h.Proof = []steps.Proof{}
	return h
}

// refused adds why a shard ran nothing.
func (m *merging) refused(r *steps.Result) {
	if r.Verdict != steps.VerdictRefused {
		return
	}
	cause, fix := "it does not say why", []string{}
	if r.Refusal != nil {
		cause, fix = r.Refusal.Cause, r.Refusal.Fix
	}
	cause = fmt.Sprintf("shard %d of %d: %s", r.Shard.Index, m.of, cause)
	if m.r.Refusal == nil {
		m.r.Refusal = &steps.Refusal{Cause: cause, Fix: []string{}}
	} else {
		m.r.Refusal.Cause += "\n" + cause
	}
	for _, f := range fix {
		if !slices.Contains(m.r.Refusal.Fix, f) {
			m.r.Refusal.Fix = append(m.r.Refusal.Fix, f)
		}
	}
}

// shared is what all hosts have in common, or each of what they have.
func shared(hosts []steps.Host, of func(steps.Host) string) string {
	var out []string
	for _, h := range hosts {
		if v := of(h); v != "" && !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return strings.Join(out, ", ")
}

// times puts the runs on one clock: from the first one's start to the last one's
// end, as each machine's own clock has it. A run that does not say when it
// began counts as begun with the first.
func (m *merging) times(taken []int) {
	starts := map[int]time.Time{}
	var first time.Time
	for _, n := range taken {
		t, err := time.Parse(time.RFC3339, m.parts[n].Result.StartedAt)
		if err != nil {
			continue
		}
		starts[n] = t.UTC()
		if first.IsZero() || t.Before(first) {
			first = t.UTC()
		}
	}
	if !first.IsZero() {
		m.r.StartedAt = first.Format(time.RFC3339)
	}
	late := func(n int) int64 {
		t, ok := starts[n]
		if !ok {
			return 0
		}
		return min(max(t.Sub(first).Milliseconds(), 0), maxMs)
	}
	for _, n := range taken {
		m.r.DurationMs = max(m.r.DurationMs, late(n)+m.parts[n].Result.DurationMs)
	}
	for i, n := range m.from {
		if n != nowhere {
			m.r.Steps[i].StartedMs += late(n)
		}
	}
}

// noted gathers what several runs say in the same words.
type noted struct {
	order []string
	by    map[string][]int
}

func (n *noted) add(shard int, note string) {
	if n.by == nil {
		n.by = map[string][]int{}
	}
	if n.by[note] == nil {
		n.order = append(n.order, note)
	}
	if !slices.Contains(n.by[note], shard) {
		n.by[note] = append(n.by[note], shard)
	}
}

func (n *noted) sentences() []string {
	var out []string
	for _, note := range n.order {
		word := "shard "
		if len(n.by[note]) > 1 {
			word = "shards "
		}
		out = append(out, word+numbers(n.by[note])+": "+note)
	}
	return out
}
