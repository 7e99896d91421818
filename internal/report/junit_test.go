package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// form is what an element may have: attributes with the form of their values,
// those that must be there, and its children as an expression over their names.
type form struct {
	attrs    map[string]string
	required []string
	children string
	text     bool
}

const (
	anyText = `(?s).*`
	number  = `[0-9]+`
	decimal = `[0-9]+\.[0-9]{3}`
)

var why = form{attrs: map[string]string{"type": anyText, "message": anyText}, required: []string{"type", "message"}, text: true}

// importers is what the two forms that importers go by, Jenkins' and that of
// Ant, allow both; output in a test case is Jenkins' alone.
var importers = map[string]form{
	"testsuites": {children: `(testsuite )*`},
	"testsuite": {
		attrs: map[string]string{"id": number, "name": `(?s).+`, "package": `\S+`, "hostname": `\S+`, "timestamp": `\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d`,
			"tests": number, "failures": number, "errors": number, "skipped": number, "time": decimal},
		required: []string{"id", "name", "package", "hostname", "tests", "failures", "errors", "time"},
		children: `properties (testcase )*system-out system-err `,
	},
	"properties": {children: `(property )*`},
	"property":   {attrs: map[string]string{"name": `(?s).+`, "value": anyText}, required: []string{"name", "value"}},
	"testcase": {
		attrs:    map[string]string{"name": anyText, "classname": `\S+`, "time": decimal},
		required: []string{"name", "classname", "time"},
		children: `((failure|error|skipped) )?(system-out )?(system-err )?`,
	},
	"failure": why, "error": why,
	"skipped":    {attrs: map[string]string{"message": anyText}, text: true},
	"system-out": {text: true}, "system-err": {text: true},
}

// fits holds a document against that form.
func fits(doc string) error {
	d := xml.NewDecoder(strings.NewReader(doc))
	type open struct {
		name, children string
	}
	stack := []open{{}}
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		top := &stack[len(stack)-1]
		switch x := tok.(type) {
		case xml.StartElement:
			name := x.Name.Local
			f, ok := importers[name]
			if !ok || x.Name.Space != "" {
				return fmt.Errorf("an element %s", name)
			}
			top.children += name + " "
			got := map[string]bool{}
			for _, a := range x.Attr {
				if pattern, ok := f.attrs[a.Name.Local]; !ok || got[a.Name.Local] || !regexp.MustCompile(`^(?:`+pattern+`)$`).MatchString(a.Value) {
					return fmt.Errorf("%s has %s=%q", name, a.Name.Local, a.Value)
				}
				got[a.Name.Local] = true
			}
			for _, r := range f.required {
				if !got[r] {
					return fmt.Errorf("%s has no %s", name, r)
				}
			}
			stack = append(stack, open{name: name})
		case xml.EndElement:
			if !regexp.MustCompile(`^(?:` + importers[top.name].children + `)$`).MatchString(top.children) {
				return fmt.Errorf("%s holds %q", top.name, top.children)
			}
			stack = stack[:len(stack)-1]
		case xml.CharData:
			if len(bytes.TrimSpace(x)) > 0 && !importers[top.name].text {
				return fmt.Errorf("%s has the text %q", top.name, x)
			}
		case xml.ProcInst:
			if x.Target != "xml" {
				return fmt.Errorf("an instruction %s", x.Target)
			}
		default:
			return fmt.Errorf("a %T", tok)
		}
	}
	if stack[0].children != "testsuites " {
		return fmt.Errorf("the document holds %q", stack[0].children)
	}
	return nil
}

// read is a document as an importer reads it.
func readJUnit(t *testing.T, r *steps.Result) junitSuite {
	t.Helper()
	var b bytes.Buffer
	if err := WriteJUnit(&b, r); err != nil {
		t.Fatal(err)
	}
	var got junitRun
	if err := xml.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	return got.Suite
}

func TestJUnitFitsWhatImportersTake(t *testing.T) {
	results := saved()
	results["hostile, more"] = hostile(20)
	for name, r := range results {
		if err := fits(render(t, Format{Write: WriteJUnit}, r)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		s := readJUnit(t, r)
		counts := [4]int{}
		for _, c := range s.Cases {
			counts[0]++
			for i, w := range []*junitWhy{c.Failure, c.Error, c.Skipped} {
				if w != nil {
					counts[i+1]++
				}
			}
		}
		if want := [4]int{s.Tests, s.Failures, s.Errors, s.Skipped}; counts != want {
			t.Errorf("%s: the suite says %v, its cases %v", name, want, counts)
		}
		if red := s.Failures+s.Errors > 0; r.Verdict != steps.VerdictPass && !red {
			t.Errorf("%s: verdict %q, and importers would show green", name, r.Verdict)
		}
	}
	// The control: what is none does not fit.
	good := render(t, Format{Write: WriteJUnit}, placed())
	for _, c := range [][2]string{
		{`<properties>`, `<properties><testcase name="x"/>`}, {` classname="untrusted-steps"`, ``}, {`tests="8"`, `tests="many"`},
		{`<system-err></system-err>`, ``}, {`<skipped `, `<skipped type="x" `}, {`time="1.234"`, `time="1,5"`}, {`</testsuites>`, ``},
		{`<failure `, `<fault `}, {`</testcase>`, "</testcase>text"}, {`<testcase `, `<testcase file="x" `}, {`3</failure>`, "\x08</failure>"},
		{`<testsuites>`, `<!DOCTYPE x><testsuites>`},
	} {
		if bad := strings.Replace(good, c[0], c[1], 1); bad != good && fits(bad) == nil {
			t.Errorf("it fits with %q for %q", c[1], c[0])
		}
	}
}

func TestJUnitSaysHowEachStepEnded(t *testing.T) {
	fault := step("x", steps.StatusFailed)
	fault.Fault = &box.Fault{Type: box.OOM, Message: "the cap of 512 MiB"}
	fault.Reason = "oom: the cap of 512 MiB"
	code := exited("x", steps.StatusFailed, 3)
	code.Reason = "the step ended with exit code 3"
	signal := step("x", steps.StatusFailed)
	signal.Signal = ptr("SIGKILL")
	violation := exited("x", steps.StatusFailed, 0)
	violation.Violations = []steps.Violation{{Type: "set_id", Message: "a bit"}}
	asExpected := fault
	asExpected.Expected, asExpected.Violations = &steps.Expect{Fault: box.OOM}, violation.Violations
	excused := code
	excused.Excused = true
	running := step("x", steps.StatusCancelled)
	expected := fault
	expected.Status, expected.Expected = steps.StatusPassed, &steps.Expect{Fault: box.OOM}
	for name, c := range map[string]struct {
		step steps.StepResult
		want string
	}{
		"a step that passed has no mark":                    {exited("x", steps.StatusPassed, 0), ""},
		"an expected fault is none":                         {expected, ""},
		"a fault is a failure of its type":                  {fault, "failure oom: oom: the cap of 512 MiB"},
		"an exit code is a failure":                         {code, "failure exit_code: the step ended with exit code 3"},
		"a signal of its own is a failure":                  {signal, "failure signal: SIGKILL"},
		"a violation is a failure":                          {violation, "failure set_id: violation: set_id: a bit"},
		"a violation beside an expected fault is one":       {asExpected, "failure set_id: violation: set_id: a bit"},
		"an excused failure is skipped, with why":           {excused, "skipped : failed, excused by continueOnError: the step ended with exit code 3"},
		"a step without a verdict is an error":              {lost().Steps[0], "error no_verdict: " + lost().Steps[0].Reason},
		"a skipped step is skipped":                         {waiting("x", steps.StatusSkipped, "it needs y"), "skipped : it needs y"},
		"a step cancelled while it ran is an error":         {running, "error cancelled: -"},
		"a step cancelled before it began is skipped":       {waiting("x", steps.StatusCancelled, "the run was cancelled"), "skipped : the run was cancelled"},
		"a status that is no word of ours is an error":      {step("x", "PASSED"), "error no_verdict: status PASSED is none this program knows"},
		"no status at all is an error, and not a step fine": {step("x", ""), "error no_verdict: status  is none this program knows"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			c := c
			s := readJUnit(t, result(steps.VerdictPass, c.step))
			for word, w := range map[string]*junitWhy{"failure": s.Cases[0].Failure, "error": s.Cases[0].Error, "skipped": s.Cases[0].Skipped} {
				if w != nil {
					got += fmt.Sprintf("%s %s: %s", word, w.Type, w.Message)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestJUnitOutputCannotLeaveItsPlace(t *testing.T) {
	s := readJUnit(t, placed())
	if n := len(s.Cases); n != len(placed().Steps) {
		t.Fatalf("%d cases: output made one", n)
	}
	want := "| one\n| ]]></system-out><testcase name=\"forged\"/>\n| ::error::forged\n| \\x00\\x08\\ufffe\\xff\\xfe"
	if diff := cmp.Diff(want, s.Cases[1].Out); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got := s.Cases[1].Err; got != "| kern: warning: <something> & more" {
		t.Errorf("the engine's own words: %q", got)
	}
	if got := s.Cases[1].Failure.Body; !strings.HasPrefix(got, "name: Unit tests\nreason: the step ended with exit code 3\nended: exit 3\n") {
		t.Errorf("details: %q", got)
	}
}

func TestJUnitKeepsToItsBudget(t *testing.T) {
	for name, r := range map[string]*steps.Result{
		"two thousand steps that failed": many(2000, steps.StatusFailed),
		"two thousand steps that passed": many(2000, steps.StatusPassed),
	} {
		r.Steps[1999].Status = steps.StatusFailed
		r.Steps[1999].Reason = "the last one"
		text := render(t, Format{Write: WriteJUnit}, r)
		if err := fits(text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if rows := 2000 * 300; len(text) > JUnitBudget+rows {
			t.Errorf("%s: %d bytes", name, len(text))
		}
		s := readJUnit(t, r)
		if last := s.Cases[1999]; s.Tests != 2000 || last.Failure == nil {
			t.Errorf("%s: %d cases, the last one %+v", name, s.Tests, last)
		}
		if !strings.Contains(s.Out, "left out here for length: ") {
			t.Errorf("%s: nothing says that something was left out", name)
		}
	}
	// With room for some, the one that failed has it.
	r := many(2000, steps.StatusPassed)
	r.Steps[1999].Status = steps.StatusFailed
	if s := readJUnit(t, r); s.Cases[1999].Out == "" || s.Cases[1998].Out != "" {
		t.Error("output of steps that passed took the place of that of the one that failed")
	}
}

func TestSecondsAreNeverNegative(t *testing.T) {
	for ms, want := range map[int64]string{0: "0.000", 7: "0.007", 61_234: "61.234", -5: "0.000", -1 << 63: "0.000"} {
		if got := seconds(ms); got != want {
			t.Errorf("seconds(%s) = %s, want %s", strconv.FormatInt(ms, 10), got, want)
		}
	}
}
