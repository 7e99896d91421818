package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxinit"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/kern"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
	"github.com/untrusted-steps/untrusted-steps/internal/native"
	"github.com/untrusted-steps/untrusted-steps/internal/rootfs"
)

// spec is the box of a step that runs true, with every default.
func spec(t testing.TB) box.Spec {
	t.Helper()
	return box.Spec{
		ID: "t", Argv: []string{"true"}, Workdir: box.WorkspaceTarget, Workspace: t.TempDir(),
		Env:      box.Environment{Path: []string{"/usr/bin", "/bin"}}.List(),
		Tmpfs:    []box.Tmpfs{{Target: "/tmp", Bytes: box.DefaultTmpBytes}, {Target: box.HomeTarget, Bytes: box.DefaultHomeBytes}},
		ShmBytes: box.DefaultShmBytes, CapDrop: []string{"ALL"}, TimeoutS: 60,
	}
}

// hostView is image host with the standard PATH, read once as a run reads it.
func hostView() rootfs.View {
	getenv := func(name string) string {
		if name == "PATH" {
			return "/usr/local/bin:/usr/bin:/bin"
		}
		return ""
	}
	return rootfs.HostView(rootfs.Host{Getenv: getenv, Homes: []string{"/root", "/home"}})
}

func nativeEngine(v rootfs.View) *native.Engine {
	return &native.Engine{Version: "bench", View: func(hostname string, _ bool) rootfs.View { return v.For(hostname) }}
}

// kernEngine gives nil, with a word of why, where no kern is to be had.
func kernEngine(b testing.TB, v rootfs.View) *kern.Engine {
	b.Helper()
	e, err := kern.Open(context.Background(), kern.Options{Getenv: os.Getenv, View: func(hostname string, _ bool) rootfs.View { return v.For(hostname) }})
	if err != nil {
		b.Logf("no kern to compare with: %v", err)
		return nil
	}
	b.Cleanup(e.Close)
	return e
}

// boxRun is the whole life of one box, judged.
func boxRun(e box.Engine, s box.Spec, group *limits.Group, stdout io.Writer) (box.Outcome, error) {
	if group == nil {
		group = limits.None()
	}
	out := box.Run(context.Background(), box.Job{Spec: s, Engine: e, Group: group, Stdout: stdout, Stderr: io.Discard, MaxOutput: 1 << 20})
	v := box.Classify(out.Evidence, nil)
	if v.ExitCode == nil || *v.ExitCode != 0 || v.Fault != nil || v.NoVerdict != "" {
		return out, fmt.Errorf("the box did not run %v: %+v %s", s.Argv, v, out.Note)
	}
	return out, nil
}

// engineOnly is the least that a box of an engine takes: nothing is watched,
// counted, kept or judged. mark is called at the end of each phase.
func engineOnly(e box.Engine, s box.Spec, mark func(phase string)) error {
	built, err := e.Start(context.Background(), s, limits.None())
	if err != nil {
		return err
	}
	mark("spawn")
	err = talk(built, s, mark)
	built.Kill()
	<-built.Ended
	err = errors.Join(err, built.Close())
	mark("end")
	return err
}

// talk is the conversation with a box's first process.
func talk(built *box.Built, s box.Spec, mark func(phase string)) error {
	fd := int(built.Control.Fd())
	if err := boxinit.Send(fd, boxinit.Message{Prepare: &boxinit.Prepare{Keep: built.Keep, CgroupNS: built.CgroupNS}}); err != nil {
		return err
	}
	if m, _, err := boxinit.Receive(fd); err != nil || m.Ready == nil {
		return fmt.Errorf("not ready: %+v %w", m.Failed, err)
	}
	mark("build")
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	n := int(null.Fd())
	start := &boxinit.Start{Argv: s.Argv, Env: s.Env, Workdir: s.Workdir, Filter: built.Filter, Guard: built.Guard}
	if err := boxinit.Send(fd, boxinit.Message{Start: start}, n, n, n); err != nil {
		return err
	}
	for {
		m, fds, err := boxinit.Receive(fd)
		// Held to the end, or a call that asks would be answered by nobody.
		defer func() {
			for _, f := range fds {
				unix.Close(f)
			}
		}()
		switch {
		case err != nil:
			return err
		case m.Filtered != nil:
		case m.Started != nil:
			mark("command")
		case m.Exited != nil && m.Exited.Status == 0:
			mark("run")
			return nil
		default:
			return fmt.Errorf("the step did not run true: %+v", m)
		}
	}
}

func runs(argv ...string) func() error {
	return func() error { return exec.Command(argv[0], argv[1:]...).Run() }
}

// BenchmarkBoxStart is a box's whole life around true, from nothing to nothing
// left, without control groups and without a look at the workspace: those are
// BenchmarkStep's. Beside it stand bubblewrap with the same box, without and
// with the same system call filter; unshare with namespaces and nothing in
// them; and the program alone.
func BenchmarkBoxStart(b *testing.B) {
	boxtest.Need(b, "root", "userns", "seccomp")
	s, v := spec(b), hostView()
	e := nativeEngine(v)
	defer e.Close()
	list := []*contender{
		timed("native", func() error { _, err := boxRun(e, s, nil, io.Discard); return err }),
		timed("true", runs("/usr/bin/true")),
	}
	if path, err := exec.LookPath("unshare"); err == nil {
		list = append(list, timed("unshare", runs(path, "-Urmpfnui", "true")))
	}
	for name, filter := range map[string]bool{"bwrap": false, "bwrap-seccomp": true} {
		if p := newPeer(b, s, v, filter); p != nil {
			list = append(list, timed(name, func() error { _, err := p.run(s.Argv...); return err }))
		}
	}
	if k := kernEngine(b, v); k != nil {
		list = append(list, timed("kern", func() error { _, err := boxRun(k, s, nil, io.Discard); return err }))
	}
	race(b, list, [2]string{"native", "bwrap"}, [2]string{"native", "bwrap-seccomp"}, [2]string{"native", "unshare"}, [2]string{"kern", "native"})
}

// BenchmarkPhases says where the time of a box of engine native goes: spawn is a
// process in new namespaces that has its orders; build is its start, the mounts
// and all capabilities given up; command is the filter and the start of the
// step's program; run is that program; end is the kill and the kernel's
// clearing up.
func BenchmarkPhases(b *testing.B) {
	boxtest.Need(b, "root", "userns", "seccomp")
	s, v := spec(b), hostView()
	e := nativeEngine(v)
	defer e.Close()
	took := map[string][]float64{}
	for b.Loop() {
		last := time.Now()
		err := engineOnly(e, s, func(phase string) {
			now := time.Now()
			took[phase] = append(took[phase], float64(now.Sub(last).Nanoseconds())/1e6)
			last = now
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	for phase, list := range took {
		b.ReportMetric(median(list), "phase="+phase+"-ms")
	}
}
