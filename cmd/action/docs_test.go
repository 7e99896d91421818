package main

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/report"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

func document(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(moduleRoot(t), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func same(t *testing.T, what string, want, got []string) {
	t.Helper()
	want, got = slices.Sorted(slices.Values(want)), slices.Sorted(slices.Values(got))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got)\n%s", what, diff)
	}
}

var codeWord = regexp.MustCompile("`([^`]+)`")

// column gives the words in code of the first column of the table whose first
// heading is head.
func column(t *testing.T, text, head string) []string {
	t.Helper()
	var out []string
	in := false
	for line := range strings.Lines(text) {
		cells := strings.Split(line, "|")
		switch {
		case len(cells) < 3:
			in = false
		case strings.TrimSpace(cells[1]) == head:
			in = true
		case in:
			for _, m := range codeWord.FindAllStringSubmatch(cells[1], -1) {
				out = append(out, m[1])
			}
		}
	}
	if len(out) == 0 {
		t.Fatalf("there is no table headed %q", head)
	}
	return out
}

// inputNames are the inputs that the program reads.
func inputNames() []string {
	var out []string
	for f := range reflect.TypeFor[gha.Inputs]().Fields() {
		out = append(out, inputName(f.Name))
	}
	return out
}

// inputName is the input that a field holds: CheckRun is check-run.
func inputName(field string) string {
	return strings.ToLower(regexp.MustCompile(`([a-z])([A-Z])`).ReplaceAllString(field, "$1-$2"))
}

// variableOf is what action.yml hands an input on in. Shells know no dash in a
// name.
func variableOf(input string) string {
	return "UNTRUSTED_STEPS_" + strings.ToUpper(strings.ReplaceAll(input, "-", "_"))
}

// TestInputsAndOutputsAgree: action.yml, the program and the README name the
// same inputs and outputs.
func TestInputsAndOutputsAgree(t *testing.T) {
	m := readManifest(t)
	inputs := slices.Collect(maps.Keys(m.Inputs))
	same(t, "inputs of the program and of action.yml", inputNames(), inputs)
	same(t, "inputs of action.yml and of the README", inputs, column(t, document(t, "README.md"), "input"))

	outputs := slices.Collect(maps.Keys(m.Outputs))
	same(t, "outputs of the program and of action.yml", gha.OutputNames, outputs)
	readme := document(t, "README.md")
	list := regexp.MustCompile(`Outputs \(([^)]+)\)`).FindStringSubmatch(readme)
	if list == nil {
		t.Fatal("the README has no list of outputs")
	}
	var named []string
	for _, w := range codeWord.FindAllStringSubmatch(list[1], -1) {
		named = append(named, w[1])
	}
	same(t, "outputs of action.yml and of the README", outputs, named)

	step := m.Runs.Steps[0]
	for name, o := range m.Outputs {
		if want := "${{ steps." + step.ID + ".outputs." + name + " }}"; o.Value != want {
			t.Errorf("output %s is %s, want %s", name, o.Value, want)
		}
	}
	for name := range m.Inputs {
		variable := variableOf(name)
		if want := "${{ inputs." + name + " }}"; step.Env[variable] != want {
			t.Errorf("%s is %q, want %s", variable, step.Env[variable], want)
		}
	}
	// And the program reads just these variables.
	for f := range reflect.TypeFor[gha.Inputs]().Fields() {
		name := inputName(f.Name)
		getenv := func(v string) string {
			switch v {
			case variableOf(name):
				return "value"
			case "UNTRUSTED_STEPS_FILE":
				if name != "steps" {
					return "f.yml"
				}
			}
			return ""
		}
		in, err := gha.Env{Getenv: getenv}.Inputs()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if got := reflect.ValueOf(in).FieldByName(f.Name).String(); got != "value" {
			t.Errorf("input %s is read as %q", name, got)
		}
	}
}

// TestDefaultsAgree: the defaults in action.yml are those in the README.
func TestDefaultsAgree(t *testing.T) {
	m := readManifest(t)
	inputs, _, _ := strings.Cut(document(t, "README.md"), "<!-- keys -->") // a key may have an input's name
	for line := range strings.Lines(inputs) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			continue
		}
		name := strings.Trim(strings.TrimSpace(cells[1]), "`")
		in, ok := m.Inputs[name]
		if !ok || in.Default == "" {
			continue
		}
		if got := strings.Trim(strings.TrimSpace(cells[2]), "`"); got != in.Default {
			t.Errorf("input %s defaults to %q in action.yml and to %q in the README", name, in.Default, got)
		}
	}
}

// TestKeysAgree: the README's table of keys has every key that there is.
func TestKeysAgree(t *testing.T) {
	readme := document(t, "README.md")
	_, rest, ok := strings.Cut(readme, "<!-- keys -->")
	if !ok {
		t.Fatal("the README has no table of keys")
	}
	built := schemaKeys(t)
	same(t, "keys of the schema and of the README", built, column(t, rest, "key"))

	same(t, "keys of the format and of the schema", formatKeys, built)
}

// formatKeys are the keys of the format: none of them may get lost.
var formatKeys = strings.Fields(`
	id name run command code language engine image setup setupEgress setupTimeoutS setupCache env passEnv workdir memoryMb pids cpus timeoutS requireLimits diskMb
	network egressAllow egressDeny egressMode egressMaxBytes expectDenied mounts tmpfs capDrop profiles apparmor securityProfile
	enforceLimits maxOutputBytes trackFiles depsReadonly kernel needs allowChanges onFailure continueOnError retries tolerate expect`)

// schemaKeys are the keys of a step in the published schema.
func schemaKeys(t *testing.T) []string {
	t.Helper()
	var s struct {
		Defs map[string]struct {
			Properties map[string]any `json:"properties"`
		} `json:"$defs"`
		Properties map[string]struct {
			Items struct {
				Properties map[string]any `json:"properties"`
				Ref        string         `json:"$ref"`
			} `json:"items"`
		} `json:"properties"`
	}
	if err := json.Unmarshal(steps.Schema(), &s); err != nil {
		t.Fatal(err)
	}
	item := s.Properties["steps"].Items
	props := item.Properties
	if item.Ref != "" {
		props = s.Defs[strings.TrimPrefix(item.Ref, "#/$defs/")].Properties
	}
	if len(props) == 0 {
		t.Fatal("the schema has no keys of a step")
	}
	return slices.Collect(maps.Keys(props))
}

// TestKeyDefaultsAgree: the defaults in the README are those of the schema.
func TestKeyDefaultsAgree(t *testing.T) {
	var s struct {
		Properties struct {
			Defaults struct {
				Properties map[string]struct {
					Default json.RawMessage `json:"default"`
				} `json:"properties"`
			} `json:"defaults"`
		} `json:"properties"`
	}
	if err := json.Unmarshal(steps.Schema(), &s); err != nil {
		t.Fatal(err)
	}
	// How the README writes what JSON writes otherwise.
	spelled := map[string]string{
		"": "none", "{}": "none", "[]": "none", `["ALL"]`: "[ALL]", "67108864": "64 MiB",
		`{"exitCode":0}`: "{exitCode: 0}", `{"/tmp":"64m"}`: "/tmp: 64m",
	}
	compared := 0
	_, rest, _ := strings.Cut(document(t, "README.md"), "<!-- keys -->")
	for line := range strings.Lines(rest) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			if compared > 0 {
				break
			}
			continue
		}
		names := codeWord.FindAllStringSubmatch(cells[1], -1)
		written := strings.Split(strings.ReplaceAll(cells[2], "`", ""), ",")
		for i, m := range names {
			key, ok := s.Properties.Defaults.Properties[m[1]]
			if !ok {
				continue // what one step is has no default
			}
			var v any
			if len(key.Default) > 0 {
				if err := json.Unmarshal(key.Default, &v); err != nil {
					t.Fatal(err)
				}
			}
			want := ""
			if v != nil {
				b, err := json.Marshal(v)
				if err != nil {
					t.Fatal(err)
				}
				want = strings.Trim(string(b), `"`)
			}
			if w, ok := spelled[want]; ok {
				want = w
			}
			got := strings.TrimSpace(written[min(i, len(written)-1)])
			if got != want {
				t.Errorf("%s defaults to %q in the README and to %q in the schema", m[1], got, want)
			}
			compared++
		}
	}
	if compared < 15 {
		t.Errorf("only %d defaults were compared", compared)
	}
}

// TestFaultsAreDocumented: every fault has its section, in the order of
// precedence, and the README's table has them all.
func TestFaultsAreDocumented(t *testing.T) {
	var want []string
	for _, k := range box.Kinds {
		want = append(want, string(k.Type))
	}
	var sections []string
	for line := range strings.Lines(document(t, "docs/faults.md")) {
		if s, ok := strings.CutPrefix(line, "## "); ok {
			sections = append(sections, strings.TrimSpace(s))
		}
	}
	if diff := cmp.Diff(want, sections); diff != "" {
		t.Errorf("sections of docs/faults.md (-want +got)\n%s", diff)
	}
	got := column(t, document(t, "README.md"), "fault")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("faults in the README's table (-want +got)\n%s", diff)
	}
}

// TestViolationsAreDocumented: the README and docs/faults.md have every type of
// violation, and the words of what became of a step's writes are explained.
func TestViolationsAreDocumented(t *testing.T) {
	var want []string
	for _, k := range report.ViolationKinds {
		want = append(want, k.Type)
	}
	same(t, "violations in the README", want, column(t, document(t, "README.md"), "violation"))
	same(t, "violations in docs/faults.md", want, column(t, document(t, "docs/faults.md"), "violation"))
	for _, word := range []string{"committed", "discarded", "kept", "unchanged", "loop", "tmpfs", "sampler"} {
		if !strings.Contains(document(t, "docs/workspace.md"), "| `"+word+"` |") {
			t.Errorf("docs/workspace.md has no row with %s", word)
		}
	}
}

// TestFlagsAreDocumented: the README's command lines have every verb and every flag.
func TestFlagsAreDocumented(t *testing.T) {
	readme := document(t, "README.md")
	for _, v := range verbs() {
		if !v.hidden && !regexp.MustCompile("(`|"+toolName+" )"+v.name+"[ `]").MatchString(readme) {
			t.Errorf("the README has no verb %s", v.name)
		}
		for _, f := range v.flags {
			if !strings.Contains(readme, "--"+f.name) {
				t.Errorf("the README has no --%s, which %s has", f.name, v.name)
			}
		}
	}
}

// TestExitsAreDocumented: the README's table has each exit status, and help too.
func TestExitsAreDocumented(t *testing.T) {
	var got []string
	in := false
	for line := range strings.Lines(document(t, "README.md")) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			in = false
			continue
		}
		first := strings.TrimSpace(cells[1])
		if in && first != "" && !strings.HasPrefix(first, "-") {
			got = append(got, first)
		}
		in = in || first == "exit"
	}
	if diff := cmp.Diff([]string{"0", "1", "2", "3", "4", "130"}, got); diff != "" {
		t.Errorf("exit statuses in the README (-want +got)\n%s", diff)
	}
}

// TestREADMEExamples: the steps files of the README load, its workflow is one
// that actionlint takes, and its commands name things that are there.
func TestREADMEExamples(t *testing.T) {
	readme := document(t, "README.md")
	// A machine that is set up for a mirror: a preset stands for what a machine has.
	home := t.TempDir()
	a := &app{
		getenv: func(string) string { return "" }, lookupEnv: func(string) (string, bool) { return "", false },
		environ: func() []string {
			return []string{"HOME=" + home, "NPM_CONFIG_REGISTRY=https://packages.example.com/"}
		},
	}
	files, snippets := 0, 0
	for _, block := range indented(readme) {
		switch {
		case strings.Contains(block, "\nsteps:\n"):
			files++
			if _, err := steps.Load("README.md", []byte(block), a.loadOptions(&options{file: "README.md", workspace: t.TempDir()})); err != nil {
				t.Errorf("a steps file of the README: %v\n%s", err, block)
			}
		case strings.Contains(block, "uses: untrusted-steps/untrusted-steps@"):
			snippets++
			for _, e := range lint(t, "README.yml", []byte(block)) {
				t.Error(e)
			}
			for what, want := range map[string]string{
				"nothing but reading": "permissions: { contents: read }",
				"a report that stays": "actions/upload-artifact@",
			} {
				if !strings.Contains(block, want) {
					t.Errorf("the workflow of the README, which people copy, lacks %s (%s)", what, want)
				}
			}
			copied(t, "the README", block)
		}
	}
	if files == 0 || snippets == 0 {
		t.Errorf("the README has %d steps files and %d workflows", files, snippets)
	}
	for _, m := range regexp.MustCompile(`\]\(([^)#:]+)\)`).FindAllStringSubmatch(readme, -1) {
		if _, err := os.Stat(filepath.Join(moduleRoot(t), m[1])); err != nil {
			t.Errorf("the README links to %s: %v", m[1], err)
		}
	}
}

// copied holds a workflow that people copy to what each must have that runs a
// change's own code.
func copied(t *testing.T, where, block string) {
	t.Helper()
	for what, want := range map[string]string{
		"the steps file of the base branch": "github.event.pull_request.base.sha",
		"and not that of the change":        "file: base/",
		"no token in the checkout":          "path: change, persist-credentials: false",
		"a Go to build the action with":     "actions/setup-go@",
	} {
		if !strings.Contains(block, want) {
			t.Errorf("the workflow of %s, which people copy, lacks %s (%s)", where, what, want)
		}
	}
	// The action adds what is missing for itself alone, unless it is told not to.
	for _, never := range []string{"sysctl", "host-setup"} {
		if strings.Contains(block, never) {
			t.Errorf("the workflow of %s, which people copy, has %s", where, never)
		}
	}
}

// TestExampleWorkflowsLiftNothing: the action adds what is missing for itself alone. A
// workflow that lifts a restriction for all programs of a machine says so by the
// action's own word, and does not do it by hand, where nobody puts it back.
func TestExampleWorkflowsLiftNothing(t *testing.T) {
	examples, err := filepath.Glob(filepath.Join(moduleRoot(t), "examples/workflows/*.yml"))
	if err != nil || len(examples) == 0 {
		t.Fatal(err)
	}
	byHand := regexp.MustCompile(`sysctl|/proc/sys/|apparmor_(restrict|parser)`)
	for _, path := range examples {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if byHand.MatchString(strings.ReplaceAll(line, "host-setup: sysctl", "")) {
				t.Errorf("%s: %s", path, strings.TrimSpace(line))
			}
		}
	}
}

// TestUnreleasedIsSaid: whoever copies a workflow that names a version must read
// that there is none yet, for as long as docs/releasing.md says so.
func TestUnreleasedIsSaid(t *testing.T) {
	if !strings.Contains(document(t, "docs/releasing.md"), "No release was made yet") {
		return
	}
	const said = "@v1 # until the first release: a commit of main"
	examples, err := filepath.Glob(filepath.Join(moduleRoot(t), "examples/workflows/*.yml"))
	if err != nil || len(examples) == 0 {
		t.Fatal(err)
	}
	for _, path := range append(examples, filepath.Join(moduleRoot(t), "docs/checks.md")) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if n, m := strings.Count(string(b), toolName+"@v1"), strings.Count(string(b), said); n == 0 || n != m {
			t.Errorf("%s names the action %d times, and says %d times that there is no v1", path, n, m)
		}
	}
	if !strings.Contains(document(t, "README.md"), "No release was made yet, so there is no `v1`") {
		t.Error("the README does not say that there is no v1")
	}
}

// TestUnseenIsSaid: whoever copies the workflow reads that its way was not seen on the
// machines it is for, and what else there is, until docs/hosts.md says that it was.
func TestUnseenIsSaid(t *testing.T) {
	row := regexp.MustCompile(`(?m)^\| GitHub-hosted, ubuntu-24\.04.*\| ([^|]*) \|$`).FindStringSubmatch(document(t, "docs/hosts.md"))
	if row == nil {
		t.Fatal("docs/hosts.md has no row for ubuntu-24.04")
	}
	if !strings.HasPrefix(row[1], "read;") {
		return
	}
	for _, want := range []string{"never yet on GitHub's own machines", "`host-setup: sysctl`"} {
		if !strings.Contains(document(t, "README.md"), want) {
			t.Errorf("the README does not say %s", want)
		}
	}
}

// TestChecksExample: the workflow in docs/checks.md is one that actionlint takes,
// it asks for every permission that an input needs, and the document's links lead
// somewhere.
func TestChecksExample(t *testing.T) {
	text, found := document(t, "docs/checks.md"), false
	for _, block := range indented(text) {
		if !strings.HasPrefix(block, "on: pull_request\n") {
			continue
		}
		found = true
		for _, e := range lint(t, "docs/checks.yml", []byte(block)) {
			t.Error(e)
		}
		copied(t, "docs/checks.md", block)
		m := readManifest(t)
		for input, permission := range map[string]string{"check-run": "checks", "comment": "pull-requests", "commit-status": "statuses"} {
			if !strings.Contains(block, permission+": write # "+input+"\n") || !strings.Contains(block, "\n          "+input+": ") {
				t.Errorf("the workflow does not use %s with the permission %s", input, permission)
			}
			if words := strings.ReplaceAll(m.Inputs[input].Description, "Needs the permission ", "Needs "); !strings.Contains(words, "Needs "+permission+" write") {
				t.Errorf("action.yml does not say that %s needs %s: write: %s", input, permission, words)
			}
		}
	}
	if !found {
		t.Error("docs/checks.md has no workflow")
	}
	for _, m := range regexp.MustCompile(`\]\(([^)#:]+)\)`).FindAllStringSubmatch(text, -1) {
		if _, err := os.Stat(filepath.Join(moduleRoot(t), "docs", m[1])); err != nil {
			t.Errorf("docs/checks.md links to %s: %v", m[1], err)
		}
	}
}

// indented gives the code blocks of a document.
func indented(text string) []string {
	var out []string
	var b strings.Builder
	for line := range strings.Lines(text + "\nend\n") {
		code, ok := strings.CutPrefix(line, "    ")
		switch {
		case ok:
			b.WriteString(code)
		case b.Len() > 0 && strings.TrimSpace(line) == "":
			b.WriteString(line)
		case b.Len() > 0:
			out = append(out, b.String())
			b.Reset()
		}
	}
	return out
}

// TestExamplesLoad: every steps file and policy that people copy is one.
func TestExamplesLoad(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(moduleRoot(t), "examples/*.yml"))
	if err != nil || len(files) < 5 {
		t.Fatalf("the examples are not found: %v %v", files, err)
	}
	a := &app{getenv: func(string) string { return "" }, lookupEnv: func(string) (string, bool) { return "", false }, environ: func() []string { return []string{"HOME=" + t.TempDir()} }}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		opt := a.loadOptions(&options{file: file, workspace: t.TempDir()})
		if filepath.Base(file) == "policy.yml" {
			_, err = steps.LoadPolicy(file, text, opt)
		} else {
			_, err = steps.Load(file, text, opt)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// TestPolicyIsDocumented: docs/policy.md has every key of the schema, and the
// example is a policy.
func TestPolicyIsDocumented(t *testing.T) {
	var s struct {
		Properties map[string]any `json:"properties"`
	}
	if err := json.Unmarshal(steps.PolicySchema(), &s); err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(document(t, "docs/policy.md"), "<!-- policy keys -->")
	if !ok {
		t.Fatal("docs/policy.md has no table of keys")
	}
	same(t, "keys of the schema and of docs/policy.md", slices.Collect(maps.Keys(s.Properties)), column(t, rest, "key"))

	a := &app{getenv: func(string) string { return "" }, lookupEnv: func(string) (string, bool) { return "", false }}
	opt := a.loadOptions(&options{file: "f.yml", workspace: t.TempDir()})
	var err error
	if opt.Policy, err = steps.LoadPolicy("examples/policy.yml", []byte(document(t, "examples/policy.yml")), opt); err != nil {
		t.Fatal(err)
	}
	for src, within := range map[string]bool{
		"steps: [{id: tests, run: npm test, egressAllow: ['github.com:443']}]": true,
		"steps: [{id: tests, run: npm test, network: true}]":                   false,
		"steps: [{id: tests, run: 'true'}]":                                    false,
	} {
		if _, err := steps.Load("f.yml", []byte(src), opt); (err == nil) != within {
			t.Errorf("%s: %v", src, err)
		}
	}
}
