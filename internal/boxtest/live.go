package boxtest

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/probe"
	"github.com/untrusted-steps/untrusted-steps/internal/egress"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
)

// liveFacts are facts about a box that is given its work piece by piece.
func (s *suite) liveFacts(t *testing.T) {
	t.Run("a step has further descriptors and no others", func(t *testing.T) {
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer read.Close()
		j := s.shell(t, "echo given >&3; ls /proc/self/fd | tr '\\n' ' '")
		j.files = []*os.File{write}
		r := s.run(t, j)
		write.Close()
		r.passed(t)
		var got bytes.Buffer
		if _, err := got.ReadFrom(read); err != nil || got.String() != "given\n" {
			t.Errorf("%q %v", got.String(), err)
		}
		if r.stdout != "0 1 2 3 4 " { // ls has one of its own
			t.Errorf("descriptors %q", r.stdout)
		}
	})
	t.Run("each piece has its own output, status and evidence", func(t *testing.T) {
		w := newWorld(t, "good.test")
		l := s.live(t, w.proxy)
		a := l.run(t, "echo one; echo two >&2; x=5; curl -s -o /dev/null http://evil.test/; false")
		b := l.run(t, "echo $x")
		c := l.run(t, "curl -s http://evil.test/ http://evil.test/ >/dev/null; exit 7")
		for i, r := range []struct {
			piece
			code           int
			stdout, stderr string
			alive          bool
			denied         uint64
		}{{a, 1, "one\n", "two\n", true, 1}, {b, 0, "5\n", "", true, 0}, {c, 7, "", "", false, 2}} {
			if r.ExitCode == nil || *r.ExitCode != r.code || r.stdout != r.piece.stdout || r.stderr != r.piece.stderr || r.alive != r.piece.alive {
				t.Errorf("piece %d: %+v", i, r)
			}
			var denied uint64
			for _, d := range r.Evidence.Denied {
				denied += d.Count
			}
			if denied != r.denied {
				t.Errorf("piece %d: %d refusals, want %d", i, denied, r.denied)
			}
		}
	})
	t.Run("a deadline of one piece ends the box", func(t *testing.T) {
		l := s.live(t, nil)
		l.timeout = 0.3
		a := l.run(t, "sleep 60")
		if a.alive || a.Fault == nil || a.Fault.Type != box.Timeout {
			t.Errorf("%+v", a)
		}
	})
	t.Run("memory that is taken in the second piece is told of it", func(t *testing.T) {
		Need(t, "limits")
		l := s.live(t, nil)
		a := l.run(t, "true")
		b := l.run(t, "head -c 600000000 /dev/zero | tail -n 1 | wc -c")
		if !a.alive || a.Fault != nil || b.alive || b.Fault == nil || b.Fault.Type != box.OOM {
			t.Errorf("%+v\n%+v", a, b)
		}
	})
	t.Run("what a piece left running writes to the next one", func(t *testing.T) {
		l := s.live(t, nil)
		l.run(t, "(sleep 0.2; echo late; echo done > /tmp/done) & true")
		b := l.run(t, "while ! test -e /tmp/done; do sleep 0.05; done")
		if b.stdout != "late\n" {
			t.Errorf("%q", b.stdout)
		}
	})
	t.Run("a process that ends by itself is told, and what comes after does not run", func(t *testing.T) {
		l := s.live(t, nil)
		l.run(t, "(sleep 0.1; kill -9 $$) & true")
		l.gone(t)
		b := l.run(t, "echo ran")
		if b.alive || !b.NotBegun || b.stdout != "" || b.Signal != "SIGKILL" || b.Fault != nil {
			t.Errorf("%+v", b)
		}
	})
	// What is done when no piece runs: a forbidden call and two requests, a second
	// after the piece that left somebody behind for it.
	later := "(sleep 1; " + line(probe.Do("unshare", "268435456")) + "; curl -s http://evil.test/; curl -s http://good.test/; touch done%s) >/dev/null 2>&1 & true"
	for _, tc := range []struct {
		sentence, and string
		told          func(t *testing.T, l *liveBox) box.Outcome
	}{
		{"what goes on after the last piece is told when the box is closed", "", func(t *testing.T, l *liveBox) box.Outcome {
			return l.l.Close()
		}},
		{"so is what ended the process, and what it did before", "; kill -9 $$", func(t *testing.T, l *liveBox) box.Outcome {
			l.gone(t)
			return l.l.Close()
		}},
		{"with a piece that does not begin comes what went on before it", "; kill -9 $$", func(t *testing.T, l *liveBox) box.Outcome {
			l.gone(t)
			b := l.run(t, "echo ran")
			if b.alive || !b.NotBegun || b.stdout != "" {
				t.Errorf("%+v", b)
			}
			return b.Outcome
		}},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			w := newWorld(t, "good.test")
			l := s.live(t, w.proxy)
			if a := l.run(t, strings.ReplaceAll(later, "%s", tc.and)); !a.alive || len(a.Events) > 0 {
				t.Fatalf("%+v", a)
			}
			l.until(t, func() bool { _, err := os.Stat(l.workspace + "/done"); return err == nil })
			o := tc.told(t, l)
			v, told := box.Classify(o.Evidence, nil), map[box.FaultType]uint64{}
			for _, e := range v.Events {
				told[e.Type] += e.Count
			}
			want := map[box.FaultType]uint64{box.EgressDenied: 1}
			if !s.differ.ChildEscapes && !s.differ.EscapesAnswered {
				want[box.EscapeBlocked] = 1
			}
			if !maps.Equal(told, want) || o.Evidence.Lost != "" {
				t.Errorf("%v, want %v: %+v", told, want, o)
			}
			if tc.and != "" && v.Signal != "SIGKILL" {
				t.Errorf("it ended with %q: %+v", v.Signal, v)
			}
			if got := w.count("good.test"); fmt.Sprint(got) != "map[allowed:1]" {
				t.Errorf("the ledger has %v", got)
			}
			if e := l.l.Close(); !reflect.DeepEqual(e, box.Outcome{}) {
				t.Errorf("a second time: %+v", e)
			}
		})
	}
	t.Run("a process that a forbidden call ended between two pieces is one that made it, where that is how it shows", func(t *testing.T) {
		l := s.live(t, nil)
		l.run(t, "(sleep 0.1; kill -SYS $$) & true")
		l.gone(t)
		b := l.run(t, "true")
		if escaped := b.Fault != nil && b.Fault.Type == box.EscapeBlocked; !b.NotBegun || b.Signal != "SIGSYS" || escaped != s.differ.SentSIGSYS {
			t.Errorf("%+v", b)
		}
	})
	// A step has 64 processes at most here, and the memory for them.
	roomy := func(j *step) { j.MemoryBytes = 1 << 30 }
	for _, tc := range []struct{ sentence, line string }{
		{"a refused fork is told of its own piece, and not of the next", "sleep 1 & " + line(probe.Do("forks", "200")) + "; wait"},
		{"also of a piece that ends at once, and the box goes on", line(probe.Do("forks", "200"))},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			Need(t, "limits")
			l := s.live(t, nil, roomy)
			a := l.run(t, tc.line)
			if !a.alive || a.Fault == nil || a.Fault.Type != box.PidsLimit || a.Evidence.PidsRefused != 1 {
				t.Errorf("%+v", a)
			}
			time.Sleep(300 * time.Millisecond)
			if l.l.Gone() {
				t.Error("it is said to have ended")
			}
			b := l.run(t, "true")
			c := l.run(t, "exit 0")
			if !b.alive || b.Fault != nil || c.alive || c.Fault != nil || c.ExitCode == nil || *c.ExitCode != 0 {
				t.Errorf("%+v\n%+v", b, c)
			}
			for _, r := range []piece{a, b, c} {
				if r.Stats.PeakPids < 32 || r.Stats.PeakPids > 64 {
					t.Errorf("the peak is %d processes with pids 64", r.Stats.PeakPids)
				}
			}
		})
	}
	t.Run("a fork that was refused after the last piece is told when the box is closed", func(t *testing.T) {
		Need(t, "limits")
		l := s.live(t, nil, roomy)
		a := l.run(t, "(sleep 1; "+line(probe.Do("forks", "200"))+"; : > done) >/dev/null 2>&1 & true")
		if !a.alive || a.Fault != nil {
			t.Fatalf("%+v", a)
		}
		l.until(t, func() bool { _, err := os.Stat(l.workspace + "/done"); return err == nil })
		o := l.l.Close()
		if v := box.Classify(o.Evidence, nil); v.Fault == nil || v.Fault.Type != box.PidsLimit || o.Evidence.PidsRefused != 1 || o.Evidence.Lost != "" {
			t.Errorf("%+v", o)
		}
	})
	t.Run("the bound of output is each piece's own", func(t *testing.T) {
		l := s.live(t, nil)
		l.max = 10
		a := l.run(t, "echo 123456789abcdef")
		b := l.run(t, "echo 12")
		if a.stdout != "123456789a" || !a.Stdout.Truncated || a.Stdout.Bytes != 16 || b.stdout != "12\n" || b.Stdout.Truncated {
			t.Errorf("%+v\n%+v", a, b)
		}
	})
}

// liveBox is a shell that is given lines.
type liveBox struct {
	l         *box.Live
	in        *os.File
	ends      chan int
	timeout   float64
	max       int64
	workspace string
}

// line is a call of the probe, as shell has it.
func line(ops ...probe.Op) string {
	return insideProbe + " '" + strings.Join(probe.Args(ops...), "' '") + "'"
}

type piece struct {
	box.Outcome
	box.Verdict
	stdout, stderr string
	alive          bool
}

// live starts one: it reads a line of shell from descriptor 3 and writes the status
// of it to 4.
func (s *suite) live(t *testing.T, proxy *egress.Proxy, changes ...func(*step)) *liveBox {
	t.Helper()
	inBox, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, outBox, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	j := s.shell(t, `while read -r line <&3; do eval "$line"; echo $? >&4; done`)
	for _, change := range changes {
		change(&j)
	}
	group := limits.None()
	if s.limits != nil {
		if group, err = s.limits.New(j.ID, limits.Caps{MemoryBytes: j.MemoryBytes, Pids: j.Pids}); err != nil {
			t.Fatal(err)
		}
	}
	if proxy != nil {
		j.Network = box.NetworkAllowlist
		j.Env = box.Environment{Path: boxPath, Egress: egress.Environ(box.ProxyPort)}.List()
	}
	l, o := box.Open(context.Background(), box.Job{Spec: j.Spec, Engine: s.engine, Group: group, Proxy: proxy, Files: []*os.File{inBox, outBox}})
	if l == nil {
		t.Fatalf("%+v", o)
	}
	b := &liveBox{l: l, in: in, ends: make(chan int, 1), timeout: patient(30 * time.Second).Seconds(), max: 4 * mib, workspace: j.Workspace}
	go func() {
		buf := make([]byte, 16)
		for {
			n, err := out.Read(buf)
			if err != nil {
				return
			}
			code := 0
			for _, c := range strings.TrimSpace(string(buf[:n])) {
				code = code*10 + int(c-'0')
			}
			b.ends <- code
		}
	}()
	t.Cleanup(func() {
		if e := l.Close().Evidence; e.Lost != "" {
			t.Errorf("closed: %s", e.Lost)
		}
		for _, f := range []*os.File{in, inBox, out, outBox} {
			f.Close()
		}
		if err := group.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// until waits for something.
func (b *liveBox) until(t *testing.T, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patient(20 * time.Second)); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("waited for in vain")
		}
	}
}

// gone waits for the process to end by itself.
func (b *liveBox) gone(t *testing.T) { t.Helper(); b.until(t, b.l.Gone) }

func (b *liveBox) run(t *testing.T, line string) piece {
	t.Helper()
	var stdout, stderr locked
	var p piece
	p.Outcome, p.alive = b.l.Run(context.Background(), box.Piece{
		Stdout: &stdout, Stderr: &stderr, MaxOutput: b.max, TimeoutS: b.timeout, Done: b.ends,
		Begin: func() error { _, err := b.in.WriteString(line + "\n"); return err },
	})
	p.Verdict = box.Classify(p.Evidence, nil)
	p.stdout, p.stderr = stdout.String(), stderr.String()
	if p.Evidence.Lost != "" {
		t.Fatalf("no verdict: %s", p.Evidence.Lost)
	}
	return p
}
