package report

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/gha/ghatest"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

func TestReadGivesBackWhatWasWritten(t *testing.T) {
	for name, r := range saved() {
		text := render(t, Formats[0], r)
		got, err := Read(strings.NewReader(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		// What is no UTF-8 was written as an escape, and stays what that says.
		text = strings.ReplaceAll(text, `\ufffd`, "\ufffd")
		if diff := cmp.Diff(text, render(t, Formats[0], got)); diff != "" {
			t.Errorf("%s (-written +read and written)\n%s", name, diff)
		}
	}
}

func TestReadRefuses(t *testing.T) {
	deep := strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000)
	for name, c := range map[string]struct{ text, want string }{
		"nothing":                                 {"", "no report.json"},
		"no JSON":                                 {"steps:\n", "no report.json"},
		"a list":                                  {"[]", "no report.json"},
		"null":                                    {"null", `no "schema"`},
		"an object of something else":             {`{"version":"2.1.0"}`, `no "schema"`},
		"a schema that is a text":                 {`{"schema":"one"}`, "no report.json"},
		"another schema":                          {`{"schema":2}`, "its schema is 2, and this version reads schema 1"},
		"a schema that is nearly 1":               {`{"schema":1.0}`, "its schema is 1.0"},
		"two values":                              {`{"schema":1}{"schema":1}`, "no report.json"},
		"something behind it":                     {`{"schema":1} x`, "no report.json"},
		"half of one":                             {`{"schema":1,"steps":[{"id":"a"`, "no report.json"},
		"a step that is a text":                   {`{"schema":1,"steps":["a"]}`, "no report.json"},
		"a number that is none":                   {`{"schema":1,"durationMs":1e400}`, "no report.json"},
		"two verdicts":                            {`{"schema":1,"verdict":"fail","verdict":"pass"}`, `"verdict" twice`},
		"two verdicts in two cases":               {`{"schema":1,"verdict":"fail","Verdict":"pass"}`, `"Verdict" twice`},
		"two verdicts, one escaped":               {`{"schema":1,"verdict":"fail","\u0076erdict":"pass"}`, `"verdict" twice`},
		"two statuses of a step":                  {`{"schema":1,"steps":[{},{"status":"failed","fault":null,"status":"passed"}]}`, `"status" twice`},
		"two lists of steps, one with a long s":   {`{"schema":1,"steps":[{"status":"failed"}],"ſteps":[{"status":"passed"}]}`, "\"\u017fteps\" twice"},
		"two kernels, one with a Kelvin sign":     {`{"schema":1,"host":{"\u212aernel":"a","kernel":"b"}}`, `"kernel" twice`},
		"a key twice in a field it does not know": {`{"schema":1,"new":{"a":[{"b":1,"b":2}]}}`, `"b" twice`},
		"a key that would act where it is told":   {"{\"schema\":1,\"##[error]\\u202e\":1,\"##[error]\\u202e\":1}", `"## [error]\\u202e" twice`},
		"a hundred thousand levels":               {`{"schema":1,"new":` + deep + `}`, "no report.json"},
		"too many steps":                          {`{"schema":1,"steps":[` + strings.Repeat("{},", maxResultSteps) + `{}]}`, "more than 100000 steps"},
	} {
		r, err := Read(strings.NewReader(c.text))
		if err == nil || r != nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		} else if len(ghatest.Commands([]byte(err.Error()))) > 0 || strings.ContainsFunc(err.Error(), gha.Unseen) {
			t.Errorf("%s: what is said would act: %q", name, err)
		}
	}
	if _, err := Read(io.LimitReader(endless{}, MaxFile+10)); err == nil || !strings.Contains(err.Error(), "larger than 256 MiB") {
		t.Errorf("a file without an end: %v", err)
	}
	if _, err := Read(io.MultiReader(strings.NewReader(`{"schema":1`), broken{})); !errors.Is(err, errBroken) {
		t.Errorf("a disk that fails: %v", err)
	}
}

// Whatever key encoding/json takes for another one, at any place of a report, the
// two are not both read.
func TestReadTakesNoKeyForAnother(t *testing.T) {
	for _, key := range []string{"verdict", "steps", "kernel", "status", "exitCode", "sha256"} {
		for i, r := range key {
			for other := unicode.SimpleFold(r); other != r; other = unicode.SimpleFold(other) {
				twin := key[:i] + string(other) + key[i+len(string(r)):]
				text := fmt.Sprintf(`{"schema":1,"new":{%q:1,%q:2}}`, key, twin)
				if _, err := Read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), "twice") {
					t.Errorf("%q and %q were read", key, twin)
				}
			}
		}
	}
}

// endless is blanks: what is read first must not decide.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	copy(p, bytes.Repeat([]byte(" "), len(p)))
	return len(p), nil
}

var errBroken = errors.New("broken")

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errBroken }

func TestReadLetsNewFieldsPass(t *testing.T) {
	r, err := Read(strings.NewReader(`{"schema":1,"verdict":"pass","new":[1,{"a":"b"}],"steps":[{"id":"a","status":"passed","newer":{"x":null,"y":{"x":1}}},{"id":"b"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Steps) != 2 || r.Steps[0].ID != "a" || r.Verdict != steps.VerdictPass {
		t.Errorf("read %+v", r)
	}
}

// FuzzRead: whatever is read can be written in every form, and acts in none.
func FuzzRead(f *testing.F) {
	for _, r := range saved() {
		var b bytes.Buffer
		if err := WriteJSON(&b, r); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Read(bytes.NewReader(b))
		if err != nil {
			return
		}
		for _, x := range Formats {
			got := render(t, x, r)
			if c := ghatest.Commands([]byte(got)); len(c) > 0 {
				t.Errorf("as %s a runner would see %+v", x.Name, c)
			}
			if x.Name == "junit" {
				if err := fits(got); err != nil {
					t.Error(err)
				}
			}
		}
	})
}
