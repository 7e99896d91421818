package steps

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/egress"
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
)

// keeper is an engine that keeps what it is asked to build.
type keeper struct{ asked []box.Spec }

func (*keeper) Info() box.Info       { return box.Info{Name: "keeper"} }
func (*keeper) Check(box.Spec) error { return nil }
func (k *keeper) Start(_ context.Context, s box.Spec, _ box.Placement) (*box.Built, error) {
	// What the step's workspace is made of, the run makes when the step begins.
	s.Overlay, s.FileBytes = nil, 0
	k.asked = append(k.asked, s)
	return nil, errors.New("nothing is built")
}

// An engine is asked before the run whether it can build each box. An answer
// about anything but the box it will be asked for later is worth nothing.
func TestWhatAnEngineIsAskedFirstIsWhatItIsAskedToBuild(t *testing.T) {
	p := mustLoad(t, `
steps:
- {id: plain, run: x}
- {id: host, command: [a, b], network: true, pids: null, requireLimits: false}
- {id: audit, run: x, egressMode: audit}
- id: full
  run: print(1)
  language: python
  env: {A: b}
  passEnv: [HERE, MISSING]
  workdir: /tmp
  memoryMb: 300
  pids: 17
  cpus: 0.5
  timeoutS: 3
  requireLimits: false
  tmpfs: {/cache: 8m}
  egressAllow: [good.test, {to: "tcp://127.0.0.1:5432", private: true}, {to: "tcp://10.1.2.3:80", private: true}]
`, testOptions(t))
	for i := range p.Steps {
		p.Steps[i].RequireLimits = false // there are no groups here
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	k := &keeper{}
	r := &Runner{
		Engine: k, Guard: NewGuard(testOptions(t)), Workspace: dir, Out: t.TempDir(),
		Log: gha.NewLog(io.Discard, gha.LogOptions{}), Masker: gha.NewMasker(), NewProxy: egress.NewProxy,
		Getenv: func(n string) (string, bool) { return "value", n == "HERE" }, Now: time.Now,
		BoxPath: []string{"/usr/bin"}, CABundle: "/etc/ca",
	}
	var first []box.Spec
	for _, s := range p.Steps {
		b, err := r.Spec(s)
		if err != nil {
			t.Fatal(err)
		}
		first = append(first, b)
	}
	r.Run(t.Context(), p, &Result{})
	if d := cmp.Diff(k.asked, first, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); d != "" {
		t.Errorf("asked to build (-), asked first (+):\n%s", d)
	}
	// The control: there is something in them.
	last := first[len(first)-1]
	if last.Network != box.NetworkAllowlist || len(last.Addrs) != 1 || len(last.Listen) != 2 || last.Pids != 17 || last.TimeoutS != 3 ||
		!slices.Contains(last.Env, "HERE=value") || !strings.Contains(last.Script.Text, "print") || first[1].Network != box.NetworkHost {
		t.Errorf("%+v", last)
	}
}
