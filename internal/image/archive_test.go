package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// parts are those of an image in a test.
type parts struct {
	config   []byte
	manifest []byte
	layers   [][]byte // as they are kept
	blobs    map[string][]byte
}

// aConfig is a configuration for this machine.
func aConfig(diffs []string, more map[string]any) []byte {
	c := map[string]any{"architecture": runtime.GOARCH, "os": "linux", "rootfs": map[string]any{"type": "layers", "diff_ids": diffs}, "config": map[string]any{"Env": []string{"PATH=/bin", "GREETING=of the image"}}}
	for k, v := range more {
		c[k] = v
	}
	b, err := json.Marshal(c)
	if err != nil {
		panic(err)
	}
	return b
}

// imageOf makes an image of layers, gzipped.
func imageOf(t testing.TB, more map[string]any, layers ...[]byte) parts {
	t.Helper()
	p := parts{blobs: map[string][]byte{}}
	diffs := []string{}
	var list []map[string]any
	for _, l := range layers {
		diffs = append(diffs, sum(l))
		z := gzipped(t, l)
		p.layers = append(p.layers, z)
		p.blobs[sum(z)] = z
		list = append(list, map[string]any{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": sum(z), "size": len(z)})
	}
	p.config = aConfig(diffs, more)
	p.blobs[sum(p.config)] = p.config
	p.manifest = mustJSON(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": map[string]any{"mediaType": "application/vnd.oci.image.config.v1+json", "digest": sum(p.config), "size": len(p.config)}, "layers": list,
	})
	p.blobs[sum(p.manifest)] = p.manifest
	return p
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func (p parts) descriptor(more map[string]any) map[string]any {
	d := map[string]any{"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": sum(p.manifest), "size": len(p.manifest)}
	for k, v := range more {
		d[k] = v
	}
	return d
}

func anIndex(list ...map[string]any) []byte {
	return mustJSON(map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": list})
}

// layout are the files of an OCI layout.
func layout(index []byte, of ...parts) map[string][]byte {
	out := map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`), "index.json": index}
	for _, p := range of {
		for d, b := range p.blobs {
			out[blobName(d)] = b
		}
	}
	return out
}

// saved are the files that docker save wrote before it wrote layouts.
func saved(p parts, plain ...[]byte) map[string][]byte {
	name := strings.TrimPrefix(sum(p.config), "sha256:") + ".json"
	out := map[string][]byte{name: p.config}
	var names []string
	for i, l := range plain {
		n := fmt.Sprintf("layer%d/layer.tar", i)
		out[n], names = l, append(names, n)
	}
	out["manifest.json"] = mustJSON([]map[string]any{{"Config": name, "RepoTags": []string{"a:b"}, "Layers": names}})
	return out
}

func asTar(t testing.TB, files map[string][]byte) []byte {
	t.Helper()
	var list []anEntry
	for name, b := range files {
		list = append(list, file(name, string(b)))
	}
	return aTar(t, list...)
}

// onDisk writes an archive.
func onDisk(t testing.TB, raw []byte) string {
	t.Helper()
	at := filepath.Join(real(t, t.TempDir()), "image.tar")
	if err := os.WriteFile(at, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return at
}

func real(t testing.TB, dir string) string {
	t.Helper()
	d, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func asFolder(t testing.TB, files map[string][]byte) string {
	t.Helper()
	dir := real(t, t.TempDir())
	for name, b := range files {
		at := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, b, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestArchives(t *testing.T) {
	below, above := aTar(t, file("a", "1"), file("gone", "x")), aTar(t, file("a", "2"), file(".wh.gone", ""))
	p := imageOf(t, nil, below, above)
	other := imageOf(t, map[string]any{"architecture": "m68k"}, below)
	here := map[string]any{"platform": map[string]any{"os": "linux", "architecture": runtime.GOARCH}}
	elsewhere := map[string]any{"platform": map[string]any{"os": "linux", "architecture": "m68k"}}
	attested := map[string]any{"platform": map[string]any{"os": "unknown", "architecture": "unknown"}, "annotations": map[string]any{"vnd.docker.reference.type": "attestation-manifest"}}
	index := anIndex(other.descriptor(elsewhere), p.descriptor(here), other.descriptor(attested))
	nested := parts{blobs: map[string][]byte{sum(index): index}}
	one := layout(anIndex(p.descriptor(nil)), p)
	link := aTar(t, file("manifest.json", string(saved(p, below, above)["manifest.json"])), file(strings.TrimPrefix(sum(p.config), "sha256:")+".json", string(p.config)),
		symlink("layer0/layer.tar", "../shared"), file("shared", string(below)), file("layer1/layer.tar", string(above)))
	for _, tc := range []struct{ sentence, file, digest string }{
		{"a layout as a folder", asFolder(t, one), sum(p.manifest)},
		{"a layout as a tar", onDisk(t, asTar(t, one)), sum(p.manifest)},
		{"a layout as a tar, gzipped", onDisk(t, gzipped(t, asTar(t, one))), sum(p.manifest)},
		{"a layout of several machines", asFolder(t, layout(index, p, other)), sum(p.manifest)},
		{"a layout with an index in it", asFolder(t, layout(anIndex(map[string]any{"mediaType": "application/vnd.oci.image.index.v1+json", "digest": sum(index), "size": len(index)}), nested, p, other)), sum(index)},
		{"what docker save writes", onDisk(t, asTar(t, saved(p, below, above))), sum(p.config)},
		{"the same, gzipped", onDisk(t, gzipped(t, asTar(t, saved(p, below, above)))), sum(p.config)},
		{"the same, with a layer that is a link", onDisk(t, link), sum(p.config)},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			s, _ := aStore(t)
			for range 2 { // the second time it is there
				img, err := s.Load(t.Context(), tc.file, nil)
				if err != nil {
					t.Fatal(err)
				}
				if img.Digest != tc.digest || img.ID != sum(p.config) {
					t.Errorf("it is %s with the id %s, want %s and %s", img.Digest, img.ID, tc.digest, sum(p.config))
				}
				if d := cmp.Diff(map[string]string{"a": "2"}, tree(t, img.Root)); d != "" {
					t.Error(d)
				}
				if d := cmp.Diff([]string{"PATH=/bin", "GREETING=of the image"}, img.Config.Env); d != "" {
					t.Error(d)
				}
				img.Close()
			}
		})
	}
}

func TestWrongArchivesAreRefused(t *testing.T) {
	layer := aTar(t, file("a", "1"))
	p := imageOf(t, nil, layer)
	two := imageOf(t, nil, aTar(t, file("b", "2")))
	without := func(files map[string][]byte, name string) map[string][]byte { delete(files, name); return files }
	with := func(files map[string][]byte, name string, b []byte) map[string][]byte { files[name] = b; return files }
	manifest := func(change func(map[string]any)) map[string][]byte {
		var m map[string]any
		if err := json.Unmarshal(p.manifest, &m); err != nil {
			t.Fatal(err)
		}
		change(m)
		q := p
		q.manifest = mustJSON(m)
		q.blobs = map[string][]byte{sum(q.manifest): q.manifest}
		return layout(anIndex(q.descriptor(nil)), p, q)
	}
	config := func(c []byte) map[string][]byte {
		return manifest(func(m map[string]any) {
			p.blobs[sum(c)] = c
			m["config"] = map[string]any{"mediaType": "application/vnd.oci.image.config.v1+json", "digest": sum(c), "size": len(c)}
		})
	}
	whole := layout(anIndex(p.descriptor(nil)), p)
	outside := filepath.Join(real(t, t.TempDir()), "outside")
	if err := os.WriteFile(outside, anIndex(p.descriptor(nil)), 0o600); err != nil {
		t.Fatal(err)
	}
	linked := asFolder(t, without(layout(nil, p), "index.json"))
	if err := os.Symlink(outside, filepath.Join(linked, "index.json")); err != nil {
		t.Fatal(err)
	}
	fifo := asFolder(t, without(layout(nil, p), "index.json"))
	if err := mkfifo(filepath.Join(fifo, "index.json")); err != nil {
		t.Fatal(err)
	}
	for sentence, at := range map[string]string{
		"an empty file":                           onDisk(t, nil),
		"no archive":                              onDisk(t, []byte(strings.Repeat("x", 2000))),
		"an archive of something else":            onDisk(t, aTar(t, file("a", "b"))),
		"an empty folder":                         real(t, t.TempDir()),
		"a part that is a link out of the folder": linked,
		"a part that is a FIFO":                   fifo,
		"a layer is missing":                      asFolder(t, without(layout(anIndex(p.descriptor(nil)), p), blobName(sum(p.layers[0])))),
		"a layer is another one":                  asFolder(t, with(layout(anIndex(p.descriptor(nil)), p), blobName(sum(p.layers[0])), two.layers[0])),
		"the configuration is another one":        asFolder(t, with(layout(anIndex(p.descriptor(nil)), p), blobName(sum(p.config)), two.config)),
		"the manifest is another one":             asFolder(t, with(layout(anIndex(p.descriptor(nil)), p), blobName(sum(p.manifest)), two.manifest)),
		"two images":                              asFolder(t, layout(anIndex(p.descriptor(nil), two.descriptor(nil)), p, two)),
		"no image":                                asFolder(t, layout(anIndex())),
		"only one for another machine":            asFolder(t, layout(anIndex(p.descriptor(map[string]any{"platform": map[string]any{"os": "windows", "architecture": runtime.GOARCH}})), p)),
		"a configuration for another machine":     asFolder(t, config(aConfig([]string{sum(layer)}, map[string]any{"architecture": "m68k"}))),
		"a layer too many":                        asFolder(t, config(aConfig([]string{sum(layer), sum(layer)}, nil))),
		"a layer too few":                         asFolder(t, config(aConfig(nil, nil))),
		"a variable without a name":               asFolder(t, config(aConfig([]string{sum(layer)}, map[string]any{"config": map[string]any{"Env": []string{"=x"}}}))),
		"a variable with a NUL":                   asFolder(t, config(aConfig([]string{sum(layer)}, map[string]any{"config": map[string]any{"Env": []string{"A=\x00"}}}))),
		"a variable without a value":              asFolder(t, config(aConfig([]string{sum(layer)}, map[string]any{"config": map[string]any{"Env": []string{"A"}}}))),
		"a configuration that is not JSON":        asFolder(t, config([]byte("x"))),
		"an old manifest":                         asFolder(t, manifest(func(m map[string]any) { m["schemaVersion"] = 1 })),
		"a manifest that is an index as well":     asFolder(t, manifest(func(m map[string]any) { m["manifests"] = []any{} })),
		"no image but something else":             asFolder(t, manifest(func(m map[string]any) { m["config"].(map[string]any)["mediaType"] = "application/vnd.example+json" })),
		"a layer that is elsewhere": asFolder(t, manifest(func(m map[string]any) {
			m["layers"].([]any)[0].(map[string]any)["urls"] = []string{"https://evil.example/layer"}
		})),
		"a layer that is huge": asFolder(t, manifest(func(m map[string]any) { m["layers"].([]any)[0].(map[string]any)["size"] = int64(1) << 50 })),
		"a size below zero":    asFolder(t, manifest(func(m map[string]any) { m["layers"].([]any)[0].(map[string]any)["size"] = -1 })),
		"a digest that is a path": asFolder(t, manifest(func(m map[string]any) {
			m["layers"].([]any)[0].(map[string]any)["digest"] = "sha256:../../../../etc/passwd"
		})),
		"a part that is there twice":     onDisk(t, aTar(t, file("index.json", string(whole["index.json"])), file("index.json", "{}"))),
		"a saved image with a path":      onDisk(t, asTar(t, map[string][]byte{"manifest.json": []byte(`[{"Config":"../../etc/passwd","Layers":[]}]`)})),
		"a saved image in a folder":      asFolder(t, map[string][]byte{"manifest.json": []byte(`[{"Config":"../../../../../../etc/passwd","Layers":[]}]`)}),
		"two saved images":               onDisk(t, asTar(t, map[string][]byte{"manifest.json": []byte(`[{"Config":"a"},{"Config":"b"}]`)})),
		"a saved layer that is no layer": onDisk(t, asTar(t, saved(p, aTar(t, file("other", "x"))))),
		"an archive with a path up":      onDisk(t, aTar(t, file("../index.json", "{}"))),
	} {
		t.Run(sentence, func(t *testing.T) {
			s, around := aStore(t)
			img, err := s.Load(t.Context(), at, nil)
			if !errors.Is(err, ErrRefused) {
				t.Errorf("got %v (%v), want that it is refused", err, img)
			}
			untouched(t, s, around)
		})
	}
	t.Run("control: the archive they were made from", func(t *testing.T) {
		s, _ := aStore(t)
		img, err := s.Load(t.Context(), asFolder(t, whole), nil)
		if err != nil {
			t.Fatal(err)
		}
		img.Close()
	})
}

func TestAnArchiveThatIsNotThere(t *testing.T) {
	s, _ := aStore(t)
	dir := real(t, t.TempDir())
	if _, err := s.Load(t.Context(), filepath.Join(dir, "none"), nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
	if err := os.Symlink(onDisk(t, nil), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Load(t.Context(), filepath.Join(dir, "link"), nil); !errors.Is(err, ErrRefused) {
		t.Errorf("a link is followed: %v", err)
	}
	if err := mkfifo(filepath.Join(dir, "fifo")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Load(t.Context(), filepath.Join(dir, "fifo"), nil); !errors.Is(err, ErrRefused) {
		t.Errorf("a FIFO is read: %v", err)
	}
}

// An archive that was written again is another one.
func TestAnArchiveThatChanges(t *testing.T) {
	s, _ := aStore(t)
	p, q := imageOf(t, nil, aTar(t, file("a", "1"))), imageOf(t, nil, aTar(t, file("a", "2")))
	at := onDisk(t, asTar(t, layout(anIndex(p.descriptor(nil)), p)))
	if _, err := s.LookupArchive(at); !errors.Is(err, ErrMissing) {
		t.Errorf("before it was loaded: %v", err)
	}
	for _, x := range []parts{p, q} {
		if err := os.WriteFile(at, asTar(t, layout(anIndex(x.descriptor(nil)), x)), 0o600); err != nil {
			t.Fatal(err)
		}
		img, err := s.Load(t.Context(), at, nil)
		if err != nil || img.Digest != sum(x.manifest) {
			t.Fatalf("got %v (%v), want %s", img, err, sum(x.manifest))
		}
		img.Close()
		known, err := s.LookupArchive(at)
		if err != nil || known.Digest != img.Digest {
			t.Errorf("looked up it is %v (%v)", known, err)
		}
		known.Close()
	}
}
