package checks

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/gha/ghatest"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

var everything = Want{CheckRun: true, CommitStatus: true, Comment: Always, Name: DefaultName}

// result is a run of n steps that failed, each with a text in every place that a
// step can write to.
func result(verdict string, n int, text string) *steps.Result {
	r := &steps.Result{Schema: 1, Verdict: verdict, Tool: steps.Tool{Name: "untrusted-steps", Version: "1"}}
	for i := range n {
		code := 3
		r.Steps = append(r.Steps, steps.StepResult{
			ID: fmt.Sprintf("step-%d", i+1), Name: text, Status: steps.StatusFailed, ExitCode: &code, Reason: text, Tail: text, DurationMs: 1,
			Events: []box.Event{}, Files: []steps.FileChange{{Path: text, Change: "created", Type: "file"}}, FilesTotal: 1,
			Egress: []steps.EgressRecord{{Host: text, Port: 443, Verdict: "denied", Reason: text, Count: 1}},
		})
	}
	return r
}

func place() Place {
	return Place{Owner: "o", Repo: "r", SHA: headSHA, Pull: 7, Workflow: ".github/workflows/ci.yml", Job: "gate", RunURL: "https://github.example/o/r/actions/runs/1"}
}

func TestAVerdictIsOneWordForTheAPI(t *testing.T) {
	for verdict, want := range map[string][2]string{
		"pass":      {"success", "success"},
		"fail":      {"failure", "failure"},
		"refused":   {"failure", "error"},
		"error":     {"failure", "error"},
		"cancelled": {"cancelled", "error"},
		"":          {"failure", "error"},
		"Pass":      {"failure", "error"}, // a word that is none of ours is no success
	} {
		p := Make(Input{Result: result(verdict, 1, "x"), Want: everything, Place: place()})
		if got := [2]string{p.CheckRun.Conclusion, p.Status.State}; got != want {
			t.Errorf("verdict %q is %v, want %v", verdict, got, want)
		}
	}
}

func TestWhatIsSent(t *testing.T) {
	pass, fail := result("pass", 0, ""), result("fail", 1, "x")
	for _, c := range []struct {
		name                  string
		r                     *steps.Result
		want                  Want
		pull                  int
		run, status, comments bool
		onlyUpdate            bool
	}{
		{"nothing is sent unless it is asked for", fail, Want{Name: "n"}, 7, false, false, false, false},
		{"a check run alone", fail, Want{CheckRun: true, Name: "n"}, 7, true, false, false, false},
		{"a commit status alone", fail, Want{CommitStatus: true, Name: "n"}, 7, false, true, false, false},
		{"a comment alone", pass, Want{Comment: Always, Name: "n"}, 7, false, false, true, false},
		{"no comment where there is no pull request", fail, everything, 0, true, true, false, false},
		{"on-failure a pass only corrects what is there", pass, Want{Comment: OnFailure, Name: "n"}, 7, false, false, true, true},
		{"on-failure a failure is said", fail, Want{Comment: OnFailure, Name: "n"}, 7, false, false, true, false},
		{"on-failure a refusal is said", result("refused", 0, ""), Want{Comment: OnFailure, Name: "n"}, 7, false, false, true, false},
		{"on-failure no verdict is said", result("error", 1, ""), Want{Comment: OnFailure, Name: "n"}, 7, false, false, true, false},
	} {
		at := place()
		at.Pull = c.pull
		p := Make(Input{Result: c.r, Want: c.want, Place: at})
		if (p.CheckRun != nil) != c.run || (p.Status != nil) != c.status || (p.Comment != nil) != c.comments {
			t.Errorf("%s: check run %v, status %v, comment %v", c.name, p.CheckRun != nil, p.Status != nil, p.Comment != nil)
		}
		if p.Comment != nil && p.Comment.OnlyUpdate != c.onlyUpdate {
			t.Errorf("%s: only an update is %v", c.name, p.Comment.OnlyUpdate)
		}
	}
}

// hostileTexts are what a step can call itself, print, ask for or write.
var hostileTexts = []string{
	"@octocat see #1 and https://evil.example/x ![x](https://evil.example/beacon.png) [a](javascript:x)",
	"<img src=https://evil.example/x><script>x</script></code></details>", "| a | b |\n|---|---|\n| x | y |",
	"-->\n# forged\n<!-- untrusted-steps 0000000000000000 -->", "```\n::error::x\n````\n##[error]x", "\u202egnp.exe\u2066 \x1b[2K\r\x00", "\xff\xfe\x80",
	strings.Repeat("\u20ac", 5000), strings.Repeat("`", 300), strings.Repeat("\U0001f600", 3000),
}

// TestPlansFit: attack L140. Whatever a run was and however much of it there is, every text fits
// what the API takes, in bytes, is whole characters and says what was left out.
func TestPlansFit(t *testing.T) {
	for i, text := range hostileTexts {
		for _, n := range []int{0, 1, 60, 600} {
			if n > 60 && i%3 != 0 {
				continue // what is many is cut the same way
			}
			r := result("fail", n, text)
			var list []gha.Annotation
			for range n {
				list = append(list, gha.Annotation{Kind: gha.Error, Title: text, Message: text, File: text})
			}
			if n > 0 {
				list[0].Message = strings.Repeat(text, 1+20000/len(text))
			}
			p := Make(Input{Result: r, Annotations: list, Want: everything, Place: place()})
			for what, c := range map[string]struct {
				text string
				most int
			}{
				"summary": {p.CheckRun.Summary, 65535}, "title": {p.CheckRun.Title, 255}, "comment": {p.Comment.Body, 65536},
				"description": {p.Status.Description, 140},
			} {
				if len(c.text) > c.most || c.text == "" || !utf8.ValidString(c.text) {
					t.Errorf("%.20q, %d steps: the %s has %d bytes of %d, valid %v", text, n, what, len(c.text), c.most, utf8.ValidString(c.text))
				}
				if cs := ghatest.Commands([]byte(c.text)); len(cs) > 0 {
					t.Errorf("%.20q: a runner would act on %v in the %s", text, cs, what)
				}
				for _, live := range []string{"<img", "<script", "](javascript", "![x]", "@octocat", "\u202e", "\x1b", "https://evil.example/x ", "\n# forged"} {
					if strings.Contains(c.text, live) && what != "title" && what != "description" && !fenced(c.text, live) {
						t.Errorf("%.20q: %q is live in the %s", text, live, what)
					}
				}
			}
			body, ok := strings.CutPrefix(p.Comment.Body, p.Comment.Marker+"\n")
			if !ok || !fenced(body, "<!--") {
				t.Errorf("%.20q: the comment has another marker than its own", text)
			}
			if n == 600 && (!strings.Contains(p.CheckRun.Summary, "Left out here for length") || !strings.Contains(p.Comment.Body, "Left out here for length")) {
				t.Errorf("%.20q: a summary does not say what was left out", text)
			}
			if !strings.Contains(p.CheckRun.Summary, "(https://github.example/o/r/actions/runs/1)") {
				t.Errorf("%.20q: the summary has no link to the run", text)
			}
			total := 0
			for i, b := range p.CheckRun.Batches {
				total += len(b)
				if len(b) == 0 || len(b) > 50 || i < len(p.CheckRun.Batches)-1 && len(b) != 50 {
					t.Errorf("batch %d has %d annotations", i, len(b))
				}
				for _, a := range b {
					if len(a.Message) > 64<<10 || len(a.Title) > 255 || !utf8.ValidString(a.Message+a.Title+a.Path) || a.Message == "" || a.Line < 1 || a.Path == "" {
						t.Errorf("%.20q: an annotation does not fit: message %d, title %d, path %q, line %d", text, len(a.Message), len(a.Title), a.Path, a.Line)
					}
				}
			}
			if want := min(n, 500); total != want {
				t.Errorf("%d annotations, want %d", total, want)
			}
		}
	}
}

// TestPlansOfWhatWasNotBegunFit: nor does what is wrong with a steps file, which
// quotes it.
func TestPlansOfWhatWasNotBegunFit(t *testing.T) {
	for _, text := range hostileTexts {
		for _, n := range []int{0, 1, 2, 1000} {
			u := &Unstarted{Verdict: steps.VerdictError}
			var list []gha.Annotation
			for i := range n {
				u.Problems = append(u.Problems, fmt.Sprintf("f.yml:%d:1: %s\n  hint: %s", i+1, text, strings.Repeat(text, 3)))
				list = append(list, gha.Annotation{Kind: gha.Error, Title: "nothing ran", Message: u.Problems[i], File: "f.yml", Line: i + 1, Column: 1})
			}
			p := Make(Input{Unstarted: u, Annotations: list, Want: everything, Place: place()})
			if p.CheckRun.Conclusion != "failure" || p.Status.State != "error" || p.Comment.OnlyUpdate {
				t.Errorf("%.20q: conclusion %s, state %s", text, p.CheckRun.Conclusion, p.Status.State)
			}
			for what, c := range map[string]struct {
				text string
				most int
			}{
				"summary": {p.CheckRun.Summary, 65535}, "title": {p.CheckRun.Title, 255}, "comment": {p.Comment.Body, 65536},
				"description": {p.Status.Description, 140},
			} {
				if len(c.text) > c.most || c.text == "" || !utf8.ValidString(c.text) {
					t.Errorf("%.20q, %d problems: the %s has %d bytes of %d, valid %v", text, n, what, len(c.text), c.most, utf8.ValidString(c.text))
				}
				if cs := ghatest.Commands([]byte(c.text)); len(cs) > 0 {
					t.Errorf("%.20q: a runner would act on %v in the %s", text, cs, what)
				}
				if strings.Contains(c.text, "<img") && what != "title" && what != "description" && !fenced(c.text, "<img") {
					t.Errorf("%.20q is live in the %s", text, what)
				}
			}
			if !strings.Contains(p.CheckRun.Summary, "Nothing ran, and there is no report") || n == 1000 && !strings.Contains(p.CheckRun.Summary, " more, which the log has\n") {
				t.Errorf("%.20q, %d problems: the summary is %.300q", text, n, p.CheckRun.Summary)
			}
			if n == 1000 {
				last := p.CheckRun.Batches[9][49]
				if last.Message != "and 501 more; all of them are in the log" || len(p.CheckRun.Batches) != 10 {
					t.Errorf("%d batches; the last annotation is %+v", len(p.CheckRun.Batches), last)
				}
			}
		}
	}
}

// TestASummaryThatDoesNotFitIsTheHeadline: whatever the writer of summaries makes
// of a budget, the API gets no more than it takes.
func TestASummaryThatDoesNotFitIsTheHeadline(t *testing.T) {
	in := Input{Result: result("fail", 300, "x"), Place: place(), Mask: func(s string) string { return s + strings.Repeat("y", 70000) }}
	got := summary(in, "fail: 300 of 300 steps failed", maxSummary)
	if want := "    fail: 300 of 300 steps failed\n\n[The run](https://github.example/o/r/actions/runs/1) has the log and the whole summary.\n"; got != want {
		t.Errorf("got %q, want %q", clip(got), want)
	}
	in.Mask = strings.Clone
	for budget := 200; budget < 4000; budget += 100 {
		if got := summary(in, "fail", budget); len(got) > budget || got == "" {
			t.Errorf("%d bytes of %d", len(got), budget)
		}
	}
}

// fenced says whether every copy of a text stands on a line behind the gutter of
// a block, where it is text.
func fenced(doc, text string) bool {
	for line := range strings.Lines(doc) {
		if strings.Contains(line, text) && !strings.HasPrefix(line, "| ") {
			return false
		}
	}
	return true
}

func TestBatches(t *testing.T) {
	var list []gha.Annotation
	for i := range 700 {
		kind := gha.Warning
		if i >= 100 {
			kind = gha.Error
		}
		list = append(list, gha.Annotation{Kind: kind, Rank: i, Title: fmt.Sprint(i), Message: "m", File: "a/b.yml", Line: i})
	}
	got := batches(Input{Annotations: list, Place: place(), Mask: strings.Clone})
	if len(got) != 10 {
		t.Fatalf("%d batches", len(got))
	}
	if diff := cmp.Diff(Annotation{Path: "a/b.yml", Level: "failure", Title: "699", Message: "m", Line: 699}, got[0][0]); diff != "" {
		t.Errorf("the worst is not first (-want +got)\n%s", diff)
	}
	last := got[9][49]
	if last.Message != "and 201 more; all of them are in report.json" || last.Path != ".github/workflows/ci.yml" {
		t.Errorf("the last one does not count what is left out: %+v", last)
	}
	if n := batches(Input{Annotations: list[:500], Place: place(), Mask: strings.Clone}); n[9][49].Message != "m" {
		t.Errorf("five hundred fit, and the last is %+v", n[9][49])
	}
	if got := batches(Input{}); len(got) != 0 {
		t.Errorf("no annotations make %d batches", len(got))
	}
}

func TestAnAnnotationNamesALineOfTheRepository(t *testing.T) {
	for _, c := range []struct {
		name, file string
		line       int
		workflow   string
		want       string
		wantLine   int
	}{
		{"a file of the repository", ".github/steps.yml", 4, ".github/workflows/ci.yml", ".github/steps.yml", 4},
		{"a file without a line", "a.yml", 0, "", "a.yml", 1},
		{"inline steps stand in the workflow", "", 9, ".github/workflows/ci.yml", ".github/workflows/ci.yml", 1},
		{"a file outside of the tree", "../a.yml", 4, ".github/workflows/ci.yml", ".github/workflows/ci.yml", 1},
		{"an absolute path", "/etc/passwd", 4, ".github/workflows/ci.yml", ".github/workflows/ci.yml", 1},
		{"a name that hides something", "a\u202eb.yml", 4, ".github/workflows/ci.yml", ".github/workflows/ci.yml", 1},
		{"a workflow that is known by its name only", "", 4, "CI", ".github", 1},
	} {
		got := annotation(Input{Place: Place{Workflow: c.workflow}, Mask: strings.Clone}, gha.Annotation{File: c.file, Line: c.line, Column: 7, Message: "m"})
		if got.Path != c.want || got.Line != c.wantLine {
			t.Errorf("%s: %s:%d, want %s:%d", c.name, got.Path, got.Line, c.want, c.wantLine)
		}
		// A column is one of the line that it was found in.
		column := 0
		if c.want == c.file && c.line > 0 {
			column = 7
		}
		if got.Column != column {
			t.Errorf("%s: column %d, want %d", c.name, got.Column, column)
		}
	}
}

func TestCutsBetweenCharacters(t *testing.T) {
	for _, c := range []struct {
		text string
		n    int
		want string
	}{
		{"short", 5, "short"}, {"longer", 5, "l ..."}, {"\u20ac\u20ac\u20ac", 8, "\u20ac ..."}, {"\u20ac\u20ac\u20ac", 7, "\u20ac ..."},
		{"\u20ac\u20ac\u20ac", 6, " ..."}, {"\u20ac\u20ac\u20ac", 9, "\u20ac\u20ac\u20ac"},
	} {
		if got := cut(c.text, c.n); got != c.want {
			t.Errorf("cut(%q, %d) is %q, want %q", c.text, c.n, got, c.want)
		}
	}
}

// TestGatesDoNotCollide: each gate of a workflow finds its own comment.
func TestGatesDoNotCollide(t *testing.T) {
	seen := map[string]string{}
	for name, change := range map[string]func(*Input){
		"this one": func(*Input) {}, "another job": func(i *Input) { i.Place.Job = "other" }, "another workflow": func(i *Input) { i.Place.Workflow = "b.yml" },
		"another name":            func(i *Input) { i.Want.Name = "n" },
		"parts put together else": func(i *Input) { i.Place.Workflow, i.Place.Job = i.Place.Workflow+"g", "ate" },
		"a job that ends comments": func(i *Input) {
			i.Place.Job = "--> <b>"
		},
	} {
		in := Input{Want: everything, Place: place()}
		change(&in)
		m := marker(in)
		if other, ok := seen[m]; ok {
			t.Errorf("%s and %s have the same comment", name, other)
		}
		seen[m] = name
		if len(m) != len("<!-- untrusted-steps 0123456789abcdef -->") {
			t.Errorf("%s: the marker is %q", name, m)
		}
	}
	again := Input{Want: everything, Place: place()}
	again.Place.SHA, again.Place.RunURL = "2", "3" // the next push
	if _, ok := seen[marker(again)]; !ok {
		t.Error("the next run of a gate does not find its comment")
	}
}

// TestSecretsAreMasked: what goes to the API does not pass the runner's masker.
func TestSecretsAreMasked(t *testing.T) {
	m := gha.NewMasker(secret)
	r := result("fail", 2, "the token is "+secret+" here")
	r.Notes = []string{"note " + secret}
	p := Make(Input{
		Result: r, Want: everything, Place: place(), Mask: m.Mask,
		Annotations: []gha.Annotation{{Title: secret, Message: "x " + secret[:5] + "\x1b[31m" + secret[5:]}},
	})
	all := fmt.Sprint(*p.CheckRun, *p.Status, *p.Comment)
	if strings.Contains(all, secret) {
		t.Error("a secret is in what is sent")
	}
	if !strings.Contains(all, gha.Masked) {
		t.Error("nothing was masked, so this shows nothing")
	}
}

func TestTokensDoNotPrint(t *testing.T) {
	p := publisher()
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
		if got := fmt.Sprintf(verb, p.Token) + fmt.Sprintf(verb, struct{ T Token }{p.Token}); strings.Contains(got, secret) || strings.Contains(got, fmt.Sprintf("%x", secret)) {
			t.Errorf("%s prints %s", verb, got)
		}
	}
}

func TestWants(t *testing.T) {
	for _, c := range []struct {
		name string
		in   gha.Inputs
		want Want
		err  string
	}{
		{"nothing by default", gha.Inputs{}, Want{Name: DefaultName}, ""},
		{"the defaults of action.yml are nothing", gha.Inputs{CheckRun: "false", Comment: "false", CommitStatus: "false"}, Want{Name: DefaultName}, ""},
		{"all", gha.Inputs{CheckRun: "true", Comment: "true", CommitStatus: "true", CheckName: "gate (linux, 1.26)"},
			Want{CheckRun: true, CommitStatus: true, Comment: Always, Name: "gate (linux, 1.26)"}, ""},
		{"a comment on failure", gha.Inputs{Comment: "on-failure"}, Want{Comment: OnFailure, Name: DefaultName}, ""},
		{"yes is not true", gha.Inputs{CheckRun: "yes"}, Want{Name: DefaultName}, "check-run"},
		{"True is not true", gha.Inputs{CommitStatus: "True"}, Want{Name: DefaultName}, "commit-status"},
		{"an unknown time for a comment", gha.Inputs{Comment: "always"}, Want{Name: DefaultName}, "comment"},
		{"what else is asked for stands beside an error", gha.Inputs{CheckRun: "true", CommitStatus: "yes", Comment: "on-failure", CheckName: "gate"},
			Want{CheckRun: true, Comment: OnFailure, Name: "gate"}, "commit-status"},
		{"a name of two lines", gha.Inputs{CheckRun: "true", CheckName: "a\nb"}, Want{}, "check-name"},
		{"a name that is too long", gha.Inputs{CheckName: strings.Repeat("x", 101)}, Want{}, "check-name"},
	} {
		got, err := ParseWant(c.in)
		if (err == nil) != (c.err == "") || err != nil && !strings.HasPrefix(err.Error(), c.err) || got != c.want {
			t.Errorf("%s: %+v, %v; want %+v, %q", c.name, got, err, c.want, c.err)
		}
	}
}
