package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"html"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/gha/ghatest"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

var update = flag.Bool("update", false, "write the golden files anew")

func render(t testing.TB, f Format, r *steps.Result) string {
	t.Helper()
	var b bytes.Buffer
	if err := f.Write(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// golden leaves out of a page what is the same in all pages: its two assets, which
// are read in their own files.
func golden(text string) string {
	text = regexp.MustCompile(`(?s)<style>.*?</style>`).ReplaceAllString(text, "<style>...</style>")
	text = regexp.MustCompile(`(?s)<script>.*?</script>`).ReplaceAllString(text, "<script>...</script>")
	return regexp.MustCompile(`sha256-[^&]*=`).ReplaceAllString(text, "sha256-...")
}

func TestGoldens(t *testing.T) {
	for name, r := range saved() {
		for _, f := range Formats {
			t.Run(name+"/"+f.Name, func(t *testing.T) {
				got := golden(render(t, f, r))
				file := filepath.Join("testdata", name+"."+f.Name)
				if *update {
					if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(string(want), got); diff != "" {
					t.Errorf("%s (-want +got)\n%s", file, diff)
				}
				if again := golden(render(t, f, r)); again != got {
					t.Error("the same result gave two reports")
				}
			})
		}
	}
}

// TestNoFormatCanSteer holds for every form of every result: no runner finds a
// command, no terminal a control character, and a reader sees every character.
func TestNoFormatCanSteer(t *testing.T) {
	if len(ghatest.Commands([]byte(strings.Join(attacks, "\n")))) < 4 {
		t.Fatal("the attacks are no commands as they are: this test would prove nothing")
	}
	results := saved()
	results["hostile, more"] = hostile(20)
	for name, r := range results {
		for _, f := range Formats {
			got := render(t, f, r)
			if c := ghatest.Commands([]byte(got)); len(c) > 0 {
				t.Errorf("%s as %s: a runner would see %+v", name, f.Name, c)
			}
			for line := range strings.Lines(got) {
				if line = strings.TrimSuffix(line, "\n"); !utf8.ValidString(line) || strings.ContainsFunc(line, gha.Unseen) {
					t.Errorf("%s as %s: line %q", name, f.Name, line)
				}
			}
		}
	}
}

func TestJSONSaysWhatTheResultSays(t *testing.T) {
	for name, r := range saved() {
		var got steps.Result
		text := render(t, Formats[0], r)
		d := json.NewDecoder(strings.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(&got); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		// What encoding/json alone makes of it is the reference.
		plain, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var want steps.Result
		if err := json.Unmarshal(plain, &want); err != nil {
			t.Fatal(err)
		}
		opts := cmp.FilterPath(func(p cmp.Path) bool { return true }, cmp.Comparer(func(a, b steps.Result) bool {
			x, _ := json.Marshal(normal(a))
			y, _ := json.Marshal(normal(b))
			return bytes.Equal(x, y)
		}))
		if !cmp.Equal(want, got, opts) {
			t.Errorf("%s: the report does not say what the result says", name)
		}
		if strings.Contains(strings.ReplaceAll(text, `"exitCode": null`, ""), ": null") &&
			regexp.MustCompile(`"(steps|proof|events|unobserved|enforced|egress|egressProposal|egressUnused|results|files|violations|fix)": null`).MatchString(text) {
			t.Errorf("%s: an array is null", name)
		}
	}
}

func normal(r steps.Result) steps.Result {
	r.Host.Proof = list(r.Host.Proof)
	r.Steps = append([]steps.StepResult{}, r.Steps...)
	for i, s := range r.Steps {
		files := append([]steps.FileChange{}, s.Files...)
		r.Steps[i] = filled(s)
		r.Steps[i].Files = files
	}
	return r
}

func TestJSONConventions(t *testing.T) {
	text := render(t, Formats[0], result(steps.VerdictPass, steps.StepResult{ID: "a", Results: []steps.CellResult{nil}}))
	for _, want := range []string{
		`"exitCode": null`, `"signal": null`, `"fault": null`, `"events": []`, `"unobserved": []`, `"enforced": []`, `"egress": []`,
		`"egressProposal": []`, `"egressUnused": []`, `"files": []`, `"filesTotal": 0`, `"violations": []`, `{}`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if strings.Contains(text, "refusal") {
		t.Error("a refusal where nothing was refused")
	}
	if empty := render(t, Formats[0], &steps.Result{}); !strings.Contains(empty, `"steps": []`) || !strings.Contains(empty, `"proof": []`) {
		t.Errorf("an empty result:\n%s", empty)
	}
}

func TestJSONBreaksTheRunnersOpeningWithoutChangingAValue(t *testing.T) {
	r := result(steps.VerdictPass, steps.StepResult{ID: "##[error]\u200b\U000e0041\u009b"})
	text := render(t, Formats[0], r)
	if !strings.Contains(text, `"##\u005berror]\u200b\udb40\udc41\u009b"`) {
		t.Errorf("got\n%s", text)
	}
}

var (
	codeSpan = regexp.MustCompile(`<code>.*?</code>`)
	entity   = regexp.MustCompile(`&#[0-9]+;`)
)

// outside is what of a summary stands outside of blocks and code spans: all of
// it must be words of ours. A chart in it is held to what a chart may be.
func outside(t *testing.T, md string) string {
	t.Helper()
	var out, chart strings.Builder
	fence, inChart := "", false
	for line := range strings.Lines(md) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case line == "```mermaid" && fence == "":
			fence, inChart = "```", true
		case inChart && line == fence:
			if _, err := readChart(chart.String()); err != nil {
				t.Errorf("a chart that is none: %v", err)
			}
			fence, inChart = "", false
			chart.Reset()
		case inChart:
			chart.WriteString(line + "\n")
		case fence == "" && strings.HasPrefix(line, "```"):
			fence = strings.TrimSuffix(line, "text")
			if strings.Trim(fence, "`") != "" {
				t.Errorf("a fence of odd form: %q", line)
			}
		case fence == "":
			for _, span := range codeSpan.FindAllString(line, -1) {
				checkSpan(t, span)
			}
			out.WriteString(codeSpan.ReplaceAllString(line, "") + "\n")
		case strings.HasPrefix(strings.TrimLeft(line, " "), fence):
			if line != fence {
				t.Errorf("a fence ended by %q", line)
			}
			fence = ""
		case line != "|" && !strings.HasPrefix(line, "| "):
			t.Errorf("a line of a block without its gutter: %q", line)
		}
	}
	if fence != "" {
		t.Error("a fence is never closed")
	}
	return out.String()
}

func checkSpan(t *testing.T, span string) {
	t.Helper()
	body := strings.TrimSuffix(strings.TrimPrefix(span, "<code>"), "</code>")
	raw := entity.ReplaceAllString(strings.ReplaceAll(body, "<wbr>", ""), "")
	if i := strings.IndexFunc(raw, func(r rune) bool {
		return r < utf8.RuneSelf && !alphanumeric(byte(r)) && !strings.ContainsRune(" -,/._:();", r)
	}); i >= 0 {
		t.Errorf("a sign that may act stands in %q", span)
	}
	for _, bad := range []string{"www.", "://", "  _", "_ "} {
		if strings.Contains(strings.ToLower(raw), bad) {
			t.Errorf("%q stands in %q", bad, span)
		}
	}
}

// Attack 139: a name that is Markdown, HTML or a mention is text.
func TestSummaryHasNothingUntrustedOutsideOfCode(t *testing.T) {
	results := saved()
	results["hostile, more"] = hostile(20)
	for name, r := range results {
		md := render(t, Formats[1], r)
		if strings.HasPrefix(name, "hostile") && !strings.Contains(md, "PWN") {
			t.Fatal("no attack is in the summary: this test would prove nothing")
		}
		if got := outside(t, md); strings.Contains(got, "PWN") || strings.Contains(got, "evil") || strings.Contains(got, "@") {
			t.Errorf("%s: untrusted text as Markdown:\n%s", name, got)
		}
		// A row has as many cells as the head, or a text has cut one.
		want := 8
		if anyDisk(r) {
			want++
		}
		if severalEngines(r) {
			want++
		}
		for line := range strings.Lines(outside(t, md)) {
			if line == "|  |\n" || line == "|---|\n" {
				continue // of the table in a result, which has one column
			}
			if strings.HasPrefix(line, "|") && strings.Count(line, "|") != want {
				t.Errorf("%s: a row of odd form: %q", name, line)
			}
		}
	}
}

func FuzzInline(f *testing.F) {
	for _, a := range attacks {
		f.Add(a)
	}
	f.Fuzz(func(t *testing.T, text string) {
		span := inline(text)
		want := strings.ReplaceAll(clip(gha.Inert(text), maxCell), "\t", " ")
		if span == "" {
			if want != "" {
				t.Errorf("%q vanished", text)
			}
			return
		}
		if strings.Contains(entity.ReplaceAllString(span, ""), "&") {
			t.Errorf("inline(%q) = %q has an entity that is not ours", text, span)
		}
		if !codeSpan.MatchString(span) || strings.Count(span, "<code>") != 1 || strings.ContainsAny(span, "\n\r|`*[]\\@!$~'\"") {
			t.Errorf("inline(%q) = %q", text, span)
		}
		checkSpan(t, span)
		body := strings.ReplaceAll(strings.TrimSuffix(strings.TrimPrefix(span, "<code>"), "</code>"), "<wbr>", "")
		if got := html.UnescapeString(body); got != want {
			t.Errorf("inline(%q) reads as %q, want %q", text, got, want)
		}
		outside(t, block(lines(text)))
	})
}

func many(n int, status string) *steps.Result {
	r := result(steps.VerdictFail)
	for i := range n {
		s := exited(fmt.Sprintf("step-%d", i+1), status, i%2)
		s.Name, s.Reason = strings.Repeat("*", 60), "the step ended with exit code 1"
		s.Tail = strings.Repeat(strings.Repeat("`x", 100)+"\n", 50)
		r.Steps = append(r.Steps, s)
	}
	return r
}

func TestSummaryKeepsToItsBudget(t *testing.T) {
	big := exited("big", steps.StatusFailed, 1)
	for i := range 1_000_000 {
		big.Files = append(big.Files, steps.FileChange{Path: fmt.Sprintf("node_modules/%d/index.js", i), Change: "created", Type: "file", Mode: "0644", SHA256: strings.Repeat("0", 64)})
	}
	big.Files[999_998].Change = "deleted"
	big.Files[999_999].Path = ".github/workflows/ci.yml"
	big.First = []string{".github/workflows/ci.yml"}
	big.FilesTotal = len(big.Files)
	for name, c := range map[string]struct {
		r    *steps.Result
		want []string
	}{
		"a thousand steps that failed": {many(1000, steps.StatusFailed), []string{"<code>step-1000</code> <code>", "### <code>step-1000</code>"}},
		"a thousand steps that passed": {many(1000, steps.StatusPassed), []string{"<code>step-1000</code> <code>"}},
		"eight thousand steps":         {many(8000, steps.StatusFailed), []string{"rows of the table", "steps that did not pass"}},
		"a million files":              {result(steps.VerdictFail, big), []string{"| node_modules/: 999998 changes, 999998 created", "| ! created  file    .github/workflows/ci.yml (0 bytes): commands that run in CI", "deleted  file    node_modules/999998"}},
		"everything hostile":           {hostile(20), nil},
	} {
		for _, budget := range []int{SummaryBudget, 20 << 10} {
			var b bytes.Buffer
			if err := WriteSummary(&b, c.r, budget); err != nil {
				t.Fatal(err)
			}
			if b.Len() > budget {
				t.Errorf("%s: %d bytes, over the budget of %d", name, b.Len(), budget)
			}
			outside(t, b.String())
			for _, want := range c.want {
				if budget == SummaryBudget && !strings.Contains(b.String(), want) {
					t.Errorf("%s: %q is not in it", name, want)
				}
			}
			if budget < SummaryBudget && len(c.r.Steps) > 100 && !strings.Contains(b.String(), "Left out here") {
				t.Errorf("%s: nothing says that something was left out", name)
			}
		}
	}
}

// The files of a report are written as they come: the memory it takes does not
// grow with them, beyond what the result itself holds.
func TestJSONOfManyFiles(t *testing.T) {
	s := exited("big", steps.StatusPassed, 0)
	for i := range 100_000 {
		s.Files = append(s.Files, steps.FileChange{Path: fmt.Sprintf("node_modules/%d/index.js", i), Change: "created", Type: "file", Mode: "0644"})
	}
	r := result(steps.VerdictPass, s)
	var b bytes.Buffer
	if err := WriteJSON(&b, r); err != nil {
		t.Fatal(err)
	}
	var got steps.Result
	if err := json.Unmarshal(b.Bytes(), &got); err != nil || len(got.Steps[0].Files) != 100_000 {
		t.Fatalf("%d files, %v", len(got.Steps[0].Files), err)
	}
	if n := strings.Count(b.String(), "\n"); n < 100_000 || n > 100_200 {
		t.Errorf("%d lines for 100000 files", n)
	}
}

func TestJSONFitsItsSchema(t *testing.T) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(steps.ReportSchema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("report.schema.json", doc); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("report.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range saved() {
		v, err := jsonschema.UnmarshalJSON(strings.NewReader(render(t, Formats[0], r)))
		if err != nil {
			t.Fatal(err)
		}
		err = schema.Validate(v)
		// Words that no run writes must not pass, or the schema says nothing.
		if bad := name == "hostile" || name == "elsewhere" || name == "empty"; (err != nil) != bad {
			t.Errorf("%s: %v", name, err)
		}
	}
}

type counter int

func (c *counter) Write(p []byte) (int, error) { *c += counter(len(p)); return len(p), nil }

func TestSummaryTellsOfFailedStepsFirst(t *testing.T) {
	md := render(t, Formats[1], faults())
	order := []string{"## untrusted-steps: \u274c fail", "12 of 13 steps failed", "| Step | Result |", "### <code>step-1</code>", "### <code>after</code>"}
	at := -1
	for _, want := range order {
		i := strings.Index(md, want)
		if i <= at {
			t.Errorf("%q stands at %d, after %d", want, i, at)
		}
		at = i
	}
	for _, want := range []string{
		`| evil.example:443 refused (no_rule); to allow it, add "evil.example" to egressAllow (2 times)`,
		"| last line of step-1",
		"| ! created  file    sub/.git/hooks/pre-commit (5 bytes): git obeys what lies in it",
		"| deleted  file    b\n| mode     file    tool (5 bytes) mode 4755\n| modified file    a (1 bytes)",
	} {
		if !strings.Contains(md, want) {
			t.Errorf("no %q", want)
		}
	}
}

func TestTable(t *testing.T) {
	for name, r := range saved() {
		for _, width := range []int{40, 80, 120} {
			var b bytes.Buffer
			if err := WriteTableOn(&b, r, Screen{Width: width}); err != nil {
				t.Fatal(err)
			}
			text := b.String()
			if strings.ContainsFunc(text, func(r rune) bool { return r >= utf8.RuneSelf || r == '\x1b' }) {
				t.Errorf("%s: not plain ASCII", name)
			}
			all := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
			for i, line := range all[:min(len(r.Steps)+1, len(all))] {
				if len(r.Steps) > 0 && len(line) > width+len("| ") && width >= 80 {
					t.Errorf("%s at %d: row %d is %d wide: %.100q", name, width, i, len(line), line)
				}
			}
			if last := all[len(all)-1]; !strings.HasPrefix(last, verdictWord(r.Verdict)+":") {
				t.Errorf("%s: the last line is %q", name, last)
			}
		}
	}
}

// ourCodes are the colours there are. Anything else that begins with an escape
// character did not come from us.
var ourCodes = strings.NewReplacer("\x1b[32m", "", "\x1b[31m", "", "\x1b[33m", "", "\x1b[1;31m", "", "\x1b[2m", "", "\x1b[0m", "")

// TestTableInColour: colour is on top of the table and changes nothing in it, what
// a report quotes brings none with it, and a runner acts on none of it.
func TestTableInColour(t *testing.T) {
	results := saved()
	results["hostile, more"] = hostile(20)
	results["passed, it says"] = result(steps.VerdictFail, steps.StepResult{ID: "a", Status: "\x1b[32mpassed\x1b[0m", Name: "##"})
	for name, r := range results {
		for _, width := range []int{0, 40, 80} {
			var plain, colour bytes.Buffer
			if err := errors.Join(WriteTableOn(&plain, r, Screen{Width: width}), WriteTableOn(&colour, r, Screen{Width: width, Colour: true})); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(plain.String(), ourCodes.Replace(colour.String())); diff != "" {
				t.Errorf("%s at %d: without its colours it is another table (-want +got)\n%s", name, width, diff)
			}
			if c := ghatest.Commands(colour.Bytes()); len(c) > 0 {
				t.Errorf("%s at %d: a runner would see %+v", name, width, c)
			}
		}
	}
}

func TestColours(t *testing.T) {
	row := func(s steps.StepResult) string {
		var b bytes.Buffer
		if err := WriteTableOn(&b, result(steps.VerdictPass, s), Screen{Colour: true}); err != nil {
			t.Fatal(err)
		}
		line := strings.Split(b.String(), "\n")[1]
		return regexp.MustCompile(` {2,}`).ReplaceAllString(line, " ")
	}
	failed := exited("a", steps.StatusFailed, 3)
	excused, flaky := failed, exited("a", steps.StatusPassed, 0)
	excused.Excused = true
	flaky.Flaky, flaky.Attempts = true, 2
	const rest = " 1.2 s 13 of 512 MiB \x1b[2m-\x1b[0m \x1b[2m-\x1b[0m"
	const none = " \x1b[2m-\x1b[0m \x1b[2m-\x1b[0m \x1b[2m-\x1b[0m \x1b[2m-\x1b[0m \x1b[2m-\x1b[0m"
	for _, c := range []struct {
		s    steps.StepResult
		want string
	}{
		{exited("a", steps.StatusPassed, 0), "a \x1b[32mpassed\x1b[0m exit 0" + rest},
		{failed, "a \x1b[31mfailed\x1b[0m \x1b[31mexit 3\x1b[0m" + rest},
		{excused, "a \x1b[33mfailed (excused)\x1b[0m \x1b[33mexit 3\x1b[0m" + rest},
		{flaky, "a \x1b[33mpassed (flaky, try 2)\x1b[0m exit 0" + rest},
		{waiting("a", steps.StatusSkipped, "it waited"), "a \x1b[33mskipped\x1b[0m" + none},
		{waiting("a", steps.StatusCancelled, ""), "a \x1b[33mcancelled\x1b[0m" + none},
		{waiting("a", steps.StatusError, "lost"), "a \x1b[1;31merror\x1b[0m" + none},
		{waiting("a", "well", ""), "a \x1b[1;31mwell\x1b[0m" + none},
	} {
		if got := row(c.s); got != c.want {
			t.Errorf("%s:\n got %q\nwant %q", c.s.Status, got, c.want)
		}
	}
	for verdict, want := range map[string]string{
		steps.VerdictPass: "\x1b[32mpass\x1b[0m: ", steps.VerdictFail: "\x1b[31mfail\x1b[0m: ", steps.VerdictCancelled: "\x1b[33mcancelled\x1b[0m: ",
		steps.VerdictRefused: "\x1b[1;31mrefused\x1b[0m: ", steps.VerdictError: "\x1b[1;31merror\x1b[0m: ", "fine": "\x1b[1;31mno verdict\x1b[0m: ",
	} {
		lines := Table(result(verdict), 0)
		if got := lines[len(lines)-1].Shown(true); !strings.HasPrefix(got, want) {
			t.Errorf("the verdict %s is %q", verdict, got)
		}
	}
}

func TestVerdictLine(t *testing.T) {
	got := map[string]string{}
	for name, r := range saved() {
		if name != "hostile" && name != "elsewhere" {
			got[name] = verdictLine(r)
		}
	}
	want := map[string]string{
		"pass":      "pass: 3 steps passed; 1 excused by continueOnError: flaky (exit 3)",
		"faults":    "fail: 12 of 13 steps failed: step-1 (timeout), step-2 (oom), step-3 (escape_blocked), step-4 (pids_limit), step-5 (disk_limit) and 7 more; 1 skipped: after",
		"merged":    "refused: 1 of 3 shards ran nothing: 2, because the host cannot enforce what the steps ask",
		"part":      "pass: 1 step passed (shard 1 of 3)",
		"together":  "error: no verdict about 1 of 6 steps: section; 1 excused by continueOnError: 2024-01-01 (exit 2); 1 flaky, not passed at the first try: todayMarker (try 2)",
		"refused":   "refused: nothing ran, because this host cannot enforce what the steps ask",
		"error":     "error: no verdict about 1 of 2 steps: a",
		"cancelled": "cancelled: 1 of 3 steps had ended",
		"limits":    "pass: 3 steps passed",
		"writes":    "fail: 3 of 5 steps failed: guarded (violation: protected_path +1), both (disk_limit, violation: workspace_limit), kept (exit 2)",
		"placed":    "fail: 4 of 8 steps failed: code (exit 3), links (violation: link_escape +1), calls (egress_denied), other (exit 0, expected timeout); 1 skipped: after; 1 excused by continueOnError: flaky (exit 1)",
		"empty":     `no verdict: "" is not a word this program knows`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestLimitationsAreNamed(t *testing.T) {
	want := []string{
		"no memory cap was in force in a",
		"no pids cap was in force in a",
		"the network of b was the host's own: nothing limited or recorded it",
		"the requests of c were recorded and NOT blocked (egressMode: audit)",
		"not seen in a: escape_blocked: by a grandchild",
	}
	if diff := cmp.Diff(want, limitations(notEnforced())); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for _, f := range Formats[1:] {
		text := strings.Join(strings.Fields(asRead(t, f, notEnforced())), " ")
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%s does not say %q", f.Name, w)
			}
		}
	}
	if got := limitations(pass()); len(got) > 0 {
		t.Errorf("of a run with nothing to say: %q", got)
	}
	if got := limitations(refused()); !slices.Equal(got, []string{"this host did not show that memory_cap holds: no cgroup of ours can cap memory"}) {
		t.Errorf("of a refused run: %q", got)
	}
}

func BenchmarkWriters(b *testing.B) {
	r := many(10000, steps.StatusFailed)
	for _, f := range Formats {
		b.Run("format="+f.Name, func(b *testing.B) {
			for b.Loop() {
				var n counter
				if err := f.Write(&n, r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
