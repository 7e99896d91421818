package steps

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/egress"
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
)

func TestOnlyWhatIsNotTheCodesDoingIsTriedAgain(t *testing.T) {
	one, zero, sig := 1, 0, "SIGKILL"
	lost := func(reason string) EgressRecord {
		return EgressRecord{Host: "a.example.com", Port: 443, Verdict: egress.Failed, Reason: reason, Count: 1}
	}
	fault := func(f box.FaultType) StepResult {
		return StepResult{Status: StatusFailed, Fault: &box.Fault{Type: f}, Events: []box.Event{{Type: f}}, Egress: []EgressRecord{lost("dial")}}
	}
	with := func(r StepResult, change func(*StepResult)) StepResult { change(&r); return r }
	upstreamFailed := StepResult{Status: StatusFailed, ExitCode: &one, Egress: []EgressRecord{lost("upstream")}}
	cases := map[string]struct {
		r    StepResult
		want bool
	}{
		"the box could not be started":                   {fault(box.StartupFailed), true},
		"the server hung up and the step failed":         {upstreamFailed, true},
		"a name did not resolve and the step failed":     {StepResult{Status: StatusFailed, ExitCode: &one, Egress: []EgressRecord{lost("resolve")}}, true},
		"nobody could be connected to":                   {StepResult{Status: StatusFailed, ExitCode: &one, Egress: []EgressRecord{lost("dial")}}, true},
		"the step failed and the network did not":        {StepResult{Status: StatusFailed, ExitCode: &one}, false},
		"the client hung up":                             {StepResult{Status: StatusFailed, ExitCode: &one, Egress: []EgressRecord{lost("no_hello"), lost("cancelled")}}, false},
		"the step opened too many connections":           {StepResult{Status: StatusFailed, ExitCode: &one, Egress: []EgressRecord{lost("overload")}}, false},
		"the server hung up and the step passed":         {with(upstreamFailed, func(r *StepResult) { r.Status, r.ExitCode = StatusPassed, &zero }), false},
		"the server hung up and it exited with 0 though": {with(upstreamFailed, func(r *StepResult) { r.ExitCode = &zero }), false},
		"something else was denied": {with(upstreamFailed, func(r *StepResult) {
			r.Egress = append(r.Egress, EgressRecord{Verdict: egress.Denied})
		}), false},
		"something else was denied, as expected": {with(upstreamFailed, func(r *StepResult) {
			r.Egress = append(r.Egress, EgressRecord{Verdict: egress.Denied, Expected: true})
		}), false},
		"it was ended by a signal": {with(upstreamFailed, func(r *StepResult) { r.ExitCode, r.Signal = nil, &sig }), false},
		"a fault was tolerated": {with(upstreamFailed, func(r *StepResult) {
			r.Events = []box.Event{{Type: box.OOM}}
		}), false},
		"a violation": {with(upstreamFailed, func(r *StepResult) { r.Violations = []Violation{{Type: "set_id"}} }), false},
		"no box and something else too": {with(fault(box.StartupFailed), func(r *StepResult) {
			r.Events = append(r.Events, box.Event{Type: box.EscapeBlocked})
		}), false},
		"no box, as expected": {with(fault(box.StartupFailed), func(r *StepResult) { r.Status = StatusPassed }), false},
		"no verdict":          {with(upstreamFailed, func(r *StepResult) { r.Status = StatusError }), false},
		"cancelled":           {with(upstreamFailed, func(r *StepResult) { r.Status = StatusCancelled }), false},
	}
	for _, k := range box.Kinds {
		if k.Type != box.StartupFailed {
			cases["the fault "+string(k.Type)] = struct {
				r    StepResult
				want bool
			}{fault(k.Type), false}
		}
	}
	for sentence, tc := range cases {
		t.Run(sentence, func(t *testing.T) {
			if got := again(&tc.r); got != tc.want {
				t.Errorf("tried again: %v, want %v", got, tc.want)
			}
		})
	}
}

func TestEachTrySeesTheWorkspaceAsItWas(t *testing.T) {
	for _, tc := range []struct {
		sentence  string
		retries   int64
		onFailure string
		err       error
		tries     int
		attempts  int
		left      []string
		notes     []string
	}{
		{"a step without retries is run once", 0, OnFailureDiscard, nil, 1, 0, nil, nil},
		{"a box that never starts is tried so often and no more", 2, OnFailureDiscard, nil, 3, 3, nil, []string{"try 1 of 3: startup_failed: image: there is none", "try 2 of 3: startup_failed: image: there is none"}},
		{"of a step that keeps what it wrote only the last try's stays", 1, OnFailureKeep, nil, 2, 2, []string{"try-2"}, []string{"try 1 of 2: startup_failed: image: there is none"}},
		{"no verdict is none the second time either", 3, OnFailureDiscard, errors.New("the engine broke"), 1, 1, nil, nil},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			dir, err := filepath.EvalSymlinks(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			e := &refuser{err: tc.err}
			e.hook = func() {
				base := filepath.Join(e.last.Overlay.Base, box.UpperName)
				if old, err := os.ReadDir(base); err != nil || len(old) > 0 {
					t.Errorf("try %d finds %v (%v)", len(e.asked), old, err)
				}
				if err := os.WriteFile(filepath.Join(base, "try-"+string(rune('0'+len(e.asked)))), nil, 0o600); err != nil {
					t.Error(err)
				}
			}
			r := &Runner{
				Engine: e, Guard: NewGuard(testOptions(t)), Workspace: dir, Out: t.TempDir(),
				Log: gha.NewLog(io.Discard, gha.LogOptions{}), Masker: gha.NewMasker(),
				Getenv: func(string) (string, bool) { return "", false }, Now: time.Now,
			}
			s := mustLoad(t, "steps: [{id: one, run: x, requireLimits: false}]", testOptions(t)).Steps[0]
			s.Retries, s.OnFailure = tc.retries, tc.onFailure
			var res Result
			r.Run(t.Context(), &Plan{Steps: []PlanStep{s}}, &res)
			got := res.Steps[0]
			if len(e.asked) != tc.tries || got.Attempts != tc.attempts || got.Flaky {
				t.Errorf("%d tries, %d attempts, flaky %v", len(e.asked), got.Attempts, got.Flaky)
			}
			if diff := cmp.Diff(tc.notes, got.Notes); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			var told []string
			for i, try := range got.Tries {
				told = append(told, got.TrySays(i))
				if b, err := os.ReadFile(filepath.Join(r.Out, try.Patch.Path)); err != nil || !strings.Contains(string(b), "try-") || try.Patch.Files != 1 {
					t.Errorf("the patch of try %d is %+v: %q %v", i+1, try.Patch, b, err)
				}
				for _, log := range []Output{try.Stdout, try.Stderr} {
					if _, err := os.Stat(filepath.Join(r.Out, log.Path)); err != nil || filepath.Dir(log.Path) != TryFolder("one", i+1) {
						t.Errorf("a log of try %d: %q %v", i+1, log.Path, err)
					}
				}
			}
			if diff := cmp.Diff(tc.notes, told); diff != "" {
				t.Errorf("what is told of tries (-want +got)\n%s", diff)
			}
			var left []string
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range entries {
				left = append(left, f.Name())
			}
			if diff := cmp.Diff(tc.left, left); diff != "" {
				t.Errorf("in the workspace (-want +got)\n%s", diff)
			}
			for n := 1; n < tc.tries; n++ {
				if b, err := os.ReadFile(filepath.Join(r.Out, "steps/one/try-"+string(rune('0'+n)), "changes.patch")); err != nil || !strings.Contains(string(b), "try-") {
					t.Errorf("the patch of try %d: %q %v", n, b, err)
				}
			}
		})
	}
}

func TestWhatEarlierTriesAskedForIsTold(t *testing.T) {
	rec := func(host, verdict string, n uint64) EgressRecord {
		return EgressRecord{Host: host, Port: 443, Verdict: verdict, Count: n, BytesIn: 10 * n, BytesOut: n}
	}
	sr := StepResult{Status: StatusPassed, Attempts: 2, Egress: []EgressRecord{rec("a", "allowed", 1)}, EgressUnused: []string{"b", "c"}}
	sum(&sr, []StepResult{{Reason: "exit 1", Egress: []EgressRecord{rec("a", "allowed", 2), rec("b", "failed", 1)}, EgressUnused: []string{"c"}}})
	if diff := cmp.Diff([]EgressRecord{rec("a", "allowed", 3), rec("b", "failed", 1)}, sr.Egress); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if !sr.Flaky || !cmp.Equal(sr.EgressUnused, []string{"c"}) || !cmp.Equal(sr.Notes, []string{"try 1 of 2: exit 1"}) {
		t.Errorf("%+v", sr)
	}
}

func TestMoreTriesAreNotMoreBytes(t *testing.T) {
	moved := []EgressRecord{{BytesIn: 30, BytesOut: 10}}
	for _, tc := range []struct {
		sentence string
		budget   int64
		before   []StepResult
		bytes    int64
		more     bool
	}{
		{"without a bound there is always more", 0, nil, 0, true},
		{"what one try moved is gone", 100, nil, 60, true},
		{"and what the one before it moved", 100, []StepResult{{Egress: moved}}, 20, true},
		{"when all is gone there is no other try", 80, []StepResult{{Egress: moved}}, 80, false},
	} {
		if bytes, more := left(tc.budget, moved, tc.before); bytes != tc.bytes || more != tc.more {
			t.Errorf("%s: %d bytes, %v", tc.sentence, bytes, more)
		}
	}
}

// What a setup made is there for each try, however much of a bound of bytes is left.
func TestATryFindsItsSetup(t *testing.T) {
	tree, _, err := OpenTree(t.Context(), t.TempDir(), TreeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	var proxies []*egress.Proxy
	r := &Runner{
		Engine: &refuser{}, Guard: NewGuard(testOptions(t)), Workspace: tree.workspace, Tree: tree,
		Log: gha.NewLog(io.Discard, gha.LogOptions{}), Masker: gha.NewMasker(),
		Getenv: func(string) (string, bool) { return "", false }, Now: time.Now,
		NewProxy: func(p egress.Policy, l *egress.Ledger) *egress.Proxy {
			proxies = append(proxies, egress.NewProxy(p, l))
			return proxies[len(proxies)-1]
		},
	}
	s := mustLoad(t, "steps: [{id: one, setup: make, setupEgress: [a.example.com], run: x, requireLimits: false, egressAllow: [a.example.com], egressMaxBytes: 100, retries: 1}]", testOptions(t)).Steps[0]
	try := func() (got *StepResult, bounds []int64) {
		proxies, r.Out = nil, t.TempDir()
		got = r.begin(s, time.Now())
		got.Egress = []EgressRecord{{BytesIn: 30, BytesOut: 10}} // of its first try
		r.tries(t.Context(), s, got, time.Now())
		for _, p := range proxies {
			bounds = append(bounds, p.MaxBytes)
		}
		return got, bounds
	}
	// One that fails is tried again, with what is left of the bytes.
	got, bounds := try()
	if diff := cmp.Diff([]int64{100, 60}, bounds); diff != "" || got.Attempts != 2 || got.Setup.By != SetupRan || got.Setup.Status != StatusFailed {
		t.Errorf("%s%+v", diff, got.Setup)
	}
	made := r.setupOf(r.setupKey(s.setupStep()))
	made.done, made.step, made.why, made.layer = true, s.ID, "", prepared(t, tree, map[string]string{".deps/a": "x"})
	got, bounds = try()
	if diff := cmp.Diff([]int64{100, 60}, bounds); diff != "" || got.Attempts != 2 || got.Setup.By != SetupShared || got.Setup.Status != StatusPassed {
		t.Errorf("%s%+v", diff, got.Setup)
	}
	if n := len(r.made.list); n != 1 {
		t.Errorf("%d setups", n)
	}
}

func TestTriesAreMasked(t *testing.T) {
	const secret = "hunter2hunter2"
	sr := StepResult{Tries: []Try{{Reason: "asked for " + secret, Patch: &Patch{MaskedFiles: []string{secret + ".txt"}}}, {}}}
	mask(gha.NewMasker(secret), &sr)
	if got := sr.Tries[0]; got.Reason != "asked for ***" || got.Patch.MaskedFiles[0] != "***.txt" {
		t.Errorf("%+v", got)
	}
}

// TestWhatCannotBeSetAsideIsToldOnce: then there is no other try, and the one
// there was is not one before the last.
func TestWhatCannotBeSetAsideIsToldOnce(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	e := &refuser{}
	r := &Runner{
		Engine: e, Guard: NewGuard(testOptions(t)), Workspace: dir, Out: t.TempDir(),
		Log: gha.NewLog(io.Discard, gha.LogOptions{}), Masker: gha.NewMasker(),
		Getenv: func(string) (string, bool) { return "", false }, Now: time.Now,
	}
	e.hook = func() { // somebody else's file is where the folder would be
		if err := errors.Join(os.MkdirAll(filepath.Join(r.Out, "steps/one"), 0o755), os.WriteFile(filepath.Join(r.Out, "steps/one/try-1"), nil, 0o600)); err != nil {
			t.Error(err)
		}
	}
	s := mustLoad(t, "steps: [{id: one, run: x, requireLimits: false, retries: 2}]", testOptions(t)).Steps[0]
	var res Result
	r.Run(t.Context(), &Plan{Steps: []PlanStep{s}}, &res)
	if got := res.Steps[0]; got.Status != StatusError || got.Attempts != 1 || len(got.Tries) > 0 || len(e.asked) != 1 || !strings.Contains(got.Reason, "earlier try") {
		t.Errorf("%d boxes, %+v", len(e.asked), got)
	}
}
