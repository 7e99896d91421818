package main

import (
	"archive/tar"
	"bytes"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
)

// registries are those of running scripts, by their folder.
type registries map[string]*httptest.Server

// registryCmd is a registry for a script:
//
//	registry start           starts one; its host is $REGISTRY
//	registry push NAME TEXT  puts an image there, and its digest into $DIGEST
//	registry save FILE TEXT  writes an image as docker save does
//	registry stop
//
// The image holds this program, which needs nothing else, and TEXT in /text.
func (r registries) registryCmd(ts *testscript.TestScript, neg bool, args []string) {
	work := ts.Getenv("WORK")
	switch {
	case neg || len(args) == 0:
		ts.Fatalf("usage: registry start|push|save|stop")
	case args[0] == "start":
		s := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
		ts.Defer(s.Close)
		r[work] = s
		ts.Setenv("REGISTRY", strings.TrimPrefix(s.URL, "http://"))
	case args[0] == "stop":
		r[work].Close()
	case args[0] == "push" && len(args) == 3:
		img := smallImage(ts, args[2])
		to, err := name.ParseReference(ts.Getenv("REGISTRY") + "/" + args[1])
		ts.Check(err)
		ts.Check(remote.Write(to, img, remote.WithTransport(http.DefaultTransport)))
		digest, err := img.Digest()
		ts.Check(err)
		ts.Setenv("DIGEST", digest.String())
	case args[0] == "save" && len(args) == 3:
		tag, err := name.NewTag("small:1")
		ts.Check(err)
		ts.Check(tarball.WriteToFile(ts.MkAbs(args[1]), tag, smallImage(ts, args[2])))
	default:
		ts.Fatalf("registry: %q", args)
	}
}

func smallImage(ts *testscript.TestScript, text string) v1.Image {
	at, err := boxtest.Static()
	ts.Check(err)
	program, err := os.ReadFile(at)
	ts.Check(err)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for path, content := range map[string]string{"opt/" + toolName: string(program), "text": text} {
		ts.Check(w.WriteHeader(&tar.Header{Name: path, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(content))}))
		_, err := io.WriteString(w, content)
		ts.Check(err)
	}
	ts.Check(w.Close())
	img, err := mutate.AppendLayers(empty.Image, static.NewLayer(b.Bytes(), types.DockerUncompressedLayer))
	ts.Check(err)
	c, err := img.ConfigFile()
	ts.Check(err)
	c = c.DeepCopy()
	c.OS, c.Architecture = "linux", runtime.GOARCH
	c.Config = v1.Config{Env: []string{"PATH=/opt"}, User: "nobody", Entrypoint: []string{"/evil"}, WorkingDir: "/nowhere"}
	img, err = mutate.ConfigFile(img, c)
	ts.Check(err)
	return img
}
