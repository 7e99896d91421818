package shard

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

var planSum = strings.Repeat("a", 64)

var all = []string{"a", "b", "c", "d"}

func step(id, status string) steps.StepResult {
	return steps.StepResult{
		ID: id, Name: id, Status: status, Network: "none", EgressMode: "enforce", Workspace: "unchanged", DurationMs: 10,
		Stdout: steps.Output{Path: "steps/" + id + "/stdout.log"}, Stderr: steps.Output{Path: "steps/" + id + "/stderr.log"},
	}
}

// report makes the report of a shard of which every step passed.
func report(index, of int, ids ...string) *steps.Result {
	r := &steps.Result{
		Schema: 1, Verdict: steps.VerdictPass, DurationMs: 100, StartedAt: "2026-01-02T03:04:05Z",
		Tool: tool, Host: steps.Host{OS: "linux", Kernel: "6.8", Arch: "amd64", Cgroup: "v2"},
		Shard: &steps.Shard{Index: index, Of: of, Plan: planSum, Steps: ids, All: all},
	}
	for _, id := range ids {
		r.Steps = append(r.Steps, step(id, steps.StatusPassed))
	}
	return r
}

var tool = steps.Tool{Name: "untrusted-steps", Version: "v1"}

// with changes a report.
func with(r *steps.Result, change func(*steps.Result)) *steps.Result {
	change(r)
	return r
}

func verdict(v string) func(*steps.Result) {
	return func(r *steps.Result) { r.Verdict, r.Steps = v, nil }
}

func status(s string) func(*steps.Result) {
	return func(r *steps.Result) { r.Steps[0].Status = s }
}

func TestMerge(t *testing.T) {
	first, second := func() *steps.Result { return report(1, 2, "a", "c") }, func() *steps.Result { return report(2, 2, "b", "d") }
	for _, tc := range []struct {
		name     string
		parts    []*steps.Result
		want     *Plan
		verdict  string
		problems []string // beginnings
		statuses string   // of a, b, c and d
	}{
		{name: "all shards pass", parts: []*steps.Result{first(), second()}, verdict: "pass", statuses: "passed passed passed passed"},
		{name: "in whatever order", parts: []*steps.Result{second(), first()}, verdict: "pass", statuses: "passed passed passed passed"},
		{name: "an empty shard is one", parts: []*steps.Result{report(1, 3, all...), report(2, 3), report(3, 3)}, verdict: "pass", statuses: "passed passed passed passed"},
		{name: "a failure is one of all", parts: []*steps.Result{first(), with(second(), status("failed"))}, verdict: "fail", statuses: "passed failed passed passed"},
		{name: "a report that calls itself pass is judged by its steps", parts: []*steps.Result{first(), with(second(), status("error"))}, verdict: "error", statuses: "passed error passed passed"},
		{name: "a report's own word is never made better", parts: []*steps.Result{first(), with(second(), func(r *steps.Result) { r.Verdict = "error" })}, verdict: "error", statuses: "passed passed passed passed"},
		{name: "an excused failure stays excused", parts: []*steps.Result{first(), with(second(), func(r *steps.Result) { r.Steps[0].Status, r.Steps[0].Excused = "failed", true })}, verdict: "pass", statuses: "passed failed passed passed"},
		{name: "a missing shard closes the gate", parts: []*steps.Result{first()}, verdict: "fail", problems: []string{"shard 2 of 2 is missing"}, statuses: "passed skipped passed skipped"},
		{name: "two missing ones are named", parts: []*steps.Result{report(2, 3, all...)}, verdict: "fail", problems: []string{"shards 1, 3 of 3 are missing"}, statuses: "passed passed passed passed"},
		{name: "a shard that is there twice closes the gate", parts: []*steps.Result{first(), second(), with(second(), func(r *steps.Result) { r.Steps[0].DurationMs++ })}, verdict: "fail",
			problems: []string{"shard 2 of 2 is there twice: p1 and p2"}, statuses: "passed passed passed passed"},
		{name: "the report of no shard is foreign", parts: []*steps.Result{first(), second(), with(report(1, 1), func(r *steps.Result) { r.Shard = nil })}, verdict: "fail",
			problems: []string{"p2 is the report of no shard"}, statuses: "passed passed passed passed"},
		{name: "and so is one of another plan, which changes nothing else", parts: []*steps.Result{first(), second(), with(second(), func(r *steps.Result) {
			r.Shard.Plan, r.Steps[0].Status = strings.Repeat("f", 64), "failed"
		})}, verdict: "fail", problems: []string{"p2 is of another plan"}, statuses: "passed passed passed passed"},
		{name: "of another list", parts: []*steps.Result{first(), second(), with(report(2, 2), func(r *steps.Result) { r.Shard.All = []string{"z"} })}, verdict: "fail",
			problems: []string{"p2 is of another plan"}, statuses: "passed passed passed passed"},
		{name: "or of another number of shards", parts: []*steps.Result{first(), second(), report(3, 3, "a")}, verdict: "fail", problems: []string{"p2 is of 3 shards and not of 2"}, statuses: "passed passed passed passed"},
		{name: "reports of no shard alone make nothing", parts: []*steps.Result{with(report(1, 1), func(r *steps.Result) { r.Shard = nil })}, verdict: "fail",
			problems: []string{"there is no report of a shard", "p0 is the report of no shard"}},
		{name: "a step in two shards closes the gate", parts: []*steps.Result{report(1, 2, "a", "b"), report(2, 2, "b", "c", "d")}, verdict: "fail",
			problems: []string{"step b is in shards 1 and 2: were they split by different durations?"}, statuses: "passed passed passed passed"},
		{name: "and so does a step in none", parts: []*steps.Result{report(1, 2, "a"), report(2, 2, "c", "d")}, verdict: "fail",
			problems: []string{"step b is in none of the shards"}, statuses: "passed skipped passed passed"},
		{name: "a shard that says nothing of its step closes the gate", parts: []*steps.Result{first(), with(second(), func(r *steps.Result) { r.Steps = r.Steps[1:] })}, verdict: "fail",
			problems: []string{"shard 2 of 2 does not say what became of step b"}, statuses: "passed skipped passed passed"},
		{name: "a refused shard refuses", parts: []*steps.Result{first(), with(second(), verdict("refused"))}, verdict: "refused", statuses: "passed skipped passed skipped"},
		{name: "a shard without a verdict leaves none", parts: []*steps.Result{first(), with(second(), verdict("error"))}, verdict: "error", statuses: "passed error passed error"},
		{name: "a cancelled one cancels, before all", parts: []*steps.Result{with(first(), verdict("refused")), with(second(), verdict("cancelled"))}, verdict: "cancelled", statuses: "skipped cancelled skipped cancelled"},
		{name: "a trusted plan is what all must be of", parts: []*steps.Result{first(), second()}, want: &Plan{planSum, all}, verdict: "pass", statuses: "passed passed passed passed"},
		{name: "however many are of another", parts: []*steps.Result{first(), second()}, want: &Plan{strings.Repeat("b", 64), all}, verdict: "fail",
			problems: []string{"there is no report of a shard of this plan", "p0 is of another plan", "p1 is of another plan"}, statuses: "skipped skipped skipped skipped"},
		{name: "a sum alone is no plan", parts: []*steps.Result{with(report(1, 1), func(r *steps.Result) { r.Shard.All = nil })}, want: &Plan{planSum, all}, verdict: "fail",
			problems: []string{"there is no report of a shard of this plan", "p0 is of another plan"}, statuses: "skipped skipped skipped skipped"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var parts []Part
			for i, r := range tc.parts {
				if err := Check(r); err != nil {
					t.Fatalf("report %d: %v", i, err)
				}
				parts = append(parts, Part{Name: "p" + string(rune('0'+i)), Result: r})
			}
			got, from := Merge(parts, tc.want, nil, tool)
			if got.Verdict != tc.verdict {
				t.Errorf("verdict %s, want %s", got.Verdict, tc.verdict)
			}
			if len(got.Merged.Problems) != len(tc.problems) {
				t.Fatalf("problems %q, want %q", got.Merged.Problems, tc.problems)
			}
			for i, p := range got.Merged.Problems {
				if !strings.HasPrefix(p, tc.problems[i]) {
					t.Errorf("problem %q, want %q", p, tc.problems[i])
				}
			}
			var statuses []string
			for i, s := range got.Steps {
				if s.ID != all[i] {
					t.Errorf("step %d is %s", i, s.ID)
				}
				statuses = append(statuses, s.Status)
				if from[i] >= 0 && parts[from[i]].Result.Shard.Index != s.Shard {
					t.Errorf("step %s is of part %d, and says shard %d", s.ID, from[i], s.Shard)
				}
				if s.Status != "passed" && from[i] < 0 && s.Reason == "" {
					t.Errorf("step %s does not say why", s.ID)
				}
			}
			if s := strings.Join(statuses, " "); s != tc.statuses {
				t.Errorf("statuses %s, want %s", s, tc.statuses)
			}
			if len(from) != len(got.Steps) {
				t.Errorf("%d steps come from %d", len(got.Steps), len(from))
			}
		})
	}
}

// retried makes a step one that passed at its second try.
func retried(s *steps.StepResult) {
	s.Attempts, s.Flaky, s.Notes = 2, true, []string{"try 1 of 2: the step ended with exit code 7"}
	s.Tries = []steps.Try{{Reason: "the step ended with exit code 7", DurationMs: 3, Stdout: steps.Output{Path: "steps/" + s.ID + "/try-1/stdout.log", Bytes: 4},
		Patch: &steps.Patch{Path: "steps/" + s.ID + "/try-1/changes.patch"}}}
}

func TestMergeKeepsWhatIsKnownOfTries(t *testing.T) {
	a, b := report(1, 2, "a", "c"), report(2, 2, "b", "d")
	retried(&a.Steps[1])
	want := a.Steps[1]
	want.Shard = 1
	if err := Check(a); err != nil {
		t.Fatal(err)
	}
	got, _ := Merge([]Part{{"x", a}, {"y", b}}, nil, nil, tool)
	if diff := cmp.Diff(want, got.Steps[2], cmpopts.IgnoreUnexported(steps.StepResult{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	var paths []string
	for _, f := range Files(&got.Steps[2]) {
		paths = append(paths, *f.Path)
	}
	if diff := cmp.Diff([]string{"steps/c/stdout.log", "steps/c/stderr.log", "steps/c/try-1/stdout.log", "", "steps/c/try-1/changes.patch"}, paths); diff != "" {
		t.Errorf("files to bring along (-want +got)\n%s", diff)
	}
}

func TestShardsAreHeldToOnePolicy(t *testing.T) {
	ref := func(sign, path string) *steps.PolicyRef {
		if sign == "" {
			return nil
		}
		return &steps.PolicyRef{Path: path, SHA256: strings.Repeat(sign, 64)}
	}
	const none = " ran without a policy, and not under the one whose sum is "
	other := func(a, b string) string {
		return " ran under another policy: its sum is " + strings.Repeat(a, 12) + " and not " + strings.Repeat(b, 12)
	}
	for _, tc := range []struct {
		name     string
		ran      [3]string // the sign that the sum of each shard's policy is made of
		want     string
		problems []string
		policy   *steps.PolicyRef
	}{
		{"all were held to one", [3]string{"a", "a", "a"}, "", nil, ref("a", "p.yml")},
		{"none was held to any", [3]string{}, "", nil, nil},
		{"one was held to none", [3]string{"a", "", "a"}, "", []string{"shard 2 of 3" + none + strings.Repeat("a", 12)}, ref("a", "p.yml")},
		{"one only was held to any", [3]string{"", "a", ""}, "", []string{"shard 1 of 3" + none, "shard 3 of 3" + none}, ref("a", "p.yml")},
		{"one was held to another", [3]string{"a", "a", "b"}, "", []string{"shard 3 of 3" + other("b", "a")}, ref("a", "p.yml")},
		{"each to one of its own", [3]string{"a", "b", "c"}, "", []string{"shard 1 of 3" + other("a", "c"), "shard 2 of 3" + other("b", "c")}, ref("c", "p.yml")},
		{"all to the one that is trusted", [3]string{"a", "a", "a"}, "a", nil, ref("a", "trusted.yml")},
		{"all to one that is not", [3]string{"a", "a", "a"}, "b", []string{"shard 1 of 3" + other("a", "b"), "shard 2 of 3" + other("a", "b"), "shard 3 of 3" + other("a", "b")}, ref("b", "trusted.yml")},
		{"none to the one that is trusted", [3]string{}, "b", []string{"shard 1 of 3" + none, "shard 2 of 3" + none, "shard 3 of 3" + none}, ref("b", "trusted.yml")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var parts []Part
			for i, ids := range [][]string{{"a", "c"}, {"b", "d"}, nil} { // the last has nothing to do
				r := report(i+1, 3, ids...)
				r.Policy = ref(tc.ran[i], "p.yml")
				if err := Check(r); err != nil {
					t.Fatal(err)
				}
				parts = append(parts, Part{"p", r})
			}
			got, _ := Merge(parts, nil, ref(tc.want, "trusted.yml"), tool)
			if len(got.Merged.Problems) != len(tc.problems) {
				t.Fatalf("problems %q, want %q", got.Merged.Problems, tc.problems)
			}
			for i, p := range got.Merged.Problems {
				if !strings.HasPrefix(p, tc.problems[i]) {
					t.Errorf("problem %q, want %q", p, tc.problems[i])
				}
			}
			want := steps.VerdictPass
			if len(tc.problems) > 0 {
				want = steps.VerdictFail
			}
			if got.Verdict != want {
				t.Errorf("verdict %s, want %s", got.Verdict, want)
			}
			if diff := cmp.Diff(tc.policy, got.Policy); diff != "" {
				t.Errorf("policy (-want +got)\n%s", diff)
			}
			for i, s := range got.Merged.Shards {
				if s.Policy != strings.Repeat(tc.ran[i], 64) {
					t.Errorf("shard %d: policy %q", i+1, s.Policy)
				}
			}
		})
	}
	// Where each machine has it elsewhere, it has no path.
	a, b := report(1, 2, "a", "c"), report(2, 2, "b", "d")
	a.Policy, b.Policy = ref("a", "/x/p.yml"), ref("a", "/y/p.yml")
	if got, _ := Merge([]Part{{"x", a}, {"y", b}}, nil, nil, tool); got.Verdict != steps.VerdictPass || !cmp.Equal(got.Policy, ref("a", "")) {
		t.Errorf("%s under %+v", got.Verdict, got.Policy)
	}
}

func TestWhatShardsSayTogether(t *testing.T) {
	a, b := report(1, 2, "a", "c"), report(2, 2, "b", "d")
	a.Notes, b.Notes = []string{"the same", "mine"}, []string{"the same", "the same"}
	b.StartedAt = "2026-01-02T04:04:07+01:00" // two seconds later
	b.Host.Kernel, b.Host.Proof = "6.11", []steps.Proof{{Control: "seccomp", OK: true, How: "seen"}}
	a.Steps[1].StartedMs, b.Steps[1].StartedMs = 5, 6
	a.File, b.File = "ci/steps.yml", "ci/steps.yml"
	b.Verdict, b.Refusal = "refused", &steps.Refusal{Cause: "no cgroup", Fix: []string{"run: it"}}
	got, _ := Merge([]Part{{"x", a}, {"y", b}}, nil, nil, tool)
	if diff := cmp.Diff([]string{"shards 1, 2: the same", "shard 1: mine"}, got.Notes); diff != "" {
		t.Errorf("notes (-want +got)\n%s", diff)
	}
	host := steps.Host{OS: "linux", Kernel: "6.8, 6.11", Arch: "amd64", Cgroup: "v2", Proof: []steps.Proof{{Control: "seccomp", OK: true, How: "shard 2: seen"}}}
	if diff := cmp.Diff(host, got.Host); diff != "" {
		t.Errorf("host (-want +got)\n%s", diff)
	}
	if got.StartedAt != "2026-01-02T03:04:05Z" || got.DurationMs != 2100 || got.File != "ci/steps.yml" {
		t.Errorf("started %s, took %d ms, of %s", got.StartedAt, got.DurationMs, got.File)
	}
	if got.Steps[2].StartedMs != 5 || got.Steps[3].StartedMs != 2006 {
		t.Errorf("the steps started at %d and %d ms", got.Steps[2].StartedMs, got.Steps[3].StartedMs)
	}
	if diff := cmp.Diff(&steps.Refusal{Cause: "shard 2 of 2: no cgroup", Fix: []string{"run: it"}}, got.Refusal); diff != "" {
		t.Errorf("refusal (-want +got)\n%s", diff)
	}
	// No clock, and no word about one, makes a time that cannot be.
	for _, s := range []string{"", "yesterday", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"} {
		b.StartedAt = s
		if got, _ := Merge([]Part{{"x", a}, {"y", b}}, nil, nil, tool); got.DurationMs < 100 || got.Steps[3].StartedMs < 0 {
			t.Errorf("%q: took %d ms, started at %d", s, got.DurationMs, got.Steps[3].StartedMs)
		}
	}
}

func TestCheckRefusesWhatNoRunWrites(t *testing.T) {
	if err := Check(report(1, 2, "a", "c")); err != nil {
		t.Fatal(err)
	}
	one := func(change func(*steps.StepResult)) func(*steps.Result) {
		return func(r *steps.Result) { change(&r.Steps[0]) }
	}
	for name, change := range map[string]func(*steps.Result){
		"a verdict that is no word of ours": func(r *steps.Result) { r.Verdict = "passed" },
		"no verdict":                        func(r *steps.Result) { r.Verdict = "" },
		"a time before there was time":      func(r *steps.Result) { r.DurationMs = -1 },
		"a run of a thousand years":         func(r *steps.Result) { r.DurationMs = 1 << 62 },
		"a policy whose sum is none":        func(r *steps.Result) { r.Policy = &steps.PolicyRef{Path: "p.yml", SHA256: "::error::x"} },
		"shard 0":                           func(r *steps.Result) { r.Shard.Index = 0 },
		"shard 3 of 2":                      func(r *steps.Result) { r.Shard.Index = 3 },
		"more shards than there can be":     func(r *steps.Result) { r.Shard.Of = 1 << 30 },
		"a sum that is none":                func(r *steps.Result) { r.Shard.Plan = "x" },
		"a sum with a line end":             func(r *steps.Result) { r.Shard.Plan = planSum + "\n" },
		"a list with an id that is a path":  func(r *steps.Result) { r.Shard.All = append(slices.Clone(all), "../x") },
		"a list with an id twice":           func(r *steps.Result) { r.Shard.All = append(slices.Clone(all), "a") },
		"a step of the shard not in the list": func(r *steps.Result) {
			r.Shard.Steps = append(slices.Clone(r.Shard.Steps), "z")
		},
		"a step of the shard twice":                func(r *steps.Result) { r.Shard.Steps = append(slices.Clone(r.Shard.Steps), "a") },
		"a step that is not the shard's":           func(r *steps.Result) { r.Steps = append(r.Steps, step("b", "passed")) },
		"a step twice":                             func(r *steps.Result) { r.Steps = append(r.Steps, step("a", "passed")) },
		"a step whose id is a path":                func(r *steps.Result) { r.Shard = nil; r.Steps[0].ID = "../a" },
		"a step whose id is two lines":             func(r *steps.Result) { r.Shard = nil; r.Steps[0].ID = "a\n::error::x" },
		"a step without an id":                     func(r *steps.Result) { r.Shard = nil; r.Steps[0].ID = "" },
		"a status that is no word of ours":         one(func(s *steps.StepResult) { s.Status = "PASSED" }),
		"a pass that is excused":                   one(func(s *steps.StepResult) { s.Excused = true }),
		"an error that is excused":                 one(func(s *steps.StepResult) { s.Status, s.Excused = "error", true }),
		"a fault that is none":                     one(func(s *steps.StepResult) { s.Fault = &box.Fault{Type: "$(reboot)"} }),
		"a log elsewhere":                          one(func(s *steps.StepResult) { s.Stdout.Path = "../../etc/passwd" }),
		"a log at an absolute path":                one(func(s *steps.StepResult) { s.Stderr.Path = "/etc/passwd" }),
		"the log of another step":                  one(func(s *steps.StepResult) { s.Stderr.Path = "steps/c/stderr.log" }),
		"a log whose path leads back to it":        one(func(s *steps.StepResult) { s.Stdout.Path = "steps/x/../a/stdout.log" }),
		"a patch elsewhere":                        one(func(s *steps.StepResult) { s.Patch = &steps.Patch{Path: "steps/a/stdout.log"} }),
		"a log of less than nothing":               one(func(s *steps.StepResult) { s.Stdout.Bytes = -1 }),
		"a time that overflows a sum of two":       one(func(s *steps.StepResult) { s.StartedMs = 1<<63 - 1 }),
		"a network that is no word of ours":        one(func(s *steps.StepResult) { s.Network = "some" }),
		"what became of writes, in other words":    one(func(s *steps.StepResult) { s.Workspace = "" }),
		"a change that is none":                    one(func(s *steps.StepResult) { s.Files = []steps.FileChange{{Change: "x", Type: "file"}} }),
		"a step that was tried too often":          one(func(s *steps.StepResult) { s.Attempts = steps.MaxTries + 1 }),
		"a step that was tried less than never":    one(func(s *steps.StepResult) { s.Attempts = -1 }),
		"tries that are not as many as there were": one(func(s *steps.StepResult) { s.Attempts, s.Tries = 3, make([]steps.Try, 1) }),
		"a flaky step that passed at once":         one(func(s *steps.StepResult) { s.Attempts, s.Flaky = 1, true }),
		"a flaky step that failed":                 one(func(s *steps.StepResult) { s.Attempts, s.Flaky, s.Status = 2, true, "failed" }),
		"a try's log elsewhere":                    one(func(s *steps.StepResult) { retried(s); s.Tries[0].Stdout.Path = "steps/a/stdout.log" }),
		"a try's patch elsewhere":                  one(func(s *steps.StepResult) { retried(s); s.Tries[0].Patch.Path = "steps/a/try-2/changes.patch" }),
		"a try of less than no time":               one(func(s *steps.StepResult) { retried(s); s.Tries[0].DurationMs = -1 }),
		"a try's log of less than nothing":         one(func(s *steps.StepResult) { retried(s); s.Tries[0].Stderr.Bytes = -1 }),
		"a result's file elsewhere":                one(func(s *steps.StepResult) { figured(s); s.ResultFiles[0].Path = "steps/a/results/../../../etc/passwd" }),
		"a result's file at an absolute path":      one(func(s *steps.StepResult) { figured(s); s.ResultFiles[0].Path = "/etc/passwd" }),
		"a result's file of no path":               one(func(s *steps.StepResult) { figured(s); s.ResultFiles[0].Path = "" }),
		"a result's file that a browser would run": one(func(s *steps.StepResult) { figured(s); s.ResultFiles[1].Path = "steps/a/results/1.text.html" }),
		"the result's file of another step":        one(func(s *steps.StepResult) { figured(s); s.ResultFiles[0].Path = "steps/c/results/0.png" }),
		"the file of another result":               one(func(s *steps.StepResult) { figured(s); s.ResultFiles[0].Path = "steps/a/results/1.png" }),
		"the same file of two forms": one(func(s *steps.StepResult) {
			figured(s)
			s.Results[0] = steps.CellResult{"a.b/c": "", "a/b.c": ""}
			s.ResultFiles = []steps.ResultFile{{Result: 0, MIME: "a.b/c", Path: "steps/a/results/0.a.b.c.bin"}, {Result: 0, MIME: "a/b.c", Path: "steps/a/results/0.a.b.c.bin"}}
		}),
		"a result's file twice":                one(func(s *steps.StepResult) { figured(s); s.ResultFiles = append(s.ResultFiles, s.ResultFiles[0]) }),
		"a file of a result that is not there": one(func(s *steps.StepResult) { figured(s); s.ResultFiles[0].Result = 7 }),
		"a file of a result before all":        one(func(s *steps.StepResult) { figured(s); s.ResultFiles[0].Result = -1 }),
		"a file of a form that is not there":   one(func(s *steps.StepResult) { figured(s); s.ResultFiles[0].MIME = "image/jpeg" }),
		"a file of a form that is no type": one(func(s *steps.StepResult) {
			figured(s)
			s.Results[0]["../x/y"] = ""
			s.ResultFiles[0] = steps.ResultFile{MIME: "../x/y", Path: "steps/a/results/0....x.y.bin"}
		}),
		"a result's file of less than nothing": one(func(s *steps.StepResult) { figured(s); s.ResultFiles[0].Bytes = -1 }),
		"a setup that ended as none does":      one(func(s *steps.StepResult) { s.Setup = &steps.SetupResult{Status: "ok", By: "run"} }),
		"a setup that came by no way of ours":  one(func(s *steps.StepResult) { s.Setup = &steps.SetupResult{Status: "passed", By: "x"} }),
		"a setup of a step whose id is a path": one(func(s *steps.StepResult) { s.Setup = &steps.SetupResult{Status: "passed", By: "shared", Step: "../a"} }),
		"a setup whose fault is none": one(func(s *steps.StepResult) {
			s.Setup = &steps.SetupResult{Status: "failed", By: "run", Fault: &box.Fault{Type: "x"}}
		}),
		"a setup of less than no time": one(func(s *steps.StepResult) { s.Setup = &steps.SetupResult{Status: "passed", By: "run", DurationMs: -1} }),
		"a setup's log of less than nothing": one(func(s *steps.StepResult) {
			s.Setup = &steps.SetupResult{Status: "passed", By: "run", Stderr: steps.Output{Bytes: -1}}
		}),
		"a setup's change that is none": one(func(s *steps.StepResult) {
			s.Setup = &steps.SetupResult{Status: "passed", By: "run", Files: []steps.FileChange{{Change: "x", Type: "file"}}}
		}),
		"a request that ended as none does": one(func(s *steps.StepResult) { s.Egress = []steps.EgressRecord{{Verdict: "ok"}} }),
	} {
		t.Run(name, func(t *testing.T) {
			err := Check(with(report(1, 2, "a", "c"), change))
			if err == nil {
				t.Fatal("it is taken")
			}
			if strings.ContainsAny(err.Error(), "\n\r") || len(err.Error()) > 300 {
				t.Errorf("the refusal is %q", err)
			}
		})
	}
}

// figured is a step with a figure and a long value, as a cell leaves them.
func figured(s *steps.StepResult) {
	s.Results = []steps.CellResult{{"image/png": "aGVsbG8=", "text/plain": "<Figure>"}, {"text/html": "steps/a/results/1.html.txt"}}
	s.ResultFiles = []steps.ResultFile{
		{Result: 0, MIME: "image/png", Path: "steps/a/results/0.png", Bytes: 5},
		{Result: 1, MIME: "text/html", Path: "steps/a/results/1.html.txt", Bytes: 70_000},
	}
}

func TestCheckTakesWhatCellsAndSetupsLeave(t *testing.T) {
	r := report(1, 2, "a", "c")
	figured(&r.Steps[0])
	r.Steps[0].Results = append(r.Steps[0].Results, steps.CellResult{"a.b/c": "", "a/b.c": ""})
	r.Steps[0].ResultFiles = append(r.Steps[0].ResultFiles,
		steps.ResultFile{Result: 2, MIME: "a.b/c", Path: "steps/a/results/2.a.b.c.bin"}, steps.ResultFile{Result: 2, MIME: "a/b.c", Path: "steps/a/results/2.3.a.b.c.bin"})
	r.Steps[0].Setup = &steps.SetupResult{Status: "passed", By: "run", Network: "allowlist", EgressMode: "audit", Files: []steps.FileChange{{Path: ".deps", Change: "created", Type: "dir"}}}
	r.Steps[1].Setup = &steps.SetupResult{Status: "passed", By: "shared", Step: "a"}
	if err := Check(r); err != nil {
		t.Error(err)
	}
}

func TestTheFilesOfASetupAreBroughtAlong(t *testing.T) {
	s := steps.StepResult{ID: "a", Setup: &steps.SetupResult{
		Stdout: steps.Output{Path: "steps/a/setup/stdout.log"}, Stderr: steps.Output{Path: "../../etc/passwd"},
	}}
	var got []string
	for _, f := range Files(&s) {
		got = append(got, *f.Path+" = "+f.want)
	}
	want := []string{" = steps/a/stdout.log", " = steps/a/stderr.log", "steps/a/setup/stdout.log = steps/a/setup/stdout.log", "../../etc/passwd = steps/a/setup/stderr.log"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
