package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// BenchmarkCell is one cell that prints, from the call to its judged result: in a
// box that is made for it, and in one that was ready. A ready one is waited for
// before the time begins, so this is a call now and then; one right behind the other
// is the first of the two again. Beside them stands the interpreter alone.
func BenchmarkCell(b *testing.B) {
	boxtest.Need(b, "root", "userns", "seccomp", "limits", "python3")
	v := hostView()
	m, err := limits.Open(limits.Config{RunID: "bench" + rand.Text()[:16]})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := m.Close(); err != nil {
			b.Error(err)
		}
	})
	e := nativeEngine(v)
	defer e.Close()
	list := []*contender{
		cellOf(b, "plain", e, m, false), cellOf(b, "ready", e, m, true),
		timed("python", runs("/usr/bin/python3", "-c", "print(1)")),
	}
	pairs := [][2]string{{"ready", "plain"}}
	if k := kernEngine(b, v); k != nil {
		list = append(list, cellOf(b, "kern-plain", k, m, false), cellOf(b, "kern-ready", k, m, true))
		pairs = append(pairs, [2]string{"kern-ready", "kern-plain"})
	}
	race(b, list, pairs...)
}

func cellOf(b testing.TB, name string, e box.Engine, m *limits.Manager, ready bool) *contender {
	b.Helper()
	p := &steps.Plan{File: "steps.yml", Steps: []steps.PlanStep{{
		ID: "cell", Code: "print(1)", Language: "python", Image: "host", Workdir: box.WorkspaceTarget,
		MemoryMb: 512, Pids: 256, TimeoutS: 30, RequireLimits: true, EgressMode: "enforce",
		MaxOutput: 8 << 20, TrackFiles: true, DiskMb: 1024, AllowChanges: []string{"**"}, CapDrop: []string{"ALL"}, Tmpfs: spec(b).Tmpfs, ShmBytes: box.DefaultShmBytes,
	}}}
	work := b.TempDir()
	tree, _, err := steps.OpenTree(context.Background(), work, steps.TreeOptions{})
	if err != nil {
		b.Fatal(err)
	}
	reports := b.TempDir()
	guard := steps.NewGuard(steps.Options{Home: "/root"})
	var warm *steps.Warm
	if ready {
		warm = steps.NewWarm(1)
	}
	b.Cleanup(func() {
		warm.Close()
		if err := tree.Close(); err != nil {
			b.Error(err)
		}
	})
	first := true
	return &contender{name: name, run: func() (time.Duration, error) {
		out, err := os.MkdirTemp(reports, "bench-")
		if err != nil {
			return 0, err
		}
		for end := time.Now().Add(10 * time.Second); ready && !first && warm.Ready() == 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				return 0, errors.New("no box is ready")
			}
		}
		first = false
		r := &steps.Runner{
			Engine: e, Limits: m, Guard: guard, Workspace: work, Tree: tree, Out: out, Warm: warm,
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
		return took, nil
	}}
}
