package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

const (
	// minStep is how narrow the column of names may get.
	minStep = 12
	// maxStep is how wide it gets where nothing else bounds it: an id fits whole.
	maxStep = 120
	// maxWord is how wide the columns of our own words get, whatever a report
	// that was read from a file says.
	maxWord = 45
	// maxReasons is how many reasons stand under the table.
	maxReasons = 20
)

// WriteTable writes the table as it is in a file.
func WriteTable(w io.Writer, r *steps.Result) error { return WriteTableOn(w, r, Screen{}) }

// Screen is what a table is read on. The zero value is a file: any width, no
// colour.
type Screen struct {
	Width  int // 0 means any
	Colour bool
}

// WriteTableOn writes the table for a screen.
func WriteTableOn(w io.Writer, r *steps.Result, on Screen) error {
	var b strings.Builder
	for _, line := range Table(r, on.Width) {
		b.WriteString(line.Shown(on.Colour))
		b.WriteByte('\n')
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	return nil
}

// Table is the lines of the table for a terminal of the given width; 0 means any.
// Reasons of steps that did not pass stand under it, and the verdict last. All
// of it is ASCII, so that a cell of the screen is a byte.
func Table(r *steps.Result, width int) []gha.Line {
	t := &table{width: width}
	if len(r.Steps) > 0 {
		t.rows(r)
		t.reasons(r)
		t.first(r)
		t.notes(r)
	}
	if r.Refusal != nil {
		t.wrapped(gha.Span{Text: "cause: ", Style: gha.Alarm}, r.Refusal.Cause)
		for _, f := range r.Refusal.Fix {
			line := gha.Words(gha.InertASCII(f)) // whole: it is there to be copied
			if !strings.HasPrefix(f, "#") {      // a word about the next line
				line = append(gha.Line{{Text: "fix: ", Style: gha.Faint}}, line...)
			}
			t.line(line)
		}
	}
	for _, p := range problemList(r) {
		t.wrapped(gha.Span{Text: "shards: ", Style: gha.Bad}, p)
	}
	notes, _ := notesOf(r)
	for _, n := range notes {
		t.wrapped(gha.Span{Text: "note: ", Style: gha.Faint}, n)
	}
	for _, l := range limitations(r) {
		t.wrapped(gha.Span{Text: "warning: ", Style: gha.Doubt}, l)
	}
	t.verdict(r)
	return t.lines
}

type table struct {
	lines []gha.Line
	width int
}

// line adds one line, which never starts as a command to a runner does and never
// ends in a blank.
func (t *table) line(l gha.Line) {
	if strings.HasPrefix(strings.TrimSpace(l.String()), "::") {
		l = append(gha.Words("| "), l...)
	}
	for len(l) > 0 {
		last := &l[len(l)-1]
		if last.Text = strings.TrimRight(last.Text, " "); last.Text != "" {
			break
		}
		l = l[:len(l)-1]
	}
	t.lines = append(t.lines, l)
}

// verdict says in one sentence what came of the run, its first word in colour.
func (t *table) verdict(r *steps.Result) {
	text := gha.InertASCII(verdictLine(r))
	n := len(verdictWord(r.Verdict))
	t.line(gha.Line{{Text: text[:n], Style: steps.VerdictStyle(r.Verdict)}, {Text: text[n:]}})
}

func (t *table) rows(r *steps.Result) {
	cells := [][]string{{"STEP", "RESULT", "EXIT/FAULT", "TIME", "PEAK MEMORY", "REQUESTS", "FILES"}}
	styles := []rowStyle{{rest: gha.Faint, result: gha.Faint, outcome: gha.Faint}}
	disks := anyDisk(r)
	if disks {
		cells[0] = append(cells[0], "DISK")
	}
	for i := range r.Steps {
		s := &r.Steps[i]
		name := s.ID
		if s.Name != "" && s.Name != s.ID {
			name += " (" + s.Name + ")"
		}
		result := s.Status
		if n := note(s); n != "" {
			result += " (" + n + ")"
		}
		row := []string{
			gha.InertASCII(name), short(gha.InertASCII(result), maxWord), short(gha.InertASCII(outcome(s)), maxWord),
			elapsed(s), memory(s), requests(s), filesChanged(s),
		}
		if disks {
			row = append(row, disk(s))
		}
		cells = append(cells, row)
		styles = append(styles, styleOf(s))
	}
	widths := make([]int, len(cells[0]))
	for _, row := range cells {
		for i, c := range row {
			widths[i] = max(widths[i], len(c))
		}
	}
	widths = fit(widths, t.width)
	for i, row := range cells {
		var line gha.Line
		for k, wide := range widths {
			c := short(row[k], wide)
			style := styles[i].of(k)
			if c == "-" {
				style = gha.Faint
			}
			line = append(line, gha.Span{Text: c, Style: style}, gha.Span{Text: strings.Repeat(" ", wide-len(c)+2)})
		}
		t.line(line)
	}
}

// rowStyle is how the cells of a row look: what came of the step, how it ended,
// and the others.
type rowStyle struct{ result, outcome, rest gha.Style }

func styleOf(s *steps.StepResult) rowStyle {
	style := rowStyle{result: s.Style()}
	if s.Status == steps.StatusFailed {
		style.outcome = style.result
	}
	return style
}

func (s rowStyle) of(column int) gha.Style {
	switch column {
	case 1:
		return s.result
	case 2:
		return s.outcome
	}
	return s.rest
}

// fit makes the first column narrower, and if that is not enough leaves columns
// out from the right, but never the first three.
func fit(widths []int, width int) []int {
	if width <= 0 {
		widths[0] = min(widths[0], maxStep)
		return widths
	}
	for {
		total := 0
		for _, w := range widths {
			total += w + 2
		}
		total -= 2
		if over := total - width; over > 0 {
			room := max(widths[0]-over, min(widths[0], minStep))
			total -= widths[0] - room
			if total <= width || len(widths) <= 3 {
				widths[0] = room
			}
		}
		if total <= width || len(widths) <= 3 {
			return widths
		}
		widths = widths[:len(widths)-1]
	}
}

// reasons says in words why steps did not pass.
func (t *table) reasons(r *steps.Result) {
	n := 0
	for i := range r.Steps {
		s := &r.Steps[i]
		if s.Status == steps.StatusPassed {
			continue
		}
		if n++; n <= maxReasons {
			t.wrapped(lead(s, ": "), reason(s))
		}
	}
	if n > maxReasons {
		t.line(gha.Words(fmt.Sprintf("  and %d more that did not pass", n-maxReasons)))
	}
}

// first names what a reviewer must see: of changes that are in the workspace, and
// of those that a step which passed would have made.
func (t *table) first(r *steps.Result) {
	n := 0
	for i := range r.Steps {
		s := &r.Steps[i]
		word := " changed, look first: "
		if s.Workspace != "committed" && s.Workspace != "kept" {
			word = " would change, look first: "
		}
		if len(s.First) == 0 || s.Status != steps.StatusPassed && s.Workspace != "kept" {
			continue
		}
		if n++; n > maxReasons {
			continue
		}
		var shown []string
		for _, line := range firstLines(s, maxNamed) {
			shown = append(shown, strings.Join(strings.Fields(strings.TrimPrefix(line, "! ")), " "))
		}
		if more := len(s.First) - len(shown); more > 0 {
			shown = append(shown, fmt.Sprintf("and %d more", more))
		}
		t.wrapped(lead(s, word), strings.Join(shown, "; "))
	}
	if n > maxReasons {
		t.line(gha.Words(fmt.Sprintf("  and %d more that changed what to look at first", n-maxReasons)))
	}
}

// notes says what is no failure and has to be known.
func (t *table) notes(r *steps.Result) {
	n := 0
	for i := range r.Steps {
		s := &r.Steps[i]
		for _, note := range s.Notes {
			if n++; n <= maxReasons {
				t.wrapped(lead(s, ": note: "), note)
			}
		}
	}
	if n > maxReasons {
		t.line(gha.Words(fmt.Sprintf("  and %s; all of them are in report.json", count(n-maxReasons, "more note", "more notes"))))
	}
}

// lead is what stands before a sentence about a step.
func lead(s *steps.StepResult, word string) gha.Span {
	return gha.Span{Text: "  " + gha.InertASCII(clip(s.ID, maxID)) + word, Style: gha.Faint}
}

// wrapped adds a text behind words of ours, in as many lines as it needs.
func (t *table) wrapped(lead gha.Span, text string) {
	text = clip(gha.InertASCII(strings.Join(lines(text), " ")), 4*maxTextLine)
	indent := strings.Repeat(" ", min(len(lead.Text), 4))
	line, used, words := gha.Line{lead, {}}, len(lead.Text), 0
	for word := range strings.FieldsSeq(text) {
		if t.width > 0 && words > 0 && used+len(word) > t.width {
			t.line(line)
			line, used, words = gha.Words(indent), len(indent), 0
		}
		line[len(line)-1].Text += word + " "
		used += len(word) + 1
		words++
	}
	t.line(line)
}

func short(s string, n int) string {
	if len(s) <= n {
		return s
	}
	if n <= 3 {
		return s[:max(n, 0)]
	}
	return s[:n-3] + "..."
}
