package boxtest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/image"
)

// tinyImage is an OCI image with the probe in it, unpacked into a store of its own.
func (s *suite) tinyImage(t testing.TB) *image.Image {
	t.Helper()
	program, err := os.ReadFile(s.probe)
	if err != nil {
		t.Fatal(err)
	}
	below := tarOf(t,
		tarEntry{"bin/probe", string(program), 0o6755, tar.TypeReg}, tarEntry{"bin/setid", "", 0, tar.TypeLink}, tarEntry{"etc/secret", "of root alone", 0o600, tar.TypeReg},
		tarEntry{"gone", "x", 0o644, tar.TypeReg}, tarEntry{"shut", "", 0, tar.TypeDir}, tarEntry{"shut/in", "in", 0, tar.TypeReg})
	above := tarOf(t, tarEntry{".wh.gone", "", 0o644, tar.TypeReg}, tarEntry{"etc/passwd", "image:x:0:0::/:/bin/sh\n", 0o644, tar.TypeReg})
	config, err := json.Marshal(map[string]any{
		"os": "linux", "architecture": runtime.GOARCH, "rootfs": map[string]any{"type": "layers", "diff_ids": []string{sumOf(below), sumOf(above)}},
		"config": map[string]any{"Env": []string{"PATH=/bin", "OF_THE_IMAGE=yes"}, "User": "nobody", "WorkingDir": "/none", "Entrypoint": []string{"/none"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	archive := tarOf(t, tarEntry{"config.json", string(config), 0o644, tar.TypeReg}, tarEntry{"1/layer.tar", string(below), 0o644, tar.TypeReg}, tarEntry{"2/layer.tar", string(above), 0o644, tar.TypeReg},
		tarEntry{"manifest.json", `[{"Config":"config.json","RepoTags":["tiny:1"],"Layers":["1/layer.tar","2/layer.tar"]}]`, 0o644, tar.TypeReg})
	dir, err := filepath.EvalSymlinks(workspace(t))
	if err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(dir, "tiny.tar")
	if err := os.WriteFile(at, archive, 0o600); err != nil {
		t.Fatal(err)
	}
	img, err := (&image.Store{Dir: filepath.Join(dir, "images")}).Load(t.Context(), at, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { img.Close() })
	return img
}

type tarEntry struct {
	name, text string
	mode       int64
	kind       byte
}

func tarOf(t testing.TB, list ...tarEntry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range list {
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Mode: e.mode, Size: int64(len(e.text)), Uid: 1234, Gid: 5678}
		if e.kind == tar.TypeLink {
			h.Linkname = "bin/probe"
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func sumOf(b []byte) string {
	s := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(s[:])
}
