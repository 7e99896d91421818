package report

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/policy"
)

func readSARIF(t *testing.T, r *steps.Result) sarifRun {
	t.Helper()
	var b bytes.Buffer
	if err := WriteSARIF(&b, r); err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(&b)
	d.DisallowUnknownFields()
	var got sarifLog
	if err := d.Decode(&got); err != nil || len(got.Runs) != 1 {
		t.Fatalf("%d runs, %v", len(got.Runs), err)
	}
	return got.Runs[0]
}

func TestSARIFFitsItsSchema(t *testing.T) {
	b, err := os.ReadFile("testdata/sarif.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("sarif.json", doc); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("sarif.json")
	if err != nil {
		t.Fatal(err)
	}
	check := func(text string) error {
		v, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
		if err != nil {
			return err
		}
		return schema.Validate(v)
	}
	results := saved()
	results["hostile, more"] = hostile(20)
	for name, r := range results {
		if err := check(render(t, Format{Write: WriteSARIF}, r)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The control: what is no SARIF does not pass.
	good := render(t, Format{Write: WriteSARIF}, placed())
	for _, c := range [][2]string{
		{`"version": "2.1.0"`, `"version": "2.0.0"`}, {`"level": "error"`, `"level": "fatal"`}, {`"startLine": 13`, `"startLine": 0`},
		{`"uri": "ci/`, `"uri": "ci /`}, {`"ruleIndex": 16`, `"ruleIndex": -2`}, {`"driver"`, `"drivers"`}, {`"executionSuccessful": true,`, ``},
		{`"columnKind": "utf16CodeUnits"`, `"columnKind": "bytes"`}, {`"startTimeUtc": "2026-11-30T`, `"startTimeUtc": "30 Nov 2026 `},
		{`"text": "step code`, `"txt": "step code`},
	} {
		bad := strings.Replace(good, c[0], c[1], 1)
		if bad == good || check(bad) == nil {
			t.Errorf("it passes with %s for %s", c[1], c[0])
		}
	}
}

// TestSARIFHoldsTogether: what one part of the file says of another is so.
func TestSARIFHoldsTogether(t *testing.T) {
	results := saved()
	results["hostile, more"] = hostile(20)
	for name, r := range results {
		run := readSARIF(t, r)
		ids := map[string]bool{}
		for _, rule := range run.Tool.Driver.Rules {
			if ids[rule.ID] || !regexp.MustCompile(`^[a-z_]+$`).MatchString(rule.ID) || rule.Help.Text == "" || rule.Full.Text == "" {
				t.Errorf("rule %+v", rule)
			}
			ids[rule.ID] = true
		}
		prints := map[string]bool{}
		for i, f := range run.Results {
			if f.RuleIndex < 0 || f.RuleIndex >= len(run.Tool.Driver.Rules) || run.Tool.Driver.Rules[f.RuleIndex].ID != f.RuleID {
				t.Errorf("%s: result %d: rule %d is not %q", name, i, f.RuleIndex, f.RuleID)
			}
			if p := f.Fingerprints[fingerprintKey]; p == "" || prints[p] || len(f.Fingerprints) != 1 {
				t.Errorf("%s: result %d: fingerprint %q", name, i, p)
			} else {
				prints[p] = true
			}
			// No viewer makes a link or puts an argument in.
			if m := f.Message.Text; strings.Contains(m, "](") || regexp.MustCompile(`(^|[^{])\{\d+\}($|[^}])`).MatchString(m) {
				t.Errorf("%s: result %d: %q", name, i, m)
			}
			if known := f.Locations[0].Physical != nil; known != (r.File != "") {
				t.Errorf("%s: result %d: a place in the file: %v", name, i, known)
			}
		}
		if run.Invocations[0].Successful != (r.Verdict == steps.VerdictPass || r.Verdict == steps.VerdictFail) {
			t.Errorf("%s: verdict %q is told as %v", name, r.Verdict, run.Invocations[0].Successful)
		}
	}
}

func TestSARIFHasAFindingForEachFailureViolationAndDenial(t *testing.T) {
	var got []string
	for _, f := range readSARIF(t, placed()).Results {
		got = append(got, f.Level+" "+f.RuleID+" "+f.Locations[0].Logical[0].Name+": "+f.Message.Text)
	}
	want := []string{
		"error exit_code code: step code failed: the step ended with exit code 3",
		`error violation links: step links failed: violation: link_escape: "x" is a link out of the workspace; and 1 more violation`,
		"error egress_denied calls: step calls failed: egress_denied: evil.example:443 refused (no_rule)",
		"error not_as_expected other: step other failed: expected the fault timeout, the step ended with exit code 0",
		"warning exit_code flaky: step flaky failed (excused by continueOnError): the step ended with exit code 1",
		`error link_escape links: step links violation link_escape: "x" is a link out of the workspace`,
		`error set_id links: step links violation set_id: "tool" has a set-id bit`,
		"error request_refused calls: step calls was refused evil.example:443: connect, 2 times (no_rule)",
		"error request_refused calls: step calls was refused evil.example:443: connect, once (wrong_sni)",
		"warning request_refused tolerant: step tolerant was refused 10.0.0.1:80: http, 7 times (not_public)",
		"note request_refused fine: step fine was refused metrics.example:443 as expectDenied expects: connect, once (no_rule)",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got := readSARIF(t, lost()).Results; len(got) != 1 || got[0].RuleID != ruleNoVerdict || got[0].Level != "error" {
		t.Errorf("a step without a verdict: %+v", got)
	}
	in := readSARIF(t, refused()).Invocations[0]
	if in.Successful || len(in.Notices) == 0 || in.Notices[0].Level != "error" || !strings.HasPrefix(in.Notices[0].Message.Text, "refused: requireLimits") {
		t.Errorf("a refused run: %+v", in)
	}
}

// A finding that code scanning knows must not come back as a new one because of
// what is no part of it.
func TestSARIFFingerprintsStayTheSame(t *testing.T) {
	prints := func(r *steps.Result) (out []string) {
		for _, f := range readSARIF(t, r).Results {
			out = append(out, f.Fingerprints[fingerprintKey])
		}
		slices.Sort(out)
		return out
	}
	later := placed()
	later.Tool.Version, later.StartedAt, later.File, later.Host.Kernel = "9.9.9", "2027-01-01T00:00:00Z", "moved.yml", "7.0"
	slices.Reverse(later.Steps)
	for i := range later.Steps {
		s := &later.Steps[i]
		s.Line, s.DurationMs, s.Name, s.Usage.PeakMemoryBytes = s.Line+7, s.DurationMs*3, "renamed", 1
		for k := range s.Egress {
			s.Egress[k].Count, s.Egress[k].BytesIn = s.Egress[k].Count+10, 99
		}
	}
	if diff := cmp.Diff(prints(placed()), prints(later)); diff != "" {
		t.Errorf("(-first +later)\n%s", diff)
	}
	other := placed()
	other.Steps[1].ID = "another"
	if cmp.Equal(prints(placed()), prints(other)) {
		t.Error("another step has the same fingerprints")
	}
	// No choice of names makes two findings one.
	f := &findings{seen: map[string]int{}}
	if a, b := f.fingerprint([]string{"ab", "c"}), f.fingerprint([]string{"a", "bc"}); a == b {
		t.Error("names that join to the same text have one fingerprint")
	}
}

func TestSARIFKeepsToItsBudget(t *testing.T) {
	s := exited("noisy", steps.StatusFailed, 1)
	for i := range 3 * MaxSARIFResults {
		s.Egress = append(s.Egress, steps.EgressRecord{Host: "h", Port: i, Verdict: "denied", Count: 1})
	}
	run := readSARIF(t, result(steps.VerdictFail, s, exited("last", steps.StatusFailed, 2)))
	if len(run.Results) != MaxSARIFResults || run.Results[1].Locations[0].Logical[0].Name != "last" {
		t.Errorf("%d results", len(run.Results))
	}
	if n := run.Invocations[0].Notices; len(n) == 0 || n[0].Message.Text != "10002 findings are left out here for length; all of it is in report.json" {
		t.Errorf("notices %+v", n)
	}
}

func TestSARIFNamesTheFileAsViewersDo(t *testing.T) {
	for file, want := range map[string]sarifArtifact{
		"steps.yml":        {"steps.yml", "%SRCROOT%"},
		"ci/a b#c?.yml":    {"ci/a%20b%23c%3F.yml", "%SRCROOT%"},
		"/srv/x/steps.yml": {"file:///srv/x/steps.yml", ""},
		"../steps.yml":     {"../steps.yml", ""},
		"a:b.yml":          {"./a:b.yml", "%SRCROOT%"},
		"\xff%41":          {"%FF%2541", "%SRCROOT%"},
	} {
		if got := artifact(file); got != want {
			t.Errorf("%q is %+v, want %+v", file, got, want)
		}
	}
}

// TestEveryViolationHasARule: a type that the workspace's judge knows is a rule,
// and a word that nobody knows makes none.
func TestEveryViolationHasARule(t *testing.T) {
	for _, word := range []string{policy.ChangeNotAllowed, policy.ProtectedPath, policy.LinkEscape, policy.SetID, "workspace_limit", "conflict"} {
		if got := violationRule(word); got != word {
			t.Errorf("%s is told as %s", word, got)
		}
	}
	if got := violationRule("::PWN"); got != ruleViolation {
		t.Errorf("a word of nobody's is the rule %s", got)
	}
}

// TestEveryRuleIsDocumented: what a finding links to is there.
func TestEveryRuleIsDocumented(t *testing.T) {
	for _, rule := range sarifRules() {
		place, ok := strings.CutPrefix(rule.HelpURI, projectURL+"/blob/main/")
		file, id, ok2 := strings.Cut(place, "#")
		if !ok || !ok2 || id != rule.ID {
			t.Errorf("%s links to %s", rule.ID, rule.HelpURI)
			continue
		}
		b, err := os.ReadFile("../../" + file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(b), "\n## "+id+"\n") {
			t.Errorf("%s has no section %s", file, id)
		}
	}
}
