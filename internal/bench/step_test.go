package bench

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/disk"
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// stepsAtOnce is how many steps one measured run has. What a run does once is
// divided by it.
const stepsAtOnce = 50

// BenchmarkStep is what our part adds to the engine: the box alone, then with
// what watches and judges it, then inside a control group with caps that are
// read back, then as steps of a run, with logs, masking and a report's result.
func BenchmarkStep(b *testing.B) {
	boxtest.Need(b, "root", "userns", "seccomp", "limits")
	s, v := spec(b), hostView()
	e := nativeEngine(v)
	defer e.Close()
	m, err := limits.Open(limits.Config{RunID: "bench" + rand.Text()[:16]})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := m.Close(); err != nil {
			b.Error(err)
		}
	})
	caps := limits.Caps{MemoryBytes: 512 << 20, Pids: 256}
	group := func(do func(*limits.Group) error) error {
		g, err := m.New("t", caps)
		if err != nil {
			return err
		}
		if err := do(g); err != nil {
			g.Close()
			return err
		}
		return g.Close()
	}
	list := []*contender{
		timed("engine", func() error { return engineOnly(e, s, func(string) {}) }),
		layered(b, "engine+overlay", func(s box.Spec) error { return engineOnly(e, s, func(string) {}) }, s),
		timed("box", func() error { _, err := boxRun(e, s, nil, io.Discard); return err }),
		timed("group", func() error { return group(func(*limits.Group) error { return nil }) }),
		timed("box+group", func() error {
			return group(func(g *limits.Group) error { _, err := boxRun(e, s, g, io.Discard); return err })
		}),
		runOf(b, "step", e, m, s, false),
		runOf(b, "step+track", e, m, s, true),
		runOf(b, "step-nogroup", e, nil, s, false),
	}
	race(b, list, [2]string{"step", "engine+overlay"})
	for _, p := range [][2]string{{"box", "engine"}, {"box+group", "box"}, {"engine+overlay", "engine"}, {"step", "engine"}, {"step-nogroup", "engine+overlay"}, {"step", "engine+overlay"}, {"step+track", "step"}} {
		b.ReportMetric(added(list, p[0], p[1]), fmt.Sprintf("%s-minus-%s-ms", p[0], p[1]))
	}
}

// layered is a box whose workspace is an overlay, as every step's is. What it
// writes to is made before the time begins.
func layered(b *testing.B, name string, do func(box.Spec) error, s box.Spec) *contender {
	b.Helper()
	var images disk.Images
	return &contender{name: name, run: func() (time.Duration, error) {
		dir, err := os.MkdirTemp("", "bench-")
		if err != nil {
			return 0, err
		}
		defer os.RemoveAll(dir)
		room, err := disk.Open(disk.Options{Dir: dir, Bytes: 1 << 30, Inodes: 256 << 10, Root: true, Mode: 0o755, Images: &images})
		if err != nil {
			return 0, err
		}
		defer room.Close()
		s := s
		s.Overlay = &box.Overlay{Lower: []string{s.Workspace}, Base: dir, Tree: room.Tree}
		if base := room.Base(); base != "" {
			s.Overlay.Base, s.Overlay.Tree = base, nil
		}
		began := time.Now()
		err = do(s)
		return time.Since(began), err
	}}
}

// added is the median of the differences within an iteration.
func added(list []*contender, name, to string) float64 {
	of := map[string][]float64{}
	for _, c := range list {
		of[c.name] = c.took
	}
	var diffs []float64
	for i, x := range of[name] {
		diffs = append(diffs, x-of[to][i])
	}
	return median(diffs)
}

// runOf is a run of a plan, divided by its steps.
func runOf(b testing.TB, name string, e box.Engine, m *limits.Manager, s box.Spec, track bool) *contender {
	b.Helper()
	p := &steps.Plan{File: "steps.yml"}
	for i := range stepsAtOnce {
		p.Steps = append(p.Steps, steps.PlanStep{
			ID: fmt.Sprintf("step-%d", i+1), Command: []string{"true"}, Image: "host", Workdir: box.WorkspaceTarget,
			MemoryMb: 512, Pids: 256, TimeoutS: 30, RequireLimits: m != nil, EgressMode: "enforce",
			MaxOutput: 8 << 20, TrackFiles: track, DiskMb: 1024, AllowChanges: []string{"**"}, CapDrop: []string{"ALL"}, Tmpfs: s.Tmpfs,
		})
	}
	work := b.TempDir()
	for i := range 100 { // a small checkout
		if err := os.WriteFile(fmt.Sprintf("%s/file%d", work, i), []byte("text\n"), 0o644); err != nil {
			b.Fatal(err)
		}
	}
	guard := steps.NewGuard(steps.Options{Home: "/root"})
	// Reports stay until the end, as they do after a run. ext4 goes past every inode
	// that was freed in the last minutes when it looks for one to make a log with, and
	// would be measured at what this benchmark had removed.
	reports := b.TempDir()
	return &contender{name: name, run: func() (time.Duration, error) {
		out, err := os.MkdirTemp(reports, "bench-")
		if err != nil {
			return 0, err
		}
		r := &steps.Runner{
			Engine: e, Limits: m, Guard: guard, Workspace: work, Out: out,
			Log: gha.NewLog(io.Discard, gha.LogOptions{}), Masker: gha.NewMasker("not-in-any-output"),
			Getenv: func(string) (string, bool) { return "", false }, BoxPath: []string{"/usr/bin", "/bin"}, Now: time.Now,
		}
		var res steps.Result
		began := time.Now()
		r.Run(context.Background(), p, &res)
		took := time.Since(began)
		if res.Verdict != steps.VerdictPass {
			return 0, fmt.Errorf("the run is %s: %s", res.Verdict, res.Steps[0].Reason)
		}
		return took / stepsAtOnce, nil
	}}
}
