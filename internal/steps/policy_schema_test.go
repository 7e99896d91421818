package steps

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	generate "github.com/invopop/jsonschema"
)

// policyFileSchema generates the schema from the table of keys. A key that has
// the form of a step's key has its schema too, without null.
func policyFileSchema(t *testing.T) []byte {
	t.Helper()
	list := func(item *generate.Schema) *generate.Schema {
		return &generate.Schema{Type: "array", Items: item, UniqueItems: true}
	}
	own := map[string]*generate.Schema{
		"mounts":       list(&generate.Schema{Type: "string", Pattern: absPattern}),
		"images":       list(&generate.Schema{Type: "string", Pattern: imagePattern, Not: &generate.Schema{Pattern: relativePattern}}),
		"imageDigests": ofType("boolean"),
		"setup":        ofType("boolean"),
		"env":          list(&generate.Schema{Type: "string", Pattern: envPattern}),
		"engine":       oneOf(&generate.Schema{Type: "string", Enum: anys(engineWords)}, engineList()),
		"tolerate":     oneOf(ofType("boolean"), list(&generate.Schema{Enum: anys(faultWords())})),
		"expect":       ofType("boolean"),
		"expectDenied": ofType("boolean"),
		"required":     &generate.Schema{Type: "array", Items: requiredSchema()},
	}
	r := &generate.Reflector{Anonymous: true, DoNotReference: true, ExpandedStruct: true}
	inStep := r.Reflect(&step{}).Properties
	whole := &generate.Schema{Properties: inStep}
	decorate(t, whole, false)

	s := object()
	s.Version = generate.Version
	s.Title = "Policy of untrusted-steps"
	s.Description = "A ceiling over what a steps file may ask for. A key that is absent bounds nothing."
	s.Properties.Set("version", &generate.Schema{Type: "integer", Const: 1, Description: fileKeys["version"]})
	for _, k := range policyKeys() {
		if k.read == nil {
			continue
		}
		prop := own[k.name]
		if k.like != "" {
			from, ok := inStep.Get(k.like)
			if !ok {
				t.Fatalf("policy key %s is like %s, which no step has", k.name, k.like)
			}
			if prop = from; len(from.OneOf) == 2 && from.OneOf[1].Type == "null" {
				prop = from.OneOf[0]
			}
		}
		if prop == nil {
			t.Fatalf("policy key %s has no schema", k.name)
		}
		prop.Description, prop.Default = k.doc, nil
		s.Properties.Set(k.name, prop)
	}
	return indented(t, s)
}

func engineList() *generate.Schema {
	one := uint64(1)
	return &generate.Schema{Type: "array", Items: &generate.Schema{Type: "string", Enum: anys(engineWords)}, UniqueItems: true, MinItems: &one}
}

func requiredSchema() *generate.Schema {
	one := uint64(1)
	item := object()
	item.Properties.Set("id", &generate.Schema{Type: "string", Pattern: idPattern})
	item.Properties.Set("sha256", &generate.Schema{Type: "string", Pattern: sha256Pattern})
	item.Properties.Set("run", script("").JSONSchema())
	item.Properties.Set("command", &generate.Schema{Type: "array", Items: scalar(), MinItems: &one})
	item.Properties.Set("language", &generate.Schema{Type: "string", Enum: anys(languageWords)})
	item.Required = []string{"id"}
	item.OneOf = []*generate.Schema{{Required: []string{"sha256"}}, {Required: []string{"run"}}, {Required: []string{"command"}}}
	return item
}

func TestPolicySchemaAcceptsEveryGoodPolicy(t *testing.T) {
	s := compiled(t, PolicySchema())
	files, _ := filepath.Glob("testdata/policy/*.yml")
	if len(files) == 0 {
		t.Fatal("no files in testdata/policy")
	}
	written := map[string]bool{}
	for _, name := range files {
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Validate(asJSON(t, string(src))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		p, err := LoadPolicy(name, src, testOptions(t))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for k := range p.keys {
			written[k] = true
		}
	}
	for _, k := range policyKeys() {
		if k.read != nil && !written[k.name] {
			t.Errorf("no policy in testdata/policy has the key %s", k.name)
		}
	}
}

func TestPolicySchemaRefuses(t *testing.T) {
	s := compiled(t, PolicySchema())
	if err := s.Validate(asJSON(t, "memoryMb: 512")); err != nil {
		t.Fatalf("a policy of one key is refused, so the refusals below say nothing: %v", err)
	}
	for sentence, src := range map[string]string{
		"another version":                       "version: 2",
		"a list":                                "- memoryMb: 1",
		"an unknown key":                        "memory: 512",
		"a key of a step that bounds nothing":   "run: x",
		"null in place of no key":               "memoryMb: null",
		"a number in quotes":                    "memoryMb: '512'",
		"memory below the smallest":             "memoryMb: 1",
		"more retries than there can be":        "retries: 6",
		"a boolean in quotes":                   "network: 'false'",
		"another word for egressMode":           "egressMode: block",
		"a rule that is a number":               "egressAllow: [5]",
		"a rule with an unknown key":            "egressAllow: [{to: example.org, prvate: true}]",
		"mounts as a step has them":             "mounts: {/a: /b}",
		"a relative mount source":               "mounts: [a]",
		"a relative root folder":                "images: ['rootfs:a']",
		"a relative archive":                    "images: ['archive:a.tar']",
		"an image that is none":                 "images: ['al pine:3']",
		"digests as a list":                     "imageDigests: [python]",
		"an engine that does not exist":         "engine: docker",
		"no engine at all":                      "engine: []",
		"auto, which is no engine":              "engine: auto",
		"a variable with a dash":                "env: [a-b]",
		"a fault that does not exist":           "tolerate: [boredom]",
		"expect as a step has it":               "expect: {exitCode: 0}",
		"a required step that is only named":    "required: [lint]",
		"a required step that may run anything": "required: [{id: lint}]",
		"a required step without an id":         "required: [{run: make lint}]",
		"a required step with two scripts":      "required: [{id: lint, run: make, command: [make]}]",
		"a sum that is none":                    "required: [{id: lint, sha256: abc}]",
		"an unknown key of a required step":     "required: [{id: lint, run: make, env: {A: b}}]",
	} {
		t.Run(sentence, func(t *testing.T) {
			if err := s.Validate(asJSON(t, src)); err == nil {
				t.Errorf("the schema accepts %s", src)
			}
			if _, err := LoadPolicy("policy.yml", []byte(src), testOptions(t)); err == nil {
				t.Errorf("LoadPolicy accepts %s", src)
			}
		})
	}
}

func TestEveryKeyOfAPolicyIsExplained(t *testing.T) {
	var names []string
	for _, k := range policyKeys() {
		if k.doc == "" {
			t.Errorf("key %s has no description", k.name)
		}
		if k.read != nil && (k.says == nil || k.exceeds == nil && k.name != "engine" && k.name != "required") {
			t.Errorf("key %s is read and bounds nothing", k.name)
		}
		if slices.Contains(names, k.name) {
			t.Errorf("key %s is there twice", k.name)
		}
		names = append(names, k.name)
	}
}
