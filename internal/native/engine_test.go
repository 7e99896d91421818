package native

import (
	"context"
	"io"
	"os"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
	"github.com/untrusted-steps/untrusted-steps/internal/rootfs"
)

func TestMain(m *testing.M) {
	boxtest.Become(os.Args)
	os.Exit(m.Run())
}

func testEngine() *Engine {
	return &Engine{Version: "test", View: func(_ string, network bool) rootfs.View {
		return rootfs.HostView(rootfs.Host{Getenv: os.Getenv, Network: network, Homes: []string{"/root"}})
	}}
}

// BenchmarkStart is the whole life of a box that does nothing.
func BenchmarkStart(b *testing.B) {
	boxtest.Need(b, "userns", "seccomp")
	e := testEngine()
	defer e.Close()
	s := box.Spec{
		ID: "t", Argv: []string{"true"}, Workdir: box.WorkspaceTarget, Workspace: b.TempDir(),
		Env:   box.Environment{Path: []string{"/usr/bin", "/bin"}}.List(),
		Tmpfs: []box.Tmpfs{{Target: "/tmp", Bytes: 1 << 20}, {Target: box.HomeTarget, Bytes: 1 << 20}}, ShmBytes: 1 << 20,
		CapDrop: []string{"ALL"}, TimeoutS: 60,
	}
	for b.Loop() {
		out := box.Run(context.Background(), box.Job{Spec: s, Engine: e, Group: limits.None(), Stdout: io.Discard, Stderr: io.Discard, MaxOutput: 1 << 10})
		if v := box.Classify(out.Evidence, nil); v.ExitCode == nil || *v.ExitCode != 0 || v.Fault != nil {
			b.Fatalf("the box did not run true: %+v", v)
		}
	}
}
