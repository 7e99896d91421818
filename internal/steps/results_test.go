package steps

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/cell"
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/report/rich"
)

const png = "\x89PNG\r\n\x1a\n"

// resultsOf is what the report has of the results given, and the folder with them.
func resultsOf(t *testing.T, m *gha.Masker, list ...cell.Result) (*StepResult, string) {
	t.Helper()
	out := t.TempDir()
	sr := &StepResult{ID: "a"}
	if err := (&Runner{Out: out, Masker: m}).results(sr, cell.Results{List: list}); err != nil {
		t.Fatal(err)
	}
	return sr, out
}

func TestResultsHoldNoSecret(t *testing.T) {
	const secret = "hunter2-hunter2"
	m := gha.NewMasker(secret)
	coded := base64.StdEncoding.EncodeToString([]byte(secret))
	for what, r := range map[string]cell.Result{
		"text":                       {{MIME: "text/plain", Data: []byte("it is " + secret)}},
		"text with a colour in it":   {{MIME: "text/plain", Data: []byte("hunter2\x1b[1m-hunter2")}},
		"a page":                     {{MIME: "text/html", Data: []byte("<b>" + coded + "</b>")}},
		"a long text":                {{MIME: "text/plain", Data: []byte(strings.Repeat("x", maxInline) + secret)}},
		"a drawing":                  {{MIME: "image/svg+xml", Data: []byte("<svg>" + secret + "</svg>")}},
		"an image":                   {{MIME: "image/png", Data: []byte(png + secret)}},
		"bytes whose code is secret": {{MIME: "application/octet-stream", Data: []byte(secret)}},
		"a type that is the secret":  {{MIME: "x/" + secret, Data: []byte("1")}},
		"JSON that escapes a part":   {{MIME: "application/json", Data: []byte(`"` + secret + `"`)}},
		"beside what has none of it": {{MIME: "text/html", Data: []byte(secret)}, {MIME: "text/plain", Data: []byte("fine")}},
		"a table with one sign written otherwise":  {{MIME: "text/html", Data: []byte("<table><tr><td>&#104;unter2-hunter2</td></tr></table>")}},
		"a table with a tag in it":                 {{MIME: "text/html", Data: []byte("<table><tr><td>hunter2<b></b>-hunter2</td></tr></table>")}},
		"a table with a comment in it":             {{MIME: "text/html", Data: []byte("<table><tr><td>hunter2<!-- > -->-hunter2</td></tr></table>")}},
		"a drawing with each sign in its own span": {{MIME: "image/svg+xml", Data: []byte("<svg>" + strings.Join(strings.Split(secret, ""), "<tspan/>") + "</svg>")}},
		"JSON with one sign written otherwise":     {{MIME: "application/json", Data: []byte(`{"a": ["\u0068unter2-hunter2"]}`)}},
		"an image coded in plain text":             {{MIME: "text/plain", Data: []byte(coded)}},
	} {
		t.Run(what, func(t *testing.T) {
			sr, out := resultsOf(t, m, r)
			mask(m, sr)
			text := strings.Join(sr.Notes, "\n")
			for _, r := range sr.Results {
				for mime, v := range r {
					text += mime + " " + v + "\n"
				}
			}
			err := filepath.WalkDir(out, func(path string, d os.DirEntry, err error) error {
				if err != nil || d.IsDir() {
					return err
				}
				b, err := os.ReadFile(path)
				text += path + string(b)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			joined, _ := rich.Reading(text)
			if strings.Contains(joined, secret) || strings.Contains(text, `\u0068unter2`) || strings.Contains(text, secret) || strings.Contains(text, coded) || strings.Contains(text, "hunter2\x1b[1m-hunter2") {
				t.Errorf("it is there: %.300q", text)
			}
			if !strings.Contains(text, gha.Masked) && !strings.Contains(text, "passEnv") {
				t.Errorf("nobody is told: %.300q", text)
			}
		})
	}
}

// A secret of several words is read across what stands between them.
func TestATableHoldsNoSecretOfSeveralWords(t *testing.T) {
	const secret = "correct horse & battery"
	for _, source := range []string{
		"<table><tr><td>correct<br>horse &amp; battery</td></tr></table>", "<table><tr><td>correct   horse &#38; battery</td></tr></table>",
		"<table><tr><td>correct horse &amp; battery</td></tr></table>",
	} {
		sr, _ := resultsOf(t, gha.NewMasker(secret), cell.Result{{MIME: "text/html", Data: []byte(source)}})
		for _, r := range sr.Results {
			if shown, ok := rich.TableOf(r["text/html"]); ok && strings.Contains(shown.Rows[0][0], "horse") {
				t.Errorf("%s: %q", source, shown.Rows)
			}
		}
	}
}

func TestResultsAreValuesOrFiles(t *testing.T) {
	long := strings.Repeat("y", maxInline+1)
	image := []byte(png + "pixels")
	sr, out := resultsOf(t, nil,
		cell.Result{{MIME: "text/plain", Data: []byte("42")}, {MIME: "text/html", Data: []byte("<b>42</b>")}},
		cell.Result{{MIME: "image/png", Data: image}},
		cell.Result{{MIME: "text/html", Data: []byte(long)}},
		cell.Result{{MIME: "image/svg+xml", Data: []byte("<svg/>")}, {MIME: "application/x-own", Data: []byte(long)}, {MIME: "text/x-own", Data: []byte(long)}},
	)
	want := []CellResult{
		{"text/plain": "42", "text/html": "<b>42</b>"},
		{"image/png": base64.StdEncoding.EncodeToString(image)},
		{"text/html": "steps/a/results/2.html.txt"},
		{"image/svg+xml": "<svg/>", "application/x-own": "steps/a/results/3.application.x-own.bin", "text/x-own": "steps/a/results/3.text.x-own.txt"},
	}
	if d := cmp.Diff(want, sr.Results); d != "" {
		t.Error(d)
	}
	wantFiles := []ResultFile{
		{1, "image/png", "steps/a/results/1.png", int64(len(image))},
		{2, "text/html", "steps/a/results/2.html.txt", int64(len(long))},
		{3, "image/svg+xml", "steps/a/results/3.svg.txt", 6},
		{3, "application/x-own", "steps/a/results/3.application.x-own.bin", int64(len(long))},
		{3, "text/x-own", "steps/a/results/3.text.x-own.txt", int64(len(long))},
	}
	if d := cmp.Diff(wantFiles, sr.ResultFiles); d != "" {
		t.Error(d)
	}
	for _, f := range sr.ResultFiles {
		if st, err := os.Lstat(filepath.Join(out, f.Path)); err != nil || st.Size() != f.Bytes {
			t.Errorf("%s: %v", f.Path, err)
		}
	}
}

// Types are a step's own words, and two of them can have one name as a file.
func TestResultsWhoseTypesLookAlike(t *testing.T) {
	var list []cell.Result
	for range 2 {
		var r cell.Result
		for _, mime := range []string{"a/b.c", "a.b/c", "a/b.c+xml", "a.b/c+xml", "text/x.y", "text.x/y"} {
			r = append(r, cell.Value{MIME: mime, Data: []byte(mime + strings.Repeat("y", maxInline))})
		}
		list = append(list, r)
	}
	sr, out := resultsOf(t, nil, list...)
	if len(sr.ResultFiles) != 12 {
		t.Errorf("%d files", len(sr.ResultFiles))
	}
	for _, f := range sr.ResultFiles {
		b, err := os.ReadFile(filepath.Join(out, f.Path))
		if err != nil || !strings.HasPrefix(string(b), f.MIME+"y") || sr.Results[f.Result][f.MIME] != f.Path {
			t.Errorf("%s for %s: %v", f.Path, f.MIME, err)
		}
	}
}

func TestResultsThatAreManyHaveFiles(t *testing.T) {
	var list []cell.Result
	for range 80 {
		list = append(list, cell.Result{{MIME: "text/plain", Data: []byte(strings.Repeat("z", 60_000))}})
	}
	sr, _ := resultsOf(t, nil, list...)
	size := 0
	for _, r := range sr.Results {
		size += len(r["text/plain"])
	}
	if len(sr.Results) != 80 || size > maxInlined || len(sr.ResultFiles) != 80-maxInlined/60_000 {
		t.Errorf("%d results, %d bytes, %d files", len(sr.Results), size, len(sr.ResultFiles))
	}
}

// What stands in the place of a file is not written through, nor are results lost in silence.
// A run can have a thousand cells, and each shows what it likes.
func TestResultsOfManyCellsAreBounded(t *testing.T) {
	r := &Runner{Out: t.TempDir()}
	var all []StepResult
	for i := range 40 {
		var list []cell.Result
		for range 30 {
			list = append(list, cell.Result{{MIME: "text/plain", Data: []byte(strings.Repeat("\x01", 60_000))}})
		}
		sr := StepResult{ID: fmt.Sprint("s", i)}
		if err := r.results(&sr, cell.Results{List: list}); err != nil {
			t.Fatal(err)
		}
		if len(sr.Results) != len(list) {
			t.Errorf("%d results", len(sr.Results))
		}
		all = append(all, sr)
	}
	text, err := json.Marshal(all)
	if err != nil || len(text) > maxRunInlined+4<<20 {
		t.Errorf("%d bytes: %v", len(text), err)
	}
	r.told.Store(maxRunResults - 400)
	sr := StepResult{ID: "last"}
	if err := r.results(&sr, cell.Results{List: []cell.Result{{{MIME: "text/plain", Data: []byte("1")}}, {{MIME: "text/plain", Data: []byte("2")}}}}); err != nil {
		t.Fatal(err)
	}
	if len(sr.Results) != 1 || len(sr.Notes) != 1 || !strings.Contains(sr.Notes[0], "1 forms of results are not kept") {
		t.Errorf("%v %q", sr.Results, sr.Notes)
	}
	for _, text := range []string{"a<b>&\"\\\n\x00\x7f\u2028\u20ac\u00e9😀", strings.Repeat("\u2029", 9)} {
		if b, err := json.Marshal(text); err != nil || len(b)-2 > jsonBytes(text) {
			t.Errorf("%q has %d bytes, %d were said", text, len(b)-2, jsonBytes(text))
		}
	}
}

func TestResultsOverwriteNothing(t *testing.T) {
	out := t.TempDir()
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.MkdirAll(filepath.Join(out, "steps/a/results"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, filepath.Join(out, "steps/a/results/0.png")); err != nil {
		t.Fatal(err)
	}
	err := (&Runner{Out: out}).results(&StepResult{ID: "a"}, cell.Results{List: []cell.Result{{{MIME: "image/png", Data: []byte(png)}}}})
	if err == nil {
		t.Error("no error")
	}
	if _, err := os.Lstat(elsewhere); err == nil {
		t.Error("it was written through a link")
	}
}
