package html

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// glance is a page up to its first list.
func glance(t *testing.T, r *steps.Result, o Options) string {
	t.Helper()
	text, _, ok := strings.Cut(render(t, r, o), `<h2 id="steps"`)
	if !ok {
		t.Fatal("the page has no list of steps")
	}
	_, text, _ = strings.Cut(text, "<body>")
	return text
}

// holds says which of the texts are in a page, and which have to be.
func holds(t *testing.T, page string, has, not []string) {
	t.Helper()
	for _, w := range has {
		if !strings.Contains(page, w) {
			t.Errorf("%q is not there", w)
		}
	}
	for _, w := range not {
		if strings.Contains(page, w) {
			t.Errorf("%q is there", w)
		}
	}
	if t.Failed() {
		t.Log(page)
	}
}

func TestWhatWentWrongIsSeenFirst(t *testing.T) {
	r := &steps.Result{Verdict: "fail", Steps: []steps.StepResult{
		{ID: "good", Status: "passed", Reason: "all is well", Tail: "fine"},
		{ID: "tests", Status: "failed", Reason: "it ended with exit code 1", Tail: "one\ntwo\nthree\nFAIL: four\n"},
		{ID: "slow", Status: "failed", Reason: "timeout: still running after 1s", Tail: "tick", Fault: &box.Fault{Type: box.Timeout}},
		{ID: "writes", Status: "failed", Reason: "it wrote to .github", Tail: "done", Violations: []steps.Violation{{Type: "protected_path"}}},
		{ID: "excused", Status: "failed", Excused: true, Reason: "nobody minds"},
		{ID: "later", Status: "skipped", Reason: "it needs tests"},
		{ID: "lost", Status: "error", Reason: "the proxy went away"},
	}}
	o := options(r)
	o.Warnings = nil
	o.Words = func(s *steps.StepResult) Words {
		return Words{Outcome: map[bool]string{true: "timeout", false: "exit 1"}[s.Fault != nil], Reason: s.Reason}
	}
	page := glance(t, r, o)
	holds(t, page, []string{
		`<a class="to" href="#step-1">tests</a> <span class="badge failed">exit 1</span> it ended with exit code 1<pre tabindex="0">| two` + "\n| three\n| FAIL: four\n</pre>",
		`<span class="badge failed">timeout</span> still running after 1s</li>`, // neither the word twice, nor what the step said itself
		"it wrote to .github</li>",
		`<span class="badge error">exit 1</span> the proxy went away</li>`,
	}, []string{"all is well", "nobody minds", "it needs tests", "| one"})

	for i := range 20 {
		r.Steps = append(r.Steps, steps.StepResult{ID: fmt.Sprint("more", i), Status: "failed"})
	}
	page = glance(t, r, o)
	holds(t, page, []string{`">more0</a>`, "<li>and 19 more, first in"}, []string{`">more1</a>`})

	r.Verdict, r.Steps = "pass", r.Steps[:1]
	holds(t, glance(t, r, o), nil, []string{"What went wrong"})
}

func TestTheTopSaysWhatTheStepsDid(t *testing.T) {
	r := &steps.Result{Verdict: "fail", Steps: []steps.StepResult{{ID: "a", Status: "passed", FilesTotal: 7, Files: []steps.FileChange{{Path: "x"}},
		Egress: []steps.EgressRecord{{Verdict: "denied"}, {Verdict: "allowed"}, {Verdict: "denied"}}}, {ID: "b", Status: "passed", Files: []steps.FileChange{{Path: "x"}}}}}
	o := options(r)
	o.Top = []Top{{Word: "Refused", Items: []string{"evil.example (no_rule)", "<b>"}}, {Word: "Look first", Items: strings.Fields(strings.Repeat("f ", 25))}}
	page := glance(t, r, o)
	holds(t, page, []string{
		"<dt>Refused</dt><dd><code>evil.example (no_rule)</code> <code>&lt;b&gt;</code></dd>", "</code> and 15 more</dd>",
		`<a href="#steps">Steps</a> 2 `, `<a href="#requests">Requests</a> 3 <span class="badge denied">2 denied</span>`, `<a href="#files">Changed files</a> 8 `,
	}, nil)
	r.Steps = r.Steps[1:]
	o.Top = nil
	holds(t, glance(t, r, o), nil, []string{"<dl", "denied"})
	// Every part that is named is there.
	page = render(t, r, o)
	links := regexp.MustCompile(`<a href="#([a-z]+)"`).FindAllStringSubmatch(page, -1)
	if len(links) < 4 {
		t.Errorf("%d links to parts only", len(links))
	}
	for _, m := range links {
		if !strings.Contains(page, `id="`+m[1]+`"`) {
			t.Errorf("a link leads to %s, which is not there", m[1])
		}
	}
}

// TestAReasonIsToldOnce: what stands right before it is not said again.
func TestAReasonIsToldOnce(t *testing.T) {
	r := &steps.Result{Verdict: "fail", Steps: []steps.StepResult{{ID: "a", Status: "failed", Reason: "oom: too much",
		Events: []box.Event{{Type: box.OOM, Message: "too much", Count: 1}, {Type: box.OOM, Message: "too much", Count: 3}, {Type: box.Timeout, Message: "late", Count: 1}}}, {ID: "b", Status: "passed", Reason: "exit 0"}}}
	o := options(r)
	o.Words = func(s *steps.StepResult) Words {
		return Words{Outcome: map[string]string{"a": "oom", "b": "exit 0"}[s.ID], Reason: s.Reason}
	}
	_, page, _ := strings.Cut(render(t, r, o), `<h2 id="details"`)
	holds(t, page, []string{`<p class="why">too much</p>`, "<li>oom: too much (3 times)</li>", "<li>timeout: late</li>"},
		[]string{"<li>oom: too much</li>", `<p class="why">exit 0</p>`})
	// Of a reason that had to be cut, the event has the rest.
	long := strings.Repeat("x", maxText)
	r.Steps[0].Reason, r.Steps[0].Events = "oom: "+long, []box.Event{{Type: box.OOM, Message: long, Count: 1}}
	_, page, _ = strings.Cut(render(t, r, o), `<h2 id="details"`)
	holds(t, page, []string{"<li>oom: xxx"}, nil)
}

// TestOnlyADiffThatIsThereIsLinked: a link that leads nowhere teaches a reader
// not to follow any.
func TestOnlyADiffThatIsThereIsLinked(t *testing.T) {
	r := &steps.Result{Steps: []steps.StepResult{{ID: "a"}, {ID: "b", Patch: &steps.Patch{Path: "steps/b/changes.patch", Bytes: 3}}}}
	o := options(r)
	holds(t, render(t, r, o), nil, []string{`href="#step-1-diff"`})
	o.Files = sameFile("diff")
	holds(t, render(t, r, o), []string{`<a href="#step-1-diff">4</a>`, `id="step-1-diff"`}, []string{`href="#step-0-diff"`})
}

func TestWhatBecameOfAChangeIsShown(t *testing.T) {
	change := []steps.FileChange{{Path: "f", Change: "created"}}
	r := &steps.Result{Steps: []steps.StepResult{{ID: "a", Workspace: "discarded", Files: change}, {ID: "b", Workspace: "<b>", Files: change}}}
	page := render(t, r, options(r))
	if d := carriedBy(t, page); d.Files[0].Became != "discarded" || d.Files[1].Became != "" {
		t.Errorf("the changes became %q and %q", d.Files[0].Became, d.Files[1].Became)
	}
	holds(t, page, []string{"<td>f</td><td>discarded</td>"}, nil)
}

func TestAReasonForARefusalIsASentence(t *testing.T) {
	r := &steps.Result{Steps: []steps.StepResult{{ID: "a", Egress: []steps.EgressRecord{{Verdict: "denied", Reason: "no_rule", Expected: true}, {Verdict: "denied", Reason: "odd"}}}}}
	o := options(r)
	o.Meaning = func(reason string) string { return map[string]string{"no_rule": "no rule names it"}[reason] }
	d := carriedBy(t, render(t, r, o))
	if a, b := d.Requests[0].Why, d.Requests[1].Why; a != "no_rule: no rule names it (expected)" || b != "odd" {
		t.Errorf("the reasons are %q and %q", a, b)
	}
}
