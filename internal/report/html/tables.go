package html

import (
	"bytes"
	"fmt"
)

// requestsPart is the place for the filtered table of requests, and the worst of
// them for a reader without scripts.
func (p *page) requestsPart(b *bytes.Buffer) {
	put(b, m("<section id=\"requests\" aria-labelledby=\"requests-head\"><h2 id=\"requests-head\">Requests</h2>\n"))
	if p.tally(b, len(p.requests), p.left.requests, "No step asked the network for anything.") {
		var rows [][]byte
		for _, e := range p.requests[:min(len(p.requests), maxStatic)] {
			rows = append(rows, made(m("<tr><td>"), p.id(e.Step), m("</td><td>"), e.Verdict, m("</td><td>"), e.Host, m(":"), e.Port,
				m("</td><td>"), e.Protocol, m("</td><td>"), e.Why, m("</td></tr>\n")))
		}
		static(b, "<th scope=\"col\">Step</th><th scope=\"col\">Result</th><th scope=\"col\">Host</th><th scope=\"col\">Protocol</th><th scope=\"col\">Rule or reason</th>",
			rows, len(p.requests))
	}
	put(b, m("</section>\n"))
}

// filesPart is the same for changed files.
func (p *page) filesPart(b *bytes.Buffer) {
	put(b, m("<section id=\"files\" aria-labelledby=\"files-head\"><h2 id=\"files-head\">Changed files</h2>\n"))
	if p.tally(b, len(p.files), p.left.files, "No step changed a file.") {
		var rows [][]byte
		for _, f := range p.files[:min(len(p.files), maxStatic)] {
			rows = append(rows, made(m("<tr><td>"), p.id(f.Step), m("</td><td>"), f.Change, m("</td><td>"), f.Mark, m("</td><td>"), f.Path,
				f.More, m("</td><td>"), f.Became, m("</td></tr>\n")))
		}
		static(b, "<th scope=\"col\">Step</th><th scope=\"col\">Change</th><th scope=\"col\">Mark</th><th scope=\"col\">Path</th><th scope=\"col\">Became</th>", rows, len(p.files))
	}
	put(b, m("</section>\n"))
}

func (p *page) id(i int) string { return clip(p.r.Steps[i].ID, maxName) }

// tally says what there is none of, or what of all is not here, and whether there
// is anything to show.
func (p *page) tally(b *bytes.Buffer, n int, left, none string) bool {
	if left != "" {
		put(b, m("<p class=\"left\">"), left, m("</p>\n"))
	}
	if n == 0 && left == "" {
		put(b, m("<p>"), none, m("</p>\n"))
	}
	return n > 0
}

// static is a table for a reader without scripts.
func static(b *bytes.Buffer, head m, rows [][]byte, all int) {
	have := room(staticRoom)
	put(b, m("<noscript><table>\n<thead><tr>"), head, m("</tr></thead>\n<tbody>\n"))
	shown := 0
	for _, row := range rows {
		if !have.take(len(row)) {
			break
		}
		b.Write(row)
		shown++
	}
	put(b, m("</tbody></table>\n"))
	if n := all - shown; n > 0 {
		put(b, m("<p class=\"left\">"), fmt.Sprintf("%d more are shown with scripts, and are in report.json.", n), m("</p>\n"))
	}
	put(b, m("</noscript>\n"))
}
