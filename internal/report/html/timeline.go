package html

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// span is when a step ran, in milliseconds since the run began.
type span struct {
	step       int
	start, end float64
}

// spans are those of the steps that ran. A report may come from a file, so any
// number may stand in it; none puts a bar outside of its place.
func (p *page) spans() (list []span, total float64) {
	total = max(float64(p.r.DurationMs), 1)
	for i := range p.r.Steps {
		s := &p.r.Steps[i]
		if s.Status == steps.StatusSkipped || s.DurationMs <= 0 {
			continue
		}
		start := max(float64(s.StartedMs), 0)
		list = append(list, span{i, start, start + float64(s.DurationMs)})
		total = max(total, list[len(list)-1].end)
	}
	return list, total
}

// timeline has a bar for each step that ran, on one scale: bars that lie under
// one another ran side by side.
func (p *page) timeline(b *bytes.Buffer) {
	list, total := p.spans()
	if len(list) == 0 {
		return
	}
	at := map[int]span{}
	for _, x := range list {
		at[x.step] = x
	}
	bars, left := p.fitting(barsRoom, func(i int) []byte {
		if x, ran := at[i]; ran {
			return p.bar(x, total)
		}
		return nil
	})
	slices.SortStableFunc(list, func(a, b span) int { return cmp.Compare(a.start, b.start) })
	put(b, m("<section aria-labelledby=\"timeline\"><h2 id=\"timeline\">Timeline</h2>\n<p>"), p.together(list),
		m(" The scale is from 0 to "), seconds(total), m(".</p>\n<ol class=\"timeline\">\n"))
	for _, x := range list {
		b.Write(bars[x.step])
	}
	put(b, m("</ol>\n"))
	p.leftOut(b, left)
	put(b, m("</section>\n"))
}

func (p *page) together(list []span) string {
	if n := most(list); n > 1 {
		return fmt.Sprintf("Up to %d steps ran side by side.", n)
	}
	return "The steps ran one after the other."
}

// most is how many spans lie over one another.
func most(list []span) int {
	type edge struct {
		at   float64
		more int
	}
	var edges []edge
	for _, x := range list {
		edges = append(edges, edge{x.start, 1}, edge{x.end, -1})
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

// scale is how wide the place of a bar is, in its own units.
const scale = 1000

func (p *page) bar(x span, total float64) []byte {
	s := &p.r.Steps[x.step]
	width := max((x.end-x.start)/total*scale, 2)
	left := min(x.start/total*scale, scale-width)
	return made(m("<li><a class=\"to\" href=\"#step-"), x.step, m("\">"), p.id(x.step), m("</a><svg viewBox=\"0 0 1000 10\" preserveAspectRatio=\"none\" aria-hidden=\"true\"><rect class=\""),
		known(s.Status, statusWords, "unknown"), m("\" x=\""), left, m("\" width=\""), width, m("\" height=\"10\"/></svg><span>"),
		seconds(x.start), m(" to "), seconds(x.end), m("</span></li>\n"))
}

// seconds is a time for people. What no clock would give stays a number.
func seconds(ms float64) string {
	if ms < 60_000 {
		return fmt.Sprintf("%.2f s", ms/1000)
	}
	if ms > 1e12 {
		return fmt.Sprintf("%.0f s", ms/1000)
	}
	return time.Duration(ms * float64(time.Millisecond)).Round(time.Second).String()
}
