package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/gvisor"
	"github.com/untrusted-steps/untrusted-steps/internal/kern"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
	"github.com/untrusted-steps/untrusted-steps/internal/native"
	"github.com/untrusted-steps/untrusted-steps/internal/rootfs"
)

// jobs are what is done in one box of each engine.
var jobs = []struct{ name, script string }{
	{"start", "true"},
	{"python", "python3 -c 'import json, subprocess'"},
	// A program of a few hundred lines, built and run.
	{"compile", `cd /tmp && python3 - <<'X' >p.c
print("#include <stdio.h>")
for i in range(400): print("int f%d(int x) { for (int i = 0; i < x; i++) x ^= i * %d; return x; }" % (i, i + 3))
print("int main(void) { int s = 0;")
for i in range(400): print("s += f%d(%d);" % (i, i))
print('printf("%d\\n", s); return 0; }')
X
cc -O1 -o p p.c && ./p >/dev/null`},
	{"files", `cd /workspace && mkdir t && i=0; while [ $i -lt 2000 ]; do echo $i >t/$i; i=$((i+1)); done; cat t/* >/dev/null; find t -type f | wc -l >/dev/null; rm -r t`},
}

// BenchmarkEngines does each job in a box of each engine and in bubblewrap's, all of
// them in each iteration, each time another one first: what the file system is still
// busy with hits all alike. MB is the most memory that all of a box had, where control
// groups are.
func BenchmarkEngines(b *testing.B) {
	boxtest.Need(b, "userns")
	view := func(string, bool) rootfs.View { return hostView() }
	engines := map[string]box.Engine{"native": &native.Engine{Version: "bench", View: view}}
	if e, err := kern.Open(context.Background(), kern.Options{Getenv: os.Getenv, View: view}); err == nil {
		engines["kern"] = e
		defer e.Close()
	}
	if e, err := gvisor.Open(context.Background(), gvisor.Options{Getenv: os.Getenv, View: view}); err == nil {
		engines["gvisor"] = e
		defer e.Close()
	}
	groups, err := limits.Open(limits.Config{RunID: "bench"})
	if err != nil {
		b.Logf("memory is not measured: %v", err)
	} else {
		defer groups.Close()
	}
	for _, job := range jobs {
		b.Run("job="+job.name, func(b *testing.B) {
			s := spec(b)
			s.Argv, s.Tmpfs[0].Bytes = []string{"sh", "-c", job.script}, 256<<20
			p := newPeer(b, s, hostView(), true)
			names := []string{"bubblewrap"}
			for _, name := range []string{"native", "kern", "gvisor"} {
				if engines[name] == nil {
					b.Logf("%s is not here", name)
					continue
				}
				names = append(names, name)
			}
			took, peak := map[string][]float64{}, map[string]int64{}
			for n := 0; b.Loop(); n++ {
				for i := range names {
					name := names[(i+n)%len(names)]
					began := time.Now()
					var used int64
					var err error
					if name == "bubblewrap" {
						_, err = p.run(s.Argv...)
					} else {
						used, err = boxed(engines[name], s, groups)
					}
					if err != nil {
						b.Fatalf("%s: %v", name, err)
					}
					took[name] = append(took[name], float64(time.Since(began).Microseconds())/1000)
					peak[name] = max(peak[name], used)
				}
			}
			b.ReportMetric(0, "ns/op") // the sum of all, which says nothing
			for _, name := range names {
				slices.Sort(took[name])
				b.ReportMetric(took[name][len(took[name])/2], name+"-ms")
				if peak[name] > 0 {
					b.ReportMetric(float64(peak[name])/(1<<20), name+"-MB")
				}
			}
		})
	}
}

func boxed(e box.Engine, s box.Spec, groups *limits.Manager) (peak int64, err error) {
	g := limits.None()
	if groups != nil {
		if g, err = groups.New("bench", limits.Caps{MemoryBytes: 2 << 30, Pids: 256}); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, g.Close()) }()
	}
	s.Pids = 256
	out := box.Run(context.Background(), box.Job{Spec: s, Engine: e, Group: g, Stdout: io.Discard, Stderr: io.Discard, MaxOutput: 1 << 20})
	v := box.Classify(out.Evidence, nil)
	if v.NoVerdict != "" || v.Fault != nil || v.ExitCode == nil || *v.ExitCode != 0 {
		return 0, fmt.Errorf("it ended with %+v", v)
	}
	return out.Stats.PeakMemory, nil
}
