package steps

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Attack 20.
func TestARuleThatLetsAStepLookUpNamesItselfIsAWarningOnceWithItsPlace(t *testing.T) {
	plan := mustLoad(t, `defaults:
  egressAllow: [example.com, dns.google]
steps:
- {id: a, run: x}
- {id: b, run: x}
- {id: c, run: x, egressAllow: [{to: "tcp://ns.example.com:853"}, good.example.com]}
- {id: d, run: x, egressAllow: [], egressDeny: [dns.quad9.net]}
`, testOptions(t))
	var got []string
	for _, w := range plan.Warnings {
		got = append(got, w.In("f.yml"))
	}
	const tells = "the step can look up any name there, and tell its owner anything by it"
	want := []string{
		"f.yml:2:30: warning: dns.google: dns.google is a public DNS resolver over HTTPS: " + tells,
		"f.yml:6:33: warning: tcp://ns.example.com:853: port 853 is DNS over TLS: " + tells,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	b, err := json.Marshal(plan)
	if err != nil || !strings.Contains(string(b), `"warnings":[{"line":2,"column":30,"text":"dns.google","what":"`) {
		t.Errorf("the plan as JSON: %v, %s", err, b)
	}
	if p := mustLoad(t, "steps: [{run: x, egressAllow: [example.com]}]", testOptions(t)); len(p.Warnings) != 0 {
		t.Errorf("the control is warned of: %v", p.Warnings)
	}
}

func TestAnExpressionInAStepsFileIsAWarningWithItsPlace(t *testing.T) {
	const src = `steps:
# not ${{ this }}
- id: a
  run: |
    echo hi
    echo "é" ${{ matrix.v }} and more
- {run: x, env: {A: "${{ secrets.B"}}
`
	opt := testOptions(t)
	plan := mustLoad(t, src, opt)
	var got []string
	for _, w := range plan.Warnings {
		got = append(got, w.In("f.yml"))
	}
	const what = "expressions are not expanded in a steps file; pass the value by passEnv"
	want := []string{"f.yml:6:14: warning: ${{ matrix.v }}: " + what, "f.yml:7:22: warning: ${{ secrets.B\"}}: " + what}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	opt.BareList = true
	if p := mustLoad(t, src, opt); len(p.Warnings) != 0 {
		t.Errorf("of steps that stand in a workflow is warned: %v", p.Warnings)
	}
}
