package steps

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
)

func enginesOf(p *Plan) string {
	var out []string
	for _, s := range p.Steps {
		out = append(out, s.Engine)
	}
	return strings.Join(out, ",")
}

func TestEngineOfAStep(t *testing.T) {
	for _, tc := range []struct{ sentence, src, pin, only, want, wrong string }{
		{"none is the run's own choice", "steps:\n- {run: x}\n", "", "", "", ""},
		{"each step its own", "steps:\n- {run: x, engine: kern}\n- {run: x, engine: native}\n- {run: x, engine: gvisor}\n- {run: x}\n", "", "", "kern,native,gvisor,", ""},
		{"defaults hold, and null is the run's own choice", "defaults: {engine: gvisor}\nsteps:\n- {run: x}\n- {run: x, engine: native}\n- {run: x, engine: null}\n", "", "", "gvisor,native,", ""},
		{"auto leaves steps their own", "steps:\n- {run: x, engine: gvisor}\n", "auto", "", "gvisor", ""},
		{"the same as the run was told", "steps:\n- {run: x, engine: gvisor}\n- {run: x}\n", "gvisor", "", "gvisor,", ""},
		{"another than the run was told", "steps:\n- {run: x}\n- {run: x, engine: native}\n", "gvisor", "", "",
			`steps.yml:3:20: engine is not the one that this run was told to take, by --engine gvisor ("native"; allowed: gvisor)`},
		{"another in defaults, where some step has it", "defaults: {engine: native}\nsteps:\n- {run: x}\n", "gvisor", "", "", `steps.yml:1:20: engine is not the one`},
		{"another in defaults that no step has", "defaults: {engine: native}\nsteps:\n- {run: x, engine: gvisor}\n", "gvisor", "", "gvisor", ""},
		{"another of a step that is not run", "steps:\n- {id: a, run: x}\n- {id: b, run: x, engine: native}\n", "gvisor", "a", "", ""},
		{"another of the step that is run", "steps:\n- {id: a, run: x}\n- {id: b, run: x, engine: native}\n", "gvisor", "b", "", `steps.yml:3:27: engine is not the one`},
		{"a word that is none", "steps:\n- {run: x, engine: docker}\n", "", "", "", `steps.yml:2:20: engine is none of the words it can be ("docker"; allowed: kern, native, gvisor)`},
		{"auto is not a step's to say", "steps:\n- {run: x, engine: auto}\n", "", "", "", `steps.yml:2:20: engine is none`},
		{"a list", "steps:\n- {run: x, engine: [kern]}\n", "", "", "", `steps.yml:2:20: engine is a list`},
		{"cells of a kernel have one box", "steps:\n- {code: x, kernel: k}\n- {code: y, kernel: k, engine: native}\n", "", "", "",
			`steps.yml:3:32: engine is not the same as in the other cells of the kernel "k" ("native"; allowed: engine as in the step on line 2)`},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			opt := testOptions(t)
			opt.Engine, opt.EngineBy = tc.pin, "--engine "+tc.pin
			if tc.only != "" {
				opt.Only = []string{tc.only}
			}
			p, err := Load("steps.yml", []byte(tc.src), opt)
			switch {
			case err != nil && (tc.wrong == "" || !strings.Contains(err.Error(), tc.wrong)):
				t.Errorf("%v\nwant %s", err, tc.wrong)
			case err == nil && tc.wrong != "":
				t.Errorf("it loads; want %s", tc.wrong)
			case err == nil && enginesOf(p) != tc.want:
				t.Errorf("%q, want %q", enginesOf(p), tc.want)
			}
		})
	}
}

func TestPlanSaysWhoseKernel(t *testing.T) {
	host, own := box.HostKernel, box.OwnKernel
	of := func(name string) box.Kernel {
		if name == "gvisor" {
			return own
		}
		return host
	}
	const src = "steps:\n- {run: x}\n- {run: x, engine: gvisor}\n- {run: x, engine: kern}\n"
	for _, tc := range []struct {
		sentence, src, pin string
		choice             *box.Kernel
		want               []string
		text               []string
	}{
		{"the choice is of one kind", src, "auto", &host, []string{"host", "own", "host"},
			[]string{"the run's own choice: the box shares the host's kernel", "gvisor: the box has a kernel of its own", "kern: the box shares the host's kernel"}},
		{"nobody knows what the choice will be", src, "auto", nil, []string{"", "own", "host"}, []string{"engine     the run's own choice\n"}},
		{"an engine that was asked for", "steps:\n- {run: x}\n", "gvisor", &host, []string{"own"},
			[]string{"\nengine gvisor: each box has a kernel of its own\n", "gvisor: the box has a kernel of its own"}},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			p := mustLoad(t, tc.src, testOptions(t))
			p.ShowEngines(tc.pin, tc.choice, of)
			var got []string
			for _, s := range p.Steps {
				got = append(got, s.BoxKernel)
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Error(d)
			}
			var b bytes.Buffer
			if err := p.WriteText(&b); err != nil {
				t.Fatal(err)
			}
			for _, w := range tc.text {
				if !strings.Contains(b.String(), w) {
					t.Errorf("no %q in\n%s", w, b.String())
				}
			}
		})
	}
}

// other is an engine by another name.
type other struct{ refuser }

func (*other) Info() box.Info {
	return box.Info{Name: "other", Version: "2", Digest: "ab", Kernel: box.OwnKernel}
}

func TestEachStepHasTheBoxOfItsEngine(t *testing.T) {
	e, o := &refuser{}, &other{}
	r := &Runner{
		Engine: e, Engines: map[string]box.Engine{"refuser": e, "other": o}, Guard: NewGuard(testOptions(t)), Workspace: t.TempDir(), Out: t.TempDir(),
		Log: gha.NewLog(io.Discard, gha.LogOptions{}), Masker: gha.NewMasker(),
		Getenv: func(string) (string, bool) { return "", false }, Now: time.Now,
	}
	step := func(id, engine string) PlanStep {
		return PlanStep{ID: id, Engine: engine, DiskMb: 4, Command: []string{"true"}, Expect: Expect{Fault: box.StartupFailed}}
	}
	cell := step("cell", "other")
	cell.Command, cell.Code, cell.Kernel = nil, "1", "k"
	made := step("made", "other")
	made.Setup, made.SetupTimeoutS = "x", 1
	var res Result
	r.Again().Run(t.Context(), &Plan{Steps: []PlanStep{step("a", ""), step("b", "other"), step("c", "refuser"), cell, made, step("lost", "gone")}}, &res)
	if d := cmp.Diff([]string{"a", "c"}, e.asked); d != "" {
		t.Errorf("boxes of the run's own choice: %s", d)
	}
	if d := cmp.Diff([]string{"b", "cell", "made"}, o.asked); d != "" {
		t.Errorf("boxes of the other: %s", d)
	}
	for _, s := range res.Steps {
		want := []string{"refuser", "", "", "host"}
		switch s.ID {
		case "b", "cell", "made":
			want = []string{"other", "2", "ab", "own"}
		case "lost": // and no other takes its place
			want = []string{"gone", "", "", "host"}
		}
		if d := cmp.Diff(want, []string{s.Engine, s.EngineVersion, s.EngineDigest, s.Kernel}); d != "" {
			t.Errorf("%s: %s", s.ID, d)
		}
	}
	if s := res.Steps[5]; s.Status != StatusError || !strings.Contains(s.Reason, "engine gone was not made ready") {
		t.Errorf("%s: %s", s.Status, s.Reason)
	}
	if err := (&Runner{}).EngineOf(PlanStep{}).Check(box.Spec{}); err == nil {
		t.Error("without an engine there is one")
	}
}
