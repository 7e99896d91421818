package html

import (
	"bytes"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// What a reader sees at first glance, above all lists: where to go, what went
// wrong and why, and what the steps did together.

const (
	// maxWrong is how many steps that closed the gate are told of on top, and
	// maxLast how many of the last lines of one.
	maxWrong = 5
	maxLast  = 3
	// maxTop is how many things a line on top names.
	maxTop = 10
)

// parts leads to the parts of the page and says how much there is in each.
func (p *page) parts(b *bytes.Buffer) {
	requests, denied, files := 0, 0, 0
	for i := range p.r.Steps {
		s := &p.r.Steps[i]
		requests += len(s.Egress)
		files += max(len(s.Files), s.FilesTotal)
		for k := range s.Egress {
			if s.Egress[k].Verdict == "denied" {
				denied++
			}
		}
	}
	put(b, m("<nav aria-label=\"Parts of this page\"><a href=\"#steps\">Steps</a> "), len(p.r.Steps),
		m(" <a href=\"#requests\">Requests</a> "), requests)
	if denied > 0 {
		put(b, m(" <span class=\"badge denied\">"), denied, m(" denied</span>"))
	}
	put(b, m(" <a href=\"#files\">Changed files</a> "), files, m(" <a href=\"#details\">Output and diffs</a></nav>\n"))
}

// wrong says of the first steps that closed the gate why they did: the one thing
// that every reader of a page that is not green wants to know.
func (p *page) wrong(b *bytes.Buffer) {
	n := 0
	var list bytes.Buffer
	for i := range p.r.Steps {
		s := &p.r.Steps[i]
		if s.Excused || s.Status != steps.StatusFailed && s.Status != steps.StatusError {
			continue
		}
		if n++; n > maxWrong {
			continue
		}
		w := p.o.Words(s)
		put(&list, m("<li><a class=\"to\" href=\"#step-"), i, m("\">"), p.id(i), m("</a> "), marked(s, w.Outcome), m(" "), shownReason(w))
		// An exit code is what the step says of itself; why, it says in its output.
		if s.Fault == nil && len(s.Violations) == 0 {
			quote(&list, lastOf(s.Tail), maxLast)
		}
		put(&list, m("</li>\n"))
	}
	if n == 0 {
		return
	}
	put(b, m("<section class=\"said wrong\" aria-labelledby=\"wrong\"><h2 id=\"wrong\">What went wrong</h2>\n<ul>\n"), done(list.Bytes()))
	if n > maxWrong {
		put(b, m("<li>and "), n-maxWrong, m(" more, first in <a href=\"#details\">the list of each step</a></li>\n"))
	}
	put(b, m("</ul>\n</section>\n"))
}

// top is whom the steps talked to, who was refused and what to look at first.
func (p *page) top(b *bytes.Buffer) {
	if len(p.o.Top) == 0 {
		return
	}
	put(b, m("<dl class=\"top\">\n"))
	for _, t := range p.o.Top {
		put(b, m("<dt>"), clip(t.Word, maxName), m("</dt><dd>"))
		for i, item := range t.Items[:min(len(t.Items), maxTop)] {
			if i > 0 {
				put(b, m(" "))
			}
			put(b, m("<code>"), clip(item, maxName*2), m("</code>"))
		}
		if n := len(t.Items) - maxTop; n > 0 {
			put(b, m(" and "), n, m(" more"))
		}
		put(b, m("</dd>\n"))
	}
	put(b, m("</dl>\n"))
}
