package gha

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/gha/ghatest"
)

func env(vars map[string]string) Env {
	return Env{Getenv: func(name string) string { return vars[name] }, Out: io.Discard}
}

func TestInputs(t *testing.T) {
	for name, c := range map[string]struct {
		vars    map[string]string
		want    Inputs
		wantErr string
	}{
		"reads what action.yml hands on": {
			vars: map[string]string{
				"UNTRUSTED_STEPS_FILE": " steps.yml\n", "UNTRUSTED_STEPS_WORKSPACE": "w", "UNTRUSTED_STEPS_ENGINE": "kern",
				"UNTRUSTED_STEPS_JOBS": "2", "UNTRUSTED_STEPS_OUT": "o", "INPUT_ENGINE": "native",
			},
			want: Inputs{File: "steps.yml", Workspace: "w", Engine: "kern", Jobs: "2", Out: "o"},
		},
		"falls back to the runner's own": {
			vars: map[string]string{"INPUT_FILE": "steps.yml", "INPUT_JOBS": "3", "UNTRUSTED_STEPS_JOBS": ""},
			want: Inputs{File: "steps.yml", Jobs: "3"},
		},
		"keeps the spaces before inline YAML": {
			vars: map[string]string{"UNTRUSTED_STEPS_STEPS": "  - run: a\n  - run: b\n"},
			want: Inputs{Steps: "  - run: a\n  - run: b\n"},
		},
		"refuses a file and inline steps": {vars: map[string]string{"INPUT_FILE": "a", "INPUT_STEPS": "- run: b"}, want: Inputs{File: "a", Steps: "- run: b"}, wantErr: "both set"},
		"refuses neither, and still reads who is to be told": {
			vars: map[string]string{"UNTRUSTED_STEPS_STEPS": " \n", "UNTRUSTED_STEPS_CHECK_RUN": "true", "UNTRUSTED_STEPS_TOKEN": "t"},
			want: Inputs{CheckRun: "true", Token: "t"}, wantErr: "neither",
		},
	} {
		got, err := env(c.vars).Inputs()
		if (err == nil) != (c.wantErr == "") || (err != nil && !strings.Contains(err.Error(), c.wantErr)) {
			t.Errorf("%s: error %v, want %q", name, err, c.wantErr)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}

func TestOutputsAreReadBackByTheRunnersRules(t *testing.T) {
	file := filepath.Join(t.TempDir(), "output")
	e := env(map[string]string{"GITHUB_OUTPUT": file})
	if err := e.WriteOutputs(Outputs{Verdict: "fail", Report: "/out/report.json", Faults: []string{"a:oom", "b:timeout"}, FailedSteps: []string{"a", "b"}, ChangedFiles: 3}); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"verdict": "fail", "report": "/out/report.json", "faults": "a:oom,b:timeout", "failed-steps": "a,b", "changed-files": "3"}
	if diff := cmp.Diff(want, readOutputs(t, file)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if len(want) != len(OutputNames) {
		t.Errorf("OutputNames has %d names", len(OutputNames))
	}
}

// readOutputs reads the file as a runner does: a name, a marker, lines up to it.
func readOutputs(t *testing.T, file string) map[string]string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n"); len(lines) > 0; {
		name, marker, ok := strings.Cut(lines[0], "<<")
		if !ok {
			t.Fatalf("line %q", lines[0])
		}
		n := 1
		for lines[n] != marker {
			n++
		}
		got[name] = strings.Join(lines[1:n], "\n")
		lines = lines[n+1:]
	}
	return got
}

func TestSetOutputRefuses(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "output"), filepath.Join(dir, "link")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ file, name, value, want string }{
		"a value of two lines":             {file, "report", "a\n_GitHubActionsFileCommandDelimeter_\nverdict<<x\npass\nx", "one line"},
		"a carriage return":                {file, "report", "a\rb", "one line"},
		"a control character":              {file, "report", "a\x00", "one line"},
		"a separator of lines":             {file, "report", "a\u2028b", "one line"},
		"bytes that are not UTF-8":         {file, "report", "a\xff", "one line"},
		"the library's marker as a value":  {file, "report", "_GitHubActionsFileCommandDelimeter_", "marker"},
		"a name that is no output of ours": {file, "path\nx", "a", "no such output"},
		"a value that is too long":         {file, "report", strings.Repeat("a", maxOutput+1), "at most"},
		"a link":                           {link, "verdict", "pass", "not a regular file"},
		"a folder":                         {dir, "verdict", "pass", "not a regular file"},
		"a variable that is not set":       {"", "verdict", "pass", "GITHUB_OUTPUT is not set"},
		"a folder that is not there":       {filepath.Join(dir, "no", "file"), "verdict", "pass", "no such file"},
	} {
		err := env(map[string]string{"GITHUB_OUTPUT": c.file}).SetOutput(c.name, c.value)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("something was written: %v", err)
	}
}

func TestWriteSummary(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	os.WriteFile(path("there"), []byte("before\n"), 0o644)
	os.WriteFile(path("big"), make([]byte, 900<<10), 0o644)
	os.Symlink(path("there"), path("link"))
	if err := syscall.Mkfifo(path("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ file, want string }{
		"appends to what is there":           {"there", ""},
		"makes the file":                     {"new", ""},
		"refuses a link":                     {"link", "not a regular file"},
		"refuses a FIFO and does not hang":   {"fifo", "not a regular file"},
		"refuses what GitHub would not show": {"big", "GitHub shows none"},
	} {
		err := env(map[string]string{"GITHUB_STEP_SUMMARY": path(c.file)}).WriteSummary(strings.Repeat("x", 200<<10))
		if (err == nil) != (c.want == "") || (err != nil && !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
	if b, _ := os.ReadFile(path("there")); !strings.HasPrefix(string(b), "before\nxxx") || len(b) != 7+200<<10+1 {
		t.Errorf("%d bytes", len(b))
	}
	if err := env(nil).WriteSummary("x"); err == nil || !strings.Contains(err.Error(), "GITHUB_STEP_SUMMARY is not set") {
		t.Errorf("unset: %v", err)
	}
}

func TestAnnotate(t *testing.T) {
	var out bytes.Buffer
	e := env(nil)
	e.Out = &out
	var list []Annotation
	for i := range 25 {
		list = append(list, Annotation{Kind: Error, Rank: i % 5, Title: fmt.Sprintf("step-%d", i), Message: "m"})
	}
	for range 10 {
		list = append(list, Annotation{Kind: Warning, Title: "w: a,b\n::error::x", File: "a\r\n::b", Line: 3, Message: "one\n::error::two\r##[group]\x1b[31m\u202e" + strings.Repeat("🙂", 4096)})
	}
	list = append(list, Annotation{Kind: Notice, Message: "n"})
	if err := e.Annotate(list); err != nil {
		t.Fatal(err)
	}
	got := map[string][]ghatest.Command{}
	for _, c := range ghatest.Commands(out.Bytes()) {
		got[c.Name] = append(got[c.Name], c)
	}
	if len(got) != 3 || len(got["error"]) != 10 || len(got["warning"]) != 10 || len(got["notice"]) != 1 {
		t.Fatalf("%d errors, %d warnings, %d notices, %d kinds", len(got["error"]), len(got["warning"]), len(got["notice"]), len(got))
	}
	var titles []string
	for _, c := range got["error"][:9] {
		titles = append(titles, c.Props["title"])
	}
	if diff := cmp.Diff(strings.Fields("step-4 step-9 step-14 step-19 step-24 step-3 step-8 step-13 step-18"), titles); diff != "" {
		t.Errorf("the worst come first (-want +got)\n%s", diff)
	}
	if m := got["error"][9].Data; !strings.HasPrefix(m, "and 16 more") {
		t.Errorf("the tenth says %q", m)
	}
	w := got["warning"][0]
	if n := len(utf16.Encode([]rune(w.Data))); n >= 4096 || n < 3900 || !strings.HasSuffix(w.Data, "🙂 ...") {
		t.Errorf("a message of %d units, ends %q", n, w.Data[len(w.Data)-8:])
	}
	if want := `w: a,b\n::error::x`; w.Props["title"] != want || w.Props["line"] != "3" || w.Props["file"] != `a\r\n::b` {
		t.Errorf("properties %q", w.Props)
	}
	if want := "one\n::error::two\\r## [group]\\u202e🙂"; !strings.HasPrefix(w.Data, want) {
		t.Errorf("message %q", w.Data[:40])
	}
}

func TestAnnotateReportsAWriterThatFails(t *testing.T) {
	e := env(nil)
	e.Out = brokenWriter{}
	if err := e.Annotate([]Annotation{{Kind: Error, Message: "x"}}); err == nil {
		t.Error("no error")
	}
}
