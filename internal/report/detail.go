package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/egress"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// level is how much is told of one step. Every step that failed is told of at
// the last level before any is told of at an earlier one.
type level struct{ output, requests, files, other, results int }

var levels = []level{
	{output: 40, requests: 50, files: 100, other: 20, results: 20},
	{output: 10, requests: 10, files: 20, other: 5, results: 5},
	{output: 4, requests: 3, files: 5, other: 2, results: 1},
	{},
}

// details tells of each step on its own: of those that did not pass first, then
// of those that passed and changed or asked for something.
func (p *page) details(r *steps.Result) {
	var bad, good []*steps.StepResult
	for _, want := range []func(*steps.StepResult) bool{
		func(s *steps.StepResult) bool { return s.Status == steps.StatusError },
		func(s *steps.StepResult) bool { return s.Status == steps.StatusFailed && !s.Excused },
		func(s *steps.StepResult) bool { return s.Status == steps.StatusCancelled },
		func(s *steps.StepResult) bool { return s.Status == steps.StatusFailed && s.Excused },
		func(s *steps.StepResult) bool { return s.Status == steps.StatusSkipped },
	} {
		for i := range r.Steps {
			if s := &r.Steps[i]; want(s) {
				bad = append(bad, s)
			}
		}
	}
	for i := range r.Steps {
		if s := &r.Steps[i]; s.Status == steps.StatusPassed && worthTelling(s) {
			good = append(good, s)
		}
	}
	p.each(bad, failedStep, "step that did not pass", "steps that did not pass")
	p.each(good, passedStep, "step's requests and changes", "steps' requests and changes")
}

// worthTelling says whether there is more about a step that passed than its row
// of the table.
func worthTelling(s *steps.StepResult) bool {
	return s.Fault != nil || len(s.Tries) > 0 || s.Patch != nil || wrote(s) || s.WorkspaceBy == "copy" ||
		len(s.First)+len(s.Notes)+len(s.Results)+len(s.Egress)+len(s.EgressProposal)+len(s.EgressUnused) > 0
}

// each adds a piece per step: all at the last level if they fit so, and the
// first ones with as much more as there is room for.
func (p *page) each(list []*steps.StepResult, tell func(*steps.StepResult, level) string, one, many string) {
	short := make([]string, len(list))
	size := 0
	for i, s := range list {
		short[i] = tell(s, levels[len(levels)-1])
		size += len(short[i])
	}
	spare := p.room() - size
	for i, s := range list {
		text := short[i]
		for _, l := range levels[:len(levels)-1] {
			if spare <= 0 {
				break
			}
			if longer := tell(s, l); len(longer)-len(text) <= spare {
				spare -= len(longer) - len(text)
				text = longer
				break
			}
		}
		if !p.add(text) {
			p.left = append(p.left, count(len(list)-i, one, many))
			return
		}
	}
}

func failedStep(s *steps.StepResult, l level) string {
	var b strings.Builder
	head := "### " + inline(s.ID) + " " + status(s)
	if o := outcomeCell(s); o != "-" {
		head += " " + o
	}
	b.WriteString(head + "\n\n")
	why := lines(reason(s))
	if violated(s) && l != (level{}) { // the violations are told below
		why = nil
		if unexpected(s) {
			why = lines(faultReason(s))
		}
	}
	b.WriteString(rest(why[:min(len(why), max(1, l.other))], len(why)))
	if s.Status == steps.StatusSkipped || l == (level{}) {
		return b.String()
	}
	if s.Fault != nil {
		if k, ok := box.Kind(s.Fault.Type); ok {
			fmt.Fprintf(&b, "%s Next: %s.\n\n", k.Means, k.Hint)
		}
	}
	b.WriteString(eventsOf(s, l))
	b.WriteString(violations(s, l.requests))
	if out := lines(s.Tail); len(out) > 0 {
		n := len(out)
		out = out[max(0, n-l.output):]
		b.WriteString("Last lines of output" + whereOutputIs(s) + "\n\n" + block(out) + "\n")
	}
	b.WriteString(results(s, l))
	b.WriteString(effects(s, l))
	return b.String()
}

// whereOutputIs names the files that hold more than the last lines.
func whereOutputIs(s *steps.StepResult) string {
	var names []string
	for _, o := range []steps.Output{s.Stdout, s.Stderr} {
		if o.Path == "" || o.Bytes == 0 {
			continue
		}
		name := inline(o.Path)
		if o.Truncated {
			name = fmt.Sprintf("%s (its first %d bytes)", name, o.Bytes)
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return ""
	}
	return "; more in " + strings.Join(names, " and ")
}

func passedStep(s *steps.StepResult, l level) string {
	head := fmt.Sprintf("<details><summary>%s %s: requests %s, files changed %s</summary>\n\n",
		inline(s.ID), status(s), requests(s), filesChanged(s))
	if l == (level{}) {
		return head + "</details>\n\n"
	}
	if s.Reason != "" {
		head += capped(lines(s.Reason), l.other, "more")
	}
	return head + results(s, l) + eventsOf(s, l) + effects(s, l) + "</details>\n\n"
}

// reason is why a step has the status it has, in words.
func reason(s *steps.StepResult) string {
	switch {
	case violated(s):
		return violationReason(s)
	case s.Reason != "":
		return s.Reason
	case s.Fault != nil:
		return faultReason(s)
	}
	return outcome(s)
}

func faultReason(s *steps.StepResult) string { return string(s.Fault.Type) + ": " + s.Fault.Message }

// eventsOf lists who was refused, with the line to add, and what else the
// sandbox saw.
func eventsOf(s *steps.StepResult, l level) string {
	var denied, other []string
	for _, e := range s.Events {
		line := e.Message
		if e.Count > 1 {
			line = fmt.Sprintf("%s (%d times)", line, e.Count)
		}
		switch {
		case e.Type == box.EgressDenied:
			denied = append(denied, line)
		case s.Fault == nil || e.Type != s.Fault.Type || e.Message != s.Fault.Message:
			other = append(other, string(e.Type)+": "+line)
		}
	}
	out := ""
	if n := len(denied); n > 0 {
		out += "Refused destinations\n\n" + rest(denied[:min(n, l.requests)], n)
	}
	if n := len(other); n > 0 {
		out += "Also seen\n\n" + rest(other[:min(n, l.other)], n)
	}
	return out
}

// effects lists what a step did: requests, files, and what is worth knowing
// about either.
func effects(s *steps.StepResult, l level) string {
	out := ""
	told := slices.ContainsFunc(s.Events, func(e box.Event) bool { return e.Type == box.EgressDenied })
	var req []string
	for _, e := range s.Egress {
		if e.Verdict == "denied" && told {
			continue // told by the events, with the line to add
		}
		req = append(req, fmt.Sprintf("%-7s %s:%d %s, %s, %d bytes in, %d out%s", e.Verdict, e.Host, e.Port, e.Protocol,
			plural(e.Count), e.BytesIn, e.BytesOut, ruled(e)))
	}
	if n := len(req); n > 0 {
		out += "Requests\n\n" + rest(req[:min(n, l.requests)], n)
	}
	for _, x := range []struct {
		title string
		list  []string
	}{
		{"egressAllow, as this step would need it", s.EgressProposal},
		{"What presets stood for on this machine", presets(s.EgressPresets)},
		{"Rules of egressAllow that nothing used", s.EgressUnused},
		{"Rules of egressAllow that allow more than was used, and what was", tooWide(s.EgressTooWide)},
		{"Said by the engine", lines(s.EngineNote)},
	} {
		if n := len(x.list); n > 0 {
			out += x.title + "\n\n" + rest(x.list[:min(n, l.requests)], n)
		}
	}
	for _, x := range []struct {
		title string
		list  []string
	}{{"Earlier tries", tries(s)}, {"Notes", notes(s)}} {
		if n := len(x.list); n > 0 {
			out += x.title + "\n\n" + rest(x.list[:min(n, l.other)], n)
		}
	}
	return out + files(s, l.files) + writes(s)
}

// presets gives the rules that were read from settings of this machine. What our
// own lists hold is in our documents.
func presets(list []steps.EgressPreset) []string {
	var out []string
	for _, p := range list {
		for _, r := range p.Rules {
			if r.From != "" {
				out = append(out, "preset:"+p.Name+" "+r.Rule+" ("+r.From+")")
			}
		}
	}
	return out
}

// rest is a block and the count of what of all is not in it.
func rest(shown []string, all int) string {
	out := ""
	if len(shown) > 0 {
		out = block(shown) + "\n"
	}
	if n := all - len(shown); n > 0 {
		out += fmt.Sprintf("and %d more\n\n", n)
	}
	return out
}

func plural(n uint64) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// tooWide puts each finding on a line.
func tooWide(findings []egress.Finding) []string {
	var out []string
	for _, f := range findings {
		out = append(out, f.Rule+": "+strings.Join(f.Narrower, ", "))
	}
	return out
}
