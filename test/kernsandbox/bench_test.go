package kernsandbox

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/sandbox"
)

// caller makes one call of Python that prints.
type caller struct {
	name string
	call func() (time.Duration, error)
	took []float64 // milliseconds
}

// BenchmarkCalls is a call from a program that makes many: by the package in Python,
// and by package sandbox in Go, of which only the second caps memory and processes on
// any host, keeps a failed call's writes out and tells of each request. Both in a box
// that is made for it, and in one that was ready; that has a moment to be so before the
// time begins. All of them in each iteration, each time another one first.
func BenchmarkCalls(b *testing.B) {
	boxtest.Boxes(b)
	boxtest.Need(b, "kern", "static", "python3")
	theirs := pythonCaller(b)
	list := []*caller{{name: "package-plain", call: theirs("plain")}, {name: "package-ready", call: theirs("ready")}}
	for _, engine := range []string{"native", "kern"} {
		list = append(list, &caller{name: engine + "-plain", call: goCaller(b, engine, 0)}, &caller{name: engine + "-ready", call: goCaller(b, engine, 2)})
	}
	round := func(first int, keep bool) {
		for i := range list {
			c := list[(i+first)%len(list)]
			time.Sleep(150 * time.Millisecond) // what is made behind is there
			took, err := c.call()
			if err != nil {
				b.Fatalf("%s: %v", c.name, err)
			}
			if keep {
				c.took = append(c.took, float64(took.Microseconds())/1000)
			}
		}
	}
	round(0, false)
	for n := 0; b.Loop(); n++ {
		round(n, true)
	}
	for _, c := range list {
		slices.Sort(c.took)
		b.ReportMetric(c.took[len(c.took)/2], c.name+"-ms")
	}
	b.ReportMetric(0, "ns/op") // the sum of all and the waiting, which says nothing
}

func goCaller(b *testing.B, engine string, prewarm int) func() (time.Duration, error) {
	b.Helper()
	s, err := sandbox.New(b.Context(), sandbox.Options{Engine: engine, Prewarm: prewarm})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	return func() (time.Duration, error) {
		began := time.Now()
		r, err := s.RunCode(b.Context(), sandbox.Python, "print(1)")
		took := time.Since(began)
		if err == nil && (!r.Success || r.Stdout != "1\n") {
			err = fmt.Errorf("it said %q, %q: %s", r.Stdout, r.Stderr, r.Reason)
		}
		return took, err
	}
}

// pythonCaller starts the package, which lives through the benchmark as a program that
// uses it would.
func pythonCaller(b *testing.B) func(kind string) func() (time.Duration, error) {
	b.Helper()
	dir, env := pythonPackage(b)
	cmd := exec.Command("python3", "testdata/bench.py", imageName)
	var stderr bytes.Buffer
	cmd.Env, cmd.Stderr = append(env, "TMPDIR="+dir), &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	lines := bufio.NewReader(out)
	b.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			b.Errorf("%v: %s", err, &stderr)
		}
	})
	return func(kind string) func() (time.Duration, error) {
		return func() (time.Duration, error) {
			if _, err := io.WriteString(in, kind+"\n"); err != nil {
				return 0, err
			}
			line, err := lines.ReadString('\n')
			if err != nil {
				return 0, fmt.Errorf("%w: %s", err, &stderr)
			}
			s, err := strconv.ParseFloat(strings.TrimSpace(line), 64)
			return time.Duration(s * float64(time.Second)), err
		}
	}
}
