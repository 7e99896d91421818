package boxtest

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
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
		for until := time.Now().Add(patient(5 * time.Second)); !l.l.Gone() && time.Now().Before(until); {
			time.Sleep(10 * time.Millisecond)
		}
		b := l.run(t, "echo ran")
		if b.alive || !b.NotBegun || b.stdout != "" {
			t.Errorf("%+v", b)
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
	l       *box.Live
	in      *os.File
	ends    chan int
	timeout float64
	max     int64
}

type piece struct {
	box.Outcome
	box.Verdict
	stdout, stderr string
	alive          bool
}

// live starts one: it reads a line of shell from descriptor 3 and writes the status
// of it to 4.
func (s *suite) live(t *testing.T, proxy *egress.Proxy) *liveBox {
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
	b := &liveBox{l: l, in: in, ends: make(chan int, 1), timeout: patient(30 * time.Second).Seconds(), max: 4 * mib}
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
