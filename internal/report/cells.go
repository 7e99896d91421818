package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/report/rich"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// results shows what a cell showed, as texts: a table is one of ours with the texts
// of its cells, and of an image there is the name of its file, for a summary draws
// none that a step made.
func results(s *steps.StepResult, l level) string {
	n := len(s.Results)
	if n == 0 || l.results == 0 {
		return ""
	}
	out := "Results\n\n"
	for i := range min(n, l.results) {
		out += oneResult(s, i, l)
	}
	if n -= l.results; n > 0 {
		out += fmt.Sprintf("and %s\n\n", count(n, "more result", "more results"))
	}
	return out
}

func oneResult(s *steps.StepResult, i int, l level) string {
	forms := s.Results[i]
	file := func(mime string) *steps.ResultFile { return s.ResultFile(i, mime) }
	x := rich.Show(forms, func(mime string) bool { f := file(mime); return f != nil && f.Path == forms[mime] })
	switch x.Kind {
	case rich.Grid:
		return grid(x.Table, l)
	case rich.Text:
		text := lines(x.Text)
		shown := text[:min(len(text), l.output)]
		out := ""
		if x.MIME != "text/plain" {
			out = inline(x.MIME) + "\n\n"
		}
		return out + rest(shown, len(text))
	}
	var what []string
	for _, mime := range slices.Sorted(maps.Keys(forms)) {
		if f := file(mime); f != nil {
			what = append(what, fmt.Sprintf("%s, %d bytes, in %s", inline(mime), f.Bytes, inline(f.Path)))
		} else if x.Kind == rich.None {
			what = append(what, inline(mime)+" in report.json")
		}
	}
	if len(what) == 0 {
		what = []string{"in no form that can be shown"}
	}
	if x.Kind == rich.Image {
		return "A figure: " + strings.Join(what, "; ") + "\n\n"
	}
	return "A result: " + strings.Join(what, "; ") + "\n\n"
}

// grid is a table of ours. Each text in it is inert, as it is anywhere in a table.
func grid(t rich.Table, l level) string {
	var b strings.Builder
	columns := 0
	for _, row := range t.Rows {
		columns = max(columns, len(row))
	}
	line := func(row []string) {
		for i := range columns {
			text := ""
			if i < len(row) {
				text = inline(row[i])
			}
			b.WriteString("| " + text + " ")
		}
		b.WriteString("|\n")
	}
	rows, more := t.Rows, t.MoreRows
	head := []string{}
	if t.Head > 0 {
		head, rows = rows[0], rows[1:]
	}
	if n := len(rows) - max(l.output/2, 1); n > 0 {
		rows, more = rows[:len(rows)-n], more+n
	}
	line(head)
	b.WriteString(strings.Repeat("|---", columns) + "|\n")
	for _, row := range rows {
		line(row)
	}
	b.WriteByte('\n')
	var left []string
	if more > 0 {
		left = append(left, count(more, "more row", "more rows"))
	}
	if t.MoreColumns > 0 {
		left = append(left, count(t.MoreColumns, "more column", "more columns"))
	}
	if len(left) > 0 {
		b.WriteString("and " + strings.Join(left, ", ") + "\n\n")
	}
	return b.String()
}
