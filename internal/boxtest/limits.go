package boxtest

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/probe"
)

// limitFacts are about memory, processes, time and output.
func (s *suite) limitFacts(t *testing.T) {
	for _, tc := range []struct{ where, do, path string }{
		{"its own memory", "memory", ""}, {"files in /tmp", "fill", "/tmp/x"}, {"files in /dev/shm", "fill", "/dev/shm/x"}, {"a memfd", "memfd", ""},
	} {
		t.Run("J116 more than memoryMb in "+tc.where+" is oom", func(t *testing.T) {
			t.Parallel()
			Need(t, "limits")
			filling := func(bytes int) step {
				op := probe.Do(tc.do, itoa(bytes))
				if tc.path != "" {
					op = probe.Do(tc.do, tc.path, itoa(bytes))
				}
				j := s.probing(t, op)
				j.MemoryBytes, j.ShmBytes, j.Tmpfs[0].Bytes = 64*mib, 512*mib, 512*mib
				return j
			}
			s.run(t, filling(8*mib)).passed(t)
			r := s.run(t, filling(256*mib))
			r.faulted(t, box.OOM)
			mentions(t, r, "memoryMb is 64")
			mentions(t, r, "memoryMb: 128")
			if r.Stats.PeakMemory < 32*mib || r.Stats.PeakMemory > 65*mib {
				t.Errorf("the peak is %d bytes with a cap of 64 MiB", r.Stats.PeakMemory)
			}
		})
	}

	t.Run("J118 an out-of-memory child is oom, although its parent would end with 0", func(t *testing.T) {
		t.Parallel()
		Need(t, "limits")
		j := s.probing(t, probe.In("grandchild", probe.Do("memory", itoa(256*mib))))
		j.MemoryBytes = 64 * mib
		s.run(t, j).faulted(t, box.OOM)
	})

	t.Run("J118 making the box's first process the killer's choice hides nothing", func(t *testing.T) {
		t.Parallel()
		Need(t, "limits")
		j := s.probing(t, probe.Do("overwrite", "/proc/1/oom_score_adj", "1000"), probe.Do("memory", itoa(256*mib)))
		j.MemoryBytes = 64 * mib
		s.run(t, j).faulted(t, box.OOM)
	})

	t.Run("J116 writing more than memoryMb to the workspace is no oom", func(t *testing.T) {
		t.Parallel()
		Need(t, "limits")
		j := s.probing(t, probe.Do("fill", "/workspace/x", itoa(100*mib)), probe.Do("unlink", "/workspace/x"))
		j.MemoryBytes = 48 * mib
		s.run(t, j).answers(t, 2)
	})

	t.Run("places in memory that are full are named, and no others", func(t *testing.T) {
		t.Parallel()
		for _, c := range []struct {
			text string
			want []box.FullTmpfs
		}{
			{"head -c 3000000 /dev/zero > /tmp/x", nil},
			{"head -c 5000000 /dev/zero > /tmp/x || echo stopped; head -c 5000000 /dev/zero > /dev/shm/x; head -c 1000 /dev/zero > $HOME/x; exit 7", []box.FullTmpfs{{Target: box.ShmTarget}, {Target: "/tmp"}}},
			{"head -c 5000000 /dev/zero > /tmp/x; rm /tmp/x", nil},
			// What stands there when the step has begun is what is looked at.
			{"mkdir -p /tmp/a; head -c 5000000 /dev/zero > /tmp/a/x; cd /; mv /tmp/a /tmp/b", []box.FullTmpfs{{Target: "/tmp"}}},
		} {
			j := s.shell(t, "exec 2>/dev/null; "+c.text)
			j.ShmBytes, j.Tmpfs[0].Bytes, j.Tmpfs[1].Bytes = 4*mib, 4*mib, 4*mib
			if got := s.run(t, j).Full; !slices.Equal(got, c.want) {
				t.Errorf("%s: full is %+v, want %+v", c.text, got, c.want)
			}
		}
	})

	t.Run("J123 a file stops growing at FileBytes, wherever it is, and the bound cannot be raised", func(t *testing.T) {
		t.Parallel()
		j := s.shell(t, `trap '' XFSZ
			ulimit -f unlimited 2>/dev/null && echo raised
			for d in /workspace /tmp "$HOME"; do
				head -c 2097152 /dev/zero >"$d/x" 2>/dev/null && echo "all of it in $d"
				wc -c <"$d/x"
				head -c 1048576 /dev/zero >"$d/y" || echo "nothing up to it in $d"
			done`)
		j.FileBytes = mib
		r := s.run(t, j)
		r.passed(t)
		if got := strings.Join(strings.Fields(r.stdout), " "); got != "1048576 1048576 1048576" {
			t.Errorf("stdout %q, stderr %q", r.stdout, r.stderr)
		}
	})

	for _, tc := range []struct{ what, do string }{{"processes", "forks"}, {"threads", "threads"}, {"zombies", "zombies"}} {
		t.Run("J117 more "+tc.what+" than pids is pids_limit", func(t *testing.T) {
			t.Parallel()
			Need(t, "limits")
			j := s.probing(t, probe.Do(tc.do, "10"))
			j.Pids = 40
			s.run(t, j).passed(t)
			j.Argv = append([]string{insideProbe}, probe.Args(probe.Do(tc.do, "200"))...)
			r := s.run(t, j)
			if tc.do == "zombies" && s.differ.OwnKernel {
				r.passed(t)
				return
			}
			r.faulted(t, box.PidsLimit)
			mentions(t, r, "pids: 80")
			if tc.do == "forks" {
				r.exited(t, 0)
				if a := parse(t, r.stdout); a[0].N < 20 || a[0].N > 40 {
					t.Errorf("the step got %d processes with pids 40", a[0].N)
				}
			}
			if r.Stats.PeakPids > 40 {
				t.Errorf("the peak is %d processes with pids 40", r.Stats.PeakPids)
			}
		})
	}

	t.Run("J117 a fork bomb stays in its box and ends with its deadline", func(t *testing.T) {
		t.Parallel()
		Need(t, "limits")
		token := runID()
		j := s.probing(t, probe.Do("fork bomb"), probe.Do("token", token))
		j.TimeoutS, j.Pids = patient(2*time.Second).Seconds(), 48 // an emulated machine takes its time to fill them
		j.MemoryBytes = 1 << 30                                   // which is not what is to end it: the probe's processes take 5 MiB each
		r := s.run(t, j)
		r.faulted(t, box.Timeout)
		has := false
		for _, e := range r.Events {
			has = has || e.Type == box.PidsLimit
		}
		if !has {
			t.Errorf("pids_limit is not among the events: %s", r.describe())
		}
		if n := alive(token); n > 0 {
			t.Errorf("%d processes of the bomb are alive", n)
		}
		works(t, "start a program on the host afterwards", s.outside(t, probe.Do("ids"))[0])
	})

	t.Run("J119 a busy step gets no more than its cpus", func(t *testing.T) {
		t.Parallel()
		Need(t, "limits", "cpu")
		j := s.probing(t, probe.Do("spin"))
		j.TimeoutS, j.CPUs = 1, 0.2
		r := s.run(t, j)
		r.faulted(t, box.Timeout)
		if r.Stats.CPU > 600*time.Millisecond {
			t.Errorf("the step used %v of CPU in %v with cpus 0.2", r.Stats.CPU, r.Duration)
		}
	})

	for _, tc := range []struct {
		what string
		op   probe.Op
	}{
		{"J119 spins and ignores SIGTERM", probe.Do("spin")},
		{"J120 sleeps for ever", probe.Do("sleep", "1000000")},
		{"J120 stops itself", probe.Do("signal", "19")},
		{"J121 writes slowly for ever", probe.Do("drip", "x")},
	} {
		t.Run(tc.what+": timeout by our clock", func(t *testing.T) {
			t.Parallel()
			token := runID()
			j := s.probing(t, tc.op, probe.Do("token", token))
			j.TimeoutS = 0.5
			r := s.run(t, j)
			r.faulted(t, box.Timeout)
			mentions(t, r, "timeoutS")
			if r.Duration < 500*time.Millisecond || r.Duration > 500*time.Millisecond+goneWithin {
				t.Errorf("the step ran for %v with a deadline of 0.5 s", r.Duration)
			}
			if r.ExitCode != nil {
				t.Errorf("a step that was killed has exit code %d", *r.ExitCode)
			}
			if n := alive(token); n > 0 {
				t.Errorf("%d processes of the step are alive", n)
			}
		})
	}

	t.Run("J120 a daemon that left its session and parents is gone when the step has ended", func(t *testing.T) {
		t.Parallel()
		token := runID()
		j := s.probing(t, probe.Do("daemon", "/workspace/beat", token))
		s.run(t, j).answers(t, 1)
		if n := alive(token); n > 0 {
			t.Errorf("%d processes of the step are alive", n)
		}
		s.gone(t, token, j.Workspace+"/beat")
	})

	t.Run("J121 output past its bound is counted, not kept", func(t *testing.T) {
		t.Parallel()
		const much = 200 * mib
		j := s.probing(t, probe.Do("output", itoa(much)))
		j.max = mib
		before := highWater(t)
		r := s.run(t, j)
		r.passed(t)
		if r.Stdout.Bytes != much || !r.Stdout.Truncated || len(r.stdout) != mib {
			t.Errorf("%d bytes counted, truncated %v, %d kept; want %d, true, %d", r.Stdout.Bytes, r.Stdout.Truncated, len(r.stdout), much, mib)
		}
		if grown := highWater(t) - before; grown > 64<<10 {
			t.Errorf("our own memory grew by %d KiB", grown)
		}
		small := s.run(t, s.probing(t, probe.Do("output", "1000")))
		if small.Stdout.Bytes != 1000 || small.Stdout.Truncated || !bytes.Equal([]byte(small.stdout), make([]byte, 1000)) {
			t.Errorf("control: %+v", small.Stdout)
		}
	})

	t.Run("both streams are kept apart and whole", func(t *testing.T) {
		t.Parallel()
		r := s.run(t, s.shell(t, "i=0; while [ $i -lt 2000 ]; do i=$((i+1)); echo out $i; echo err $i >&2; done"))
		r.passed(t)
		if strings.Count(r.stdout, "out ") != 2000 || strings.Count(r.stderr, "err ") != 2000 || strings.Contains(r.stdout, "err") {
			t.Errorf("%d bytes of stdout, %d of stderr", len(r.stdout), len(r.stderr))
		}
	})
}

// highWater is the most memory that this process ever held, in KiB.
func highWater(t testing.TB) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmHWM:" {
			n := 0
			for _, c := range f[1] {
				n = n*10 + int(c-'0')
			}
			return n
		}
	}
	t.Fatal("/proc/self/status has no VmHWM")
	return 0
}
