package report

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

const (
	// MaxSARIFResults is how many findings there are at most, the worst first:
	// code scanning shows no more of one run.
	MaxSARIFResults = 5000
	// maxNotices is how many notes of a run stand beside them.
	maxNotices = 40

	projectURL = "https://github.com/untrusted-steps/untrusted-steps"
	sarifURL   = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
	// fingerprintKey names how a fingerprint is made. Whoever changes that
	// changes the number, or known findings come back as new ones.
	fingerprintKey = "untrustedSteps/v1"
)

// The part of SARIF 2.1.0 that is written here, by the names of the standard.
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool        sarifTool         `json:"tool"`
		Invocations []sarifInvocation `json:"invocations"`
		Results     []sarifResult     `json:"results"`
		ColumnKind  string            `json:"columnKind"`
		Properties  sarifProperties   `json:"properties"`
	}
	sarifProperties struct {
		Verdict string `json:"verdict"`
	}
	sarifTool struct {
		Driver sarifDriver `json:"driver"`
	}
	sarifDriver struct {
		Name           string      `json:"name"`
		Version        string      `json:"version,omitempty"`
		InformationURI string      `json:"informationUri"`
		Rules          []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID      string       `json:"id"`
		Short   sarifMessage `json:"shortDescription"`
		Full    sarifMessage `json:"fullDescription"`
		Help    sarifMessage `json:"help"`
		HelpURI string       `json:"helpUri"`
	}
	sarifMessage struct {
		Text string `json:"text"`
	}
	sarifInvocation struct {
		Successful bool          `json:"executionSuccessful"`
		Start      string        `json:"startTimeUtc,omitempty"`
		End        string        `json:"endTimeUtc,omitempty"`
		Notices    []sarifNotice `json:"toolExecutionNotifications,omitempty"`
	}
	sarifNotice struct {
		Level   string       `json:"level"`
		Message sarifMessage `json:"message"`
	}
	sarifResult struct {
		RuleID       string            `json:"ruleId"`
		RuleIndex    int               `json:"ruleIndex"`
		Level        string            `json:"level"`
		Message      sarifMessage      `json:"message"`
		Locations    []sarifLocation   `json:"locations"`
		Fingerprints map[string]string `json:"partialFingerprints"`
	}
	sarifLocation struct {
		Physical *sarifPhysical `json:"physicalLocation,omitempty"`
		Logical  []sarifLogical `json:"logicalLocations"`
	}
	sarifPhysical struct {
		Artifact sarifArtifact `json:"artifactLocation"`
		Region   *sarifRegion  `json:"region,omitempty"`
	}
	sarifArtifact struct {
		URI    string `json:"uri"`
		BaseID string `json:"uriBaseId,omitempty"`
	}
	sarifRegion struct {
		StartLine int `json:"startLine"`
	}
	sarifLogical struct {
		Name string `json:"name"`
	}
)

// WriteSARIF writes results.sarif: a finding for each step that failed or has no
// verdict, for each thing it did to the workspace that it may not, for each
// destination it was refused, and for each step that passed at a later try only. They point at the step in the steps file. What is
// true of the whole run, such as a refusal to run, is a notification.
//
// A finding keeps its fingerprint from run to run: neither times, counts, order
// nor the place of the step in its file go into it.
func WriteSARIF(w io.Writer, r *steps.Result) error {
	f := &findings{file: r.File, index: map[string]int{}, seen: map[string]int{}}
	rules := sarifRules()
	for i, rule := range rules {
		f.index[rule.ID] = i
	}
	f.all(r)
	run := sarifRun{
		Tool: sarifTool{Driver: sarifDriver{
			Name: toolWord, Version: sarifText(r.Tool.Version, maxCell), InformationURI: projectURL, Rules: rules,
		}},
		Invocations: []sarifInvocation{sarifInvoked(r, f.left)},
		Results:     f.list, ColumnKind: "utf16CodeUnits",
		Properties: sarifProperties{Verdict: verdictWord(r.Verdict)},
	}
	b, err := json.MarshalIndent(sarifLog{Schema: sarifURL, Version: "2.1.0", Runs: []sarifRun{run}}, "", "  ")
	if err != nil {
		return fmt.Errorf("write the SARIF report: %w", err)
	}
	out := &jsonWriter{w: bufio.NewWriter(w)}
	out.text(append(b, '\n'))
	if out.err == nil {
		out.err = out.w.Flush()
	}
	if out.err != nil {
		return fmt.Errorf("write the SARIF report: %w", out.err)
	}
	return nil
}

// findings collects results, the worst first.
type findings struct {
	file  string
	index map[string]int // of a rule, by its id
	seen  map[string]int // fingerprints
	list  []sarifResult
	left  int // that had no room
}

func (f *findings) all(r *steps.Result) {
	f.list = []sarifResult{}
	for i := range r.Steps {
		if s := &r.Steps[i]; !knownStatus(s.Status) || s.Status == steps.StatusError {
			f.add(s, ruleNoVerdict, "error", "has no verdict: "+strings.TrimPrefix(reason(s), "no verdict: "))
		}
	}
	for _, excused := range []bool{false, true} {
		for i := range r.Steps {
			if s := &r.Steps[i]; s.Status == steps.StatusFailed && s.Excused == excused {
				f.add(s, failureRule(s), closes(s), "failed"+excuse(s)+": "+reason(s))
			}
		}
	}
	for i := range r.Steps {
		for _, v := range r.Steps[i].Violations {
			s := &r.Steps[i]
			f.add(s, violationRule(v.Type), closes(s), "violation "+v.Type+excuse(s)+": "+v.Message, v.Type, v.Message)
		}
	}
	for _, expected := range []bool{false, true} {
		for i := range r.Steps {
			for _, e := range r.Steps[i].Egress {
				if e.Verdict == "denied" && e.Expected == expected {
					f.denial(&r.Steps[i], e)
				}
			}
		}
	}
	for i := range r.Steps {
		if s := &r.Steps[i]; isFlaky(s) {
			text := strings.Join(append([]string{lateWord(s)}, tries(s)...), "; ")
			f.add(s, ruleFlaky, "note", text)
		}
	}
}

func (f *findings) denial(s *steps.StepResult, e steps.EgressRecord) {
	level, word := "warning", ""
	switch {
	case e.Expected:
		level, word = "note", " as expectDenied expects"
	case s.Status == steps.StatusFailed || s.Status == steps.StatusError:
		level, word = closes(s), excuse(s)
	}
	f.add(s, ruleRefused, level,
		fmt.Sprintf("was refused %s:%d%s: %s, %s (%s)", e.Host, e.Port, word, e.Protocol, plural(e.Count), e.Reason),
		e.Host, fmt.Sprint(e.Port), e.Protocol, e.Reason)
}

// closes is how grave a step's failure is: one that is excused is a warning.
func closes(s *steps.StepResult) string {
	if s.Excused {
		return "warning"
	}
	return "error"
}

func excuse(s *steps.StepResult) string {
	if s.Excused {
		return " (excused by continueOnError)"
	}
	return ""
}

func knownStatus(word string) bool {
	switch word {
	case steps.StatusPassed, steps.StatusFailed, steps.StatusSkipped, steps.StatusCancelled, steps.StatusError:
		return true
	}
	return false
}

// add notes a finding about a step. What of tells one finding of the rule from
// another in the same step.
func (f *findings) add(s *steps.StepResult, rule, level, text string, of ...string) {
	if len(f.list) >= MaxSARIFResults {
		f.left++
		return
	}
	id := sarifText(s.ID, maxID)
	loc := sarifLocation{Logical: []sarifLogical{{Name: id}}}
	if f.file != "" {
		loc.Physical = &sarifPhysical{Artifact: artifact(f.file)}
		if s.Line > 0 {
			loc.Physical.Region = &sarifRegion{StartLine: s.Line}
		}
	}
	f.list = append(f.list, sarifResult{
		RuleID: rule, RuleIndex: f.index[rule], Level: level,
		Message:   sarifMessage{"step " + id + " " + sarifText(text, maxSentence)},
		Locations: []sarifLocation{loc}, Fingerprints: map[string]string{fingerprintKey: f.fingerprint(append([]string{rule, s.ID}, of...))},
	})
}

// fingerprint is made of what a finding is about. Lengths stand between the
// parts, so no choice of names makes two findings one; the same finding twice
// is numbered.
func (f *findings) fingerprint(parts []string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	sum := hex.EncodeToString(h.Sum(nil)[:16])
	if f.seen[sum]++; f.seen[sum] > 1 {
		sum = fmt.Sprintf("%s:%d", sum, f.seen[sum])
	}
	return sum
}

// artifact is a file as SARIF names it. A path from the root of the checkout is
// one a viewer can find; others stay as they are.
func artifact(file string) sarifArtifact {
	u := url.URL{Path: filepath.ToSlash(clip(file, maxSentence))}
	switch {
	case filepath.IsAbs(file):
		u.Scheme = "file"
	case filepath.IsLocal(file):
		return sarifArtifact{URI: u.String(), BaseID: "%SRCROOT%"}
	}
	return sarifArtifact{URI: u.String()}
}

func sarifInvoked(r *steps.Result, left int) sarifInvocation {
	in := sarifInvocation{Successful: r.Verdict == steps.VerdictPass || r.Verdict == steps.VerdictFail}
	if t, err := time.Parse(time.RFC3339, r.StartedAt); err == nil {
		const form = "2006-01-02T15:04:05.000Z"
		// A report may come from anywhere, with any number in it.
		took := time.Duration(min(max(r.DurationMs, 0), 366*24*60*60*1000)) * time.Millisecond
		in.Start, in.End = t.UTC().Format(form), t.UTC().Add(took).Format(form)
	}
	say := func(level, text string) {
		if text = sarifText(text, maxSentence); text != "" && len(in.Notices) < maxNotices {
			in.Notices = append(in.Notices, sarifNotice{level, sarifMessage{text}})
		}
	}
	if !in.Successful {
		say("error", runReason(r))
	}
	if left > 0 {
		say("warning", count(left, "finding is", "findings are")+" left out here for length; all of it is in report.json")
	}
	for _, l := range limitations(r) {
		say("warning", l)
	}
	for _, n := range r.Notes {
		say("note", n)
	}
	return in
}

// sarifText is untrusted text as one line of a plain-text message. Viewers make
// links of [text](place) even there, and put arguments in place of {0}.
func sarifText(text string, n int) string {
	text = oneVisible(strings.Join(lines(text), "; "), n)
	text = strings.ReplaceAll(text, "](", "] (")
	return strings.NewReplacer("{", "{{", "}", "}}").Replace(text)
}
