package steps

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/image"
)

func TestPin(t *testing.T) {
	const src = `# äöü
defaults:
  image: python:3.12   # the usual one
steps:
- run: x
- {run: 'ünï', image: "alpine:3", name: "日本"}
- image: 'ghcr.io/owner/app'
  run: |
    image: python:3.12
- run: x
  image: host
- {image: python:3.12, run: x}
- {run: x, image: python:3.12}
- run: x
  image: "bus\x79box"
- run: x
  image: >-
    busybox
- run: x
  image: debian@` + someDigest + `
- run: x
  image: debian:13`
	for _, end := range []string{"\n", "\r\n"} {
		text := strings.ReplaceAll(src, "\n", end)
		p, err := Load("steps.yml", []byte(text), testOptions(t))
		if err != nil {
			t.Fatal(err)
		}
		digests := map[string]string{}
		for _, i := range p.ImagePlaces {
			if i.Ref.Digest == "" {
				digests[i.Ref.String()] = someDigest
			}
		}
		got, left := Pin([]byte(text), p.ImagePlaces, digests)
		want := text
		for _, r := range [][2]string{
			{"image: python:3.12   #", "image: python:3.12@" + someDigest + "   #"}, {`"alpine:3"`, `"alpine:3@` + someDigest + `"`}, {"'ghcr.io/owner/app'", "'ghcr.io/owner/app@" + someDigest + "'"},
			{"{image: python:3.12,", "{image: python:3.12@" + someDigest + ","}, {"image: python:3.12}", "image: python:3.12@" + someDigest + "}"}, {"debian:13", "debian:13@" + someDigest},
		} {
			want = strings.Replace(want, r[0], r[1], 1)
		}
		if d := cmp.Diff(want, string(got)); d != "" {
			t.Errorf("(-want +got)\n%s", d)
		}
		var names []int
		for _, l := range left {
			names = append(names, l.Line)
		}
		slices.Sort(names)
		if d := cmp.Diff([]int{15, 17}, names); d != "" {
			t.Errorf("left out: %s", d)
		}
		if one, _ := Pin([]byte("{steps: [{run: x, image: a}], defaults: {image: b}}"), []ImagePlace{
			{Line: 1, Column: 49, Text: "b", Ref: image.Ref{Repository: "b"}}, {Line: 1, Column: 26, Text: "a", Ref: image.Ref{Repository: "a"}},
		}, map[string]string{"/a": "1", "/b": "2"}); string(one) != "{steps: [{run: x, image: a@1}], defaults: {image: b@2}}" {
			t.Errorf("on one line: %s", one)
		}
		// What was written reads as what was meant, and a second time changes nothing.
		again, err := Load("steps.yml", got, testOptions(t))
		if err != nil {
			t.Fatal(err)
		}
		for i, s := range again.Steps {
			if was := p.Steps[i].Origin.Ref; s.Origin.Ref.Name() != was.Name() || s.Origin.Ref.Tag != was.Tag && s.Origin.Ref.Tag != "" {
				t.Errorf("step %d has now %s, and had %s", i, s.Origin, was)
			}
		}
	}
}
