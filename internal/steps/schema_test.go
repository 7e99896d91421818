package steps

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	generate "github.com/invopop/jsonschema"
	validate "github.com/santhosh-tekuri/jsonschema/v6"
)

var update = flag.Bool("update", false, "write the schemas and goldens anew")

// The methods below say how the types look in the file, for the generator.

func oneOf(s ...*generate.Schema) *generate.Schema { return &generate.Schema{OneOf: s} }
func ofType(t string) *generate.Schema             { return &generate.Schema{Type: t} }
func object() *generate.Schema {
	return &generate.Schema{Type: "object", Properties: generate.NewProperties(), AdditionalProperties: generate.FalseSchema}
}

func (script) JSONSchema() *generate.Schema   { return oneOf(ofType("string"), ofType("boolean")) }
func (argument) JSONSchema() *generate.Schema { return scalar() }
func scalar() *generate.Schema {
	return oneOf(ofType("string"), ofType("number"), ofType("boolean"))
}

func (environment) JSONSchema() *generate.Schema {
	return &generate.Schema{Type: "object", PropertyNames: &generate.Schema{Pattern: envPattern}, AdditionalProperties: scalar()}
}

func (names) JSONSchema() *generate.Schema {
	return oneOf(ofType("string"), &generate.Schema{Type: "array", Items: ofType("string"), UniqueItems: true})
}

func (mounts) JSONSchema() *generate.Schema {
	target := &generate.Schema{Type: "string", Pattern: absPattern}
	two := uint64(2)
	pair := &generate.Schema{Type: "array", PrefixItems: []*generate.Schema{target, {Enum: []any{"ro", "rw"}}}, Items: generate.FalseSchema, MinItems: &two}
	return &generate.Schema{Type: "object", PropertyNames: &generate.Schema{Pattern: absPattern}, AdditionalProperties: oneOf(target, pair)}
}

func (tmpfs) JSONSchema() *generate.Schema {
	path := &generate.Schema{Type: "string", Pattern: absPattern}
	return oneOf(
		&generate.Schema{Type: "object", PropertyNames: &generate.Schema{Pattern: absPattern}, AdditionalProperties: &generate.Schema{Type: "string", Pattern: sizePattern}},
		&generate.Schema{Type: "array", Items: path, UniqueItems: true})
}

func (rules) JSONSchema() *generate.Schema {
	marked := object()
	marked.Properties.Set("to", ofType("string"))
	marked.Properties.Set("private", ofType("boolean"))
	marked.Properties.Set("force", ofType("boolean"))
	marked.Required = []string{"to"}
	return &generate.Schema{Type: "array", UniqueItems: true, Items: oneOf(ofType("string"), marked)}
}

func (expectation) JSONSchema() *generate.Schema {
	code, fault := object(), object()
	code.Properties.Set("exitCode", &generate.Schema{Type: "integer", Minimum: "0", Maximum: "255"})
	code.Required = []string{"exitCode"}
	fault.Properties.Set("fault", &generate.Schema{Enum: anys(faultWords())})
	fault.Required = []string{"fault"}
	return oneOf(code, fault)
}

func anys(words []string) []any {
	var out []any
	for _, w := range words {
		out = append(out, w)
	}
	return out
}

// stepsFileSchema generates the schema from the struct that the decoder fills
// and the table of keys that fills it.
func stepsFileSchema(t *testing.T) []byte {
	t.Helper()
	r := &generate.Reflector{Anonymous: true, DoNotReference: true, ExpandedStruct: true}
	s := r.Reflect(&file{})
	s.Title = "Steps file of untrusted-steps"
	s.Description = "A list of steps that nobody has read yet. Each runs in its own box."
	version, _ := s.Properties.Get("version")
	version.Const = 1
	for name, doc := range fileKeys {
		prop, ok := s.Properties.Get(name)
		if !ok {
			t.Fatalf("fileKeys has %q, the struct has not", name)
		}
		prop.Description = doc
	}
	list, _ := s.Properties.Get("steps")
	one, most := uint64(1), uint64(maxSteps)
	list.MinItems, list.MaxItems = &one, &most
	decorate(t, list.Items, false)
	list.Items.OneOf = []*generate.Schema{{Required: []string{"run"}}, {Required: []string{"command"}}, {Required: []string{"code"}}}
	defaults, _ := s.Properties.Get("defaults")
	decorate(t, defaults, true)
	return indented(t, s)
}

// decorate puts what the table of keys says into the schema of a step.
func decorate(t *testing.T, s *generate.Schema, inDefaults bool) {
	t.Helper()
	for _, k := range stepKeys {
		prop, ok := s.Properties.Get(k.name)
		if !ok {
			t.Fatalf("key %q: the struct has no field for it", k.name)
		}
		if inDefaults && k.perStep {
			s.Properties.Delete(k.name)
			continue
		}
		item := prop
		if prop.Type == "array" {
			item = prop.Items
			prop.UniqueItems = k.name != "command"
		}
		switch {
		case k.words != nil:
			item.Enum = anys(k.words)
		case k.pattern != "" && item.Type == "string":
			item.Pattern = k.pattern
		}
		if k.max > 0 {
			switch prop.Type {
			case "string":
				lo, hi := uint64(1), uint64(k.max)
				prop.MinLength, prop.MaxLength = &lo, &hi
			default:
				prop.Minimum, prop.Maximum = number(k.min), number(k.max)
			}
		}
		if k.name == "command" {
			one := uint64(1)
			prop.MinItems = &one
		}
		if k.null {
			was := *prop
			*prop = *oneOf(&was, ofType("null"))
		}
		prop.Description = k.doc
		prop.Default = k.def
	}
	for p := s.Properties.Oldest(); p != nil; p = p.Next() {
		if _, ok := stepKey(p.Key); !ok {
			t.Fatalf("the struct has %q, the table of keys has not", p.Key)
		}
	}
}

func number(f float64) json.Number {
	return json.Number(strconv.FormatFloat(f, 'f', -1, 64))
}

// reportFileSchema generates the schema of report.json from Result.
func reportFileSchema(t *testing.T) []byte {
	t.Helper()
	r := &generate.Reflector{Anonymous: true, DoNotReference: true, ExpandedStruct: true, AllowAdditionalProperties: true}
	for _, dir := range []string{"steps", "box"} {
		if err := r.AddGoComments("github.com/untrusted-steps/untrusted-steps/internal/"+dir, "../"+dir); err != nil {
			t.Fatal(err)
		}
	}
	// The generator joins both arguments; the types know only the first.
	for name, text := range r.CommentMap {
		if i := strings.Index(name, "/../"); i >= 0 {
			rest := name[i+len("/../"):]
			r.CommentMap["github.com/untrusted-steps/untrusted-steps/internal/"+rest] = text
		}
	}
	s := r.Reflect(&Result{})
	s.Title = "report.json of untrusted-steps"
	schema, _ := s.Properties.Get("schema")
	schema.Const = 1
	nullable(s, reflect.TypeFor[Result]())
	return indented(t, s)
}

// nullable lets null stand where the Go type is a pointer that is always
// written.
func nullable(s *generate.Schema, typ reflect.Type) {
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, omit, _ := strings.Cut(f.Tag.Get("json"), ",")
		prop, ok := s.Properties.Get(name)
		if !ok {
			continue
		}
		inner, innerSchema := f.Type, prop
		for inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice {
			if inner.Kind() == reflect.Slice {
				innerSchema = innerSchema.Items
			}
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Struct && innerSchema != nil && innerSchema.Properties != nil {
			nullable(innerSchema, inner)
		}
		if f.Type.Kind() == reflect.Pointer && omit == "" {
			was := *prop
			*prop = *oneOf(&was, ofType("null"))
			prop.Description, was.Description = was.Description, ""
		}
	}
}

func indented(t *testing.T, v any) []byte {
	t.Helper()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestSchemaIsWhatTheTypesSay(t *testing.T) {
	for _, tc := range []struct {
		file string
		want []byte
		got  []byte
	}{
		{"steps.schema.json", stepsFileSchema(t), Schema()},
		{"report.schema.json", reportFileSchema(t), ReportSchema()},
		{"policy.schema.json", policyFileSchema(t), PolicySchema()},
	} {
		t.Run(tc.file, func(t *testing.T) {
			if *update {
				if err := os.WriteFile(filepath.Join("schema", tc.file), tc.want, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(tc.want), string(tc.got)); diff != "" {
				t.Errorf("schema/%s differs from the types (-types +file); run go test -run Schema -update:\n%s", tc.file, diff)
			}
		})
	}
}

func compiled(t *testing.T, schema []byte) *validate.Schema {
	t.Helper()
	doc, err := validate.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		t.Fatal(err)
	}
	c := validate.NewCompiler()
	if err := c.AddResource("schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// asJSON reads YAML the way an editor hands it to a schema.
func asJSON(t *testing.T, src string) any {
	t.Helper()
	root, errs := parse("steps.yml", []byte(src))
	if errs != nil {
		t.Fatal(errs)
	}
	b, err := json.Marshal(plainValue(root))
	if err != nil {
		t.Fatal(err)
	}
	out, err := validate.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func plainValue(v value) any {
	switch v.kind {
	case intKind, floatKind:
		return json.Number(v.text)
	case boolKind:
		return v.text == "true"
	case nullKind:
		return nil
	case listKind:
		out := []any{}
		for _, item := range v.items {
			out = append(out, plainValue(item))
		}
		return out
	case mapKind:
		out := map[string]any{}
		for _, p := range v.pairs {
			out[p.key.text] = plainValue(p.val)
		}
		return out
	}
	return v.text
}

func TestSchemaAcceptsEveryGoodFile(t *testing.T) {
	s := compiled(t, Schema())
	files, _ := filepath.Glob("testdata/ok/*.yml")
	if len(files) == 0 {
		t.Fatal("no files in testdata/ok")
	}
	for _, name := range files {
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Validate(asJSON(t, string(src))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSchemaRefuses(t *testing.T) {
	s := compiled(t, Schema())
	if err := s.Validate(asJSON(t, "steps: [{run: 'true'}]")); err != nil {
		t.Fatalf("the smallest file is refused, so the refusals below say nothing: %v", err)
	}
	for sentence, src := range map[string]string{
		"a file without steps":                 "version: 1",
		"an empty list of steps":               "steps: []",
		"another version":                      "version: 2\nsteps: [{run: x}]",
		"an unknown key of the file":           "step: []\nsteps: [{run: x}]",
		"an unknown key of a step":             "steps: [{run: x, timeout: 3}]",
		"a step with run and code":             "steps: [{run: x, code: x}]",
		"a step with nothing to run":           "steps: [{name: x}]",
		"a step with run and command":          "steps: [{run: x, command: [y]}]",
		"run in defaults":                      "defaults: {run: x}\nsteps: [{run: x}]",
		"an id with a slash":                   "steps: [{run: x, id: a/b}]",
		"a command in one text":                "steps: [{command: ls -l}]",
		"an empty command":                     "steps: [{command: []}]",
		"a language that does not exist":       "steps: [{run: x, language: perl}]",
		"an image with a blank":                "steps: [{run: x, image: 'al pine:3'}]",
		"a variable with a dash":               "steps: [{run: x, env: {a-b: c}}]",
		"a variable that is a list":            "steps: [{run: x, env: {a: [b]}}]",
		"memory below the smallest":            "steps: [{run: x, memoryMb: 1}]",
		"half a process":                       "steps: [{run: x, pids: 2.5}]",
		"no time at all":                       "steps: [{run: x, timeoutS: 0}]",
		"yes in place of true":                 "steps: [{run: x, network: 'yes'}]",
		"a rule map with an unknown key":       "steps: [{run: x, egressAllow: [{to: example.org, privat: true}]}]",
		"a relative mount source":              "steps: [{run: x, mounts: {a: /b}}]",
		"a mount mode that does not exist":     "steps: [{run: x, mounts: {/a: [/b, rx]}}]",
		"a mount with three items":             "steps: [{run: x, mounts: {/a: [/b, ro, ro]}}]",
		"a tmpfs without unit":                 "steps: [{run: x, tmpfs: {/a: '5'}}]",
		"capDrop as one word":                  "steps: [{run: x, capDrop: ALL}]",
		"a security profile that is unknown":   "steps: [{run: x, securityProfile: trusted}]",
		"a fault type that does not exist":     "steps: [{run: x, tolerate: [boredom]}]",
		"an expected exit code out of range":   "steps: [{run: x, expect: {exitCode: 256}}]",
		"expecting a fault and an exit code":   "steps: [{run: x, expect: {exitCode: 1, fault: oom}}]",
		"an output cap above the largest":      "steps: [{run: x, maxOutputBytes: 99999999999}]",
		"needs that is a number":               "steps: [{run: x, needs: 4}]",
		"continueOnError in quotes":            "steps: [{run: x, continueOnError: 'true'}]",
		"null where there is no such thing":    "steps: [{run: x, timeoutS: null}]",
		"a name longer than can be shown":      "steps: [{run: x, name: " + strings.Repeat("n", maxName+1) + "}]",
		"a workdir that is relative":           "steps: [{run: x, workdir: src}]",
		"half a megabyte of disk":              "steps: [{run: x, diskMb: 0.5}]",
		"no disk at all":                       "steps: [{run: x, diskMb: 0}]",
		"more disk than there is":              "steps: [{run: x, diskMb: 1048577}]",
		"no cap on the disk":                   "steps: [{run: x, diskMb: null}]",
		"a glob that is no list":               "steps: [{run: x, allowChanges: 'out/**'}]",
		"a glob that is a number":              "steps: [{run: x, allowChanges: [5]}]",
		"the same glob twice":                  "steps: [{run: x, allowChanges: [a, a]}]",
		"another word for onFailure":           "steps: [{run: x, onFailure: rollback}]",
		"a passed variable that is not a name": "steps: [{run: x, passEnv: ['A=B']}]",
	} {
		t.Run(sentence, func(t *testing.T) {
			if err := s.Validate(asJSON(t, src)); err == nil {
				t.Errorf("the schema accepts %s", src)
			}
			if _, err := Load("steps.yml", []byte(src), testOptions(t)); err == nil {
				t.Errorf("Load accepts %s", src)
			}
		})
	}
}

func TestEveryKeyIsExplainedWithItsDefault(t *testing.T) {
	for _, k := range stepKeys {
		if k.doc == "" {
			t.Errorf("key %s has no description", k.name)
		}
		oneOfThese := slices.Contains(whatKeys, k.name)
		if !strings.Contains(k.doc, "Default: ") && !oneOfThese && k.name != "tmpfs" {
			t.Errorf("the description of %s does not say its default", k.name)
		}
	}
}

func TestReportSchemaDescribesResult(t *testing.T) {
	s := compiled(t, ReportSchema())
	code := 0
	step := StepResult{ID: "a", Name: "a", Status: StatusPassed, ExitCode: &code, Network: "none", EgressMode: "enforce", Workspace: "unchanged"}
	// Lists are never null in a report, so the zero Result is not a report.
	fillLists(reflect.ValueOf(&step).Elem())
	res := Result{Schema: 1, Verdict: VerdictPass, Steps: []StepResult{step}}
	fillLists(reflect.ValueOf(&res).Elem())
	res.Steps = []StepResult{step}
	check := func(v any) error {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		doc, err := validate.UnmarshalJSON(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		return s.Validate(doc)
	}
	if err := check(res); err != nil {
		t.Fatalf("a report is refused: %v", err)
	}
	res.Steps[0].ExitCode = nil
	if err := check(res); err != nil {
		t.Errorf("a step without exit code is refused: %v", err)
	}
	for sentence, change := range map[string]func(*Result){
		"a verdict that does not exist": func(r *Result) { r.Verdict = "fine" },
		"a list that is null":           func(r *Result) { r.Steps[0].Events = nil },
		"a status that does not exist":  func(r *Result) { r.Steps[0].Status = "ok" },
	} {
		bad := res
		bad.Steps = []StepResult{step}
		change(&bad)
		if check(bad) == nil {
			t.Errorf("the schema accepts %s", sentence)
		}
	}
}

func fillLists(v reflect.Value) {
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Slice:
			f.Set(reflect.MakeSlice(f.Type(), 0, 0))
		case reflect.Struct:
			fillLists(f)
		}
	}
}
