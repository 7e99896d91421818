package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/gha/ghatest"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// exits CODE PROGRAM ARG... runs a program that must end with just that status.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARG...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	if got := exitStatus(ts, args[1], args[2:]...); got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

func exitStatus(ts *testscript.TestScript, program string, args ...string) int {
	err := ts.Exec(program, args...)
	var ended *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &ended):
		return ended.ExitCode()
	}
	ts.Fatalf("%s: %v", program, err)
	return -1
}

// verdictOf is the verdict that must be in the report for an exit status.
var verdictOf = map[int]string{0: "pass", 1: "fail", 3: "refused", 4: "error", 130: "cancelled"}

// run CODE ARG... is `untrusted-steps run` with the engine under test and the
// report in $WORK/out. Whatever it was about, it then holds that status and
// report agree, the report is what the published schema says, and nothing a
// runner would act on is in the log or the summary.
func runCmd(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: run CODE ARG...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	out := ts.MkAbs(filepath.Join(ts.Getenv("WORK"), "out"))
	argv := []string{"run", "--engine", ts.Getenv("ENGINE"), "--out", out}
	if slices.Contains(args, "--out") {
		argv = argv[:3]
	}
	if got := exitStatus(ts, toolName, append(argv, args[1:]...)...); got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
	if slices.Contains(args, "--out") {
		return
	}
	report := filepath.Join(out, "report.json")
	if want == exitUsage {
		if _, err := os.Stat(report); err == nil {
			ts.Fatalf("a report was written for what is wrong with the file or the flags")
		}
		return
	}
	v := readJSON(ts, report)
	if err := validate(steps.ReportSchema(), v); err != nil {
		ts.Fatalf("report.json: %v", err)
	}
	if got, ok := lookup(v, "verdict"); !ok || got != verdictOf[want] {
		ts.Fatalf("verdict %v with exit status %d", got, want)
	}
	if ts.Getenv("GITHUB_ACTIONS") == "" {
		for _, f := range []string{"stdout", "stderr"} {
			if left := live(ts, []byte(ts.ReadFile(f))); len(left) > 0 {
				ts.Fatalf("%s: a runner would act on %v", f, left)
			}
		}
	}
	for _, f := range []string{"summary.md", "report.html"} {
		if left := live(ts, []byte(ts.ReadFile(filepath.Join(out, f)))); len(left) > 0 {
			ts.Fatalf("%s: a runner would act on %v", f, left)
		}
	}
}

// unshown TEXT DIR holds that TEXT is in no file of a folder, neither as it is nor
// as it would be shown.
func unshownCmd(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: unshown TEXT DIR")
	}
	seen := 0
	ts.Check(filepath.WalkDir(ts.MkAbs(args[1]), func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		seen++
		text := ts.ReadFile(name)
		for line := range strings.Lines(text) {
			if strings.Contains(line, args[0]) || strings.Contains(gha.Inert(line), args[0]) {
				return fmt.Errorf("%s has it: %q", name, line)
			}
		}
		return nil
	}))
	if seen == 0 {
		ts.Fatalf("there is no file in %s", args[1])
	}
}

// commands FILE NAME... holds that a runner acts on these commands in FILE, in
// this order, and no others, and that not even switched-off ones are in it.
func commandsCmd(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: commands FILE NAME...")
	}
	got := []string{}
	for _, c := range live(ts, []byte(ts.ReadFile(args[0]))) {
		got = append(got, c.Name)
	}
	if !slices.Equal(got, args[1:]) {
		ts.Fatalf("%s: a runner acts on %q, want %q", args[0], got, args[1:])
	}
}

// live leaves out the pairs that switch commands off and on.
func live(ts *testscript.TestScript, stream []byte) []ghatest.Command {
	var out []ghatest.Command
	token := ""
	for _, c := range ghatest.Commands(stream) {
		switch {
		case token == "" && c.Name == "stop-commands":
			token = strings.ToLower(c.Data)
		case token != "" && c.Name == token:
			token = ""
		default:
			out = append(out, c)
		}
	}
	if token != "" {
		ts.Fatalf("commands were switched off and never on again")
	}
	return out
}

// json FILE PATH VALUE holds that the value at a dotted path is VALUE: a text
// as it is, anything else as JSON. An element of a list is named by its number
// or by its id, path, type or host. `! json FILE PATH` holds that nothing is there.
func jsonCmd(ts *testscript.TestScript, neg bool, args []string) {
	if neg != (len(args) == 2) || len(args) > 3 {
		ts.Fatalf("usage: json FILE PATH VALUE, or ! json FILE PATH")
	}
	got, ok := lookup(readJSON(ts, args[0]), args[1])
	if neg {
		if ok {
			ts.Fatalf("%s: %s is %v", args[0], args[1], got)
		}
		return
	}
	if !ok {
		ts.Fatalf("%s: there is no %s", args[0], args[1])
	}
	text, isText := got.(string)
	if !isText {
		b, err := json.Marshal(got)
		ts.Check(err)
		text = string(b)
	}
	if text != args[2] {
		ts.Fatalf("%s: %s is %s, want %s", args[0], args[1], text, args[2])
	}
}

func lookup(v any, path string) (any, bool) {
	for part := range strings.SplitSeq(path, "/") {
		switch at := v.(type) {
		case map[string]any:
			next, ok := at[part]
			if !ok {
				return nil, false
			}
			v = next
		case []any:
			i := slices.IndexFunc(at, func(e any) bool { return named(e, part) })
			if n, err := strconv.Atoi(part); i < 0 && err == nil {
				i = n
			}
			if i < 0 || i >= len(at) {
				return nil, false
			}
			v = at[i]
		default:
			return nil, false
		}
	}
	return v, true
}

func named(v any, name string) bool {
	m, ok := v.(map[string]any)
	if !ok {
		return false
	}
	for _, key := range []string{"id", "path", "host"} {
		if m[key] == name {
			return true
		}
	}
	return m["id"] == nil && m["path"] == nil && m["host"] == nil && m["type"] == name
}

// readJSON holds that a file is one JSON value and nothing else.
func readJSON(ts *testscript.TestScript, file string) any {
	d := json.NewDecoder(strings.NewReader(ts.ReadFile(file)))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		ts.Fatalf("%s: %v", file, err)
	}
	if d.More() {
		ts.Fatalf("%s: something stands behind the JSON", file)
	}
	return v
}

// valid SCHEMA FILE holds that a JSON file is what a schema says.
func validCmd(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: valid SCHEMA FILE")
	}
	err := validate([]byte(ts.ReadFile(args[0])), readJSON(ts, args[1]))
	if (err == nil) == neg {
		ts.Fatalf("%s: %v", args[1], err)
	}
}

func validate(schema []byte, v any) error {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		return fmt.Errorf("schema: %w", err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("mem:///schema.json", doc); err != nil {
		return fmt.Errorf("schema: %w", err)
	}
	s, err := c.Compile("mem:///schema.json")
	if err != nil {
		return fmt.Errorf("schema: %w", err)
	}
	return s.Validate(v)
}

// caVariables are there together, on a host that has a bundle.
var caVariables = []string{"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO"}

// variables FILE NAME... holds that FILE, which env has written, has just these
// variables, and on a host with certificates the ones that name them.
func variablesCmd(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: variables FILE NAME...")
	}
	var got []string
	for line := range strings.Lines(ts.ReadFile(args[0])) {
		name, _, ok := strings.Cut(line, "=")
		if !ok {
			ts.Fatalf("%s: %q is no variable", args[0], line)
		}
		got = append(got, name)
	}
	want := append([]string{}, args[1:]...)
	if slices.Contains(got, caVariables[0]) {
		want = append(want, caVariables...)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		ts.Fatalf("the box's variables are\n  %q\nwant\n  %q", got, want)
	}
}

// lines FILE N holds that a file has N lines.
func linesCmd(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: lines FILE N")
	}
	if n := strings.Count(ts.ReadFile(args[0]), "\n"); strconv.Itoa(n) != args[1] {
		ts.Fatalf("%s has %d lines, want %s", args[0], n, args[1])
	}
}
