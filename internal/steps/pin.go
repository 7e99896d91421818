package steps

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/untrusted-steps/untrusted-steps/internal/image"
)

// ImagePlace is where a steps file names an image of a registry.
type ImagePlace struct {
	Line, Column int
	Text         string // as written, without quotes
	Ref          image.Ref
}

// Pin writes digests behind the images of a file, by reference, and changes nothing
// else. left are those that have a digest to get and are written in a way that it
// cannot be put in, such as with escapes.
func Pin(src []byte, places []ImagePlace, digests map[string]string) (out []byte, left []ImagePlace) {
	lines := strings.SplitAfter(string(src), "\n")
	// From the end of the file on: what stands before keeps its place.
	places = slices.Clone(places)
	slices.SortFunc(places, func(a, b ImagePlace) int { return cmp.Or(b.Line-a.Line, b.Column-a.Column) })
	for _, p := range places {
		digest, ok := digests[p.Ref.String()]
		if !ok {
			continue
		}
		line := lines[p.Line-1]
		at, ok := p.within(line)
		if !ok {
			left = append(left, p)
			continue
		}
		lines[p.Line-1] = line[:at] + image.Pin(p.Text, digest) + line[at+len(p.Text):]
	}
	return []byte(strings.Join(lines, "")), left
}

// within is where in its line the text begins, behind a quote if there is one.
func (p ImagePlace) within(line string) (at int, ok bool) {
	for range p.Column - 1 {
		_, size := utf8.DecodeRuneInString(line[at:])
		if size == 0 {
			return 0, false
		}
		at += size
	}
	rest := line[at:]
	if rest != "" && (rest[0] == '"' || rest[0] == '\'') {
		return at + 1, strings.HasPrefix(rest[1:], p.Text+rest[:1])
	}
	after, ok := strings.CutPrefix(rest, p.Text)
	// A longer word is another one.
	return at, ok && (after == "" || strings.ContainsAny(after[:1], " \t\r\n,}]"))
}
