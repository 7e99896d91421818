// Package span says when the steps of a result ran, and how many of them at a
// time, for every form of a report that shows it.
//
// It shows nothing itself. A result may come from a file in which any number
// stands, so times are floating-point numbers, which overflow to nothing worse
// than a large number.
//
//	list, total := span.Of(r)
//	if span.Most(list) > 1 { // steps ran side by side
package span

import (
	"cmp"
	"slices"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// Span is when a step ran, in milliseconds since the run began.
type Span struct {
	Step       int // its place in the result
	Start, End float64
	// sure is until when it certainly ran. The start of a step's command is part
	// of both times that are measured of it, so End may be a little late.
	sure float64
}

// Of gives the spans of the steps that ran, in the order of the result, and how
// long the scale is on which all of them lie.
func Of(r *steps.Result) (list []Span, total float64) {
	total = max(float64(r.DurationMs), 1)
	for i := range r.Steps {
		s := &r.Steps[i]
		startup, took := max(float64(s.StartupMs), 0), max(float64(s.DurationMs), 0)
		if s.Status == steps.StatusSkipped || startup+took == 0 {
			continue
		}
		start := max(float64(s.StartedMs), 0)
		x := Span{Step: i, Start: start, End: start + startup + took, sure: start + max(startup, took)}
		list = append(list, x)
		total = max(total, x.End)
	}
	return list, total
}

// Most is how many steps ran at a time, at most.
func Most(list []Span) int {
	type edge struct {
		at   float64
		more int
	}
	edges := make([]edge, 0, 2*len(list))
	for _, x := range list {
		edges = append(edges, edge{x.Start, 1}, edge{x.sure, -1})
	}
	// At the same time an end comes first: one after the other is not side by side.
	slices.SortFunc(edges, func(a, b edge) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.more, b.more))
	})
	n, out := 0, 0
	for _, e := range edges {
		n += e.more
		out = max(out, n)
	}
	return out
}

// ByStart orders spans by when they began.
func ByStart(a, b Span) int { return cmp.Compare(a.Start, b.Start) }
