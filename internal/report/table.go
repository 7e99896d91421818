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

// WriteTable writes the table for a terminal of the given width; 0 means any.
// Reasons of steps that did not pass stand under it, and the verdict last. All
// of it is ASCII.
func WriteTable(w io.Writer, r *steps.Result, width int) error {
	t := &table{width: width}
	if len(r.Steps) > 0 {
		t.rows(r)
		t.reasons(r)
		t.first(r)
		t.notes(r)
	}
	if r.Refusal != nil {
		t.wrapped("cause: ", r.Refusal.Cause)
		for _, f := range r.Refusal.Fix {
			if !strings.HasPrefix(f, "#") { // a word about the next line
				f = "fix: " + f
			}
			t.line(gha.InertASCII(f)) // whole: it is there to be copied
		}
	}
	for _, p := range problemList(r) {
		t.wrapped("shards: ", p)
	}
	for _, n := range r.Notes {
		t.wrapped("note: ", n)
	}
	for _, l := range limitations(r) {
		t.wrapped("warning: ", l)
	}
	t.line(gha.InertASCII(verdictLine(r)))
	if _, err := io.WriteString(w, t.b.String()); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	return nil
}

type table struct {
	b     strings.Builder
	width int
}

// line writes one line, which never starts as a command to a runner does.
func (t *table) line(s string) {
	if strings.HasPrefix(strings.TrimSpace(s), "::") {
		s = "| " + s
	}
	t.b.WriteString(strings.TrimRight(s, " "))
	t.b.WriteByte('\n')
}

func (t *table) rows(r *steps.Result) {
	cells := [][]string{{"STEP", "RESULT", "EXIT/FAULT", "TIME", "PEAK MEMORY", "REQUESTS", "FILES"}}
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
	}
	widths := make([]int, len(cells[0]))
	for _, row := range cells {
		for i, c := range row {
			widths[i] = max(widths[i], len(c))
		}
	}
	widths = fit(widths, t.width)
	for _, row := range cells {
		var b strings.Builder
		for k, wide := range widths {
			c := short(row[k], wide)
			b.WriteString(c + strings.Repeat(" ", wide-len(c)+2))
		}
		t.line(b.String())
	}
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
			t.wrapped("  "+gha.InertASCII(clip(s.ID, maxID))+": ", reason(s))
		}
	}
	if n > maxReasons {
		t.line(fmt.Sprintf("  and %d more that did not pass", n-maxReasons))
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
		t.wrapped("  "+gha.InertASCII(clip(s.ID, maxID))+word, strings.Join(shown, "; "))
	}
	if n > maxReasons {
		t.line(fmt.Sprintf("  and %d more that changed what to look at first", n-maxReasons))
	}
}

// notes says what is no failure and has to be known.
func (t *table) notes(r *steps.Result) {
	n := 0
	for i := range r.Steps {
		s := &r.Steps[i]
		for _, note := range s.Notes {
			if n++; n <= maxReasons {
				t.wrapped("  "+gha.InertASCII(clip(s.ID, maxID))+": note: ", note)
			}
		}
	}
	if n > maxReasons {
		t.line(fmt.Sprintf("  and %s; all of them are in report.json", count(n-maxReasons, "more note", "more notes")))
	}
}

// wrapped writes a text behind a word of ours, over as many lines as it needs.
func (t *table) wrapped(lead, text string) {
	text = clip(gha.InertASCII(strings.Join(lines(text), " ")), 4*maxTextLine)
	indent := strings.Repeat(" ", min(len(lead), 4))
	line := lead
	for word := range strings.FieldsSeq(text) {
		switch {
		case t.width > 0 && len(line)+len(word) > t.width && strings.TrimSpace(line) != "" && line != lead:
			t.line(line)
			line = indent + word + " "
		default:
			line += word + " "
		}
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
