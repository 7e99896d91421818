package patch

import (
	"io/fs"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"
)

// dice makes trees of few names, so that a path is often of another type in the
// next one.
type dice struct{ *rand.Rand }

func (d dice) content() string {
	switch d.IntN(8) {
	case 0:
		return ""
	case 1:
		return "a\x00b" + strings.Repeat("\xff", d.IntN(200))
	case 2:
		b := make([]byte, d.IntN(400))
		for i := range b {
			b[i] = byte(d.IntN(256))
		}
		return string(b)
	}
	var b strings.Builder
	for range d.IntN(40) {
		b.WriteString([]string{"a", "b", "", "-", "+ c", "@@ -1 +1 @@", "\\ No newline at end of file", "long line", " "}[d.IntN(9)])
		b.WriteString([]string{"\n", "\n", "\n", "\r\n", "\r"}[d.IntN(5)])
	}
	if d.IntN(3) == 0 {
		b.WriteString("the end")
	}
	return b.String()
}

// edited is a text with some lines taken out and others put in.
func (d dice) edited(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		switch d.IntN(12) {
		case 0:
		case 1:
			b.WriteString("new\n" + line)
		default:
			b.WriteString(line)
		}
	}
	return b.String()
}

func (d dice) entry() file {
	switch d.IntN(6) {
	case 0:
		return link([]string{"a", "two words", "../up", "/abs", "\xff", "a\nb"}[d.IntN(6)])
	case 1:
		return file{mode: 0o755, text: d.content()}
	}
	return file{mode: []fs.FileMode{0o644, 0o600, 0o664}[d.IntN(3)], text: d.content()}
}

// grow puts entries below a folder.
func (d dice) grow(t tree, at string, depth int) {
	for range 1 + d.IntN(6) {
		name := at + names[d.IntN(len(names))]
		if _, taken := t[name]; taken || strings.Contains(name[len(at):], "/") || has(t, name+"/") {
			continue
		}
		if depth < 3 && d.IntN(3) == 0 {
			d.grow(t, name+"/", depth+1)
		} else {
			t[name] = d.entry()
		}
	}
}

func has(t tree, prefix string) bool {
	for n := range t {
		if strings.HasPrefix(n, prefix) {
			return true
		}
	}
	return false
}

// loops says whether a link leads to a link for ever.
func loops(t tree, name string) bool {
	for range 41 {
		f, ok := t[name]
		if !ok || f.kind != "symlink" {
			return false
		}
		name = path.Join(path.Dir(name), f.text)
	}
	return true
}

// change makes another tree of one.
func (d dice) change(from tree) tree {
	to := tree{}
	// In one order, or a seed would not say what it makes.
	for _, n := range slices.Sorted(maps.Keys(from)) {
		f := from[n]
		switch d.IntN(6) {
		case 0: // deleted
			continue
		case 1:
			f = d.entry()
		case 2:
			if f.kind == "" {
				f.text = d.edited(f.text)
			}
		case 3:
			if f.kind == "" {
				f.mode ^= 0o111
			}
		case 4:
			// git looks below the link that goes, and stops at one that leads to
			// itself: it applies no patch that puts a folder in its place.
			if !loops(from, n) {
				d.grow(to, n+"/", 2)
				continue
			}
		}
		to[n] = f
	}
	// A folder becomes a file or a link.
	for _, n := range slices.Sorted(maps.Keys(from)) {
		if i := strings.IndexByte(n, '/'); i > 0 && d.IntN(5) == 0 {
			top := n[:i]
			for m := range to {
				if strings.HasPrefix(m, top+"/") {
					delete(to, m)
				}
			}
			to[top] = d.entry()
		}
	}
	d.grow(to, "", 1)
	return to
}

// TestGitAppliesThePatchOfAnyChange: whatever two trees there are, the patch
// makes the second of the first.
func TestGitAppliesThePatchOfAnyChange(t *testing.T) {
	runs := 12
	if testing.Short() {
		runs = 5
	}
	var files int
	for seed := range uint64(runs) {
		d := dice{rand.New(rand.NewPCG(seed, 114))}
		before := tree{}
		for range 4 {
			d.grow(before, "", 0)
		}
		after := d.change(before)
		sum, _ := applies(t, before, after)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
		for _, n := range sum.Lost {
			if !strings.HasPrefix(n.Why, "mode ") {
				t.Fatalf("seed %d: %+v", seed, n)
			}
		}
		if sum.Refused != nil || sum.Masked != 0 {
			t.Fatalf("seed %d: %+v", seed, sum)
		}
		files += sum.Files
	}
	t.Logf("%d changes in %d patches", files, runs)
}
