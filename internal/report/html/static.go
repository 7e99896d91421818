package html

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

const (
	// maxSaid is how many sentences of a kind stand on the page, about the run or
	// about one step.
	maxSaid = 20
	// maxOpen is how many failed steps are unfolded from the start.
	maxOpen = 5
	// maxStatic is how many requests, and files, a reader without scripts sees.
	maxStatic = 50
	// maxTailLines is how much output of a failed step such a reader sees.
	maxTailLines = 40
)

// head is the page up to its body.
func (p *page) head(b *bytes.Buffer) {
	put(b, m("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"),
		m("<meta http-equiv=\"Content-Security-Policy\" content=\""), policy(), m("\">\n"),
		m("<meta name=\"referrer\" content=\"no-referrer\">\n<meta name=\"color-scheme\" content=\"light dark\">\n"),
		m("<meta name=\"viewport\" content=\"width=device-width\">\n<title>"), clip(p.o.Verdict, maxName), m("</title>\n<style>"))
	b.WriteString(style)
	put(b, m("</style>\n</head>\n"))
}

// body is what a reader sees without scripts, and the places for the rest.
func (p *page) body(b *bytes.Buffer) {
	put(b, m("<body>\n<a class=\"skip\" href=\"#steps\">To the steps</a>\n<header>\n<h1><span class=\"badge "),
		known(p.r.Verdict, verdictWords, "unknown"), m("\">"), clip(p.r.Verdict, maxName), m("</span> "),
		p.sentence(), m("</h1>\n<p class=\"run\">"), p.about(), m("</p>\n"))
	p.parts(b)
	put(b, m("</header>\n<main>\n"))
	p.wrong(b)
	p.top(b)
	p.said(b)
	p.table(b)
	p.timeline(b)
	p.requestsPart(b)
	p.filesPart(b)
	p.details(b)
	p.proof(b)
	put(b, m("</main>\n<footer><p>What steps wrote is shown as text: characters that cannot be seen are written out, such as \\x1b. This page has at most "),
		MaxBytes>>20, m(" MiB, of a log its last "), maxTail>>10, m(" KiB and of a patch its first "), maxHead>>10,
		m(" KiB; what was left out is counted. Press <kbd>/</kbd> for the nearest filter, <kbd>Esc</kbd> to empty it, <kbd>↑</kbd> <kbd>↓</kbd> to go through the steps.</p></footer>\n"))
}

var verdictWords = []string{steps.VerdictPass, steps.VerdictFail, steps.VerdictRefused, steps.VerdictError, steps.VerdictCancelled}
var statusWords = []string{steps.StatusPassed, steps.StatusFailed, steps.StatusSkipped, steps.StatusCancelled, steps.StatusError}

// sentence is the verdict without its first word, which stands before it.
func (p *page) sentence() string {
	return clip(strings.TrimPrefix(p.o.Verdict, p.r.Verdict+": "), 4*maxText)
}

func (p *page) about() string {
	r := p.r
	out := []string{r.Tool.Name + " " + r.Tool.Version, r.Host.OS + " " + r.Host.Kernel + " " + r.Host.Arch}
	if r.StartedAt != "" {
		out = append(out, "started "+r.StartedAt)
	}
	out = append(out, "took "+seconds(float64(r.DurationMs)))
	if len(r.Steps) > 0 {
		out = append(out, p.o.Engines)
	}
	for i := range out {
		out[i] = clip(out[i], maxName)
	}
	return strings.Join(out, ", ")
}

// said is what is to be known about the run as a whole.
func (p *page) said(b *bytes.Buffer) {
	if f := p.r.Refusal; f != nil {
		put(b, m("<section class=\"said warn\" aria-labelledby=\"refusal\"><h2 id=\"refusal\">Why nothing ran</h2>\n"))
		items(b, strings.Split(f.Cause, "\n"))
		if len(f.Fix) > 0 {
			put(b, m("<h3>To try</h3>\n<ul>\n"))
			for _, line := range f.Fix[:min(len(f.Fix), maxSaid)] {
				put(b, m("<li><code>"), clip(line, maxLine), m("</code></li>\n"))
			}
			put(b, m("</ul>\n"))
		}
		put(b, m("</section>\n"))
	}
	if len(p.o.Warnings) > 0 {
		put(b, m("<section class=\"said warn\" aria-labelledby=\"warnings\"><h2 id=\"warnings\">Not enforced, or not seen</h2>\n"))
		items(b, p.o.Warnings)
		put(b, m("</section>\n"))
	}
	if len(p.r.Notes) > 0 {
		put(b, m("<section class=\"said\" aria-labelledby=\"notes\"><h2 id=\"notes\">Notes</h2>\n"))
		items(b, p.r.Notes)
		put(b, m("</section>\n"))
	}
}

// items is a list of sentences, the rest of which is counted.
func items(b *bytes.Buffer, list []string) {
	put(b, m("<ul>\n"))
	for _, x := range list[:min(len(list), maxSaid)] {
		put(b, m("<li>"), clip(x, maxText), m("</li>\n"))
	}
	if n := len(list) - maxSaid; n > 0 {
		put(b, m("<li>and "), n, m(" more, in report.json</li>\n"))
	}
	put(b, m("</ul>\n"))
}

// table has a row for each step, in the order of the file. If not all fit, those
// that passed go first.
func (p *page) table(b *bytes.Buffer) {
	rows, left := p.fitting(rowsRoom, p.row)
	put(b, m("<section aria-labelledby=\"steps\"><h2 id=\"steps\" tabindex=\"-1\">Steps</h2>\n<div class=\"wide\" role=\"region\" aria-label=\"Table of steps\" tabindex=\"0\"><table class=\"steps\">\n"),
		m("<thead><tr><th scope=\"col\">Step</th><th scope=\"col\">Result</th><th scope=\"col\">Exit code or fault</th><th scope=\"col\">Time</th>"),
		m("<th scope=\"col\">Peak memory</th><th scope=\"col\">Requests</th><th scope=\"col\">Files</th><th scope=\"col\">Engine, kernel</th></tr></thead>\n<tbody>\n"))
	for _, row := range rows {
		b.Write(row) // nothing for one that was left out
	}
	put(b, m("</tbody></table></div>\n"))
	p.leftOut(b, left)
	put(b, m("</section>\n"))
}

// leftOut counts the steps that have no place in a part of the page.
func (p *page) leftOut(b *bytes.Buffer, n int) {
	if n > 0 {
		put(b, m("<p class=\"left\">"), count(n, "step has", "steps have"), m(" no room here; report.json has all.</p>\n"))
	}
}

// fitting renders each step, and keeps what fits, by the number of the step: those
// that did not pass are the last to be left out.
func (p *page) fitting(size int, render func(i int) []byte) (kept [][]byte, left int) {
	have := room(size)
	kept = make([][]byte, len(p.r.Steps))
	bad, good := p.failing()
	for _, i := range slices.Concat(bad, good) {
		if text := render(i); have.take(len(text)) {
			kept[i] = text
		} else {
			left++
		}
	}
	return kept, left
}

func (p *page) row(i int) []byte {
	s := &p.r.Steps[i]
	w := p.o.Words(s)
	return made(m("<tr><th scope=\"row\"><a class=\"to\" href=\"#step-"), i, m("\">"), clip(s.ID, maxName), m("</a>"), p.title(s),
		m("</th><td>"), badge(s, w), m("</td><td>"), clip(w.Outcome, maxName), m("</td><td>"), w.Time,
		m("</td><td>"), w.Memory, m("</td><td>"), w.Requests, m("</td><td>"), p.filesOf(i, w), m("</td><td>"), clip(w.Boundary, maxName), m("</td></tr>\n"))
}

// filesOf counts the changed files of a step, and leads to its diff if the page
// has one.
func (p *page) filesOf(i int, w Words) done {
	if s := &p.r.Steps[i]; p.o.Files == nil || s.Patch == nil {
		return made(w.Files)
	}
	return made(m("<a href=\"#step-"), i, m("-diff\">"), w.Files, m("</a>"))
}

// title is the name of a step where it says more than the id.
func (p *page) title(s *steps.StepResult) done {
	if s.Name == "" || s.Name == s.ID {
		return nil
	}
	return made(m(" <span class=\"name\">"), clip(s.Name, maxName), m("</span>"))
}

func badge(s *steps.StepResult, w Words) done {
	note, mark := "", done(nil)
	switch {
	case w.Note != "" && s.Flaky: // a mark of its own: the first one is green
		mark = made(m(" <span class=\"badge flaky\">"), clip(w.Note, maxName), m("</span>"))
	case w.Note != "":
		note = " (" + w.Note + ")"
	}
	return made(marked(s, clip(s.Status, maxName)+note), mark)
}

// marked is a text in the colour of a step's status.
func marked(s *steps.StepResult, text string) done {
	return made(m("<span class=\"badge "), known(s.Status, statusWords, "unknown"), m("\">"), clip(text, 2*maxName), m("</span>"))
}

// details has a part for each step to be unfolded, those that did not pass first
// and the first of these unfolded.
func (p *page) details(b *bytes.Buffer) {
	bad, good := p.failing()
	put(b, m("<section aria-labelledby=\"details\"><h2 id=\"details\">Each step: why, output, diff</h2>\n"))
	if p.left.streams != "" {
		put(b, m("<p class=\"left\">"), p.left.streams, m("</p>\n"))
	}
	put(b, m("<noscript><p>The logs and diffs are shown with scripts; they are files in the report folder, under steps/.</p></noscript>\n"))
	shells, extras := room(shellsRoom), room(extrasRoom)
	images, texts := room(imagesRoom), room(resultsRoom)
	left, short, open := 0, 0, 0
	for _, i := range slices.Concat(bad, good) {
		s := &p.r.Steps[i]
		unfold := open < maxOpen && (s.Status == steps.StatusFailed || s.Status == steps.StatusError)
		shell := p.shell(i, unfold)
		end := shellEnd(i)
		if !shells.take(len(shell) + len(end)) {
			left++
			continue
		}
		if unfold {
			open++
		}
		b.Write(shell)
		p.results(b, i, &images, &texts)
		if short == 0 {
			if text := p.extra(s); extras.take(len(text)) {
				b.Write(text)
			} else {
				short++
			}
		} else {
			short++
		}
		put(b, end)
	}
	p.leftOut(b, left)
	if short > 0 {
		put(b, m("<p class=\"left\">Of "), count(short, "step", "steps"), m(" there was room for the result and its reason only.</p>\n"))
	}
	put(b, m("</section>\n"))
}

// shell is the frame of a step's part: what it ended with, and why.
func (p *page) shell(i int, open bool) done {
	s := &p.r.Steps[i]
	w := p.o.Words(s)
	how, why := done(nil), done(nil)
	if open {
		how = made(m(" open"))
	}
	if reason := shownReason(w); reason != "" {
		why = made(m("<p class=\"why\">"), reason, m("</p>\n"))
	}
	return made(m("<details class=\"step\" id=\"step-"), i, m("\""), how, m("><summary>"), clip(s.ID, maxName), m(" "), badge(s, w),
		ended(w), p.title(s), m("</summary>\n"), why)
}

// ended is how a step ended, if it did.
func ended(w Words) done {
	if w.Outcome == "-" {
		return nil
	}
	return made(m(" "), clip(w.Outcome, maxName))
}

// shownReason is why a step ended as it did, without how, which stands before it.
func shownReason(w Words) string {
	if w.Reason == w.Outcome {
		return ""
	}
	return clip(strings.TrimPrefix(w.Reason, w.Outcome+": "), maxText)
}

// shellEnd has the place where app.js shows logs and diffs.
func shellEnd(i int) done {
	return made(m("<div class=\"streams\" id=\"step-"), i, m("-diff\"></div>\n</details>\n"))
}

// extra is what else was seen of a step.
func (p *page) extra(s *steps.StepResult) done {
	var b bytes.Buffer
	for _, part := range facts(s, p.o.Words(s)) {
		if len(part.list) > 0 {
			put(&b, m("<h3>"), part.title, m("</h3>\n"))
			items(&b, part.list)
		}
	}
	if tail := lastOf(s.Tail); s.Status != steps.StatusPassed && len(tail) > 0 {
		put(&b, m("<noscript><h3>Last lines of output</h3>\n"))
		quote(&b, tail, maxTailLines)
		put(&b, m("</noscript>\n"))
	}
	return b.Bytes()
}

// quote shows the last n lines of an output.
func quote(b *bytes.Buffer, lines []string, n int) {
	if len(lines) == 0 {
		return
	}
	put(b, m("<pre tabindex=\"0\">"))
	for _, line := range lines[max(0, len(lines)-n):] {
		put(b, m("| "), clip(line, maxText), m("\n")) // so that no line begins as a command to a runner
	}
	put(b, m("</pre>"))
}

// lastOf cuts the end of an output into lines, at every end a runner knows.
func lastOf(tail string) []string {
	tail = tail[max(0, len(tail)-maxTailLines*maxLine):]
	lines := strings.Split(strings.TrimRight(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(tail), "\n"), "\n")
	if len(lines) == 1 && lines[0] == "" {
		return nil
	}
	return lines[max(0, len(lines)-maxTailLines):]
}

type fact struct {
	title string
	list  []string
}

// facts is what was seen of a step beside the reason for its end, and what is
// worth knowing about it. What was not seen stands among the warnings, once for
// all steps.
func facts(s *steps.StepResult, w Words) []fact {
	var violations, events, wide []string
	for _, v := range s.Violations {
		violations = append(violations, v.Type+": "+v.Message)
	}
	for _, e := range s.Events {
		text := string(e.Type) + ": " + e.Message
		if e.Count <= 1 && text == w.Reason && len(text) <= maxText {
			continue // it was shown, whole
		}
		if e.Count > 1 {
			text += fmt.Sprintf(" (%d times)", e.Count)
		}
		events = append(events, text)
	}
	for _, f := range s.EgressTooWide {
		wide = append(wide, f.Rule+": "+strings.Join(f.Narrower, ", "))
	}
	var engine []string
	if s.EngineNote != "" {
		engine = lastOf(s.EngineNote)
	}
	return []fact{
		{"Violations", violations}, {"What the sandbox saw", events}, {"Earlier tries", w.Tries}, {"Notes", w.Notes},
		{"egressAllow, as this step would need it", s.EgressProposal}, {"Rules of egressAllow that nothing used", s.EgressUnused},
		{"Rules of egressAllow that allow more than was used, and what was", wide}, {"Said by the engine", engine},
	}
}

// proof is what was seen to hold on this host before the first step.
func (p *page) proof(b *bytes.Buffer) {
	if len(p.r.Host.Proof) == 0 {
		return
	}
	put(b, m("<section aria-labelledby=\"proof\"><h2 id=\"proof\">Seen to hold on this host</h2>\n<div class=\"wide\" role=\"region\" aria-label=\"Table of proofs\" tabindex=\"0\"><table>\n<thead><tr><th scope=\"col\">Control</th><th scope=\"col\">Holds</th><th scope=\"col\">How it was seen</th><th scope=\"col\">Engine</th></tr></thead>\n<tbody>\n"))
	list := p.r.Host.Proof
	for _, x := range list[:min(len(list), 2*maxSaid)] {
		holds := "no"
		if x.OK {
			holds = "yes"
		}
		put(b, m("<tr><th scope=\"row\">"), clip(x.Control, maxName), m("</th><td>"), holds, m("</td><td>"), clip(x.How, maxText), m("</td><td>"), clip(x.Engine, maxName), m("</td></tr>\n"))
	}
	put(b, m("</tbody></table></div>\n"))
	if n := len(list) - 2*maxSaid; n > 0 {
		put(b, m("<p class=\"left\">and "), n, m(" more, in report.json</p>\n"))
	}
	put(b, m("</section>\n"))
}
