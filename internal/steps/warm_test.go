package steps

import (
	"context"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/egress"
)

// What shapes a box, and what is in the workspace, tells boxes apart; what one cell
// has for itself does not.
func TestWarmKey(t *testing.T) {
	tree, _, err := OpenTree(context.Background(), t.TempDir(), TreeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	vars := map[string]string{"TOKEN": "one"}
	r := &Runner{Tree: tree, Getenv: func(n string) (string, bool) { v, ok := vars[n]; return v, ok }}
	zero := 0
	base := func() PlanStep {
		return PlanStep{ID: "a", Name: "a", Code: "1", Language: "python", MemoryMb: 64, Expect: Expect{ExitCode: &zero}, PassEnv: []string{"TOKEN"}}
	}
	key := func(change func(*PlanStep)) string {
		t.Helper()
		s := base()
		change(&s)
		k, err := r.warmKey(s)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	plain := key(func(*PlanStep) {})
	for what, change := range map[string]func(*PlanStep){
		"the id": func(s *PlanStep) { s.ID, s.Name, s.Line = "b", "c", 7 }, "the code": func(s *PlanStep) { s.Code, s.SHA256 = "2", "x" },
		"the deadline": func(s *PlanStep) { s.TimeoutS, s.MaxOutput = 5, 5 }, "what it is to end with": func(s *PlanStep) { s.Expect.Fault, s.Tolerate = box.OOM, []box.FaultType{box.Timeout} },
		"what may change": func(s *PlanStep) { s.AllowChanges, s.OnFailure = []string{"x"}, "keep" },
	} {
		if key(change) != plain {
			t.Errorf("%s takes another box", what)
		}
	}
	seen := map[string]string{plain: "nothing"}
	for what, change := range map[string]func(*PlanStep){
		"the engine": func(s *PlanStep) { s.Engine = "gvisor" },
		"memory":     func(s *PlanStep) { s.MemoryMb = 65 }, "pids": func(s *PlanStep) { s.Pids = 5 }, "cpus": func(s *PlanStep) { s.CPUs = 0.5 }, "disk": func(s *PlanStep) { s.DiskMb = 9 },
		"an image": func(s *PlanStep) { s.Image = "rootfs:/x" }, "its place": func(s *PlanStep) { s.Root = box.Root{Kind: box.RootDir, Dir: "/x"} },
		"env": func(s *PlanStep) { s.Env = []EnvVar{{"A", "b"}} }, "workdir": func(s *PlanStep) { s.Workdir = "/workspace/a" },
		"network": func(s *PlanStep) { s.Network = true }, "egress": func(s *PlanStep) { s.EgressAllow = []egress.Entry{{To: "example.com"}} },
		"expected denials": func(s *PlanStep) { s.ExpectDenied = []string{"example.com"} }, "a bound of bytes": func(s *PlanStep) { s.EgressMaxBytes = 5 },
		"mounts": func(s *PlanStep) { s.Mounts = []box.Mount{{Source: "/x", Target: "/y"}} }, "tmpfs": func(s *PlanStep) { s.Tmpfs = []box.Tmpfs{{Target: "/tmp", Bytes: 5}} },
		"shared memory": func(s *PlanStep) { s.ShmBytes = 5 }, "capabilities": func(s *PlanStep) { s.CapDrop = []string{"KILL"} }, "a profile": func(s *PlanStep) { s.Profile = "untrusted" },
		"whether limits are required": func(s *PlanStep) { s.RequireLimits = true }, "names passed": func(s *PlanStep) { s.PassEnv = nil },
	} {
		k := key(change)
		if other, ok := seen[k]; ok {
			t.Errorf("%s makes no difference to %s", what, other)
		}
		seen[k] = what
	}
	vars["TOKEN"] = "two"
	if key(func(*PlanStep) {}) == plain {
		t.Error("another value of a variable makes no difference")
	}
	vars["TOKEN"] = "one"
	tree.seq++
	if key(func(*PlanStep) {}) == plain {
		t.Error("a change of the workspace makes no difference")
	}
}

func TestNoWarmForWhatIsNoCell(t *testing.T) {
	w := NewWarm(1)
	defer w.Close()
	r := &Runner{Warm: w}
	for _, s := range []PlanStep{{Script: "1", Language: "python"}, {Command: []string{"x"}}, {Code: "1", Kernel: "k"}} {
		if r.warm(s, nil) != nil {
			t.Errorf("%+v", s)
		}
	}
	if (&Runner{}).warm(PlanStep{Code: "1"}, nil) != nil {
		t.Error("without any there is one")
	}
}
