package main

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
)

// index is a package index with one package in it, as pip asks for one.
type index struct {
	port int
	mu   sync.Mutex
	got  []string
}

func newIndex(t *testing.T) *index {
	t.Helper()
	const name = "usprobe-1.0-py3-none-any.whl"
	var wheel bytes.Buffer
	z := zip.NewWriter(&wheel)
	for _, f := range [][2]string{
		{"usprobe.py", "ANSWER = 42\n"},
		{"usprobe-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: usprobe\nVersion: 1.0\n"},
		{"usprobe-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{"usprobe-1.0.dist-info/RECORD", "usprobe.py,,\nusprobe-1.0.dist-info/METADATA,,\nusprobe-1.0.dist-info/WHEEL,,\nusprobe-1.0.dist-info/RECORD,,\n"},
	} {
		w, err := z.Create(f[0])
		if err == nil {
			_, err = w.Write([]byte(f[1]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	i := &index{}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	i.port = l.Addr().(*net.TCPAddr).Port
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.mu.Lock()
		i.got = append(i.got, r.URL.Path)
		i.mu.Unlock()
		switch r.URL.Path {
		case "/simple/usprobe/":
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprintf(w, "<!DOCTYPE html><html><body><a href=\"/files/%s\">%s</a></body></html>", name, name)
		case "/files/" + name:
			_, _ = w.Write(wheel.Bytes())
		default:
			http.NotFound(w, r)
		}
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close() })
	return i
}

// TestSetupInstallsWithPip: what pip of a setup installs, from an index that only the
// setup may ask, the step imports, and cannot change. Two steps have it of one setup.
func TestSetupInstallsWithPip(t *testing.T) {
	boxtest.Need(t, "python3", "pip")
	eachEngine(t, func(t *testing.T, engine string) {
		i := newIndex(t)
		r := prepare(t, engine, fmt.Sprintf(`
defaults:
  language: python
  timeoutS: 60
  memoryMb: 1024
  setup: python3 -m pip install usprobe
  setupEgress: [{to: "tcp://127.0.0.1:%d", private: true}]
  env: {PIP_INDEX_URL: "http://127.0.0.1:%d/simple"}
steps:
  - id: one
    run: |
      import usprobe, os
      print(usprobe.ANSWER, os.path.dirname(usprobe.__file__))
      try:
          open(usprobe.__file__, "w")
      except OSError as e:
          print(e.strerror)
      import socket
      try:
          socket.create_connection(("127.0.0.1", %d), 5)
      except OSError as e:
          print(e.strerror)
  - id: two
    run: import usprobe; print(usprobe.ANSWER)
`, i.port, i.port, i.port))
		if err := r.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if code := r.end(); code != exitPass {
			t.Fatalf("exit status %d\n%s", code, &r.log)
		}
		for id, want := range map[string]string{
			"one": "42 /workspace/.deps\nRead-only file system\nConnection refused\n",
			"two": "42\n",
		} {
			if got, err := os.ReadFile(filepath.Join(r.dir, "out", "steps", id, "stdout.log")); err != nil || string(got) != want {
				t.Errorf("%s printed %q, want %q (%v)", id, got, want, err)
			}
		}
		if _, err := os.Stat(filepath.Join(r.dir, "ws", ".deps")); err == nil {
			t.Error("what the setup installed is in the workspace")
		}
		i.mu.Lock()
		defer i.mu.Unlock()
		if len(i.got) != 2 {
			t.Errorf("the index was asked for %q: once each is what one setup asks", i.got)
		}
		text, err := os.ReadFile(filepath.Join(r.dir, "out", "report.json"))
		if err != nil {
			t.Fatal(err)
		}
		var report struct {
			Steps []struct {
				Egress []struct {
					Verdict string
					Setup   bool
				}
			}
		}
		if err := json.Unmarshal(text, &report); err != nil {
			t.Fatal(err)
		}
		if e := report.Steps[0].Egress; len(e) != 1 || e[0].Verdict != "allowed" || !e[0].Setup {
			t.Errorf("requests of step one: %+v", e)
		}
		if e := report.Steps[1].Egress; len(e) != 0 {
			t.Errorf("requests of step two: %+v", e)
		}
	})
}

// TestFreeSpaceIsTheSteps: where what a step writes is a file system of its own, df
// shows its size, and not the host's.
func TestFreeSpaceIsTheSteps(t *testing.T) {
	boxtest.Need(t, "root", "loop")
	eachEngine(t, func(t *testing.T, engine string) {
		r := prepare(t, engine, "steps: [{id: one, diskMb: 64, run: df -m /workspace | tail -1}]")
		if err := r.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if code := r.end(); code != exitPass {
			t.Fatalf("exit status %d\n%s", code, &r.log)
		}
		text, err := os.ReadFile(filepath.Join(r.dir, "out", "steps", "one", "stdout.log"))
		if err != nil {
			t.Fatal(err)
		}
		var name string
		var size, used, free int
		if _, err := fmt.Sscan(string(text), &name, &size, &used, &free); err != nil || size < 60 || size > 80 || free < 60 || free > size {
			t.Errorf("df says %q (%v), diskMb is 64", strings.TrimSpace(string(text)), err)
		}
	})
}
