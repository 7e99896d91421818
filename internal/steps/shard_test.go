package steps

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// listed makes steps of lines "id needs...".
func listed(lines ...string) []PlanStep {
	var out []PlanStep
	for _, l := range lines {
		f := strings.Fields(l)
		out = append(out, PlanStep{ID: f[0], Needs: f[1:]})
	}
	return out
}

func TestSplit(t *testing.T) {
	for _, tc := range []struct {
		name      string
		steps     []PlanStep
		of        int
		durations map[string]int64
		want      []int
	}{
		{"equal steps go around, in the order of the list", listed("a", "b", "c", "d", "e"), 2, nil, []int{0, 1, 0, 1, 0}},
		{"one part has everything", listed("a", "b"), 1, map[string]int64{"a": 5}, []int{0, 0}},
		{"the longest goes first", listed("a", "b", "c", "d"), 2, map[string]int64{"a": 10, "b": 10, "c": 10, "d": 30}, []int{1, 1, 1, 0}},
		{"needs tie steps together, however they are written", listed("a c", "b", "c", "d b", "e"), 3, nil, []int{0, 1, 0, 1, 2}},
		{"who needs two ties those too", listed("a", "b", "c a b", "d"), 2, nil, []int{0, 0, 0, 1}},
		{"more parts than steps leave some empty", listed("a", "b"), 4, nil, []int{0, 1}},
		{"an unknown step counts as the mean of the others", listed("a", "b", "c"), 2, map[string]int64{"a": 10, "b": 30}, []int{1, 0, 1}},
		{"of equal ones the earlier goes to the earlier part", listed("a", "b", "c"), 3, map[string]int64{"a": 7, "b": 7, "c": 7}, []int{0, 1, 2}},
		{"durations of other steps count for nothing", listed("a", "b"), 2, map[string]int64{"z": 1 << 40}, []int{0, 1}},
		{"no duration is so long that the sum overflows", listed("a", "b", "c"), 2, map[string]int64{"a": 1 << 62, "b": 1 << 62, "c": 1 << 62}, []int{0, 1, 0}},
		{"nor is one negative", listed("a", "b"), 2, map[string]int64{"a": -1 << 63, "b": 4}, []int{0, 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, splitPlan(tc.steps, tc.of, tc.durations)); diff != "" {
				t.Errorf("parts (-want +got)\n%s", diff)
			}
		})
	}
}

// TestSplitOfAnyPlan: every step is in one part, with all it needs, the answer is
// always the same, and no part has more than its share and one cluster.
func TestSplitOfAnyPlan(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 5))
		n, of := 1+r.IntN(60), 1+r.IntN(9)
		durations := map[string]int64{}
		list := make([]PlanStep, n)
		for i := range list {
			list[i].ID = fmt.Sprint("s", i)
			if i > 0 && r.IntN(3) == 0 {
				list[i].Needs = []string{fmt.Sprint("s", r.IntN(i))}
			}
			durations[list[i].ID] = 1 + r.Int64N(1000)
		}
		got := splitPlan(list, of, durations)
		if diff := cmp.Diff(got, splitPlan(list, of, durations)); diff != "" {
			t.Fatalf("seed %d: another answer the second time\n%s", seed, diff)
		}
		at := map[string]int{}
		loads, sum := make([]int64, of), int64(0)
		for i, s := range list {
			at[s.ID] = got[i]
			loads[got[i]] += durations[s.ID]
			sum += durations[s.ID]
		}
		largest := map[int]int64{}
		for i, root := range clusters(list) {
			largest[root] += durations[list[i].ID]
			for _, need := range list[i].Needs {
				if at[need] != got[i] {
					t.Errorf("seed %d: %s is apart from %s, which it needs", seed, list[i].ID, need)
				}
			}
		}
		most := int64(0)
		for _, w := range largest {
			most = max(most, w)
		}
		if top := slices.Max(loads); top > sum/int64(of)+most {
			t.Errorf("seed %d: a part has %d of %d in %d parts, and the longest cluster is %d", seed, top, sum, of, most)
		}
	}
}

func TestParsePart(t *testing.T) {
	for text, want := range map[string]Part{"1/1": {Index: 1, Of: 1}, "2/3": {Index: 2, Of: 3}, "256/256": {Index: 256, Of: 256}} {
		if got, err := ParsePart(text); err != nil || !cmp.Equal(got, want) {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "1", "/", "0/2", "2/1", "1/0", "-1/2", "+1/2", "01/2", "1/2/3", " 1/2", "1/2 ", "1/257", "1e0/2", "\u0661/2", "99999999999999999999/99999999999999999999"} {
		if got, err := ParsePart(text); err == nil {
			t.Errorf("%q is taken as %v", text, got)
		}
	}
}

const shardedFile = `
steps:
  - {id: a, run: 'true'}
  - {id: b, run: 'true'}
  - {id: c, needs: b, run: 'true'}
  - {id: d, run: 'true'}
`

func TestPartOfAPlan(t *testing.T) {
	load := func(t *testing.T, o Options) *Plan {
		t.Helper()
		p, err := Load("f.yml", []byte(shardedFile), o)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	whole, err := load(t, Options{}).Sum()
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name  string
		opt   Options
		steps []string
		all   []string
		whole bool
	}{
		{"a part has the steps it has, in the order of the list", Options{Part: Part{Index: 1, Of: 2}}, []string{"b", "c"}, []string{"a", "b", "c", "d"}, true},
		{"and the other part the rest", Options{Part: Part{Index: 2, Of: 2}}, []string{"a", "d"}, []string{"a", "b", "c", "d"}, true},
		{"a part may have none", Options{Part: Part{Index: 4, Of: 4}}, []string{}, []string{"a", "b", "c", "d"}, true},
		{"only comes after, and moves no step", Options{Part: Part{Index: 1, Of: 2}, Only: []string{"a", "c"}}, []string{"c"}, []string{"a", "c"}, false},
		{"durations move steps and not the sum", Options{Part: Part{Index: 1, Of: 2, Durations: map[string]int64{"a": 9000, "b": 1, "c": 1, "d": 1}}},
			[]string{"a"}, []string{"a", "b", "c", "d"}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := load(t, tc.opt)
			if diff := cmp.Diff(tc.steps, p.IDs()); diff != "" {
				t.Errorf("steps (-want +got)\n%s", diff)
			}
			want := &Shard{Index: tc.opt.Part.Index, Of: tc.opt.Part.Of, Plan: p.Shard.Plan, Steps: tc.steps, All: tc.all}
			if diff := cmp.Diff(want, p.Shard); diff != "" {
				t.Errorf("shard (-want +got)\n%s", diff)
			}
			if (p.Shard.Plan == whole) != tc.whole {
				t.Errorf("the sum is %s, of the whole plan %s", p.Shard.Plan, whole)
			}
		})
	}
}

// TestSumOfAPlan: it is the same wherever the same steps are read, and another
// for whatever a step does otherwise.
func TestSumOfAPlan(t *testing.T) {
	sum := func(t *testing.T, name, text string, o Options) string {
		t.Helper()
		if o.Workspace == "" {
			o.Workspace = t.TempDir()
		}
		p, err := Load(name, []byte(text), o)
		if err != nil {
			t.Fatal(err)
		}
		s, err := p.Sum()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	base := "steps:\n  - id: a\n    run: 'true'\n    passEnv: [TOKEN]\n    mounts: {/opt/tools: [/opt/tools, ro]}\n"
	here := Options{EvalSymlinks: func(p string) (string, error) { return p, nil }}
	elsewhere := Options{
		HostEnv:      func(string) (string, bool) { return "set here", true },
		EvalSymlinks: func(p string) (string, error) { return strings.Replace(p, "/opt/tools", "/srv/tools", 1), nil },
	}
	want := sum(t, "f.yml", base, here)
	if got := sum(t, "/elsewhere/g.yml", "# with a word of its own\n"+base, elsewhere); got != want {
		t.Errorf("another machine sums up the same plan as %s, not %s", got, want)
	}
	for name, other := range map[string]string{
		"script": strings.Replace(base, "true", "false", 1), "id": strings.Replace(base, "id: a", "id: b", 1),
		"a mount's source": strings.Replace(base, "{/opt/tools:", "{/opt/other:", 1), "a limit": base + "    memoryMb: 99\n",
		"the network": base + "    network: true\n", "what is excused": base + "    continueOnError: true\n",
		"another step": base + "  - run: 'true'\n", "expect": base + "    expect: {exitCode: 1}\n",
	} {
		if sum(t, "f.yml", other, here) == want {
			t.Errorf("%s is not in the sum", name)
		}
	}
}
