package report

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// SummaryBudget is how long a summary may be. GitHub throws all of a summary
// away that is over 1 MiB.
const SummaryBudget = 900 << 10

// reserve is kept for the last lines, which say what was left out.
const reserve = 1 << 10

// page is a summary as it grows. It never gets longer than its budget.
type page struct {
	b      strings.Builder
	budget int
	left   []string // what was left out, in words
}

func (p *page) room() int { return p.budget - reserve - p.b.Len() }

// add appends a whole piece or nothing of it.
func (p *page) add(text string) bool {
	if len(text) > p.room() {
		return false
	}
	p.b.WriteString(text)
	return true
}

// insert is add at a place that was passed.
func (p *page) insert(at int, text string) bool {
	if len(text) > p.room() {
		return false
	}
	all := p.b.String()
	p.b.Reset()
	p.b.WriteString(all[:at] + text + all[at:])
	return true
}

// WriteSummary writes the Markdown of the job summary in at most budget bytes,
// the most important first: the verdict, whom the steps talked to and what to
// look at, what was not enforced, the table, each failed step, then what the other steps did. What did not fit is counted.
func WriteSummary(w io.Writer, r *steps.Result, budget int) error {
	p := &page{budget: budget}
	p.add("## untrusted-steps: " + mark(r.Verdict) + "\n\n")
	p.add(inlineUpTo(verdictLine(r), maxSentence) + "\n\n")
	if !p.add(top(r)) {
		p.left = append(p.left, "whom the steps talked to and what to look at first")
	}
	p.add(overview(r))
	if r.Refusal != nil {
		p.add(refusal(r.Refusal))
	}
	p.shards(r)
	if l := limitations(r); len(l) > 0 {
		p.add("**Not enforced or not seen:**\n\n" + block(l) + "\n")
	}
	if l, _ := notesOf(r); len(l) > 0 {
		p.add("**Notes:**\n\n" + capped(l, 20, "more notes"))
	}
	if len(r.Steps) > 0 {
		p.table(r)
	}
	belowTable := p.b.Len()
	p.details(r)
	p.proof(r)
	if !p.insert(belowTable, timeline(r)) { // it has what all else leaves
		p.left = append(p.left, "the timeline")
	}
	if len(p.left) > 0 {
		p.b.WriteString("\nLeft out here for length: " + strings.Join(p.left, "; ") + ". All of it is in report.json.\n")
	}
	if _, err := io.WriteString(w, p.b.String()); err != nil {
		return fmt.Errorf("write the summary: %w", err)
	}
	return nil
}

func mark(verdict string) string {
	if verdict == steps.VerdictPass {
		return "\u2705 pass"
	}
	return "\u274c " + verdictWord(verdict)
}

// verdictWord is a verdict as a word of ours, whatever a file says.
func verdictWord(v string) string {
	switch v {
	case steps.VerdictPass, steps.VerdictFail, steps.VerdictRefused, steps.VerdictError, steps.VerdictCancelled:
		return v
	}
	return "no verdict"
}

func overview(r *steps.Result) string {
	cgroup := "no cgroup that takes caps"
	switch {
	case r.Host.Cgroup != "":
		cgroup = "cgroup " + r.Host.Cgroup
	case r.Host.CgroupFound != "": // there is one, and it is not ours to use
		cgroup = "cgroup " + r.Host.CgroupFound + " that takes no caps of ours"
	}
	if r.Merged != nil && len(r.Merged.Shards) == 0 {
		return ""
	}
	where := inline(strings.TrimSpace(fmt.Sprintf("%s %s on %s %s %s, %s", r.Tool.Name, r.Tool.Version, r.Host.OS, r.Host.Kernel, r.Host.Arch, cgroup)))
	if len(r.Steps) == 0 { // nothing ran, so there was no engine and no cap
		return where + "\n\n"
	}
	return fmt.Sprintf("%s in %s. %s. %s. %s\n\n",
		count(len(r.Steps), "step", "steps"), took(r.DurationMs), inline(engines(r)), inline(enforcedBy(r)), where)
}

func refusal(f *steps.Refusal) string {
	out := "**Cause**\n\n" + capped(lines(f.Cause), 20, "more")
	if len(f.Fix) > 0 {
		out += "**What helps**\n\n" + capped(f.Fix, 20, "more")
	}
	return out
}

// capped is a block of the first n lines and a count of the rest.
func capped(l []string, n int, what string) string {
	if len(l) <= n {
		return block(l) + "\n"
	}
	return block(l[:n]) + fmt.Sprintf("\nand %d %s\n\n", len(l)-n, what)
}

// table writes a row per step, in the order of the list. If there is no room
// for all, rows of passed steps go first.
func (p *page) table(r *steps.Result) {
	head := "| Step | Result | Exit code, fault, violation | Time | Peak memory | Requests | Files changed |\n" +
		"|---|---|---|--:|--:|---|--:|\n"
	disks, boxes := anyDisk(r), severalEngines(r)
	if disks {
		head = "| Step | Result | Exit code, fault, violation | Time | Peak memory | Requests | Files changed | Disk |\n" +
			"|---|---|---|--:|--:|---|--:|--:|\n"
	}
	if boxes { // which boundary a step had is then no line about the run
		first, second, _ := strings.Cut(head, "\n")
		head = first + " Engine, kernel |\n" + strings.TrimSuffix(second, "\n") + "---|\n"
	}
	room := p.room()/2 - len(head)
	rows := make([]string, len(r.Steps))
	size := 0
	for i := range r.Steps {
		rows[i] = row(&r.Steps[i], disks, boxes)
		size += len(rows[i])
	}
	dropped := 0
	for _, passed := range []bool{true, false} {
		for i := len(rows) - 1; i >= 0 && size > room; i-- {
			if (r.Steps[i].Status == steps.StatusPassed) == passed && rows[i] != "" {
				size -= len(rows[i])
				rows[i] = ""
				dropped++
			}
		}
	}
	p.add(head + strings.Join(rows, "") + "\n")
	if dropped > 0 {
		p.left = append(p.left, count(dropped, "row of the table", "rows of the table"))
	}
}

func row(s *steps.StepResult, disks, boxes bool) string {
	name := inline(s.ID)
	if s.Name != "" && s.Name != s.ID {
		name += " " + inline(s.Name)
	}
	out := fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s |", name, status(s), outcomeCell(s),
		elapsed(s), memory(s), requests(s), filesChanged(s))
	if disks {
		out += " " + disk(s) + " |"
	}
	if boxes {
		out += " " + inline(boundary(s)) + " |"
	}
	return out + "\n"
}

func outcomeCell(s *steps.StepResult) string {
	if o := outcome(s); o != "-" {
		return inline(o)
	}
	return "-"
}

func status(s *steps.StepResult) string {
	sign := "\u274c "
	switch s.Status {
	case steps.StatusPassed:
		sign = "\u2705 "
	case steps.StatusSkipped:
		sign = "\u23ed "
	case steps.StatusFailed, steps.StatusCancelled, steps.StatusError:
	default:
		return sign + inline(s.Status)
	}
	if n := note(s); n != "" {
		return sign + s.Status + " (" + n + ")"
	}
	return sign + s.Status
}

// provedBy names the engine that showed a control, where the run had several.
func provedBy(r *steps.Result, c steps.Proof) string {
	if c.Engine != "" && slices.ContainsFunc(r.Host.Proof, func(o steps.Proof) bool { return o.Engine != c.Engine }) {
		return clip(c.Engine, maxWord) + ": "
	}
	return ""
}

// proof lists what was seen to hold on the host before the first step.
func (p *page) proof(r *steps.Result) {
	_, l := notesOf(r)
	if len(r.Host.Proof)+len(l) == 0 {
		return
	}
	for _, c := range r.Host.Proof {
		word := "holds"
		if !c.OK {
			word = "DOES NOT HOLD"
		}
		l = append(l, fmt.Sprintf("%-18s %s, %.1f ms: %s", c.Control, word, c.Ms, provedBy(r, c)+c.How))
	}
	text := "<details><summary>Shown to hold on this host before the first step</summary>\n\n" + capped(l, 50, "more") + "</details>\n\n"
	if !p.add(text) {
		p.left = append(p.left, "what was shown to hold on this host")
	}
}
