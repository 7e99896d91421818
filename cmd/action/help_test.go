package main

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
	"github.com/untrusted-steps/untrusted-steps/internal/session"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// readable holds a page of help to a terminal of the old size and to plain ASCII.
func readable(t *testing.T, name, page string) {
	t.Helper()
	for line := range strings.Lines(page) {
		line = strings.TrimSuffix(line, "\n")
		if len(line) > helpWidth {
			t.Errorf("%s: %d columns: %q", name, len(line), line)
		}
		if strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r > '~' }) || strings.TrimRight(line, " ") != line {
			t.Errorf("%s: %q", name, line)
		}
	}
}

// TestOverview: what there is fits on a screen and a half.
func TestOverview(t *testing.T) {
	page := overview()
	readable(t, "help", page)
	if n := strings.Count(page, "\n"); n > 36 {
		t.Errorf("it has %d lines", n)
	}
	for _, v := range verbs() {
		if named := strings.Contains(page, "\n  "+v.synopsis()+" "); named == v.hidden {
			t.Errorf("%s: in the overview %v", v.name, named)
		}
	}
}

// TestHelpIsComplete: a verb's page has all there is to say of it.
func TestHelpIsComplete(t *testing.T) {
	for _, v := range verbs() {
		if v.hidden {
			continue
		}
		page := v.help()
		readable(t, v.name, page)
		// As one text, since it is wrapped.
		text := strings.Join(strings.Fields(page), " ")
		has := func(what string) {
			t.Helper()
			if !strings.Contains(text, strings.Join(strings.Fields(what), " ")) {
				t.Errorf("the help of %s does not have %q", v.name, what)
			}
		}
		for _, p := range append(v.about, v.does) {
			has(p)
		}
		for _, f := range v.flags {
			if !strings.Contains(page, "\n  "+strings.TrimSpace("--"+f.name+" "+f.arg)+"\n") {
				t.Errorf("the help of %s does not have --%s", v.name, f.name)
			}
			has(f.does)
			switch {
			case f.does == "" || f.set == nil:
				t.Errorf("--%s of %s: no meaning", f.name, v.name)
			case f.arg == "" && f.def+f.without != "":
				t.Errorf("--%s of %s has a default and no value", f.name, v.name)
			case f.required:
				has("Required.")
			case f.arg != "" && f.def == "" && f.without == "":
				t.Errorf("--%s of %s: nothing says what holds without it", f.name, v.name)
			case f.arg != "":
				has("Default: " + f.def + f.without + ".")
			}
			if f.words != nil {
				has(strings.Join(f.words(), ", "))
			}
		}
		if len(v.exits) == 0 || v.exits[0].code != exitPass {
			t.Errorf("the help of %s does not begin its exit statuses with 0", v.name)
		}
		for _, e := range v.exits {
			has(strconv.Itoa(e.code) + " " + e.does)
		}
		for _, e := range append(v.files, v.env...) {
			has(e.name + " " + e.does)
		}
		if n := len(v.examples); n == 0 || n > 4 || n < 2 && (len(v.flags) > 0 || v.takes != nil && v.name != "help") {
			t.Errorf("the help of %s has %d examples", v.name, n)
		}
		for _, e := range v.examples {
			has("# " + e.does + " " + e.line)
		}
	}
	var all []int
	for _, e := range runExits {
		all = append(all, e.code)
	}
	if diff := cmp.Diff([]int{exitPass, exitFail, exitUsage, exitRefused, exitNoVerdict, exitCancelled}, all); diff != "" {
		t.Errorf("exit statuses of run (-want +got)\n%s", diff)
	}
}

// arguments are those of the program in an example of help.
func arguments(t *testing.T, line string) []string {
	t.Helper()
	words := strings.Fields(strings.NewReplacer("<(", "", ")", "").Replace(line))
	at := slices.Index(words, toolName)
	if at < 0 {
		t.Fatalf("%q does not run the program", line)
	}
	words = words[at+1:]
	if end := slices.IndexFunc(words, func(w string) bool { return strings.ContainsAny(w[:1], "<>|") }); end >= 0 {
		words = words[:end]
	}
	return words
}

// notRun are verbs whose examples are parsed and not run, and why.
var notRunExamples = map[string]string{
	"kern":  "what it answers is the machine's, and install fetches",
	"runsc": "build takes minutes of all processors, each time; .ci/run calls it",
}

// TestExamplesOfHelp: what help says can be typed can be.
func TestExamplesOfHelp(t *testing.T) {
	boxtest.Boxes(t)
	dir := boxtest.OpenDir(t)
	ws := filepath.Join(dir, "ws")
	for name, text := range map[string]string{
		"ws/steps.yml":                "steps:\n  - {id: build, run: touch built}\n  - {id: test, run: 'true'}\n",
		"ws/report.json":              `{"schema": 1, "verdict": "pass", "steps": []}`,
		"policy.yml":                  "memoryMb: 1024\n",
		"home/.keep":                  "",
		"home/project/.x":             "",
		"home/agent.yml":              "defaults: {memoryMb: 256}\n",
		"home/.zfunc/.x":              "",
		"home/.config/fish/conf.d/.x": "",
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	shell := func(name, line string) {
		t.Helper()
		cmd := exec.Command(name, "-c", line)
		cmd.Dir = ws
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Join(dir, "home"), "KERN_BIN=" + os.Getenv("KERN_BIN")}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", line, err, out)
		}
	}
	for _, n := range []string{"1", "2"} {
		shell("sh", "untrusted-steps run --shard "+n+"/2 --out ../part-"+n+" steps.yml")
	}
	for _, v := range verbs() {
		t.Run(v.name, func(t *testing.T) {
			for _, e := range v.examples {
				args := arguments(t, e.line)
				if args[0] != v.name {
					t.Errorf("an example of %s is about %s", v.name, args[0])
				}
				if _, err := v.parse(args[1:]); err != nil {
					t.Errorf("%s: %v", e.line, err)
				}
				switch {
				case notRunExamples[v.name] != "":
				case strings.Contains(e.line, "<("):
					bash, err := exec.LookPath("bash")
					need.Met(t, "bash", err)
					shell(bash, e.line)
				default:
					shell("sh", e.line)
				}
			}
		})
	}
}

// TestStepsFileOfHelp: the steps file that help shows is one.
func TestStepsFileOfHelp(t *testing.T) {
	p, err := steps.Load("f.yml", []byte(aSteps), steps.Options{Workspace: t.TempDir()})
	if err != nil || len(p.Steps) != 2 {
		t.Errorf("%v\n%s", err, aSteps)
	}
}

// TestHelpOfProofs: who runs boxes proves, and says so, and where that is remembered.
func TestHelpOfProofs(t *testing.T) {
	kept := session.ProofDir(func(name string) string { return map[string]string{"XDG_STATE_HOME": "/state"}[name] }, "/w")
	for name, words := range map[string][]string{
		"run":    {strings.Replace(kept, "/state", "$XDG_STATE_HOME", 1), "XDG_STATE_HOME", "--fresh-proof", "proved", "remembered"},
		"doctor": {"proved", "remembered"},
	} {
		help := strings.Join(strings.Fields(verbOf(name).help()), " ")
		for _, want := range words {
			if !strings.Contains(help, want) {
				t.Errorf("help %s does not say %q", name, want)
			}
		}
	}
}

// TestVariablesAreDocumented: each variable that the program reads by its name
// stands in the help of some verb.
func TestVariablesAreDocumented(t *testing.T) {
	documented := map[string]bool{}
	for _, v := range verbs() {
		for _, e := range v.env {
			for name := range strings.SplitSeq(e.name, ", ") {
				documented[name] = true
			}
		}
	}
	read := variablesRead(t, "cmd/action", "internal/kern", "internal/limits", "internal/rootfs", "internal/gha", "internal/gha/checks", "internal/steps")
	if len(read) < 20 {
		t.Fatalf("the sources are said to read only %v", read)
	}
	for name := range read {
		if !documented[name] {
			t.Errorf("%s reads %s, which no help names", read[name], name)
		}
	}
}

// variablesRead gives the variables that sources look up by a name of their own,
// and where.
func variablesRead(t *testing.T, dirs ...string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, dir := range dirs {
		files, err := filepath.Glob(filepath.Join(moduleRoot(t), dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok || len(call.Args) != 1 {
					return true
				}
				name := ""
				switch fn := call.Fun.(type) {
				case *ast.Ident:
					name = fn.Name
				case *ast.SelectorExpr:
					name = fn.Sel.Name
				}
				if lit, ok := call.Args[0].(*ast.BasicLit); ok && slices.Contains([]string{"getenv", "lookupenv"}, strings.ToLower(name)) {
					if v, err := strconv.Unquote(lit.Value); err == nil {
						out[v] = dir
					}
				}
				return true
			})
		}
	}
	return out
}

// TestParse: flags are read wherever they stand, in every way to write them.
func TestParse(t *testing.T) {
	run := verbOf("run")
	for line, want := range map[string]options{
		"f.yml":                                 {file: "f.yml", engine: "auto", jobs: 1, hostSetup: "off"},
		"-":                                     {file: "-", engine: "auto", jobs: 1, hostSetup: "off"},
		"f.yml --engine native":                 {file: "f.yml", engine: "native", jobs: 1, hostSetup: "off"},
		"--engine=kern -jobs 3 f.yml --json":    {file: "f.yml", engine: "kern", jobs: 3, hostSetup: "off", json: true},
		"--json=false --only-report=true f.yml": {file: "f.yml", engine: "auto", jobs: 1, hostSetup: "off", onlyReport: true},
		"--only a,b --only c f.yml":             {file: "f.yml", engine: "auto", jobs: 1, hostSetup: "off", only: "c"},
		"--out --json f.yml":                    {file: "f.yml", engine: "auto", jobs: 1, hostSetup: "off", out: "--json"},
		"-- --json":                             {file: "--json", engine: "auto", jobs: 1, hostSetup: "off"},
		"--json -- -x":                          {file: "-x", engine: "auto", jobs: 1, hostSetup: "off", json: true},
	} {
		got, err := run.parse(strings.Fields(line))
		want.verb, want.operands = "run", []string{want.file}
		if err != nil {
			t.Errorf("%s: %v", line, err)
		} else if diff := cmp.Diff(want, got, cmp.AllowUnexported(options{})); diff != "" {
			t.Errorf("%s (-want +got)\n%s", line, diff)
		}
	}
	if _, err := run.parse([]string{"f.yml", "--help"}); !errors.Is(err, errHelp) {
		t.Errorf("--help: %v", err)
	}
}

// TestMistakesNameTheNextStep: whoever is stopped is told the way on, in a line of
// its own, and each message of the program says it.
func TestMistakesNameTheNextStep(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(moduleRoot(t), "cmd/action/*.go"))
	if err != nil {
		t.Fatal(err)
	}
	seen, lone := 0, map[string]int{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		called := func(n ast.Node, method string) *ast.CallExpr {
			if call, ok := n.(*ast.CallExpr); ok {
				if s, ok := call.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == method {
					return call
				}
			}
			return nil
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if called(n, "wrong") != nil {
				seen++
				lone[filepath.Base(file)]++
			}
			if next := called(n, "next"); next != nil && called(next.Args[0], "wrong") != nil {
				lone[filepath.Base(file)]--
			}
			return true
		})
	}
	maps.DeleteFunc(lone, func(_ string, n int) bool { return n == 0 })
	if seen < 30 || len(lone) > 0 {
		t.Errorf("of %d calls of wrong these are not in a call of next: %v", seen, lone)
	}
}
