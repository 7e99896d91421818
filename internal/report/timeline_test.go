package report

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// together is a run of which steps ran side by side. Their ids are words that
// are commands of a chart at the start of a line, and their names would be signs.
func together() *steps.Result {
	at := func(s steps.StepResult, started, took int64) steps.StepResult {
		s.StartedMs, s.DurationMs = started, took
		return s
	}
	gantt, title := at(exited("gantt", steps.StatusPassed, 0), 0, 4000), at(exited("title", steps.StatusFailed, 1), 2, 900)
	gantt.Name, title.Name = "x :crit, 0, 1\n  click 1 call alert()", "%%{init: {}}%% #quot; ; ```"
	date, section := at(exited("2024-01-01", steps.StatusFailed, 2), 910, 20_000), at(step("section", steps.StatusError), 950, 1)
	again(&title, "startup_failed: image: there is none", "the step ended with exit code 1")
	date.Excused, section.Reason = true, "no verdict: the box was lost"
	flaky := at(exited("todayMarker", steps.StatusPassed, 0), 4100, 300)
	again(&flaky, "the step ended with exit code 7")
	flaky.Notes = append(flaky.Notes, "egressAllow: nothing was asked for")
	r := result(steps.VerdictError, gantt, title, date, section, flaky, waiting("click", steps.StatusSkipped, "it needs title, which did not pass"))
	r.DurationMs = 21_000
	return r
}

// chartRules is how Mermaid reads a gantt, as far as that is needed to say what
// a line of one is: at each place the first that fits holds. Case is of no account.
var chartRules = func() []chartRule {
	var out []chartRule
	for _, x := range [][2]string{
		{"directive", `%%\{`}, {"accTitle", `acctitle\s*:[^\n;#]*`}, {"accDescr", `accdescr\s*[:{]`},
		{"comment", `%%[^\n]*`}, {"comment", `[^}]%%[^\n]*`}, {"end", `\n+`}, {"blank", `\s+`}, {"comment", `%[^\n]*`},
		{"link", `href\s+"`}, {"link", `call\s+`}, {"link", `click\s+`}, {"gantt", `gantt`},
		{"dateFormat", `dateformat\s[^#\n;]+`}, {"option", `inclusiveenddates`}, {"option", `topaxis`}, {"axisFormat", `axisformat\s[^#\n;]+`},
		{"option", `tickinterval\s[^#\n;]+`}, {"option", `(in|ex)cludes\s[^#\n;]+`}, {"todayMarker", `todaymarker\s[^\n;]+`},
		{"option", `weekday\s+[a-z]+`}, {"option", `weekend\s+[a-z]+`}, {"date", `\d{4}-\d\d-\d\d`},
		{"title", `title\s[^\n]+`}, {"accDescr", `accdescription\s[^#\n;]+`}, {"section", `section\s[^\n]+`},
		{"name", `[^:\n]+`}, {"data", `:[^#\n;]+`},
	} {
		out = append(out, chartRule{x[0], regexp.MustCompile(`^(?i:` + x[1] + `)`)})
	}
	return out
}()

type chartRule struct {
	kind string
	form *regexp.Regexp
}

// what of each kind we write.
var chartForms = map[string]*regexp.Regexp{
	"accTitle":    regexp.MustCompile(`^accTitle: [A-Za-z ]+$`),
	"dateFormat":  regexp.MustCompile(`^dateFormat x$`),
	"axisFormat":  regexp.MustCompile(`^axisFormat (%Q ms|%s s)$`),
	"todayMarker": regexp.MustCompile(`^todayMarker off$`),
	"section":     regexp.MustCompile(`^section shard -?\d+$`),
	"name":        regexp.MustCompile(`^(\d+ [A-Za-z0-9_][A-Za-z0-9._-]{0,63}|step \d+)( \((failed|excused|cancelled|no verdict|flaky)\))? $`),
	"data":        regexp.MustCompile(`^:(crit, )?\d+, \d+$`),
}

// readChart gives the parts of a chart that are not the same in all, or says why
// it is none of ours.
func readChart(text string) (out []string, err error) {
	line := "" // the kinds of what stands in the line
	for at := 0; at < len(text); {
		rest := text[at:]
		kind, token := "", ""
		for _, r := range chartRules {
			if token = r.form.FindString(rest); token != "" {
				kind = r.kind
				break
			}
		}
		switch form := chartForms[kind]; {
		case kind == "":
			return nil, fmt.Errorf("nothing can be %.40q", rest)
		case kind == "gantt" && at == 0, kind == "blank" && line == "":
		case kind == "end":
			if line != " name data" && (strings.Contains(line, "name") || strings.Contains(line, "data")) {
				return nil, fmt.Errorf("a line of %s", line)
			}
			line = ""
			at += len(token)
			continue
		case form == nil || !form.MatchString(token) || line != "" && kind != "data":
			return nil, fmt.Errorf("%s: %.60q", kind, token)
		case kind == "section", kind == "name", kind == "data", kind == "axisFormat":
			out = append(out, strings.TrimSpace(token))
		}
		if kind != "blank" {
			line += " " + kind
		}
		at += len(token)
	}
	if !strings.HasPrefix(text, "gantt\n") || line != "" {
		return nil, errors.New("it is no gantt, or its last line has no end")
	}
	return out, nil
}

func chartOf(t *testing.T, r *steps.Result) []string {
	t.Helper()
	text := timeline(r)
	outside(t, text)
	_, text, ok := strings.Cut(text, "```mermaid\n")
	text, _, end := strings.Cut(text, "```\n")
	if !ok || !end {
		return nil
	}
	out, err := readChart(text)
	if err != nil {
		t.Errorf("%v\n%s", err, text)
	}
	if len(text) > 50_000 {
		t.Errorf("a chart of %d characters is not drawn", len(text))
	}
	return out
}

func TestTimeline(t *testing.T) {
	want := []string{
		"axisFormat %s s", "1 gantt", ":0, 4005", "2 title (failed)", ":crit, 2, 907", "3 2024-01-01 (excused)", ":crit, 910, 20915",
		"4 section (no verdict)", ":crit, 950, 956", "5 todayMarker (flaky)", ":4100, 4405",
	}
	if diff := cmp.Diff(want, chartOf(t, together())); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	head := "**When the steps ran:** up to 3 steps at a time; 1 step that did not run is not in it; what did not pass is red.\n"
	if got := timeline(together()); !strings.HasPrefix(got, head) {
		t.Errorf("got\n%s", got)
	}
	short := together()
	short.DurationMs, short.Steps[2].DurationMs = 4500, 10
	if got := chartOf(t, short); got[0] != "axisFormat %Q ms" {
		t.Errorf("%v", got)
	}
	// Of steps that ran one after the other there is none, nor of times that no
	// clock gives.
	long := together()
	long.Steps[0].StartedMs = 1 << 62
	for _, r := range []*steps.Result{oneByOne(together()), long, {}, refused()} {
		if got := timeline(r); got != "" {
			t.Errorf("got\n%s", got)
		}
	}
}

func TestTimelineOfShards(t *testing.T) {
	r := together()
	r.Merged = &steps.Merged{Of: 2}
	for i := range r.Steps {
		r.Steps[i].Shard = 2 - i%2
	}
	want := []string{
		"axisFormat %s s", "section shard 1", "2 title (failed)", ":crit, 2, 907", "4 section (no verdict)", ":crit, 950, 956",
		"section shard 2", "1 gantt", ":0, 4005", "3 2024-01-01 (excused)", ":crit, 910, 20915", "5 todayMarker (flaky)", ":4100, 4405",
	}
	if diff := cmp.Diff(want, chartOf(t, r)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// chartAttacks are ids that act in a chart, or end it, wherever they come from.
var chartAttacks = append([]string{
	"gantt", "gantt-x", "title", "section", "dateFormat", "excludes", "todayMarker", "topAxis", "2024-01-01", "inclusiveEndDates", "weekday",
	"a:b", "a :crit, 0, 9", ":", "a, b", "a;b", "a#b;", "#quot;", "%%", "%% x", "%%{init: {'theme': 'dark'}}%%", "%x", "a%%b",
	"a\nclick 1 href \"https://evil.example\"", "click 1 call alert()", "href \"x\"", "call f()", "accTitle: x", "accDescr { x }",
	"a\n```\n# PWN\n", "```", "~~~", "a\n---\nconfig:\n", "<script>alert(1)</script>", "&colon;", "$$x$$", "a\u202eb", "a\u2028b", "a\rb", "\ufeffgantt",
	"\u017fection", "after a", "until b", strings.Repeat("x", 65), "-a", ".a", "", "\xff",
}, attacks...)

func TestNoIDActsInATimeline(t *testing.T) {
	acts := 0
	for _, id := range chartAttacks {
		one, two := exited(id, steps.StatusFailed, 1), exited("b", steps.StatusPassed, 0)
		one.Name, two.Name = id, id
		got := chartOf(t, result(steps.VerdictFail, one, two))
		name := "step 1 (failed)"
		if steps.IsID(id) {
			name = "1 " + id + " (failed)"
		}
		if diff := cmp.Diff([]string{"axisFormat %Q ms", name, ":crit, 0, 1239", "2 b", ":0, 1239"}, got); diff != "" {
			t.Errorf("%q (-want +got)\n%s", id, diff)
		}
		// The control: as it is it would not be a name.
		if _, err := readChart("gantt\n  dateFormat x\n  " + id + " :0, 5\n"); err != nil {
			acts++
		}
	}
	if acts != len(chartAttacks) {
		t.Errorf("of %d ids %d would act as they are", len(chartAttacks), acts)
	}
}

func TestTimelineOfAThousandSteps(t *testing.T) {
	r := many(1000, steps.StatusPassed)
	for i := range r.Steps {
		r.Steps[i].StartedMs, r.Steps[i].DurationMs = int64(i), int64(10+i)
	}
	r.Steps[3].Status, r.Steps[999].Status = steps.StatusFailed, steps.StatusSkipped
	got := chartOf(t, r)
	if want := []string{"axisFormat %Q ms", "4 step-4 (failed)", ":crit, 3, 21", "951 step-951", ":950, 1915"}; !cmp.Equal(want, got[:5]) || len(got) != 1+2*maxBars {
		t.Errorf("%d parts: %q", len(got), got[:5])
	}
	if head := "; 50 of 999 are shown, those that did not pass first, then the longest; 1 step that did not run is not in it; what did not pass is red.\n"; !strings.Contains(timeline(r), head) {
		t.Errorf("%.300s", timeline(r))
	}
}

// TestTheTimelineTakesNoPlace: of a summary that has no room for all, it is the
// first to go, whatever there is room for.
func TestTheTimelineTakesNoPlace(t *testing.T) {
	drawn, dropped := 0, 0
	for n, most := range map[int]int{3: 64 << 10, 40: 200 << 10, 400: 4 << 10} {
		summary := func(r *steps.Result, budget int) string {
			var b bytes.Buffer
			if err := WriteSummary(&b, r, budget); err != nil {
				t.Fatal(err)
			}
			if b.Len() > budget {
				t.Errorf("%d bytes, over the budget of %d", b.Len(), budget)
			}
			return b.String()
		}
		at, apart := many(n, steps.StatusFailed), oneByOne(many(n, steps.StatusFailed))
		chart := timeline(at)
		budgets := []int{64 << 10, SummaryBudget}
		for budget := 2 << 10; budget <= most; budget += budget/12 + 1 {
			budgets = append(budgets, budget)
		}
		for _, budget := range budgets {
			got, want := summary(at, budget), summary(apart, budget)
			without := strings.Replace(got, chart, "", 1)
			if without != got {
				drawn++
			} else {
				dropped++
				if !strings.Contains(got, "the timeline. All of it is in report.json.\n") {
					t.Errorf("%d steps in %d bytes: nothing says that it was left out", n, budget)
				}
				without = strings.ReplaceAll(without, "; the timeline. All", ". All")
				without = strings.ReplaceAll(without, "\nLeft out here for length: the timeline. All of it is in report.json.\n", "")
			}
			if without != want {
				t.Fatalf("%d steps in %d bytes: (-without +with)\n%s", n, budget, cmp.Diff(want, without))
			}
		}
	}
	if drawn == 0 || dropped == 0 {
		t.Errorf("drawn %d times and dropped %d times", drawn, dropped)
	}
}
