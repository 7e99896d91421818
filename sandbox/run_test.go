package sandbox

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/session"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// A call that was judged has its result, whatever became of its context since: what
// it wrote is there.
func TestAResultOutlivesItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := &Sandbox{out: t.TempDir()}
	for status, want := range map[string]error{steps.StatusPassed: nil, steps.StatusFailed: nil, steps.StatusCancelled: context.Canceled, steps.StatusError: context.Canceled} {
		r, err := s.result(ctx, &steps.StepResult{Status: status})
		if !errors.Is(err, want) || (r != nil) != (want == nil) {
			t.Errorf("%s: %+v %v", status, r, err)
		}
	}
	var none *NoVerdict
	if _, err := s.result(t.Context(), &steps.StepResult{Status: steps.StatusError}); !errors.As(err, &none) {
		t.Error(err)
	}
}

// What came before the end is handed over, in order; what comes after it goes nowhere.
func TestFeedsEnd(t *testing.T) {
	var out bytes.Buffer
	f := newFeeds(&out, nil)
	for _, p := range []string{"a", "b", "c"} {
		if _, err := f.stdout.Write([]byte(p)); err != nil {
			t.Fatal(err)
		}
	}
	f.end()
	if _, err := f.stdout.Write([]byte("late")); err != nil {
		t.Fatal(err)
	}
	if out.String() != "abc" {
		t.Errorf("%q", out.String())
	}
	if f.stderr != nil {
		t.Error("a stream that nobody watches is watched")
	}
}

// Any text arrives as it is, also one that a file of steps could hold only written
// out: what nobody sees in an editor, characters beyond 16 bits, and those that look
// like an escape. What is no text is named.
func TestAnyTextArrives(t *testing.T) {
	s := &Sandbox{load: session.LoadOptions(os.Getenv, os.LookupEnv, os.Environ, t.TempDir())}
	all := ""
	for r := rune(1); r < 0x300; r++ {
		all += string(r)
	}
	for r := rune(0x2000); r < 0x2100; r++ {
		all += string(r)
	}
	all += "\ufdd0\ufeff\ufffd\ufffe\uffff\U0001f600\U0001fffe\U000e0001\U0010ffff \\u0041 \\U0001F600 \\\ufeff\r\n\r <&> {{x}} ${{ y }} ...\n---\n"
	for _, text := range []string{all, "\ufeff", "\x7f", "\u0085", "\u009f", "\u2028", "\u202e", "\u2066", "a\rb", "\t", " ", "\n", "---", "~", "null", "1", "#", "\U0010ffff"} {
		env := map[string]string{"A": text}
		p, err := s.plan("x", &Call{Command: []string{"printf", text}, Env: env})
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got := p.Steps[0]; got.Command[1] != text || len(got.Env) != 1 || got.Env[0].Value != text {
			t.Errorf("%q is %q and %q", text, got.Command[1], got.Env)
		}
		for language, of := range map[Language]func(steps.PlanStep) string{Sh: func(s steps.PlanStep) string { return s.Script }, Python: func(s steps.PlanStep) string { return s.Code }} {
			p, err := s.plan("x", &Call{Code: "#" + text, Language: language})
			if err != nil {
				t.Errorf("%s: %q: %v", language, text, err)
			} else if got := of(p.Steps[0]); got != "#"+text {
				t.Errorf("%s: %q is %q", language, text, got)
			}
		}
	}
	for text, why := range map[string]string{"a\x00b": "NUL", "a\xffb": "UTF-8", "\xed\xa0\x80": "UTF-8", "\xef\xbb": "UTF-8"} {
		for key, c := range map[string]Call{"command": {Command: []string{"x", text}}, "code": {Code: text}, "run": {Code: text, Language: Sh}, "env": {Command: []string{"x"}, Env: map[string]string{"A": text}}, "workdir": {Command: []string{"x"}, Workdir: "/" + text}} {
			var bad *BadOptions
			if _, err := s.plan("x", &c); !errors.As(err, &bad) || len(bad.Problems) != 1 || !strings.HasPrefix(bad.Problems[0], key) || !strings.Contains(bad.Problems[0], why) {
				t.Errorf("%s %q: %v", key, text, err)
			}
		}
	}
}
