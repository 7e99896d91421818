package steps

import (
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/egress"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
)

func TestTogether(t *testing.T) {
	units, cells := together([]PlanStep{
		{ID: "a"}, {ID: "c1", Kernel: "k", Needs: []string{"a"}}, {ID: "b"}, {ID: "c2", Kernel: "k", Needs: []string{"b", "c1", "a"}},
		{ID: "d", Needs: []string{"c2", "c1", "b"}}, {ID: "e1", Kernel: "l", Needs: []string{"c2"}},
	})
	type unit struct {
		ID    string
		Needs []string
	}
	var got []unit
	for _, u := range units {
		got = append(got, unit{u.ID, u.Needs})
	}
	want := []unit{{"a", nil}, {"c1", []string{"a", "b"}}, {"b", nil}, {"d", []string{"c1", "b"}}, {"e1", []string{"c1"}}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if len(cells) != 2 || len(cells["c1"]) != 2 || cells["c1"][1].ID != "c2" || len(cells["e1"]) != 1 {
		t.Errorf("%v", cells)
	}
	var ids []string
	for _, s := range order([]PlanStep{{ID: "c1", Kernel: "k"}, {ID: "b"}, {ID: "c2", Kernel: "k", Needs: []string{"b"}}}) {
		ids = append(ids, s.ID)
	}
	if strings.Join(ids, " ") != "b c1 c2" {
		t.Errorf("order %v", ids)
	}
}

// Cells of one kernel run on one machine, whatever else they need.
func TestShardsKeepKernelsWhole(t *testing.T) {
	list := []PlanStep{{ID: "a", Kernel: "k"}, {ID: "b"}, {ID: "c", Kernel: "k"}, {ID: "d", Needs: []string{"c"}}, {ID: "e", Kernel: "l"}}
	if d := cmp.Diff([]int{0, 1, 0, 0, 4}, clusters(list)); d != "" {
		t.Error(d)
	}
}

func TestFreshRequests(t *testing.T) {
	rec := func(host string, n, in uint64) egress.Record {
		return egress.Record{Host: host, Port: 443, Verdict: "allowed", Count: n, BytesIn: in}
	}
	// An attempt can turn out to be another one, such as an open tunnel that breaks.
	failed := egress.Record{Host: "e", Port: 443, Verdict: "failed", Count: 1, BytesIn: 3}
	if d := cmp.Diff([]egress.Record{failed}, fresh([]egress.Record{rec("e", 2, 10)}, []egress.Record{rec("e", 1, 7), failed})); d != "" {
		t.Error(d)
	}
	got := fresh([]egress.Record{rec("a", 2, 10), rec("b", 1, 5), rec("c", 1, 0)}, []egress.Record{rec("a", 3, 14), rec("b", 1, 5), rec("c", 1, 7), rec("d", 1, 0)})
	if d := cmp.Diff([]egress.Record{rec("a", 1, 4), rec("c", 0, 7), rec("d", 1, 0)}, got); d != "" {
		t.Error(d)
	}
}

// What went on when no cell ran is judged with the last one that did, or with the one
// that has no other before it.
func TestWhatWentOnBetweenCellsIsTold(t *testing.T) {
	zero := syscall.WaitStatus(0)
	k := func(late box.Evidence) *kernel {
		return &kernel{r: &Runner{}, late: box.Outcome{Evidence: late, Stats: limits.Stats{PeakPids: 9}}}
	}
	s := PlanStep{ID: "a", MemoryMb: 64}
	escape := box.Evidence{Escapes: []box.Escape{{Syscall: "unshare", Program: "sh"}}}
	t.Run("of the last cell", func(t *testing.T) {
		k := k(escape)
		sr := &StepResult{ID: "a", Usage: Usage{PeakPids: 3}}
		ev := k.tell(s, sr, box.Evidence{Status: &zero, PidsRefused: 1})
		judge(sr, s, ev)
		if sr.Status != StatusFailed || sr.Fault == nil || sr.Fault.Type != box.EscapeBlocked || len(sr.Events) != 2 || *sr.ExitCode != 0 || sr.Usage.PeakPids != 9 {
			t.Errorf("%+v", sr)
		}
		if ev := k.tell(s, sr, box.Evidence{}); len(ev.Escapes) != 0 {
			t.Error("it is told twice")
		}
	})
	t.Run("of the first, which did not begin", func(t *testing.T) {
		late := escape
		late.Status = &zero
		sr := &StepResult{ID: "a"}
		if ev, ok := k(late).alone(s, sr); !ok || len(ev.Escapes) != 1 || sr.Status != StatusFailed || sr.Fault == nil {
			t.Errorf("%+v %+v", ev, sr)
		}
	})
	t.Run("which passes by nothing that came before it", func(t *testing.T) {
		tolerant := s
		tolerant.Tolerate = []box.FaultType{box.EscapeBlocked}
		late := escape
		late.Status = &zero
		for what, step := range map[string]PlanStep{"a fault that is tolerated": tolerant, "one that is expected": {Expect: Expect{Fault: box.EscapeBlocked}}} {
			sr := &StepResult{ID: "a"}
			if _, ok := k(late).alone(step, sr); ok {
				t.Errorf("%s: %+v", what, sr)
			}
		}
		if _, ok := k(box.Evidence{Status: &zero}).alone(s, &StepResult{}); ok {
			t.Error("an end with 0")
		}
	})
}

func TestKernelsThatCannotBe(t *testing.T) {
	for _, tc := range []struct {
		sentence, src, want string
	}{
		{"what shapes the box differs", "steps:\n- {code: x, kernel: k}\n- {code: y, kernel: k, memoryMb: 64}\n",
			`steps.yml:3:34: memoryMb is not the same as in the other cells of the kernel "k" ("64"; allowed: memoryMb as in the step on line 2)`},
		{"and is written in the first only", "steps:\n- {code: x, kernel: k, network: true}\n- {code: y, kernel: k}\n",
			`steps.yml:3:21: network is not the same as in the other cells of the kernel "k" (allowed: network as in the step on line 2)`},
		{"a place in memory", "steps:\n- {code: x, kernel: k, tmpfs: {/tmp: 8m}}\n- {code: y, kernel: k, tmpfs: {/tmp: 9m}}\n", `steps.yml:3:31: tmpfs is not the same`},
		{"what judges the writes", "steps:\n- {code: x, kernel: k}\n- {code: y, kernel: k, allowChanges: [a]}\n", `steps.yml:3:38: allowChanges is not the same`},
		{"what excuses a failure", "steps:\n- {code: x, kernel: k}\n- {code: y, kernel: k, continueOnError: true}\n", `steps.yml:3:41: continueOnError is not the same`},
		{"a setup that reaches nothing, beside one that reaches all", "defaults: {setup: x, kernel: k}\nsteps:\n- {code: x}\n- {code: y, setupEgress: []}\n",
			`steps.yml:4:26: setupEgress is not the same as in the other cells of the kernel "k"`},
		{"a setup that is kept, beside one that is not", "defaults: {setup: x, kernel: k}\nsteps:\n- {code: x, setupCache: []}\n- {code: y}\n", `setupCache is not the same`},
		{"another try", "steps:\n- {code: x, kernel: k, retries: 1}\n", `steps.yml:2:33: a cell of a kernel cannot be tried again`},
		{"a script in one", "steps:\n- {run: x, kernel: k}\n", `steps.yml:2:20: kernel is for cells, and this step has run`},
		{"a name that is none", "steps:\n- {code: x, kernel: a/b}\n", `steps.yml:2:21: not a name of a kernel`},
		{"a step between", "steps:\n- {id: a, code: x, kernel: k}\n- {id: b, run: x, needs: a}\n- {id: c, code: y, kernel: k, needs: b}\n",
			`steps.yml:4:38: "b" would have to run between cells of the kernel "k", which run in one go`},
		{"a step between that nothing orders", "steps:\n- {id: a, code: x, kernel: k}\n- {id: b, run: x}\n- {id: c, code: y, kernel: k}\n",
			`steps.yml:3:3: the step stands between cells of the kernel "k", which run in one go ("b"; allowed: a place before the first cell or after the last one)`},
		{"two kernels that are mixed", "steps:\n- {id: a, code: x, kernel: k}\n- {id: b, code: x, kernel: l}\n- {id: c, code: y, kernel: k}\n- {id: d, code: y, kernel: l}\n",
			`steps.yml:3:3: the step stands between cells of the kernel "k"`},
		{"two kernels that need each other", "steps:\n- {id: a, code: x, kernel: k}\n- {id: b, code: x, kernel: l, needs: a}\n- {id: c, code: x, kernel: k, needs: b}\n",
			`would have to run between cells of the kernel`},
		{"a later cell is needed", "steps:\n- {id: a, code: x, kernel: k, needs: b}\n- {id: b, code: x, kernel: k}\n", `steps.yml:2:38: the cell needs one that runs after it in the kernel "k"`},
		{"code in another language", "steps:\n- {code: x, language: node}\n", `steps.yml:2:23: code is Python ("node"; allowed: python)`},
		{"code and run", "steps:\n- {code: x, run: y}\n", `steps.yml:2:18: the step has both run and code (allowed: exactly one of run, command, code)`},
		{"all of them", "steps:\n- {code: x, run: y, command: [z]}\n", `the step has all of run, command, code`},
		{"code that is nothing", "steps:\n- {code: ' '}\n", `steps.yml:2:10: code is empty`},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			_, err := Load("steps.yml", []byte(tc.src), Options{Workspace: t.TempDir()})
			want := strings.ReplaceAll(tc.want, `("64"`, `("64"`)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got  %v\nwant %s", err, want)
			}
		})
	}
}

func TestKernelsThatCanBe(t *testing.T) {
	for sentence, src := range map[string]string{
		"what each cell may have for itself":   "steps:\n- {id: a, name: n, code: x, kernel: k, timeoutS: 1, expect: {exitCode: 1}, maxOutputBytes: 5, tolerate: [oom]}\n- {id: b, code: y, kernel: k, needs: a}\n",
		"the same, in two ways of writing":     "defaults: {memoryMb: 64, kernel: k}\nsteps:\n- {code: x}\n- {code: y, memoryMb: 64}\n- {run: z, memoryMb: 32}\n",
		"a step that stands between":           "steps:\n- {id: a, code: x, kernel: k}\n- {id: b, run: x}\n- {id: c, code: y, kernel: k, needs: b}\n- {run: x, needs: [a, c]}\n",
		"one that waits for all, over another": "steps:\n- {id: a, code: x, kernel: k}\n- {id: b, run: x, needs: d}\n- {id: d, run: x, needs: a}\n- {id: c, code: y, kernel: k}\n",
		"kernels one after the other":          "steps:\n- {id: a, code: x, kernel: k}\n- {id: c, code: y, kernel: k}\n- {id: b, code: x, kernel: l}\n- {id: d, code: y, kernel: l}\n",
		"defaults of scripts":                  "defaults: {language: bash}\nsteps:\n- {code: x}\n- {run: x}\n",
		"the language itself":                  "steps:\n- {code: 5, language: python}\n",
	} {
		if plan, err := Load("steps.yml", []byte(src), Options{Workspace: t.TempDir()}); err != nil {
			t.Errorf("%s: %v", sentence, err)
		} else if plan.Steps[0].Language != "python" {
			t.Errorf("%s: %+v", sentence, plan.Steps[0])
		}
	}
}

func TestPolicyKnowsCellsFromScripts(t *testing.T) {
	script, code := (&step{Run: "x = 1"}).digest(), (&step{Code: "x = 1"}).digest()
	if script == code {
		t.Error("a cell has the digest of a script")
	}
	policy := func(what string) *Policy {
		p, err := LoadPolicy("policy.yml", []byte("version: 1\nrequired: [{id: a, "+what+"}]\n"), Options{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	load := func(p *Policy, src string) string {
		_, err := Load("steps.yml", []byte(src), Options{Workspace: t.TempDir(), Policy: p})
		if err == nil {
			return ""
		}
		return err.Error()
	}
	if why := load(policy("sha256: "+code), "steps: [{id: a, code: x = 1}]"); why != "" {
		t.Error(why)
	}
	if why := load(policy("language: python, run: x = 1"), "steps: [{id: a, code: x = 1}]"); !strings.Contains(why, "runs something else") {
		t.Errorf("a cell in place of a script: %q", why)
	}
	if why := load(policy("sha256: "+code), "steps: [{id: a, code: x = 1, kernel: k}]"); !strings.Contains(why, "may not share an interpreter") {
		t.Errorf("a cell whose interpreter others have as well: %q", why)
	}
}
