package steps

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestPlanAsJSON(t *testing.T) {
	plan := mustLoad(t, "steps: [{run: x, passEnv: [TOKEN], env: {A: b}, mounts: {/a: [/b, ro]}}]", testOptions(t))
	b, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	got := string(b)
	for _, want := range []string{
		`"mounts":[{"source":"/a","target":"/b","readOnly":true}]`, `{"target":"/tmp","bytes":67108864}`,
		`"passEnv":["TOKEN"]`, `"env":[{"name":"A","value":"b"}]`, `"expect":{"exitCode":0}`, `"needs":[]`,
		`"diskMb":1024`, `"allowChanges":["**"]`, `"onFailure":"discard"`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is not in %s", want, got)
		}
	}
	if strings.Contains(got, "secret") {
		t.Errorf("the value of a passed variable is in the plan: %s", got)
	}
	if strings.Contains(got, "null") {
		t.Errorf("null in %s", got)
	}
}

func TestPlanTextShowsNoValues(t *testing.T) {
	plan := mustLoad(t, "steps: [{run: x, passEnv: [TOKEN], env: {A: hidden}}]", testOptions(t))
	var b strings.Builder
	if err := plan.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	if got := b.String(); strings.Contains(got, "secret") || strings.Contains(got, "hidden") || !strings.Contains(got, "TOKEN") {
		t.Error(got)
	}
}

func TestPlanTextShowsWhereAnArgumentEnds(t *testing.T) {
	plan := mustLoad(t, `steps: [{command: [sh, -c, "rm -r /", "", '"']}]`, testOptions(t))
	var b strings.Builder
	if err := plan.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	if want := `command    sh -c "rm -r /" "" "\""`; !strings.Contains(b.String(), want) {
		t.Errorf("want %s in\n%s", want, b.String())
	}
}
