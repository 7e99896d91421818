package gha

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestMask(t *testing.T) {
	for name, c := range map[string]struct {
		secrets  []string
		in, want string
	}{
		"replaces a value":                      {[]string{"hunter2"}, "pw=hunter2!", "pw=***!"},
		"replaces every occurrence":             {[]string{"hunter2"}, "hunter2 hunter2", "*** ***"},
		"prefers the longest value":             {[]string{"token", "token-long"}, "token-long token-lo", "*** ***-lo"},
		"covers values that overlap":            {[]string{"abcd", "cdef"}, "xabcdefx", "x***x"},
		"covers a value inside another's start": {[]string{"abcdefgh", "cdef"}, "abcdefgx", "ab***gx"},
		"finds a value after a false start":     {[]string{"aaab"}, "aaaab", "a***"},
		"masks each line of a value":            {[]string{"first line\nsecond\r\n}"}, "a first line b\nsecond }", "a *** b\n*** }"},
		"masks a value without its line end":    {[]string{"secret\n"}, "[secret]", "[***]"},
		"leaves what is too short to be secret": {[]string{"1", "abc", ""}, "1 abc", "1 abc"},
		"leaves a beginning that ends the text": {[]string{"hunter2"}, "hunter", "hunter"},
		"masks bytes that are not UTF-8":        {[]string{"\xff\xfe\xfd\xfc"}, "a\xff\xfe\xfd\xfcb", "a***b"},
		"does nothing where there is no secret": {nil, "text", "text"},
	} {
		if got := NewMasker(c.secrets...).Mask(c.in); got != c.want {
			t.Errorf("%s: Mask(%q) = %q, want %q", name, c.in, got, c.want)
		}
	}
	if got := (*Masker)(nil).Mask("text"); got != "text" {
		t.Errorf("a nil masker gave %q", got)
	}
}

// union is the definition that the automaton is held to: every byte of every
// occurrence is hidden, and what touches becomes one mark.
func union(text string, secrets []string) string {
	hide := make([]bool, len(text))
	for _, s := range secrets {
		for i := 0; len(s) >= MinSecret && i+len(s) <= len(text); i++ {
			if text[i:i+len(s)] == s {
				for k := range s {
					hide[i+k] = true
				}
			}
		}
	}
	var b strings.Builder
	for i := range len(text) {
		switch {
		case !hide[i]:
			b.WriteByte(text[i])
		case i == 0 || !hide[i-1]:
			b.WriteString(Masked)
		}
	}
	return b.String()
}

func TestMaskWriterFindsAValueHoweverItIsCut(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	word := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = "ab"[r.IntN(2)]
		}
		return string(b)
	}
	for range 3000 {
		values := []string{word(4 + r.IntN(4)), word(4 + r.IntN(6)), word(5)}
		secrets := slices.Clone(values)
		longest := 0
		for _, s := range values {
			encodings(s, func(e string) { secrets = append(secrets, e) })
		}
		for _, s := range secrets {
			longest = max(longest, len(s))
		}
		text := word(30) + secrets[r.IntN(len(secrets))] + word(30)
		want := union(text, secrets)
		var out bytes.Buffer
		m := NewMasker(values...)
		if m.Longest() != longest {
			t.Fatalf("the longest has %d bytes, not %d", longest, m.Longest())
		}
		w := NewMaskWriter(&out, m)
		for rest := text; rest != ""; {
			n := 1 + r.IntN(min(len(rest), 9))
			if got, err := w.Write([]byte(rest[:n])); got != n || err != nil {
				t.Fatalf("Write: %d, %v", got, err)
			}
			rest = rest[n:]
			if len(w.s.held) > longest-1 {
				t.Fatalf("%d bytes held back with a longest value of %d", len(w.s.held), longest)
			}
		}
		w.Close()
		if out.String() != want {
			t.Fatalf("secrets %q, text %q: got %q, want %q", secrets, text, out.String(), want)
		}
	}
}

func TestMaskWriterHoldsNothingBackThatCannotBeSecret(t *testing.T) {
	var out bytes.Buffer
	w := NewMaskWriter(&out, NewMasker("hunter2"))
	fmt.Fprint(w, "ready? ")
	if got := out.String(); got != "ready? " {
		t.Errorf("got %q before Close", got)
	}
}

// plainMasker is what a masker would be that knows no encodings: the benchmarks
// say what they cost.
func plainMasker(values ...string) *Masker {
	m := &Masker{nodes: make([]maskNode, 1)}
	for _, v := range values {
		m.add(v)
	}
	m.link()
	return m
}

func BenchmarkMask(b *testing.B) {
	var secrets []string
	for i := range 50 {
		secrets = append(secrets, fmt.Sprintf("ghp_%032d", i*7919))
	}
	for _, c := range []struct{ name, line string }{
		{"log", "ok  \texample.com/project/internal/thing\t0.123s coverage: 81.2% of statements\n"},
		{"beginnings", "ok  \texample.com/project/internal/thing\t0.123s ghp_0000\n"},
		{"hex", "3ab8f1c0d25e4f6798a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f607\n"},
	} {
		text := strings.Repeat(c.line, 2000)
		for _, m := range []struct {
			name string
			m    *Masker
		}{{"plain", plainMasker(secrets...)}, {"encoded", NewMasker(secrets...)}} {
			b.Run(c.name+"/"+m.name, func(b *testing.B) {
				b.SetBytes(int64(len(text)))
				for b.Loop() {
					m.m.Mask(text)
				}
			})
		}
	}
}

func BenchmarkNewMasker(b *testing.B) {
	for _, n := range []int{1, 50} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var secrets []string
			for i := range n {
				secrets = append(secrets, fmt.Sprintf("ghp_%032d", i*7919))
			}
			for b.Loop() {
				NewMasker(secrets...)
			}
		})
	}
}

// fullOnce fails one write and would take the next, as a disk does on which
// somebody makes room.
type fullOnce struct {
	after int
	got   []byte
}

func (f *fullOnce) Write(p []byte) (int, error) {
	if f.after--; f.after == 0 {
		return 0, io.ErrShortWrite
	}
	f.got = append(f.got, p...)
	return len(p), nil
}

func TestMaskWriterRemembersThatAWriteFailed(t *testing.T) {
	for name, m := range map[string]*Masker{"no secrets": nil, "a secret": NewMasker("hunter2")} {
		f := &fullOnce{after: 2}
		w := NewMaskWriter(f, m)
		for _, text := range []string{"one ", "two ", "three hunt"} {
			io.WriteString(w, text) // as a copier that looks at no error
		}
		if err := w.Close(); !errors.Is(err, io.ErrShortWrite) {
			t.Errorf("%s: Close: %v", name, err)
		}
		if string(f.got) != "one " {
			t.Errorf("%s: a file with a hole: %q", name, f.got)
		}
	}
}
