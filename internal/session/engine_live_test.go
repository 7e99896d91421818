package session

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// Which engines are opened is a matter of the steps, and each of them is closed,
// the last first, however far it came.
func TestEnginesAreOpenedForStepsAndClosed(t *testing.T) {
	boxtest.Boxes(t)
	for _, tc := range []struct {
		sentence, engine, src string
		bad, none             string // it has a word against the step's box; it is not there
		forbidden             string
		want                  string
		refused               string
	}{
		{"only those that steps name", "auto", "[{id: a, run: x, engine: native}, {id: b, run: x, engine: gvisor}]", "", "", "", "+native +gvisor -gvisor -native", ""},
		{"the run's own choice first", "auto", "[{id: a, run: x, engine: native}, {id: b, run: x}]", "", "", "", "+kern +native -native -kern", ""},
		{"the run's own choice once", "auto", "[{id: a, run: x, engine: kern}, {id: b, run: x}]", "", "", "", "+kern -kern", ""},
		{"the run's own choice is another where the first is not there", "auto", "[{id: a, run: x}, {id: b, run: x, engine: native}]", "", "kern", "", "+kern +native -native", ""},
		{"one that is not there", "auto", "[{id: a, run: x}, {id: b, run: x, engine: gvisor}]", "", "gvisor", "", "+kern +gvisor -kern",
			"step b names engine gvisor, and no box can be built with it here: it is not there"},
		{"one that cannot build the step's box", "auto", "[{id: a, run: x}, {id: b, run: x, engine: gvisor}, {id: c, run: x, engine: gvisor}]", "gvisor", "", "", "+kern +gvisor -gvisor -kern",
			"steps b, c name engine gvisor, and no box can be built with it here: step b: not this one"},
		{"one that is the run's own choice and cannot", "kern", "[{id: a, run: x}, {id: b, run: x, engine: kern}]", "kern", "", "", "+kern -kern",
			"step b names engine kern, and no box can be built with it here: step b: not this one"},
		{"one that may not be", "auto", "[{id: a, run: x, engine: native}, {id: b, run: x, engine: gvisor}]", "", "", "gvisor", "+native -native",
			"step b names engine gvisor, and no box can be built with it here: it may not be"},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			var saw []string
			// Made of one engine, by the names of three: what is seen here is who is asked.
			var list []Candidate
			for _, c := range candidates {
				open := func(ctx context.Context, s *Session) (box.Engine, func(), error) {
					saw = append(saw, "+"+c.Name)
					if c.Name == tc.none {
						return nil, nil, errors.New("it is not there")
					}
					e, closeIt, err := openNative(ctx, s)
					return picky{e, c.Name == tc.bad}, func() { saw = append(saw, "-"+c.Name); closeIt() }, err
				}
				list = append(list, Candidate{c.Name, open, []string{"get " + c.Name}, c.Named, c.Kernel})
			}
			home, work := t.TempDir(), boxtest.OpenDir(t)
			env := func(n string) string {
				return map[string]string{"HOME": home, "XDG_STATE_HOME": filepath.Join(home, "state"), "PATH": os.Getenv("PATH"), "TMPDIR": os.Getenv("TMPDIR")}[n]
			}
			lookup := func(n string) (string, bool) { return env(n), env(n) != "" }
			load := LoadOptions(env, lookup, nil, work)
			p, err := steps.Load("f.yml", []byte("steps: "+tc.src+"\n"), load)
			if err != nil {
				t.Fatal(err)
			}
			res := &steps.Result{}
			s := New(Options{
				Version: "test", Getenv: env, LookupEnv: lookup, Workspace: work, Out: t.TempDir(), Load: load, Plan: p, Result: res,
				Engines: list, Engine: tc.engine, Jobs: 1, Log: gha.NewLog(t.Output(), gha.LogOptions{}), Masker: gha.NewMasker(),
				NotAllowed: func(e string) string {
					if e == tc.forbidden {
						return "it may not be"
					}
					return ""
				},
			})
			refusal := s.Open(t.Context())
			if refusal == nil {
				for _, step := range p.Steps {
					if err := s.Runner.EngineOf(step).Check(box.Spec{ID: "probe"}); err != nil {
						t.Errorf("%s: %v", step.ID, err)
					}
				}
			}
			s.Close(context.Background())
			if d := cmp.Diff(tc.want, strings.Join(saw, " ")); d != "" {
				t.Error(d)
			}
			switch {
			case refusal == nil && tc.refused != "":
				t.Errorf("it is open; want %s", tc.refused)
			case refusal != nil && (tc.refused == "" || !strings.HasPrefix(refusal.Cause, tc.refused) || len(refusal.Fix) == 0):
				t.Errorf("%+v; want %s", refusal, tc.refused)
			case refusal != nil && tc.none != "" && refusal.Fix[0] != "get "+tc.none:
				t.Errorf("what helps: %q", refusal.Fix)
			case refusal == nil && len(res.Host.Proof) == 0:
				t.Error("nothing was proved")
			}
		})
	}
}

// picky is an engine that may have something against step b.
type picky struct {
	box.Engine
	bad bool
}

func (e picky) Check(s box.Spec) error {
	if e.bad && s.ID == "b" {
		return errors.New("not this one")
	}
	return e.Engine.Check(s)
}
