package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/session"
)

// open is an engine whose boxes have the host's network, whatever was asked for.
type open struct{ box.Engine }

func (o open) Start(ctx context.Context, s box.Spec, p box.Placement) (*box.Built, error) {
	s.Network = box.NetworkHost
	return o.Engine.Start(ctx, s, p)
}

// TestAMissRefusesTheRun: an engine whose boxes are not what they should be runs
// nothing, whatever the steps ask for, and auto does not come to rest on it.
func TestAMissRefusesTheRun(t *testing.T) {
	boxtest.Boxes(t)
	engines := []session.Candidate{{Name: "native", Open: func(ctx context.Context, on *session.Session) (box.Engine, func(), error) {
		e, closeIt, err := session.Candidates()[1].Open(ctx, on)
		return open{e}, closeIt, err
	}}}
	dir := boxtest.OpenDir(t)
	t.Run("doctor", func(t *testing.T) {
		ws := filepath.Join(dir, "place", "ws")
		if err := os.MkdirAll(ws, 0o755); err != nil {
			t.Fatal(err)
		}
		var stdout, stderr strings.Builder
		a := &app{engines: engines, stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr, getenv: os.Getenv, lookupEnv: os.LookupEnv, environ: os.Environ, unsetenv: os.Unsetenv}
		if code := a.main([]string{"doctor", "--engine", "native", "--workspace", ws}); code != exitRefused || !strings.Contains(stdout.String(), "host_loopback") {
			t.Errorf("doctor ends with %d, want %d\n%s%s", code, exitRefused, stdout.String(), stderr.String())
		}
	})
	file := filepath.Join(dir, "f.yml")
	if err := os.WriteFile(file, []byte("steps: [{run: touch ran}]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, engine := range []string{"native", "auto"} {
		t.Run(engine, func(t *testing.T) {
			ws, out := filepath.Join(dir, engine), filepath.Join(dir, "out-"+engine)
			if err := os.Mkdir(ws, 0o755); err != nil {
				t.Fatal(err)
			}
			var stdout, stderr strings.Builder
			a := &app{engines: engines, stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr, getenv: os.Getenv, lookupEnv: os.LookupEnv, environ: os.Environ, unsetenv: os.Unsetenv}
			if code := a.main([]string{"run", "--fresh-proof", "--engine", engine, "--workspace", ws, "--out", out, file}); code != exitRefused {
				t.Errorf("exit status %d, want %d\n%s%s", code, exitRefused, stdout.String(), stderr.String())
			}
			for _, want := range []string{"refused, nothing ran", "host_loopback", "raw_address", "  try: untrusted-steps doctor"} {
				if !strings.Contains(stderr.String(), want) {
					t.Errorf("stderr lacks %q: %s", want, stderr.String())
				}
			}
			report, err := os.ReadFile(filepath.Join(out, "report.json"))
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{`"verdict": "refused"`, `"control": "raw_address"`, `"ok": false`} {
				if !strings.Contains(string(report), want) {
					t.Errorf("the report lacks %s", want)
				}
			}
			if _, err := os.Stat(filepath.Join(ws, "ran")); err == nil {
				t.Error("the step ran")
			}
		})
	}
}
