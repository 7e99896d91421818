package gha

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/gha/ghatest"
)

func TestLogPutsEveryLineBehindAGutter(t *testing.T) {
	var out bytes.Buffer
	l := NewLog(&out, LogOptions{Banner: "banner"})
	s := l.Step("step-1")
	l.Say("running step-1\n")
	fmt.Fprint(s.Stdout(), "one\ntwo\rthree\r\n\n::error::x\nhalf")
	fmt.Fprint(s.Stderr(), "warn\r")
	fmt.Fprint(s.Stderr(), "\nnext\r\r\n")
	s.End()
	l.Say("::error::quoted\nstep-1 passed")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	want := `banner
running step-1
step-1 | one
step-1 | two
step-1 | three
step-1 |
step-1 | ::error::x
step-1 ! warn
step-1 ! next
step-1 !
step-1 | half
| ::error::quoted
step-1 passed
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestLogContinuesALongLineBehindAGutterOfItsOwn(t *testing.T) {
	var out bytes.Buffer
	l := NewLog(&out, LogOptions{})
	s := l.Step("s")
	text := strings.Repeat("é", maxLine) // two bytes each: the cut must not split one
	fmt.Fprint(s.Stdout(), "x"+text+"\nnext\n")
	s.End()
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")[1:]
	var joined string
	for i, line := range lines[:len(lines)-1] {
		gutter := "s | "
		if i > 0 {
			gutter = "s |+ "
		}
		rest, ok := strings.CutPrefix(line, gutter)
		if !ok || len(rest) > maxLine {
			t.Errorf("line %d: %d bytes, begins %q", i, len(line), line[:8])
		}
		joined += rest
	}
	if joined != "x"+text || lines[len(lines)-1] != "s | next" {
		t.Errorf("the pieces do not add up: %d bytes, last line %q", len(joined), lines[len(lines)-1])
	}
}

func TestLogShowsAnUnfinishedLineAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out lockedBuffer
		l := NewLog(&out, LogOptions{Banner: "b", Masker: NewMasker("hunter2")})
		s := l.Step("s")
		fmt.Fprint(s.Stdout(), "password? hun")
		time.Sleep(partialAfter - 1)
		synctest.Wait()
		if out.String() != "b\n" {
			t.Errorf("too early: %q", out.String())
		}
		time.Sleep(2 * time.Nanosecond)
		synctest.Wait()
		// The beginning of a secret is not shown, however long it stands there.
		if want := "b\ns | password? \n"; out.String() != want {
			t.Errorf("got %q, want %q", out.String(), want)
		}
		fmt.Fprint(s.Stdout(), "ter2\n")
		fmt.Fprint(s.Stdout(), "é"[:1])
		time.Sleep(time.Second)
		fmt.Fprint(s.Stdout(), "é"[1:]+"!")
		time.Sleep(time.Second)
		fmt.Fprint(s.Stdout(), "\nlast\n")
		s.End()
		if _, err := s.Stdout().Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("a write after the end: %v", err)
		}
		if want := "b\ns | password? \ns |+ ***\ns | é!\ns | last\n"; out.String() != want {
			t.Errorf("got %q, want %q", out.String(), want)
		}
	})
}

func TestLogMasksWhatAColourCodeHides(t *testing.T) {
	var out bytes.Buffer
	l := NewLog(&out, LogOptions{Masker: NewMasker("hunter2", "two\nlines of it")})
	s := l.Step("s")
	fmt.Fprint(s.Stdout(), "hun\x1b[0mter2 hunt")
	fmt.Fprint(s.Stdout(), "er2\nlines of it\r")
	l.Say("said hunter2")
	l.Close()
	if got := out.String(); strings.Contains(got, "hunter2") || strings.Contains(got, "lines of") {
		t.Errorf("a secret is in the log: %q", got)
	}
}

func TestLogSwitchesCommandsOffInActions(t *testing.T) {
	var out bytes.Buffer
	l := NewLog(&out, LogOptions{Banner: "b", Actions: true, Terminal: true})
	s := l.Step("s")
	l.Progress(1, 2, "s")
	fmt.Fprint(s.Stdout(), "::error::x\n")
	if err := l.Commands(func(w io.Writer) error {
		_, err := io.WriteString(w, "::warning::ours\n")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(s.Stderr(), "y\n")
	l.Close()

	got := ghatest.Commands(out.Bytes())
	if len(got) != 5 {
		t.Fatalf("commands %+v in\n%s", got, out.String())
	}
	first, second := got[0].Data, got[3].Data
	want := []ghatest.Command{
		{Line: 2, Form: "::", Name: "stop-commands", Data: first},
		{Line: 4, Form: "::", Name: strings.ToLower(first)},
		{Line: 5, Form: "::", Name: "warning", Data: "ours"},
		{Line: 6, Form: "::", Name: "stop-commands", Data: second},
		{Line: 8, Form: "::", Name: strings.ToLower(second)},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if len(first) < 20 || first == second {
		t.Errorf("words %q and %q", first, second)
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Errorf("progress in Actions: %q", out.String())
	}
}

func TestLogKeepsLinesWholeWhenStepsRunAtOnce(t *testing.T) {
	var out bytes.Buffer
	l := NewLog(&out, LogOptions{Actions: true})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			s := l.Step(fmt.Sprintf("step-%d", i))
			for n := range 200 {
				fmt.Fprintf(s.Stdout(), "%d ", n)
				fmt.Fprintf(s.Stderr(), "err %d\n", n)
				fmt.Fprintf(s.Stdout(), "out %d\n", n)
			}
			s.End()
		})
	}
	wg.Wait()
	l.Close()
	counts := map[string]int{}
	for line := range strings.Lines(out.String()) {
		if len(line) > 8 && line[:5] == "step-" {
			counts[line[:8]]++
		}
	}
	for i := range 8 {
		for _, gutter := range []string{"|", "!"} {
			if k := fmt.Sprintf("step-%d %s", i, gutter); counts[k] < 200 {
				t.Errorf("%d lines behind %q", counts[k], k)
			}
		}
	}
}

func TestProgressIsErasedBeforeEachLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out lockedBuffer
		l := NewLog(&out, LogOptions{Banner: "b", Terminal: true, Now: time.Now, Width: func() int { return 20 }})
		l.Progress(2, 9, "step-3 \x1b[2Jwith a long name")
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		l.Say("line")
		l.Close()
		if !strings.HasSuffix(out.String(), eraseLine) {
			t.Errorf("the line is still there at the end: %q", out.String())
		}
		l.Close()
		l.Say("after")
		want := "b\n[2 of 9] 0s step-3 " + eraseLine + "[2 of 9] 1s step-3 " + eraseLine + "line\n[2 of 9] 1s step-3 " + eraseLine + "after\n"
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	})
}

func TestProgressIsSilentWithoutATerminal(t *testing.T) {
	var out bytes.Buffer
	l := NewLog(&out, LogOptions{Banner: "b"})
	l.Progress(1, 2, "x")
	l.Close()
	if out.String() != "b\n" {
		t.Errorf("got %q", out.String())
	}
}

// lockedBuffer is read while the log's own clocks may write to it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

func TestALogThatCannotBeWrittenDoesNotStopAStep(t *testing.T) {
	l := NewLog(brokenWriter{}, LogOptions{})
	s := l.Step("s")
	if n, err := s.Stdout().Write([]byte("x\n")); n != 2 || err != nil {
		t.Errorf("the step's write: %d, %v", n, err)
	}
	if err := l.Close(); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("Close: %v", err)
	}
}

// checkLog writes hostile bytes in pieces, on both streams and as a quotation,
// and looks for commands that are not the log's own.
func checkLog(t *testing.T, text string, cutAt int, id string) {
	t.Helper()
	for _, actions := range []bool{false, true} {
		var out bytes.Buffer
		l := NewLog(&out, LogOptions{Actions: actions, Banner: "banner " + id})
		s := l.Step(id)
		cutAt = min(max(cutAt, 0), len(text))
		io.WriteString(s.Stdout(), text[:cutAt])
		io.WriteString(s.Stderr(), text)
		io.WriteString(s.Stdout(), text[cutAt:])
		s.End()
		l.Say("quoted: " + text)
		l.Say(text)
		l.Close()

		got := ghatest.Commands(out.Bytes())
		if actions && len(got) > 0 {
			// Ours: the first and the last, with one word.
			first, last := got[0], got[len(got)-1]
			if first.Name != "stop-commands" || last.Name != strings.ToLower(first.Data) {
				t.Fatalf("first %+v, last %+v", first, last)
			}
			got = got[1 : len(got)-1]
		}
		if len(got) > 0 {
			t.Errorf("text %q, actions %v: the runner would see %+v", text, actions, got)
		}
		if !utf8.Valid(out.Bytes()) || bytes.ContainsAny(out.Bytes(), "\r\x1b\x00") {
			t.Errorf("text %q: bytes in the log that may act: %q", text, out.String())
		}
	}
}

func TestLogHoldsNoCommandOfAStep(t *testing.T) {
	for _, text := range hostile {
		if len(ghatest.Commands([]byte(text))) == 0 && strings.Contains(text, "::error::forged") && !strings.HasPrefix(text, "step-1") {
			t.Errorf("the parser sees nothing in %q as it is: this test would prove nothing", text)
		}
		for _, at := range []int{0, 1, 2, 3, len(text) / 2, len(text)} {
			checkLog(t, text, at, "step-1")
		}
	}
	checkLog(t, "x", 0, "\xff\xfe::error::x\n##[error]y")
}

func FuzzLog(f *testing.F) {
	for i, s := range hostile {
		f.Add(s, i, "step-1")
	}
	f.Fuzz(func(t *testing.T, text string, cutAt int, id string) { checkLog(t, text, cutAt, id) })
}

func BenchmarkLog(b *testing.B) {
	text := []byte(strings.Repeat("ok  \texample.com/project/internal/thing\t0.123s\n", 2000))
	l := NewLog(io.Discard, LogOptions{Masker: NewMasker("ghp_0123456789")})
	s := l.Step("step-1")
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		s.Stdout().Write(text)
	}
}
