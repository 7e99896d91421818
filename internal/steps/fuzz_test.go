package steps

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A file from anywhere never brings the program down, and whatever is wrong
// with it has a place. What is accepted can be printed, on lines of ours only.
func FuzzLoad(f *testing.F) {
	for _, tc := range refusals {
		if len(tc.src) < 4096 {
			f.Add([]byte(tc.src))
		}
	}
	files, _ := filepath.Glob("testdata/*/*.yml")
	for _, name := range files {
		if src, err := os.ReadFile(name); err == nil {
			f.Add(src)
		}
	}
	opt := testOptions(f)
	f.Fuzz(func(t *testing.T, src []byte) {
		plan, err := Load("steps.yml", src, opt)
		if err == nil {
			if len(plan.Steps) == 0 {
				t.Fatal("a plan without steps")
			}
			var b strings.Builder
			if err := plan.WriteText(&b); err != nil {
				t.Fatal(err)
			}
			if strings.ContainsAny(b.String(), "\x00\x1b\r\t") || strings.Contains(b.String(), "##[") {
				t.Fatalf("the printed plan is not inert: %q", b.String())
			}
			return
		}
		var list Errors
		if !errors.As(err, &list) || len(list) == 0 {
			t.Fatalf("not a list of problems: %#v", err)
		}
		for i, e := range list {
			if e.Line < 1 || e.Column < 1 || e.What == "" {
				t.Errorf("a problem without a place: %+v", e)
			}
			if i > 0 && (e.Line < list[i-1].Line || e.Line == list[i-1].Line && e.Column < list[i-1].Column) {
				t.Errorf("out of order: %v after %v", e, list[i-1])
			}
		}
		if s := err.Error(); strings.ContainsAny(s, "\x00\x1b\r\t") || strings.Contains(s, "##[") {
			t.Errorf("the error is not inert: %q", s)
		}
	})
}

func thousandSteps() []byte {
	var b strings.Builder
	b.WriteString("version: 1\ndefaults:\n  memoryMb: 1024\n  egressAllow: [example.org]\nsteps:\n")
	for i := range 1000 {
		fmt.Fprintf(&b, "  - id: s%d\n    run: |\n      make test-%d\n      echo done\n    env: {N: %d, CI: true}\n    timeoutS: 60\n", i, i, i)
		if i > 0 {
			fmt.Fprintf(&b, "    needs: s%d\n", i-1)
		}
	}
	return []byte(b.String())
}

func BenchmarkLoad(b *testing.B) {
	src := thousandSteps()
	opt := testOptions(b)
	b.Run("steps=1000", func(b *testing.B) {
		b.SetBytes(int64(len(src)))
		for b.Loop() {
			if _, err := Load("steps.yml", src, opt); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkWriteText(b *testing.B) {
	plan, err := Load("steps.yml", thousandSteps(), testOptions(b))
	if err != nil {
		b.Fatal(err)
	}
	b.Run("steps=1000", func(b *testing.B) {
		for b.Loop() {
			if err := plan.WriteText(io.Discard); err != nil {
				b.Fatal(err)
			}
		}
	})
}
