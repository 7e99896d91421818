package html

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/report/span"
)

// timeline has a bar for each step that ran, on one scale: bars that lie under
// one another ran side by side.
func (p *page) timeline(b *bytes.Buffer) {
	list, total := span.Of(p.r)
	if len(list) == 0 {
		return
	}
	at := map[int]span.Span{}
	for _, x := range list {
		at[x.Step] = x
	}
	bars, left := p.fitting(barsRoom, func(i int) []byte {
		if x, ran := at[i]; ran {
			return p.bar(x, total)
		}
		return nil
	})
	slices.SortStableFunc(list, span.ByStart)
	put(b, m("<section aria-labelledby=\"timeline\"><h2 id=\"timeline\">Timeline</h2>\n<p>"), p.together(list),
		m(" The scale is from 0 to "), seconds(total), m(".</p>\n<ol class=\"timeline\">\n"))
	for _, x := range list {
		b.Write(bars[x.Step])
	}
	put(b, m("</ol>\n"))
	p.leftOut(b, left)
	put(b, m("</section>\n"))
}

func (p *page) together(list []span.Span) string {
	if n := span.Most(list); n > 1 {
		return fmt.Sprintf("Up to %d steps ran side by side.", n)
	}
	return "The steps ran one after the other."
}

// scale is how wide the place of a bar is, in its own units.
const scale = 1000

func (p *page) bar(x span.Span, total float64) []byte {
	s := &p.r.Steps[x.Step]
	width := max((x.End-x.Start)/total*scale, 2)
	left := min(x.Start/total*scale, scale-width)
	return made(m("<li><a class=\"to\" href=\"#step-"), x.Step, m("\">"), p.id(x.Step), m("</a><svg viewBox=\"0 0 1000 10\" preserveAspectRatio=\"none\" aria-hidden=\"true\"><rect class=\""),
		known(s.Status, statusWords, "unknown"), m("\" x=\""), left, m("\" width=\""), width, m("\" height=\"10\"/></svg><span>"),
		seconds(x.Start), m(" to "), seconds(x.End), m("</span></li>\n"))
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
