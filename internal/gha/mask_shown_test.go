package gha

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// What makes a value look different to a search and not to a reader.
var vanishing = []string{"\x1b[1;31m", "\x1b[0m", "\x1b[m", "\x1b[38:2::1:2:3m", "\ufe0f", "\ufe0e"}

func TestMaskLooksThroughWhatVanishes(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"a colour inside of a value":                    {"x=hun\x1b[1;31mter\x1b[0m2!", "x=***\x1b[1;31m\x1b[0m!"},
		"a colour behind every letter":                  {strings.Join(strings.Split("hunter2", ""), "\x1b[7m"), "***" + strings.Repeat("\x1b[7m", 6)},
		"colours around a value":                        {"\x1b[1mhunter2\x1b[0m", "\x1b[1m***\x1b[0m"},
		"a value that begins with a code's last letter": {"\x1b[1mysecret mysecret", "\x1b[1*** ***"},
		"codes that touch":                              {"hun\x1b[1m\x1b[31mter2", "***\x1b[1m\x1b[31m"},
		"a choice of an emoji's looks":                  {"hun\ufe0fter2", "***\ufe0f"},
		"a value that has such a choice":                {"<a\u2764\ufe0fbc>", "<***>"},
		"a value that has a colour":                     {"<ab\x1b[1mcd>", "<***>"},
		"not what will be seen":                         {"hun\x1b[2Jter2", "hun\x1b[2Jter2"},
		"not a code without an end":                     {"hun\x1b[31", "hun\x1b[31"},
		"a value behind a code without an end":          {"\x1b[31\x1bhunter2", "\x1b[31\x1b***"},
		"a value behind half a choice":                  {"\xef\xb8hunter2\xef", "\xef\xb8***\xef"},
		"a beginning with a code inside is no end":      {"hun\x1b[1mt and hunt", "hun\x1b[1mt and hunt"},
	} {
		m := NewMasker("hunter2", "ysecret", "mysecret", "a\u2764\ufe0fbc", "ab\x1b[1mcd")
		if got := m.Mask(c.in); got != c.want {
			t.Errorf("%s: Mask(%q) = %q, want %q", name, c.in, got, c.want)
		}
	}
}

// unionShown is union for what is seen: every byte of every occurrence in the
// text as it is and in the text without what vanishes.
func unionShown(text string, secrets []string) string {
	var seen []byte
	var from []int
	vanish := make([]bool, len(text))
	for i := 0; i < len(text); {
		n := colourCode(text[i:])
		if s := text[i:]; strings.HasPrefix(s, "\ufe0f") || strings.HasPrefix(s, "\ufe0e") {
			n = 3
		}
		for k := range n {
			vanish[i+k] = true
		}
		if i += n; n == 0 {
			seen, from = append(seen, text[i]), append(from, i)
			i++
		}
	}
	hide := make([]bool, len(text))
	for _, s := range secrets {
		for i := 0; len(s) >= MinSecret && i+len(s) <= len(text); i++ {
			for k := range len(s) {
				hide[i+k] = hide[i+k] || text[i:i+len(s)] == s
			}
		}
		for i := 0; len(s) >= MinSecret && i+len(s) <= len(seen); i++ {
			for k := range len(s) {
				hide[from[i+k]] = hide[from[i+k]] || string(seen[i:i+len(s)]) == s
			}
		}
	}
	var b strings.Builder
	mark := false
	for i := range len(text) {
		switch {
		case hide[i] && !mark:
			b.WriteString(Masked)
			mark = true
		case hide[i]:
		default:
			b.WriteByte(text[i])
			mark = mark && vanish[i]
		}
	}
	return b.String()
}

func TestMaskWriterFindsWhatWillBeSeenHoweverItIsCut(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	pieces := append([]string{"a", "b", "a", "b", "a", "b", "m", "[", "\x1b", "\x1b[", "\xef", "\xb8", "\x1b[1"}, vanishing...)
	word := func(n int, of []string) string {
		var b strings.Builder
		for range n {
			b.WriteString(of[r.IntN(len(of))])
		}
		return b.String()
	}
	for range 20000 {
		values := []string{word(4+r.IntN(4), pieces[:7]), word(4+r.IntN(6), pieces), word(5, pieces[:3])}
		m := plainMasker(values...)
		var text string
		for range 4 {
			text += word(r.IntN(12), pieces)
			for _, c := range values[r.IntN(3)] {
				text += string(c) + word(max(0, r.IntN(4)-2), vanishing)
			}
		}
		var out bytes.Buffer
		w := NewMaskWriter(&out, m)
		for rest := text; rest != ""; {
			n := 1 + r.IntN(min(len(rest), 9))
			fmt.Fprint(w, rest[:n])
			rest = rest[n:]
		}
		w.Close()
		if want := unionShown(text, values); out.String() != want {
			t.Fatalf("secrets %q, text %q:\n got %q\nwant %q", values, text, out.String(), want)
		}
	}
}

// A step that prints one letter and then colours only makes us hold little, and
// gets no value through by that.
func TestMaskWriterHoldsFewColours(t *testing.T) {
	var out bytes.Buffer
	w := NewMaskWriter(&out, NewMasker("hunter2"))
	fmt.Fprint(w, "x hun")
	for range 100_000 {
		fmt.Fprint(w, "\x1b[1;31m")
		if len(w.s.held) > maxVanishing+100 {
			t.Fatalf("%d bytes are held", len(w.s.held))
		}
	}
	fmt.Fprint(w, "ter2 y hunter2")
	w.Close()
	if got := Inert(out.String()); got != "x *** y ***" {
		t.Errorf("got %.100q", got)
	}
}

func FuzzLasting(f *testing.F) {
	f.Add("hunter2", "a hun\x1b[1mter2\nb")
	f.Add(`a\x07b`, "a\x07b and \x1b[31ma\x07\x1b[0mb")
	f.Add(`one\ntwo`, "one\ntwo")
	f.Add("x## [y", "x##\x1b[m[y")
	f.Add("pass+word", "pass+\ufe0fword")
	f.Add(`u\x1b[2J`, "u\x1b[2J\xff")
	f.Fuzz(func(t *testing.T, secret, text string) {
		if len(secret) < MinSecret || strings.Contains(Masked+Masked, secret) {
			return
		}
		m := plainMasker(secret)
		kept := m.Lasting(text)
		shown := []string{kept, Inert(kept)}
		for line := range strings.SplitSeq(kept, "\n") {
			shown = append(shown, Inert(line))
		}
		for _, s := range shown {
			if m.Mask(s) != s {
				t.Errorf("%q kept as %q, of which %q is shown", text, kept, s)
			}
		}
	})
}
