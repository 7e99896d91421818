package workspace_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// manySteps is how many steps more the longer run of a pair has. What a run does
// once is not in the difference of the two.
const manySteps = 5

// BenchmarkTenChangesIn100000Files is a step that changes ten files, in a tree of
// 100,000 and in one that has those ten only. Each iteration makes every
// measurement once; medians are reported, for one step and for a whole run with
// one step, and beside them what a full list and compare, and git status, take.
func BenchmarkTenChangesIn100000Files(b *testing.B) {
	boxtest.Need(b, "root", "userns", "overlay", "seccomp", "idmap", "git")
	for _, engine := range []string{"native", "kern"} {
		b.Run("engine="+engine, func(b *testing.B) {
			if engine == "kern" {
				boxtest.Need(b, "kern")
			}
			small, big := newPlace(b, way{engine: engine}), newPlace(b, way{engine: engine})
			fill(b, small.workspace, 1, 10)
			fill(b, big.workspace, 1000, 100)
			git := func(args ...string) {
				cmd := exec.Command("git", append([]string{"--git-dir=" + filepath.Join(big.dir, "out-git"), "--work-tree=."}, args...)...)
				cmd.Dir = big.workspace
				if out, err := cmd.CombinedOutput(); err != nil {
					b.Fatalf("git %v: %v\n%s", args, err, out)
				}
			}
			git("init", "-q")
			git("add", "-A")
			before := list(b, big.workspace)
			took := map[string][]float64{}
			time1 := func(name string, do func()) float64 {
				begun := time.Now()
				do()
				ms := float64(time.Since(begun).Microseconds()) / 1e3
				took[name] = append(took[name], ms)
				return ms
			}
			n := 0
			run := func(p *place, steps int) func() {
				var list []scriptStep
				for i := range steps {
					n++
					list = append(list, scriptStep{id: fmt.Sprintf("s%d", i+1), text: fmt.Sprintf("i=0; while [ $i -lt 10 ]; do echo %d > folder000/file00$i.txt; i=$((i+1)); done", n)})
				}
				text := p.file("", list...)
				return func() {
					r := p.run(b, text)
					r.exits(0)
					if got := len(r.Steps[steps-1].Files); got != 10 {
						b.Fatalf("the last step changed %d files", got)
					}
				}
			}
			for b.Loop() {
				one, more := time1("run-empty-ms", run(small, 1)), time1("run-empty-6-ms", run(small, 1+manySteps))
				bigOne, bigMore := time1("run-100k-ms", run(big, 1)), time1("run-100k-6-ms", run(big, 1+manySteps))
				took["step-empty-ms"] = append(took["step-empty-ms"], (more-one)/manySteps)
				took["step-100k-ms"] = append(took["step-100k-ms"], (bigMore-bigOne)/manySteps)
				took["step-added-ms"] = append(took["step-added-ms"], (bigMore-bigOne-more+one)/manySteps)
				took["run-added-ms"] = append(took["run-added-ms"], bigOne-one)
				time1("snapshot+diff-ms", func() {
					after, err := workspace.Snapshot(context.Background(), big.workspace, before, workspace.Options{})
					if err != nil || len(workspace.Diff(before, after)) != 10 {
						b.Fatalf("the full compare: %v", err)
					}
				})
				time1("git-status-ms", func() { git("status", "--porcelain") })
			}
			for name, list := range took {
				slices.Sort(list)
				b.ReportMetric(list[len(list)/2], name)
				b.Logf("%s: %.1f", name, list)
			}
			b.ReportMetric(0, "ns/op") // the sum of all, which says nothing
		})
	}
}

// fill makes folders with files of 1 KiB.
func fill(b *testing.B, dir string, folders, files int) {
	b.Helper()
	text := make([]byte, 1024)
	for d := range folders {
		at := filepath.Join(dir, fmt.Sprintf("folder%03d", d))
		do(b, os.Mkdir(at, 0o755))
		for f := range files {
			copy(text, fmt.Sprintf("%d %d", d, f))
			do(b, os.WriteFile(filepath.Join(at, fmt.Sprintf("file%03d.txt", f)), text, 0o644))
		}
	}
}
