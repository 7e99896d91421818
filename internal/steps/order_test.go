package steps

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
)

// planOf reads "a b:a c:a,b" as steps with what they need.
func planOf(text string) []PlanStep {
	var list []PlanStep
	for _, f := range strings.Fields(text) {
		id, needs, has := strings.Cut(f, ":")
		s := PlanStep{ID: id, DiskMb: 4}
		if has {
			s.Needs = strings.Split(needs, ",")
		}
		list = append(list, s)
	}
	return list
}

func ids(list []*PlanStep) string {
	var out []string
	for _, s := range list {
		out = append(out, s.ID)
	}
	return strings.Join(out, " ")
}

func TestOrder(t *testing.T) {
	for _, tc := range []struct{ sentence, plan, want string }{
		{"without needs it is the list's", "c a b", "c a b"},
		{"a need that stands earlier changes nothing", "a b:a c:b", "a b c"},
		{"a need that stands later is waited for", "a:c b c", "b c a"},
		{"a step that waited runs as soon as it may, before later ones of the list", "a:b b c d", "b a c d"},
		{"a chain backwards is turned round", "a:b b:c c:d d", "d c b a"},
		{"a diamond runs its sides in the list's order", "top left:top right:top bottom:left,right", "top left right bottom"},
		{"a diamond upside down in the list", "bottom:left,right right:top left:top top", "top right left bottom"},
		{"two needs are both waited for", "a:b,d b c d e", "b c d a e"},
		{"a need named twice is one need", "a:b,b b", "b a"},
		{"one step is itself", "a", "a"},
		{"no step is nothing", "", ""},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			if got := ids(order(planOf(tc.plan))); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

// slowOrder is the sentence itself: always the first of the list that has not
// run and whose needs have.
func slowOrder(list []PlanStep) (out []*PlanStep) {
	done := map[string]bool{}
next:
	for len(out) < len(list) {
	candidates:
		for i := range list {
			if done[list[i].ID] {
				continue
			}
			for _, n := range list[i].Needs {
				if !done[n] {
					continue candidates
				}
			}
			done[list[i].ID] = true
			out = append(out, &list[i])
			continue next
		}
		return out // a cycle
	}
	return out
}

func TestOrderIsWhatItsSentenceSays(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		n := 1 + r.IntN(12)
		rank := r.Perm(n) // needs point to a lower rank, so there is no cycle
		list := make([]PlanStep, n)
		for i := range list {
			list[i].ID = fmt.Sprintf("s%d", i)
			for j := range n {
				if rank[j] < rank[i] && r.IntN(4) == 0 {
					list[i].Needs = append(list[i].Needs, fmt.Sprintf("s%d", j))
				}
			}
		}
		if got, want := ids(order(list)), ids(slowOrder(list)); got != want {
			t.Fatalf("%+v:\n%s\nwant\n%s", list, got, want)
		}
	}
}

// refuser is an engine that builds no box: the step is to blame, so there is a
// verdict, without anything of the kernel's. A step that expects it passes.
type refuser struct {
	asked []string
	err   error
	hook  func()
	last  box.Spec
}

func (*refuser) Info() box.Info       { return box.Info{Name: "refuser"} }
func (*refuser) Check(box.Spec) error { return nil }
func (e *refuser) Start(_ context.Context, s box.Spec, _ box.Placement) (*box.Built, error) {
	e.asked = append(e.asked, s.ID)
	e.last = s
	if e.hook != nil {
		e.hook()
	}
	if e.err != nil {
		return nil, e.err
	}
	return nil, &box.StartupError{Why: "image: there is none"}
}

// runPlan runs a plan of planOf. A step whose id begins with ok passes, one that
// begins with ex is excused.
func runPlan(t *testing.T, ctx context.Context, e *refuser, text string) Result {
	t.Helper()
	p := &Plan{Steps: planOf(text)}
	for i := range p.Steps {
		s := &p.Steps[i]
		s.ContinueOnErr = strings.HasPrefix(s.ID, "ex")
		if strings.HasPrefix(s.ID, "ok") {
			s.Expect.Fault = box.StartupFailed
		}
	}
	dir := t.TempDir()
	r := &Runner{
		Engine: e, Guard: NewGuard(testOptions(t)), Workspace: dir, Out: t.TempDir(),
		Log: gha.NewLog(io.Discard, gha.LogOptions{}), Masker: gha.NewMasker(),
		Getenv: func(string) (string, bool) { return "", false }, Now: time.Now,
	}
	var res Result
	r.Run(ctx, p, &res)
	return res
}

func statuses(res Result) string {
	var out []string
	for _, s := range res.Steps {
		word := s.ID + "=" + s.Status
		if s.Excused {
			word += "(excused)"
		}
		out = append(out, word)
	}
	return strings.Join(out, " ")
}

func TestNeeds(t *testing.T) {
	for _, tc := range []struct{ sentence, plan, ran, want, verdict string }{
		{"a step runs after what it needs has passed", "ok1 ok2:ok1", "ok1 ok2", "ok1=passed ok2=passed", VerdictPass},
		{"what needs a failed step is skipped", "bad ok:bad", "bad", "bad=failed ok=skipped", VerdictFail},
		{"what needs a skipped step is skipped", "bad ok1:bad ok2:ok1", "bad", "bad=failed ok1=skipped ok2=skipped", VerdictFail},
		{"one of two needs that failed is enough", "ok1 bad ok2:ok1,bad", "ok1 bad", "ok1=passed bad=failed ok2=skipped", VerdictFail},
		{"a failure does not stop what does not need it", "bad ok1 ok2:ok1", "bad ok1 ok2", "bad=failed ok1=passed ok2=passed", VerdictFail},
		{"an excused failure does not satisfy a need", "ex ok:ex", "ex", "ex=failed(excused) ok=skipped", VerdictFail},
		{"a skip that is excused closes no gate", "ex1 ex2:ex1", "ex1", "ex1=failed(excused) ex2=skipped(excused)", VerdictPass},
		{"the report has the list's order, whatever ran first", "ok1:ok2 ok2", "ok2 ok1", "ok1=passed ok2=passed", VerdictPass},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			e := &refuser{}
			res := runPlan(t, context.Background(), e, tc.plan)
			if got := strings.Join(e.asked, " "); got != tc.ran {
				t.Errorf("ran %q, want %q", got, tc.ran)
			}
			if got := statuses(res); got != tc.want || res.Verdict != tc.verdict {
				t.Errorf("%s: %s; want %s: %s", res.Verdict, got, tc.verdict, tc.want)
			}
		})
	}
}

func TestNoVerdictAndCancel(t *testing.T) {
	t.Run("an engine that fails by itself is no verdict, excused by nothing, and satisfies no need", func(t *testing.T) {
		e := &refuser{err: errors.New("clone: EAGAIN")}
		res := runPlan(t, context.Background(), e, "ex ok ok2:ok")
		if got, want := statuses(res), "ex=error ok=error ok2=skipped"; got != want || res.Verdict != VerdictError {
			t.Errorf("%s: %s, want error: %s", res.Verdict, got, want)
		}
		if why := res.Steps[0].Reason; !strings.Contains(why, "EAGAIN") {
			t.Errorf("reason %q", why)
		}
	})
	t.Run("cancelled before it began, nothing is built and every step says so", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		e := &refuser{}
		res := runPlan(t, ctx, e, "ok1 ok2:ok1 ex")
		if got, want := statuses(res), "ok1=cancelled ok2=cancelled ex=cancelled"; got != want || res.Verdict != VerdictCancelled || len(e.asked) != 0 {
			t.Errorf("%s: %s, asked %v", res.Verdict, got, e.asked)
		}
	})
	t.Run("cancelled in the middle, what was done stays and the rest is cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		e := &refuser{}
		e.hook = func() {
			if len(e.asked) == 2 {
				cancel()
			}
		}
		res := runPlan(t, ctx, e, "ok1 ok2 ok3")
		if got, want := statuses(res), "ok1=passed ok2=cancelled ok3=cancelled"; got != want || res.Verdict != VerdictCancelled {
			t.Errorf("%s: %s, want cancelled: %s", res.Verdict, got, want)
		}
		if len(e.asked) != 2 {
			t.Errorf("asked for %v", e.asked)
		}
	})
	t.Run("requireLimits without groups is no verdict, and no box is built", func(t *testing.T) {
		e := &refuser{}
		r := &Runner{
			Engine: e, Guard: NewGuard(testOptions(t)), Workspace: t.TempDir(), Out: t.TempDir(),
			Log: gha.NewLog(io.Discard, gha.LogOptions{}), Masker: gha.NewMasker(), Now: time.Now,
			Getenv: func(string) (string, bool) { return "", false },
		}
		var res Result
		r.Run(context.Background(), &Plan{Steps: []PlanStep{{ID: "a", DiskMb: 4, RequireLimits: true}}}, &res)
		if res.Verdict != VerdictError || len(e.asked) != 0 || !strings.Contains(res.Steps[0].Reason, "requireLimits") {
			t.Errorf("%s: %+v", res.Verdict, res.Steps[0].Reason)
		}
	})
}
