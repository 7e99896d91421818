package html

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	stdhtml "html"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"unicode/utf8"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/gha/ghatest"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// carried is the data of a page as app.js gets it.
type carried struct {
	Steps    []string
	Requests []request
	Files    []file
	Streams  map[string][]stream
}

func carriedBy(t testing.TB, page string) carried {
	t.Helper()
	_, rest, ok := strings.Cut(page, `<script type="application/json" id="data">`)
	text, _, end := strings.Cut(rest, "</script>")
	if !ok || !end {
		t.Fatal("the page carries no data")
	}
	var d carried
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// own takes out of a page what is ours: assets and the tags we write. What is
// left may not look like a tag.
var own = regexp.MustCompile(`(?s)<style>.*?</style>|<script>.*?</script>|<!DOCTYPE html>|` +
	`</?(html|head|meta|title|body|a|header|h1|h2|h3|span|p|main|section|div|table|thead|tbody|tr|th|td|noscript|nav|dl|dt|dd|ol|ul|li|svg|rect|details|summary|pre|code|footer|kbd|script)( [a-zA-Z-]+(="[^"<>]*")?)*/?>`)

func TestNothingAStepChoseIsMarkup(t *testing.T) {
	r, files := hostile()
	o := options(r)
	o.Files = files
	page := render(t, r, o)
	if rest := own.ReplaceAllString(page, ""); strings.ContainsAny(rest, "<>") {
		i := strings.IndexAny(rest, "<>")
		t.Errorf("what is no tag of ours has %q", rest[max(0, i-40):min(len(rest), i+40)])
	}
	for _, bad := range []string{"onerror=\"", "javascript:window.pwned=1\"", "srcdoc=\""} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	if n := strings.Count(page, "<script"); n != 2 {
		t.Errorf("%d scripts, want the data and app.js", n)
	}
	if !utf8.ValidString(page) {
		t.Error("the page is not UTF-8")
	}
	for line := range strings.Lines(page) {
		if strings.ContainsFunc(strings.TrimSuffix(line, "\n"), gha.Unseen) {
			t.Errorf("a line has what nobody sees: %.200q", line)
		}
	}
	if c := ghatest.Commands([]byte(page)); len(c) > 0 {
		t.Errorf("a runner would see %+v", c)
	}
	d := carriedBy(t, page)
	if len(d.Requests) != 4*len(attacks) || len(d.Files) != 4*len(attacks) || len(d.Streams) != len(attacks) {
		t.Errorf("%d requests, %d files, %d steps with output: some got lost", len(d.Requests), len(d.Files), len(d.Streams))
	}
	if again := render(t, r, o); again != page {
		t.Error("the same result gave two pages")
	}
}

// TestMarkupIsLiteral: a variable that became markup would be a hole that no
// other test has to find.
func TestMarkupIsLiteral(t *testing.T) {
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if c, ok := n.(*ast.CallExpr); ok {
				if fun, ok := c.Fun.(*ast.Ident); ok && fun.Name == "m" {
					seen++
					if _, ok := c.Args[0].(*ast.BasicLit); !ok {
						t.Errorf("%s: %s is made of something that is no literal", path, fun.Name)
					}
				}
			}
			return true
		})
	}
	if seen < 50 {
		t.Errorf("%d pieces of markup were found only: this test looks for the wrong thing", seen)
	}
}

func TestThePolicyNamesTheAssetsThatAreThere(t *testing.T) {
	page := render(t, &steps.Result{Verdict: "pass"}, options(&steps.Result{}))
	m := regexp.MustCompile(`http-equiv="Content-Security-Policy" content="([^"]*)"`).FindStringSubmatch(page)
	if m == nil {
		t.Fatal("the page has no policy")
	}
	got := stdhtml.UnescapeString(m[1])
	inline := func(tag string) string {
		_, rest, _ := strings.Cut(page, "<"+tag+">")
		text, _, _ := strings.Cut(rest, "</"+tag+">")
		return hash(text)
	}
	want := "default-src 'none'; style-src " + inline("style") + "; script-src " + inline("script") + "; img-src data:" +
		"; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if strings.Index(page, "Content-Security-Policy") > strings.Index(page, "<style>") {
		t.Error("the policy comes after what it is about")
	}
	for name, text := range map[string]string{"app.css": style, "app.js": script} {
		for _, bad := range []string{"</style", "</script", "<!--", "http:", "https:", "url(", "@import", "innerHTML", "eval", "fetch", "import("} {
			if strings.Contains(strings.ToLower(text), strings.ToLower(bad)) {
				t.Errorf("%s has %q", name, bad)
			}
		}
	}
}

func TestThePageHasABound(t *testing.T) {
	big := func(a string, n int) *steps.Result {
		r, _ := hostile()
		one := r.Steps[0]
		a = strings.Repeat(a, 3000/len(a))
		one.ID, one.Name, one.Reason, one.Tail = a, a, a, strings.Repeat(a+"\n", 50)
		one.Notes, one.EgressUnused = []string{a, a, a}, []string{a, a, a}
		one.Egress, one.Files = nil, nil
		for range 20 {
			one.Egress = append(one.Egress, steps.EgressRecord{Host: a, Reason: a, Rule: a, Protocol: a, Verdict: "denied"})
			one.Files = append(one.Files, steps.FileChange{Path: a, Change: "created", Target: a, From: a, Type: a, Mode: a})
		}
		one.FilesTotal = 100
		r.Steps, r.Notes = nil, []string{}
		for i := range n {
			one.Stdout.Path = fmt.Sprintf("steps/s%d/stdout.log", i)
			r.Steps = append(r.Steps, one)
		}
		return r
	}
	for name, a := range map[string]string{"signs": `<"&'`, "controls": "\x00", "bad bytes": "\xff", "tags": "\U000e0041", "backslashes": `\`, "letters": "a"} {
		r := big(a, 2000)
		o := options(r)
		o.Verdict, o.Warnings = strings.Repeat(a, 5000), make([]string, 1000)
		for i := range o.Warnings {
			o.Warnings[i] = strings.Repeat(a, 5000)
		}
		log := []byte(strings.Repeat(strings.Repeat(a, 300)+"\n", 300))
		o.Files = sameFile(log)
		page := render(t, r, o) // refuses to be larger than MaxBytes
		t.Logf("%s: %d bytes", name, len(page))
		for _, want := range []string{"have no room here; report.json has all", "there was room for the result and its reason only", "denied, 0 failed", "not on this page; report.json", "had no room on this page; they are in the report folder"} {
			if !strings.Contains(page, want) {
				t.Errorf("%s: the page does not say %q", name, want)
			}
		}
		d := carriedBy(t, page)
		if len(d.Requests) == 0 || len(d.Files) == 0 || len(d.Streams) == 0 {
			t.Errorf("%s: one part took the room of another: %d requests, %d files, %d outputs", name, len(d.Requests), len(d.Files), len(d.Streams))
		}
		var denied int
		if _, err := fmt.Sscanf(page[strings.Index(page, "had no room on this page (")+len("had no room on this page ("):], "%d denied", &denied); err != nil || denied+len(d.Requests) != 2000*20 {
			t.Errorf("%s: %d requests are there and %d counted (%v), of %d", name, len(d.Requests), denied, err, 2000*20)
		}
	}
}

// sameFile is a folder in which every file has the same content.
type sameFile []byte

func (s sameFile) Open(name string) (fs.File, error) {
	return fstest.MapFS{name: &fstest.MapFile{Data: s}}.Open(name)
}

func TestAThousandStepsShareTheRoom(t *testing.T) {
	r, files := &steps.Result{Verdict: "fail"}, fstest.MapFS{}
	for i := range 1000 {
		s := steps.StepResult{ID: fmt.Sprintf("s%d", i), Status: "passed", DurationMs: 1}
		size := 200
		if i%100 == 7 {
			s.Status, size = "failed", 100_000
		}
		s.Stdout = steps.Output{Path: fmt.Sprintf("steps/s%d/stdout.log", i), Bytes: int64(size)}
		files[s.Stdout.Path] = &fstest.MapFile{Data: []byte(strings.Repeat("0123456789012345678\n", size/20))}
		r.Steps = append(r.Steps, s)
	}
	o := options(r)
	o.Files = files
	page := render(t, r, o)
	d := carriedBy(t, page)
	if len(d.Streams) != 1000 || strings.Contains(page, "no room") {
		t.Errorf("output of %d steps is on the page, want all", len(d.Streams))
	}
	for i, s := range d.Streams {
		if s[0].Note != "" {
			t.Errorf("step %s: %s", i, s[0].Note)
		}
	}
	if n := strings.Count(page, "<rect "); n != 1000 {
		t.Errorf("%d bars", n)
	}
}

func TestLogsOfEarlierTriesAreShownIfThereIsRoom(t *testing.T) {
	r, files := &steps.Result{Verdict: "pass"}, fstest.MapFS{}
	log := func(path, text string) steps.Output {
		files[path] = &fstest.MapFile{Data: []byte(text)}
		return steps.Output{Path: path, Bytes: int64(len(text))}
	}
	for i := range 20 {
		dir := fmt.Sprintf("steps/s%d/", i)
		s := steps.StepResult{ID: fmt.Sprintf("s%d", i), Status: "passed", DurationMs: 1, Attempts: 3, Flaky: true, Stdout: log(dir+"stdout.log", strings.Repeat("0123456789012345678\n", 4_500))}
		s.Tries = []steps.Try{{Stderr: log(dir+"try-1/stderr.log", "first\n")}, {Stdout: log(dir+"try-2/stdout.log", strings.Repeat("second\n", 20_000))}}
		r.Steps = append(r.Steps, s)
	}
	o := options(r)
	o.Words = func(s *steps.StepResult) Words {
		return Words{Note: "flaky, try 3", Tries: []string{"try 1 of 3: it failed"}}
	}
	o.Files = files
	page := render(t, r, o)
	for i := range 20 {
		var names []string
		for _, s := range carriedBy(t, page).Streams[fmt.Sprint(i)] {
			names = append(names, s.Name)
			if s.Name == "stdout" && s.Note != "" {
				t.Errorf("step %d: its log has not all its place: %s", i, s.Note)
			}
			if s.Name == "try 1 stderr" && s.Text != "first" || s.Name == "try 2 stdout" && !strings.HasSuffix(s.Text, "second") {
				t.Errorf("step %d: %s is %.40q", i, s.Name, s.Text)
			}
		}
		if want := []string{"stdout", "try 1 stderr", "try 2 stdout"}; !slices.Equal(names, want) {
			t.Errorf("step %d has %q, want %q", i, names, want)
		}
	}
	for _, want := range []string{`<span class="badge passed">passed</span> <span class="badge flaky">flaky, try 3</span>`, "<h3>Earlier tries</h3>\n<ul>\n<li>try 1 of 3: it failed</li>"} {
		if n := strings.Count(page, want); n < 20 {
			t.Errorf("%d of %s", n, want)
		}
	}
}

func TestOfALogItsEndIsShown(t *testing.T) {
	for name, c := range map[string]struct {
		in, want string
		part     int
		kept     int
	}{
		"all of a short one":                   {"a\nb\n", "a\nb", 100, 4},
		"no line that does not fit":            {"aaaa\nbb\n", "bb", 6, 3},
		"a text without an end":                {"a\nb", "a\nb", 100, 3},
		"CRLF and a lone CR as ends":           {"a\r\nb\rc\r\n", "a\nb\nc", 100, 8},
		"empty lines":                          {"\n\na\n", "\n\na", 100, 4},
		"nothing":                              {"", "", 100, 0},
		"controls, written out":                {"a\x00\x1b[31mb\n", `a\x00b`, 100, 9},
		"what escaping makes long":             {"<<<<\nb\n", "b", 20, 2},
		"nothing of a line that is all signs":  {strings.Repeat("<", 100), "", 100, 0},
		"an untidy end, without a lost letter": {"é", "é", 100, 2},
	} {
		lines, kept := lastLines([]byte(c.in), c.part)
		if got := strings.Join(lines, "\n"); got != c.want || kept != c.kept {
			t.Errorf("%s: %q, %d bytes kept; want %q, %d", name, got, kept, c.want, c.kept)
		}
	}
}

func TestWhatIsLeftOutOfALogIsCounted(t *testing.T) {
	line := "x" + strings.Repeat("é", 60) + "\n"
	log := strings.Repeat(line, 8000)
	r := &steps.Result{Steps: []steps.StepResult{{ID: "a", Status: "failed", Stdout: steps.Output{Path: "steps/a/stdout.log", Bytes: 1, Truncated: true}}}}
	o := options(r)
	o.Files = fstest.MapFS{"steps/a/stdout.log": &fstest.MapFile{Data: []byte(log)}}
	s := carriedBy(t, render(t, r, o)).Streams["0"][0]
	var left, all int
	if _, err := fmt.Sscanf(s.Note, "The first %d of %d bytes are not on this page;", &left, &all); err != nil || all != len(log) || left+len(s.Text)+1 < all || strings.Contains(s.Text, `\x`) {
		t.Errorf("%d bytes of %d are shown; the page says %q", len(s.Text), len(log), s.Note)
	}
	if !strings.Contains(s.Note, "maxOutputBytes") {
		t.Errorf("it does not say that the step wrote more: %q", s.Note)
	}
}

func TestWhatIsLeftOutOfAPatchIsCounted(t *testing.T) {
	var b strings.Builder
	for i := range 100 {
		fmt.Fprintf(&b, "diff --git a/%d b/%d\n--- a/%d\n+++ b/%d\n@@ -0,0 +1,60 @@\n%s", i, i, i, i, strings.Repeat("+"+strings.Repeat("y", 99)+"\n", 60))
	}
	r := &steps.Result{Steps: []steps.StepResult{{ID: "a", Status: "passed", Patch: &steps.Patch{Path: "steps/a/changes.patch", Bytes: 1, Files: 100, Left: 2, Masked: 1}}}}
	o := options(r)
	o.Files = fstest.MapFS{"steps/a/changes.patch": &fstest.MapFile{Data: []byte(b.String())}}
	s := carriedBy(t, render(t, r, o)).Streams["0"][0]
	files := strings.Count(s.Text, "diff --git")
	want := fmt.Sprintf("The last %d of %d bytes are not on this page, which begins %d of 100 files; steps/a/changes.patch has them. 2 changes have no place in a patch; the start of it says what that is. 1 file has masked lines.",
		b.Len()-len(s.Text)-1, b.Len(), files)
	if s.Note != want || files == 0 || files == 100 {
		t.Errorf("got  %s\nwant %s", s.Note, want)
	}
}

func TestOnlyFilesUnderStepsAreShown(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"secret.txt": "SECRET", "out/mine.txt": "SECRET", "out/steps/a/stdout.log": "fine"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("../../../secret.txt", filepath.Join(dir, "out/steps/a/link")), os.Symlink("../mine.txt", filepath.Join(dir, "out/steps/near")),
		os.Symlink("../..", filepath.Join(dir, "out/steps/up"))); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for path, want := range map[string]string{
		"steps/a/stdout.log": "", "../secret.txt": "is a file under steps/", "/etc/passwd": "is a file under steps/", "mine.txt": "is a file under steps/",
		"steps/../mine.txt": "is a file under steps/", "steps/a/link": "not a plain file", "steps/near": "not a plain file", "steps/a": "not a plain file",
		"steps/up/secret.txt": "could not be read", "steps/none": "could not be read", "steps\x00": "could not be read",
	} {
		r := &steps.Result{Steps: []steps.StepResult{{ID: "a", Stdout: steps.Output{Path: path, Bytes: 9}}}}
		o := options(r)
		o.Files = root.FS()
		page := render(t, r, o)
		s := carriedBy(t, page).Streams["0"][0]
		if want == "" && s.Text != "fine" || want != "" && (s.Text != "" || !strings.Contains(s.Note, want)) || strings.Contains(page, "SECRET") {
			t.Errorf("%q: text %q, note %q; want %q", path, s.Text, s.Note, want)
		}
	}
}

func TestWithoutTheFolderThePageSaysSo(t *testing.T) {
	r, _ := hostile()
	page := render(t, r, options(r))
	if !strings.Contains(page, "written from report.json alone") || len(carriedBy(t, page).Streams) > 0 {
		t.Error("a page without logs does not say why")
	}
}

func TestTheWorstComesFirst(t *testing.T) {
	r, _ := hostile()
	d := carriedBy(t, render(t, r, options(r)))
	n := len(attacks)
	for i, e := range d.Requests {
		want := verdicts[0]
		if i >= n {
			want = verdicts[1] // and what is no word of ours
		}
		if i >= 3*n {
			want = verdicts[2]
		}
		if e.Verdict != want {
			t.Fatalf("request %d is %q, want %q", i, e.Verdict, want)
		}
	}
	for i, f := range d.Files {
		switch {
		case i < 2*n && f.Mark == "", i >= 2*n && i < 3*n && f.Change != "deleted", i >= 3*n && f.Change != "modified":
			t.Fatalf("file %d is %+v", i, f)
		}
	}
}

func TestBarsStayInTheirPlace(t *testing.T) {
	at := func(start, took int64) steps.StepResult {
		return steps.StepResult{ID: "a", Status: "passed", StartedMs: start, DurationMs: took}
	}
	big := int64(math.MaxInt64)
	for name, c := range map[string]struct {
		list []steps.StepResult
		want string
	}{
		"one after the other":       {[]steps.StepResult{at(0, 10), at(10, 10), at(20, 5)}, "one after the other"},
		"side by side":              {[]steps.StepResult{at(0, 10), at(5, 10), at(9, 1)}, "Up to 3 steps"},
		"numbers that no clock has": {[]steps.StepResult{at(-big, big), at(big, big), at(-5, 7)}, "side by side"},
		"a step that never began":   {[]steps.StepResult{at(0, 0), at(0, -1)}, ""},
	} {
		r := &steps.Result{Steps: c.list, DurationMs: 20}
		page := render(t, r, options(r))
		if !strings.Contains(page, c.want) || (c.want == "") != !strings.Contains(page, "<rect ") {
			t.Errorf("%s: the page does not say %q", name, c.want)
		}
		for _, m := range regexp.MustCompile(`x="([^"]*)" width="([^"]*)"`).FindAllStringSubmatch(page, -1) {
			var x, w float64
			if _, err := fmt.Sscan(m[1]+" "+m[2], &x, &w); err != nil || x < 0 || w <= 0 || x+w > scale+0.2 {
				t.Errorf("%s: a bar is at %s, %s wide", name, m[1], m[2])
			}
		}
	}
}

func TestWriteSaysWhatWentWrong(t *testing.T) {
	r, _ := hostile()
	if err := Write(io.Discard, r, Options{}); err == nil {
		t.Error("a page without words was written")
	}
	if err := Write(failing{}, r, options(r)); err == nil || !strings.HasPrefix(err.Error(), "report.html: ") {
		t.Errorf("a full disk: %v", err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("disk is full") }

// TestContrast: every text has 4.5:1 against what it stands on, in light and dark.
func TestContrast(t *testing.T) {
	light, rest, _ := strings.Cut(style, "@media (prefers-color-scheme: dark)")
	dark, _, _ := strings.Cut(rest, "* {")
	for name, css := range map[string]string{"light": light, "dark": dark} {
		colour := map[string]float64{}
		for _, m := range regexp.MustCompile(`--([a-z-]+): #([0-9a-f]{6})`).FindAllStringSubmatch(css, -1) {
			colour[m[1]] = luminance(t, m[2])
		}
		for _, pair := range []string{"text page", "text panel", "soft page", "soft panel", "link page", "link panel", "good good-back", "bad bad-back", "odd odd-back", "hit-text hit", "odd panel"} {
			front, back, _ := strings.Cut(pair, " ")
			a, aok := colour[front]
			b, bok := colour[back]
			if ratio := (max(a, b) + 0.05) / (min(a, b) + 0.05); !aok || !bok || ratio < 4.5 {
				t.Errorf("%s: %s has %.2f:1", name, pair, ratio)
			}
		}
		for _, bar := range []string{"bar-good", "bar-bad", "bar-odd", "focus"} { // no text: 3:1
			a, b := colour[bar], colour["panel"]
			if ratio := (max(a, b) + 0.05) / (min(a, b) + 0.05); ratio < 3 {
				t.Errorf("%s: %s has %.2f:1", name, bar, ratio)
			}
		}
	}
}

func luminance(t *testing.T, hex string) float64 {
	t.Helper()
	var c [3]int
	if _, err := fmt.Sscanf(hex, "%02x%02x%02x", &c[0], &c[1], &c[2]); err != nil {
		t.Fatal(err)
	}
	var l [3]float64
	for i, v := range c {
		x := float64(v) / 255
		if l[i] = x / 12.92; x > 0.04045 {
			l[i] = math.Pow((x+0.055)/1.055, 2.4)
		}
	}
	return 0.2126*l[0] + 0.7152*l[1] + 0.0722*l[2]
}
