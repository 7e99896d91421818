package steps

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/egress"
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
)

// asked is a machine whose npm is set up for a mirror, and which counts how
// often anybody looked.
func asked(t *testing.T) (Options, *[]string) {
	var names []string
	opt := testOptions(t)
	opt.HostPreset = func(name string) (egress.Preset, error) {
		names = append(names, name)
		if name != "npm" {
			return egress.Preset{}, errors.New("preset " + name + ": its client is not installed (looked at nothing); the hosts can be named instead of the preset")
		}
		return egress.Preset{Name: name, Rules: []string{"mirror.example:8443", "corp.example:443"}, From: []string{"npm's registry in ~/.npmrc", "npm's @corp:registry in ~/.npmrc"}}, nil
	}
	return opt, &names
}

const presetSteps = `steps:
- {id: none, run: x}
- {id: one, run: x, egressAllow: ['preset:npm', 'preset:gitlab', example.com]}
- {id: two, run: x, egressAllow: [{to: 'preset:npm', private: true}], egressDeny: ['preset:npm']}
`

func TestAPresetOfTheMachineIsReadOncePerFileAndOnlyIfItIsNamed(t *testing.T) {
	opt, names := asked(t)
	mustLoad(t, "steps: [{run: x, egressAllow: ['preset:github', example.com]}]", opt)
	if len(*names) != 0 {
		t.Errorf("a file that names none had %q read", *names)
	}
	plan := mustLoad(t, presetSteps, opt)
	if diff := cmp.Diff([]string{"npm"}, *names); diff != "" {
		t.Errorf("read (-want +got):\n%s", diff)
	}
	npm := EgressPreset{Name: "npm", Rules: []PresetRule{{"mirror.example:8443", "npm's registry in ~/.npmrc"}, {"corp.example:443", "npm's @corp:registry in ~/.npmrc"}}}
	for i, want := range [][]EgressPreset{nil, {npm, {Name: "gitlab", Rules: []PresetRule{{Rule: "gitlab.com:443"}}}}, {npm}} {
		if diff := cmp.Diff(want, plan.Steps[i].EgressPresets); diff != "" {
			t.Errorf("step %s (-want +got):\n%s", plan.Steps[i].ID, diff)
		}
	}
}

func TestThePlanShowsWhatAPresetStandsForAndWhichSettingSaysSo(t *testing.T) {
	opt, _ := asked(t)
	plan := mustLoad(t, presetSteps, opt)
	var text, program strings.Builder
	if err := errors.Join(plan.WriteText(&text), plan.WriteJSON(&program)); err != nil {
		t.Fatal(err)
	}
	if want := "- preset:npm\n                 mirror.example:8443  (npm's registry in ~/.npmrc)\n                 corp.example:443  (npm's @corp:registry in ~/.npmrc)\n"; !strings.Contains(text.String(), want) {
		t.Errorf("want %s in\n%s", want, text.String())
	}
	if want := "never preset:npm\n                 mirror.example:8443"; !strings.Contains(text.String(), want) {
		t.Errorf("want %s in\n%s", want, text.String())
	}
	var got struct {
		Steps []struct{ EgressPresets []EgressPreset }
	}
	if err := json.Unmarshal([]byte(program.String()), &got); err != nil {
		t.Fatal(err)
	}
	for i := range plan.Steps {
		if diff := cmp.Diff(plan.Steps[i].EgressPresets, got.Steps[i].EgressPresets); diff != "" {
			t.Errorf("step %d as JSON (-want +got):\n%s", i, diff)
		}
	}
}

func TestARunUsesWhatThePlanHasAndAsksNobody(t *testing.T) {
	opt, names := asked(t)
	plan := mustLoad(t, presetSteps, opt)
	*names = nil
	var policies []egress.Policy
	r := &Runner{Masker: gha.NewMasker(), EgressLog: io.Discard, NewProxy: func(p egress.Policy, l *egress.Ledger) *egress.Proxy {
		policies = append(policies, p)
		return egress.NewProxy(p, l)
	}}
	for _, s := range plan.Steps {
		w, err := r.openWay(s)
		if err != nil {
			t.Fatal(err)
		}
		sr := newStepResult(s, box.Info{})
		if w != nil {
			w.report(sr, s)
		}
		if diff := cmp.Diff(s.EgressPresets, sr.EgressPresets); diff != "" {
			t.Errorf("step %s, the report (-plan +report):\n%s", s.ID, diff)
		}
	}
	if len(policies) != 2 || len(*names) != 0 {
		t.Fatalf("%d ways out, and %q read", len(policies), *names)
	}
	ask := func(p egress.Policy, host string, port int) string {
		d := p.Decide(egress.Request{Host: host, Port: port})
		return d.Rule + " " + d.Reason
	}
	for _, c := range []struct {
		policy int
		host   string
		port   int
		want   string
	}{
		{0, "mirror.example", 8443, "mirror.example:8443 "}, {0, "corp.example", 443, "corp.example:443 "}, {0, "gitlab.com", 443, "gitlab.com:443 "},
		{0, "mirror.example", 443, "mirror.example:8443 port"}, {0, "evil.example", 443, " no_rule"}, {1, "mirror.example", 8443, "mirror.example:8443 deny_rule"},
	} {
		if got := ask(policies[c.policy], c.host, c.port); got != c.want {
			t.Errorf("%s:%d: %s, want %s", c.host, c.port, got, c.want)
		}
	}
	if r := policies[1].Allow; len(r) != 2 || !r[0].Private() || r[0].Preset() != "npm" {
		t.Errorf("the marker beside a preset is lost: %v", r)
	}
}

func TestAPresetOfTheMachineThatCannotBeReadIsRefusedWithItsPlace(t *testing.T) {
	opt, _ := asked(t)
	for name, c := range map[string]struct {
		opt       Options
		src, want string
	}{
		"the client is not there":       {opt, "steps:\n- run: x\n  egressAllow:\n  - example.com\n  - preset:cargo\n", "steps.yml:5:5: not an egress rule: preset cargo: its client is not installed (looked at nothing); the hosts can be named instead of the preset"},
		"nor for egressDeny":            {opt, "steps:\n- run: x\n  egressDeny: ['preset:cargo']\n", "steps.yml:3:16: not a rule: preset cargo: its client"},
		"nobody reads for us":           {testOptions(t), "steps:\n- run: x\n  egressAllow: ['preset:npm']\n", `steps.yml:3:17: not an egress rule: stands for what this machine's clients are set up for`},
		"an unknown one names them all": {opt, "steps:\n- run: x\n  egressAllow: ['preset:nope']\n", "there are alpine, cargo, debian, "},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Load("steps.yml", []byte(c.src), c.opt)
			if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), `\"`, `"`), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	// Who reads must read what was asked for.
	other := testOptions(t)
	other.HostPreset = func(string) (egress.Preset, error) {
		return egress.Preset{Name: "go", Rules: []string{"x.example"}}, nil
	}
	if _, err := Load("steps.yml", bytes.TrimSpace([]byte(presetSteps)), other); err == nil {
		t.Error("another preset than the one that was asked for is taken")
	}
}
