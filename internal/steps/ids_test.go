package steps

import (
	"slices"
	"strings"
	"testing"
)

func TestIDsOf(t *testing.T) {
	for src, want := range map[string]string{
		"steps:\n  - {id: build, run: make}\n  - run: 'true'\n  - {id: a.b-c_9, run: x, needs: nothing}": "build step-2 a.b-c_9",
		"steps: [{id: one, unknown: key, memoryMb: -1}]":                                                 "one",
		"steps: [{id: one}, {id: one}, {id: two}]":                                                       "one two",
		// Whatever a shell would make something of is none.
		"steps:\n  - id: $(touch x)\n  - id: a b\n  - id: -rf\n  - id: \"a\\nb\"\n  - id: \"`x`\"\n  - id: a;b\n  - id: .x\n  - id: é\n  - id: \"\\e[31m\"\n  - id: [x]\n  - id:\n  - id: ok": "ok",
		"steps: [{id: " + strings.Repeat("x", 65) + "}]": "",
		"steps: {id: one}": "",
		"- id: one":        "",
		"steps: [":         "",
		"":                 "",
	} {
		if got := strings.Join(IDsOf([]byte(src)), " "); got != want {
			t.Errorf("%s: %q, want %q", src, got, want)
		}
	}
	many := "steps:\n" + strings.Repeat("  - run: x\n", maxSteps+10)
	if got := IDsOf([]byte(many)); len(got) > maxSteps || !slices.Contains(got, "step-1") {
		t.Errorf("%d ids of a file with too many steps", len(got))
	}
}
