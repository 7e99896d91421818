package main

import (
	"bytes"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestMakeTargets: the Makefile is a list of names for commands that stand in the
// README, in .ci/run or in a script, so that none of them can say something else.
func TestMakeTargets(t *testing.T) {
	recipes := map[string][]string{}
	target := ""
	for line := range strings.Lines(document(t, "Makefile")) {
		line = strings.TrimSuffix(line, "\n")
		if m := regexp.MustCompile(`^([a-z]+):$`).FindStringSubmatch(line); m != nil {
			target = m[1]
			continue
		}
		command, ok := strings.CutPrefix(line, "\t")
		switch {
		case ok && target != "":
			recipes[target] = append(recipes[target], command)
		case line != "" && !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, ".PHONY: "):
			t.Errorf("the Makefile has %q, which is neither a target nor its command", line)
		}
	}
	readme, ci := document(t, "README.md"), document(t, ".ci/run")
	places := map[string]map[string]string{
		"build": {"the README": readme},
		"test":  {"the README": readme, ".ci/run": ci},
		"lint":  {".ci/run": ci},
		// No place: it is a script's, which stands in docs/testing.md.
		"screenshots": {"docs/testing.md": document(t, "docs/testing.md")},
	}
	same(t, "targets of the Makefile", slices.Collect(maps.Keys(places)), slices.Collect(maps.Keys(recipes)))
	if got := recipes["build"]; len(got) != 1 || !strings.HasPrefix(got[0], "CGO_ENABLED=0 ") {
		t.Errorf("make build runs %q: where there is a C compiler that is no static binary", got)
	}
	for target, in := range places {
		if len(recipes[target]) != 1 {
			t.Errorf("make %s runs %q, want one command", target, recipes[target])
			continue
		}
		command := recipes[target][0]
		for name, text := range in {
			if !slices.ContainsFunc(regexp.MustCompile("[\n`]").Split(text, -1), func(piece string) bool { return strings.TrimSpace(piece) == command }) {
				t.Errorf("make %s runs %q, which %s does not have", target, command, name)
			}
		}
	}
}

// maxPicture is what a picture may weigh: everybody who clones the repository
// has it, in every version there ever was.
const maxPicture = 150 << 10

// TestPicturesAreUsed: every picture is in a document, is whole and small, and
// every picture that a document shows is there.
func TestPicturesAreUsed(t *testing.T) {
	root := moduleRoot(t)
	docs, err := filepath.Glob(filepath.Join(root, "docs/*.md"))
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]bool{}
	for _, doc := range append(docs, filepath.Join(root, "README.md")) {
		b, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		// They are of a machine that has what another one has not.
		if bytes.Contains(b, []byte("](docs/img/")) || bytes.Contains(b, []byte("](img/")) {
			if !bytes.Contains(b, []byte("where a server answers for packages.example.com")) {
				t.Errorf("%s has pictures and does not say what they take", doc)
			}
		}
		for _, m := range regexp.MustCompile(`!\[([^\]]*)\]\(([^)]+)\)`).FindAllSubmatch(b, -1) {
			if len(m[1]) < 20 {
				t.Errorf("%s: %q does not say to one who cannot see it what is in the picture", doc, m[1])
			}
			shown[filepath.Join(filepath.Dir(doc), string(m[2]))] = true
		}
	}
	pictures, err := filepath.Glob(filepath.Join(root, "docs/img/*"))
	if err != nil {
		t.Fatal(err)
	}
	same(t, "pictures in docs/img and pictures in documents", pictures, slices.Collect(maps.Keys(shown)))
	for _, path := range pictures {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		img, err := png.Decode(bytes.NewReader(b))
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if len(b) >= maxPicture || img.Bounds().Dx() != 1200 {
			t.Errorf("%s: %d bytes, %d pixels wide", path, len(b), img.Bounds().Dx())
		}
		// A browser that failed takes a picture of nothing.
		seen := map[any]bool{}
		for y := range img.Bounds().Dy() {
			for x := range img.Bounds().Dx() {
				seen[img.At(x, y)] = true
			}
		}
		if len(seen) < 20 {
			t.Errorf("%s has %d colours: there is nothing on it", path, len(seen))
		}
	}
}
