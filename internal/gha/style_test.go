package gha

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/gha/ghatest"
)

// uncoloured takes out our own codes, and nothing else.
func uncoloured(text string) string {
	for _, c := range append(codes[1:], endStyle) {
		text = strings.ReplaceAll(text, c, "")
	}
	return text
}

func TestShown(t *testing.T) {
	for name, c := range map[string]struct {
		line                   Line
		plain, colour, because string
	}{
		"words": {line: Words("a b"), plain: "a b", colour: "a b"},
		"styles": {
			line:  Line{{"one ", Plain}, {"passed", Good}, {"", Bad}, {" late", Faint}},
			plain: "one passed late", colour: "one \x1b[32mpassed\x1b[0m\x1b[2m late\x1b[0m",
		},
		"every style": {
			line:  Line{{"a", Good}, {"b", Bad}, {"c", Doubt}, {"d", Alarm}, {"e", Faint}, {"f", Faint + 1}},
			plain: "abcdef", colour: "\x1b[32ma\x1b[0m\x1b[31mb\x1b[0m\x1b[33mc\x1b[0m\x1b[1;31md\x1b[0m\x1b[2me\x1b[0mf",
		},
		"nothing": {},
		"a colour code in a text vanishes and takes ours with it": {
			line: Line{{"failed", Bad}, {" \x1b[32mpassed", Plain}}, plain: "failed passed", colour: "failed passed",
		},
		"another escape is seen": {
			line: Line{{"failed", Bad}, {"\x1b[2J", Plain}}, plain: `failed\x1b[2J`, colour: `failed\x1b[2J`,
		},
		"half of an escape at the end of a span": {
			line: Line{{"\x1b", Plain}, {"[32mpassed", Good}}, plain: "passed", colour: "passed",
		},
		"a line end":                   {line: Line{{"a\n", Good}, {"b", Plain}}, plain: `a\nb`, colour: `a\nb`},
		"one hash":                     {line: Line{{"#1 ", Plain}, {"ok", Good}}, plain: "#1 ok", colour: "#1 \x1b[32mok\x1b[0m"},
		"two, which a code would open": {line: Line{{"##", Plain}, {"add-mask]x", Good}}, plain: "##add-mask]x", colour: "##add-mask]x"},
		"two in two spans":             {line: Line{{"#", Plain}, {"#", Good}, {"ok", Bad}}, plain: "##ok", colour: "##ok"},
	} {
		if got := c.line.Shown(false); got != c.plain {
			t.Errorf("%s: %q, want %q", name, got, c.plain)
		}
		if got := c.line.Shown(true); got != c.colour {
			t.Errorf("%s, in colour: %q, want %q", name, got, c.colour)
		}
	}
}

func TestWantsColour(t *testing.T) {
	for _, c := range []struct {
		noColour, term string
		colour, moves  bool
	}{
		{"", "xterm-256color", true, true},
		{"1", "xterm", false, true},
		{"0", "xterm", false, true}, // any value says no
		{"", "dumb", false, false},
		{"", "", false, false},
		{"1", "dumb", false, false},
	} {
		getenv := func(n string) string { return map[string]string{"NO_COLOR": c.noColour, "TERM": c.term}[n] }
		if got := WantsColour(getenv); got != c.colour {
			t.Errorf("NO_COLOR=%q TERM=%q: colour %v", c.noColour, c.term, got)
		}
		if got := TakesEscapes(getenv); got != c.moves {
			t.Errorf("NO_COLOR=%q TERM=%q: escapes %v", c.noColour, c.term, got)
		}
	}
}

// TestLogInColour: what is ours has colour, what a step printed has none, and
// without the codes it is the log that has none.
func TestLogInColour(t *testing.T) {
	write := func(o LogOptions) string {
		var out bytes.Buffer
		o.Banner, o.Masker = "banner", NewMasker("hunter2")
		l := NewLog(&out, o)
		s := l.Step("one")
		fmt.Fprint(s.Stdout(), "\x1b[31mred\x1b[0m \x1b[2J \x1b]0;title\a\n")
		fmt.Fprint(s.Stderr(), "warn\n")
		s.End()
		l.Show(Line{{"one ", Plain}, {"passed", Good}}, Line{{"two ", Plain}, {"failed", Bad}, {": \x1b[32mpassed", Plain}})
		l.Show(Line{{"hunt", Good}, {"er2", Bad}, {" failed", Bad}}, Line{{"::error::x", Bad}})
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	got := write(LogOptions{Colour: true})
	want := "banner\n" +
		"\x1b[2mone | \x1b[0mred \\x1b[2J \\x1b]0;title\\x07\n" +
		"\x1b[2mone ! \x1b[0mwarn\n" +
		"one \x1b[32mpassed\x1b[0m\n" +
		"two failed: passed\n" +
		"*** failed\n" +
		"\x1b[2m| \x1b[0m\x1b[31m::error::x\x1b[0m\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff(write(LogOptions{}), uncoloured(got)); diff != "" {
		t.Errorf("without its colours it is another log (-want +got)\n%s", diff)
	}
	if got := write(LogOptions{Colour: true, Actions: true}); strings.Contains(got, "\x1b") {
		t.Errorf("a runner's log has colour: %q", got)
	}
}

// TestProgressInColour: the line is cut to its cells, not to its bytes.
func TestProgressInColour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out lockedBuffer
		l := NewLog(&out, LogOptions{Banner: "b", Terminal: true, Colour: true, Now: time.Now, Width: func() int { return 20 }})
		l.Progress(2, 9, "step-3 \x1b[32mwith a long name")
		l.Close()
		want := "b\n[2 of 9]\x1b[2m 0s\x1b[0m step-3 " + eraseLine
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	})
}

// FuzzColour: whatever texts say, in colour they are what they are without, a
// terminal is told nothing but colours of ours, and a runner nothing at all.
func FuzzColour(f *testing.F) {
	f.Add("##", "add-mask]x", "")
	f.Add("\x1b", "[31mred\x1b[0m", "::error::x")
	f.Add("::", "stop-commands::x", "\u0300\u202e")
	f.Add("#", "#", "[x]")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		line := Line{{a, Good}, {b, Plain}, {c, Bad}}
		got := line.Shown(true)
		if plain := uncoloured(got); plain != line.Shown(false) || strings.Contains(plain, "\x1b") {
			t.Errorf("%q is %q in colour", line, got)
		}
		if found := ghatest.Commands([]byte("> " + got)); len(found) > 0 {
			t.Errorf("a runner would act on %+v in %q", found, got)
		}
	})
}
