package report

import (
	"bufio"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

const (
	// JUnitBudget is how many bytes of details and output there are in all; a
	// row per step stands beside them. Importers give up on far larger files.
	JUnitBudget = 8 << 20
	// maxAttribute is how much of one text stands in an attribute.
	maxAttribute = 500
	// maxListed is how many events, violations or requests of a step are told.
	maxListed = 20
	// maxOutputLines is how many last lines of output stand with a step.
	maxOutputLines = 40
)

// The form is what Jenkins' importer takes. No attribute or element is used that
// only one importer knows, and none is left out that an older form asks for.
type (
	junitRun struct {
		XMLName xml.Name   `xml:"testsuites"`
		Suite   junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		ID         int             `xml:"id,attr"`
		Name       string          `xml:"name,attr"`
		Package    string          `xml:"package,attr"`
		Hostname   string          `xml:"hostname,attr"`
		Timestamp  string          `xml:"timestamp,attr,omitempty"`
		Tests      int             `xml:"tests,attr"`
		Failures   int             `xml:"failures,attr"`
		Errors     int             `xml:"errors,attr"`
		Skipped    int             `xml:"skipped,attr"`
		Time       string          `xml:"time,attr"`
		Properties []junitProperty `xml:"properties>property"`
		Cases      []junitCase     `xml:"testcase"`
		Out        string          `xml:"system-out"`
		Err        string          `xml:"system-err"`
	}
	junitProperty struct {
		Name  string `xml:"name,attr"`
		Value string `xml:"value,attr"`
	}
	junitCase struct {
		Name      string    `xml:"name,attr"`
		Classname string    `xml:"classname,attr"`
		Time      string    `xml:"time,attr"`
		Failure   *junitWhy `xml:"failure"`
		Error     *junitWhy `xml:"error"`
		Skipped   *junitWhy `xml:"skipped"`
		Out       string    `xml:"system-out,omitempty"`
		Err       string    `xml:"system-err,omitempty"`
	}
	junitWhy struct {
		Type    string `xml:"type,attr,omitempty"` // not of what is skipped: an older form has none there
		Message string `xml:"message,attr"`
		Body    string `xml:",chardata"`
	}
)

// WriteJUnit writes junit.xml: one suite per run and one test case per step. A
// step that failed is a failure, one without a verdict an error, and one that
// continueOnError excuses is skipped with the reason: importers close gates of
// their own over failures, and this one did not close ours.
//
// A run that did not pass never reads as green: if no step says so, as when
// nothing ran, a case of its own does.
func WriteJUnit(w io.Writer, r *steps.Result) error {
	s := junitSuite{
		Name: toolWord, Package: toolWord,
		Hostname: "localhost", // the word for a host that is not known by name
		Time:     seconds(r.DurationMs), Properties: junitProperties(r),
	}
	if t, err := time.Parse(time.RFC3339, r.StartedAt); err == nil {
		s.Timestamp = t.UTC().Format("2006-01-02T15:04:05") // the form has no zone
	}
	if r.File != "" {
		s.Name += ": " + oneVisible(r.File, maxCell)
	}
	room := &xmlRoom{left: JUnitBudget}
	for i := range r.Steps {
		s.Cases = append(s.Cases, junitStep(&r.Steps[i], room))
	}
	if c := &s.Cases; r.Verdict != steps.VerdictPass && !anyRed(*c) {
		*c = append(*c, junitCase{Name: "(run)", Classname: toolWord, Time: s.Time,
			Error: &junitWhy{Type: verdictWord(r.Verdict), Message: oneVisible(runReason(r), maxAttribute)}})
	}
	// Output comes last, that of steps that did not pass first: it is the first
	// to be left out.
	for _, passed := range []bool{false, true} {
		for i := range r.Steps {
			if (r.Steps[i].Status == steps.StatusPassed) == passed {
				s.Cases[i].Out = joined(s.Cases[i].Out, room.fit(outputLines(r.Steps[i].Tail)))
				s.Cases[i].Err = room.fit(outputLines(r.Steps[i].EngineNote))
			}
		}
	}
	for _, c := range s.Cases {
		switch {
		case c.Failure != nil:
			s.Failures++
		case c.Error != nil:
			s.Errors++
		case c.Skipped != nil:
			s.Skipped++
		}
	}
	s.Tests = len(s.Cases)
	s.Out, s.Err = junitSaid(r, room), junitRefusal(r)
	b := bufio.NewWriter(w)
	_, err := b.WriteString(xml.Header)
	if err == nil {
		e := xml.NewEncoder(b)
		e.Indent("", "  ")
		err = e.Encode(junitRun{Suite: s})
	}
	if err == nil {
		err = b.WriteByte('\n')
	}
	if err == nil {
		err = b.Flush()
	}
	if err != nil {
		return fmt.Errorf("write the JUnit report: %w", err)
	}
	return nil
}

// toolWord names us where a report must not: names of suites and classes are
// what importers compare runs by.
const toolWord = "untrusted-steps"

func anyRed(list []junitCase) bool {
	for _, c := range list {
		if c.Failure != nil || c.Error != nil {
			return true
		}
	}
	return false
}

// runReason is why a run has its verdict.
func runReason(r *steps.Result) string {
	if r.Refusal != nil && r.Refusal.Cause != "" {
		return "refused: " + r.Refusal.Cause
	}
	return verdictLine(r)
}

func junitStep(s *steps.StepResult, room *xmlRoom) junitCase {
	c := junitCase{Name: oneVisible(s.ID, maxID), Classname: toolWord, Time: seconds(s.DurationMs)}
	why := &junitWhy{Type: oneVisible(failureType(s), maxWord)}
	message := reason(s)
	switch s.Status {
	case steps.StatusPassed:
		if isFlaky(s) {
			c.Out = room.fit(junitTries(s))
		}
		return c
	case steps.StatusSkipped:
		c.Skipped = why
	case steps.StatusFailed:
		if c.Failure = why; s.Excused {
			c.Failure, c.Skipped = nil, why
			message = "failed, excused by continueOnError: " + message
		}
	case steps.StatusCancelled:
		if why.Type = s.Status; ran(s) {
			c.Error = why
		} else {
			c.Skipped = why
		}
	case steps.StatusError:
		c.Error, why.Type = why, "no_verdict"
	default: // no word of ours: nothing is known
		c.Error, why.Type = why, "no_verdict"
		message = "status " + s.Status + " is none this program knows"
	}
	switch {
	case c.Skipped != nil:
		why.Type = ""
	case strings.TrimSpace(why.Type) == "": // a report from elsewhere
		why.Type = "failed"
	}
	why.Message = room.fit(oneVisible(message, maxAttribute))
	if s.Status != steps.StatusSkipped {
		why.Body = room.fit(junitDetails(s))
	}
	return c
}

// failureType is a step's failure in a word: its fault, what it did to the
// workspace, or how it ended.
func failureType(s *steps.StepResult) string {
	switch {
	case violated(s) && !unexpected(s):
		return s.Violations[0].Type
	case s.Fault != nil:
		return string(s.Fault.Type)
	case s.ExitCode != nil:
		return "exit_code"
	case s.Signal != nil:
		return "signal"
	}
	return "failed"
}

// junitDetails tells of a step in lines that each begin with a word of ours.
func junitDetails(s *steps.StepResult) string {
	var out []string
	say := func(word string, list []string) {
		for _, l := range list[:min(len(list), maxListed)] {
			out = append(out, word+": "+clip(gha.Inert(l), maxTextLine))
		}
		if n := len(list) - maxListed; n > 0 {
			out = append(out, fmt.Sprintf("%s: and %d more", word, n))
		}
	}
	if s.Name != "" && s.Name != s.ID {
		say("name", []string{s.Name})
	}
	say("reason", lines(reason(s)))
	if o := outcome(s); o != "-" {
		say("ended", []string{o})
	}
	if s.Fault != nil {
		if k, ok := box.Kind(s.Fault.Type); ok {
			say("means", []string{k.Means})
			say("next", []string{k.Hint})
		}
	}
	var events, violations, failed []string
	for _, e := range s.Events {
		events = append(events, fmt.Sprintf("%s: %s (%s)", e.Type, e.Message, plural(e.Count)))
	}
	for _, v := range s.Violations {
		violations = append(violations, v.Type+": "+v.Message)
	}
	for _, e := range s.Egress {
		if e.Verdict != "allowed" {
			failed = append(failed, fmt.Sprintf("%s %s:%d, %s, %s (%s)", e.Verdict, e.Host, e.Port, e.Protocol, plural(e.Count), e.Reason))
		}
	}
	say("event", events)
	say("violation", violations)
	say("request", failed)
	say("earlier", tries(s))
	say("note", notes(s))
	for _, l := range [][2]string{{"memory", memory(s)}, {"requests", requests(s)}, {"files changed", filesChanged(s)}} {
		if l[1] != "-" {
			say(l[0], []string{l[1]})
		}
	}
	for _, o := range []steps.Output{s.Stdout, s.Stderr} {
		if o.Path != "" && o.Bytes > 0 {
			say("output", []string{fmt.Sprintf("%s (%d bytes)", o.Path, o.Bytes)})
		}
	}
	if p := s.Patch; p != nil {
		say("patch", []string{fmt.Sprintf("%s (%d bytes)", p.Path, p.Bytes)})
	}
	return strings.Join(out, "\n")
}

// junitTries says of a step that passed that it did not do so at first. There are
// elements for that, and neither of the two forms that importers go by has them.
func junitTries(s *steps.StepResult) string {
	out := []string{"flaky: " + lateWord(s)}
	for _, l := range tries(s) {
		out = append(out, clip(gha.Inert(l), maxTextLine))
	}
	return strings.Join(out, "\n")
}

// joined puts two texts below each other.
func joined(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "\n" + b
}

// outputLines are the last lines of untrusted text. They stand behind a gutter:
// an importer may print them where a runner looks for commands.
func outputLines(text string) string {
	all := lines(text)
	all = all[max(0, len(all)-maxOutputLines):]
	for i, l := range all {
		all[i] = "| " + clip(gha.Inert(l), maxTextLine)
	}
	return strings.Join(all, "\n")
}

func junitProperties(r *steps.Result) []junitProperty {
	var out []junitProperty
	add := func(name, value string) {
		out = append(out, junitProperty{oneVisible(name, maxCell), oneVisible(value, maxAttribute)})
	}
	add("verdict", verdictWord(r.Verdict))
	add("tool", strings.TrimSpace(r.Tool.Name+" "+r.Tool.Version))
	add("host", strings.TrimSpace(r.Host.OS+" "+r.Host.Kernel+" "+r.Host.Arch))
	add("cgroup", r.Host.Cgroup)
	add("runner", r.Host.Runner)
	if len(r.Steps) > 0 {
		add("engine", strings.TrimPrefix(engines(r), "engine: "))
		add("caps", strings.TrimPrefix(enforcedBy(r), "caps: "))
	}
	if ids := flakySteps(r); len(ids) > 0 {
		add("flaky", fmt.Sprintf("%d: %s", len(ids), some(ids)))
	}
	for _, p := range r.Host.Proof[:min(len(r.Host.Proof), 3*maxListed)] {
		word := "holds: "
		if !p.OK {
			word = "DOES NOT HOLD: "
		}
		add("proof."+p.Control, word+provedBy(r, p)+p.How)
	}
	return out
}

// junitSaid is what is said once per run.
func junitSaid(r *steps.Result, room *xmlRoom) string {
	out := []string{oneVisible(verdictLine(r), maxSentence)}
	for _, l := range limitations(r) {
		out = append(out, "warning: "+clip(gha.Inert(l), maxTextLine))
	}
	for _, n := range r.Notes[:min(len(r.Notes), maxListed)] {
		out = append(out, "note: "+clip(gha.Inert(n), maxTextLine))
	}
	if room.dropped > 0 {
		out = append(out, "left out here for length: "+count(room.dropped, "piece of details or output", "pieces of details or output")+"; report.json and the logs beside it have them")
	}
	return strings.Join(out, "\n")
}

func junitRefusal(r *steps.Result) string {
	if r.Refusal == nil {
		return ""
	}
	var out []string
	for _, l := range lines(r.Refusal.Cause) {
		out = append(out, "cause: "+clip(gha.Inert(l), maxTextLine))
	}
	for _, f := range r.Refusal.Fix {
		out = append(out, "fix: "+clip(gha.Inert(f), maxTextLine))
	}
	return strings.Join(out[:min(len(out), 2*maxListed)], "\n")
}

// oneVisible is untrusted text as one line that no terminal, runner or reader
// takes for anything else. XML 1.0 has no way to write most control characters,
// not even escaped: they are spelled out before they get there.
func oneVisible(text string, n int) string {
	text = clip(gha.Inert(text), n)
	if strings.HasPrefix(strings.TrimSpace(text), "::") {
		text = "| " + text
	}
	return text
}

// seconds is a time as importers read it.
func seconds(ms int64) string {
	ms = max(ms, 0) // a report may come from anywhere
	return fmt.Sprintf("%d.%03d", ms/1000, ms%1000)
}

// xmlRoom counts what texts take once they are escaped.
type xmlRoom struct{ left, dropped int }

// fit is the text, or nothing if there is no room for it.
func (x *xmlRoom) fit(text string) string {
	var n byteCount
	_ = xml.EscapeText(&n, []byte(text)) // a counter has no errors
	if int(n) > x.left {
		x.dropped++
		return ""
	}
	x.left -= int(n)
	return text
}

type byteCount int

func (c *byteCount) Write(p []byte) (int, error) { *c += byteCount(len(p)); return len(p), nil }
