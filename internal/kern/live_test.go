package kern

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxinit"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
	"github.com/untrusted-steps/untrusted-steps/internal/rootfs"
)

// live gives the engine over the real kern.
func live(t testing.TB) *Engine {
	t.Helper()
	boxtest.Need(t, "kern")
	e, err := Open(context.Background(), Options{Getenv: os.Getenv, View: hostView, Program: static(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

func hostView(hostname string, network bool) rootfs.View {
	return rootfs.HostView(rootfs.Host{Getenv: os.Getenv, Network: network, Homes: []string{"/root", "/home"}}).For(hostname)
}

// uncapped places a box in no control group.
type uncapped struct{}

func (uncapped) CgroupFD() int                 { return -1 }
func (uncapped) Born(start func() error) error { return start() }
func (uncapped) Join(int) error                { return nil }
func (uncapped) Spare(int64) error             { return nil }
func (uncapped) By() string                    { return "" }

func liveSpec(t testing.TB, argv ...string) box.Spec {
	return box.Spec{
		ID: "t_1", Argv: argv, Workdir: box.WorkspaceTarget, Workspace: t.TempDir(),
		Env:   []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + box.HomeTarget},
		Tmpfs: []box.Tmpfs{{Target: "/tmp", Bytes: 1 << 20}, {Target: box.HomeTarget, Bytes: 1 << 20}}, ShmBytes: 1 << 20,
		CapDrop: []string{"ALL"}, TimeoutS: 30,
	}
}

// conversation speaks to a box's first process the way a run does.
type conversation struct {
	t testing.TB
	b *box.Built
}

func start(t testing.TB, e *Engine, s box.Spec) conversation {
	t.Helper()
	b, err := e.Start(context.Background(), s, uncapped{})
	return talk(t, b, err)
}

func talk(t testing.TB, b *box.Built, err error) conversation {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.Control.Close()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return conversation{t, b}
}

func (c conversation) say(m boxinit.Message, fds ...int) {
	c.t.Helper()
	if err := boxinit.Send(int(c.b.Control.Fd()), m, fds...); err != nil {
		c.t.Fatal(err)
	}
}

func (c conversation) hear() (boxinit.Message, []int) {
	c.t.Helper()
	m, fds, err := boxinit.Receive(int(c.b.Control.Fd()))
	if err != nil {
		c.t.Fatalf("receive: %v (%s)", err, c.b.Note())
	}
	return m, fds
}

// launch starts the step and gives the read end of its output.
func (c conversation) launch(s box.Spec) *os.File {
	c.t.Helper()
	null, err := os.Open(os.DevNull)
	if err != nil {
		c.t.Fatal(err)
	}
	defer null.Close()
	r, w, err := os.Pipe()
	if err != nil {
		c.t.Fatal(err)
	}
	defer w.Close()
	c.say(boxinit.Message{Start: &boxinit.Start{Argv: s.Argv, Env: s.Env, Workdir: s.Workdir, Filter: c.b.Filter, Guard: c.b.Guard}},
		int(null.Fd()), int(w.Fd()), int(w.Fd()))
	for {
		m, _ := c.hear()
		switch {
		case m.Failed != nil:
			c.t.Fatalf("step not started: %v", m.Failed)
		case m.Started != nil:
			return r
		}
	}
}

func (c conversation) ready(port int) []int {
	c.t.Helper()
	return c.prepare(boxinit.Prepare{ProxyPort: port})
}

func (c conversation) prepare(p boxinit.Prepare) []int {
	c.t.Helper()
	p.Keep, p.CgroupNS = c.b.Keep, c.b.CgroupNS
	c.say(boxinit.Message{Prepare: &p})
	m, fds := c.hear()
	if m.Ready == nil {
		c.t.Fatalf("not ready: %+v (%v)", m, m.Failed)
	}
	return fds
}

func (c conversation) status() syscall.WaitStatus {
	c.t.Helper()
	m, _ := c.hear()
	if m.Exited == nil {
		c.t.Fatalf("got %+v, want the end of the step", m)
	}
	return syscall.WaitStatus(m.Exited.Status)
}

func runLive(t testing.TB, e *Engine, s box.Spec) (string, syscall.WaitStatus) {
	t.Helper()
	return start(t, e, s).run(s)
}

// run lets the box run its step, and gives what that printed and how it ended.
func (c conversation) run(s box.Spec) (string, syscall.WaitStatus) {
	t := c.t
	t.Helper()
	c.ready(0)
	out := c.launch(s)
	defer out.Close()
	text, _ := io.ReadAll(io.LimitReader(out, 1<<20))
	ws := c.status()
	c.b.Control.Close()
	<-c.b.Ended
	if err := c.b.Close(); err != nil {
		t.Error(err)
	}
	return string(bytes.TrimSpace(text)), ws
}

// probeSpec runs this test program's probe in a box, from the workspace.
func probeSpec(t testing.TB, what ...string) box.Spec {
	t.Helper()
	s := liveSpec(t)
	self, err := os.ReadFile(static(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.Workspace, "probe"), self, 0o755); err != nil {
		t.Fatal(err)
	}
	s.Argv = append([]string{"./probe", probeArg}, what...)
	return s
}

func wantOut(t *testing.T, out string, lines ...string) {
	t.Helper()
	for _, l := range lines {
		if !strings.Contains(out, l) {
			t.Errorf("%q is not in what the box wrote:\n%s", l, out)
		}
	}
}

func TestLiveBoxRunsAStep(t *testing.T) {
	e := live(t)
	s := liveSpec(t, "sh", "-c", `id -u; grep -E 'Cap|NoNew|Seccomp:' /proc/self/status; ls /; cat /step/s.sh; touch /workspace/x; env; hostname; exit 7`)
	s.Script = &box.Script{Name: "s.sh", Text: "echo hello\n"}
	s.Env = append(s.Env, "GREETING=trailing blank ")
	out, ws := runLive(t, e, s)
	if ws.ExitStatus() != 7 {
		t.Errorf("status %v, want exit 7", ws)
	}
	wantOut(t, out, "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2",
		"echo hello", "GREETING=trailing blank \n", "t-1")
	for _, line := range strings.Split(out, "\n") {
		switch line {
		case "home", "root", "run", "var", "opt", "KERN_NO_SCOPE=1", "HOME=/root":
			t.Errorf("the step sees %s", line)
		}
	}
	st, err := os.Stat(filepath.Join(s.Workspace, "x"))
	if err != nil {
		t.Fatal(err)
	}
	if got := int(st.Sys().(*syscall.Stat_t).Uid); got != os.Geteuid() {
		t.Errorf("a file of the box belongs to %d, want the caller, %d", got, os.Geteuid())
	}
}

func TestLiveBoxIsReadOnlyAndPrivate(t *testing.T) {
	e := live(t)
	out, ws := runLive(t, e, probeSpec(t,
		"write=/x", "write=/usr/x", "write=/step/x", "write=/step/init", "write=/etc/passwd", "write=/proc/sys/kernel/core_pattern",
		"write=/workspace/ok", "write=/tmp/ok", "write=/step/home/ok", "write=/dev/shm/ok",
		"read=/proc/1/environ", "read=/proc/1/mem", "read=/step/control", "killinit", "write=/workspace/after"))
	if ws.ExitStatus() != 0 {
		t.Errorf("status %v", ws)
	}
	for _, p := range []string{"/x", "/usr/x", "/step/x", "/step/init", "/etc/passwd", "/proc/sys/kernel/core_pattern"} {
		if strings.Contains(out, "write="+p+" -> <nil>") {
			t.Errorf("the box wrote %s", p)
		}
	}
	wantOut(t, out, "write=/workspace/ok -> <nil>", "write=/tmp/ok -> <nil>", "write=/step/home/ok -> <nil>", "write=/dev/shm/ok -> <nil>",
		"read=/proc/1/environ -> open /proc/1/environ: permission denied", "read=/proc/1/mem -> open /proc/1/mem: permission denied",
		"read=/step/control -> open /step/control: no such file or directory", "write=/workspace/after -> <nil>")
}

func TestLiveForbiddenCallEndsItsProcess(t *testing.T) {
	e := live(t)
	if _, ws := runLive(t, e, probeSpec(t, "mount")); !ws.Signaled() || ws.Signal() != syscall.SIGSYS {
		t.Errorf("status %v, want SIGSYS for the step's own process", ws)
	}
	// What Unobserved says: stopped, and nobody told.
	out, ws := runLive(t, e, probeSpec(t, "child=mount"))
	if ws.ExitStatus() != 0 {
		t.Errorf("status %v", ws)
	}
	wantOut(t, out, "child signal: bad system call")
}

func TestLiveNetworkIsLoopbackAloneAndOursToServe(t *testing.T) {
	e := live(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	s := probeSpec(t, "dial="+fmt.Sprint(box.ProxyPort), "dial="+fmt.Sprint(port))
	s.Network = box.NetworkAllowlist
	c := start(t, e, s)
	fds := c.ready(box.ProxyPort)
	if len(fds) != 1 {
		t.Fatalf("%d descriptors, want the proxy's socket", len(fds))
	}
	proxy := os.NewFile(uintptr(fds[0]), "proxy")
	defer proxy.Close()
	out := c.launch(s)
	defer out.Close()
	text, _ := io.ReadAll(out)
	wantOut(t, string(text), fmt.Sprintf("dial=%d -> <nil>", box.ProxyPort), fmt.Sprintf("dial=%d -> connection refused", port))

	t.Run("the host's network is the host's loopback too", func(t *testing.T) {
		s := probeSpec(t, "dial="+fmt.Sprint(port))
		s.Network = box.NetworkHost
		text, _ := runLive(t, e, s)
		wantOut(t, text, fmt.Sprintf("dial=%d -> <nil>", port))
	})
}

func TestLiveBoxDiesWithKern(t *testing.T) {
	e := live(t)
	for name, kill := range map[string]func(*box.Built){
		"kern is killed":                  func(b *box.Built) { b.Kill() },
		"the first process is killed":     func(b *box.Built) { syscall.Kill(b.InitPID, syscall.SIGKILL) },
		"our end of the socket is closed": func(b *box.Built) { unix.Shutdown(int(b.Control.Fd()), unix.SHUT_RDWR) },
	} {
		t.Run(name, func(t *testing.T) {
			s := probeSpec(t, "sleep")
			c := start(t, e, s)
			c.ready(0)
			out := c.launch(s)
			defer out.Close()
			kill(c.b)
			select {
			case end := <-c.b.Ended:
				if want := name != "our end of the socket is closed"; (end.Signal == int(syscall.SIGKILL)) != want {
					t.Errorf("ended %+v", end)
				}
			case <-time.After(5 * time.Second):
				t.Fatal("kern is still there after 5 s")
			}
			// The pipe's only writers were in the box.
			out.SetReadDeadline(time.Now().Add(5 * time.Second))
			if _, err := io.ReadAll(out); err != nil {
				t.Errorf("the step is still there after 5 s: %v", err)
			}
			if err := c.b.Close(); err != nil {
				t.Error(err)
			}
			// It may wait for the host's own first process to collect it.
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.b.InitPID))
			if err == nil && !strings.Contains(string(stat), ") Z ") {
				t.Errorf("the first process is still there: %s", stat)
			}
		})
	}
}

func TestLiveMountsAndImage(t *testing.T) {
	e := live(t)
	data := filepath.Join(t.TempDir(), `da:ta,"x" y`)
	if err := os.Mkdir(data, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(data, "f"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	mounts := []box.Mount{{Source: data, Target: "/data:ro,x", ReadOnly: true}, {Source: data, Target: "/workspace/data"}}
	what := []string{"list=/data:ro,x", "read=/data:ro,x/f", "write=/data:ro,x/g", "write=/workspace/data/h"}
	want := []string{"entry f", "/f -> <nil>", "read-only file system", "/h -> <nil>"}
	place := func(t *testing.T, s box.Spec) { // in the workspace it is not made up
		if err := os.Mkdir(filepath.Join(s.Workspace, "data"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("image host", func(t *testing.T) {
		s := probeSpec(t, what...)
		s.Mounts = mounts
		place(t, s)
		out, _ := runLive(t, e, s)
		wantOut(t, out, want...)
	})
	t.Run("image rootfs", func(t *testing.T) {
		s := probeSpec(t, append(what, "list=/", "read=/etc/hosts", "write=/only-here", "read=/private")...)
		s.Mounts = mounts
		place(t, s)
		s.Root = box.Root{Kind: box.RootDir, Dir: t.TempDir()}
		if err := os.WriteFile(filepath.Join(s.Root.Dir, "only-here"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(s.Root.Dir, "private"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		out, _ := runLive(t, e, s)
		wantOut(t, out, append(want, "entry only-here", "read=/etc/hosts -> <nil>", "write=/only-here -> open /only-here: read-only file system", "read=/private -> <nil>")...)
		if strings.Contains(out, "entry usr") {
			t.Error("the host's tools are in another image's root")
		}
	})
}

func TestLiveManyAtOnceLeaveNothing(t *testing.T) {
	boxtest.Need(t, "kern")
	temp := shortDir(t)
	e, err := Open(context.Background(), Options{Getenv: os.Getenv, View: hostView, Temp: temp, Program: static(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	t.Run("boxes", func(t *testing.T) {
		for range 6 {
			t.Run("box", func(t *testing.T) {
				t.Parallel()
				s := liveSpec(t, "true")
				if _, ws := runLive(t, e, s); ws.ExitStatus() != 0 {
					t.Errorf("status %v", ws)
				}
			})
		}
	})
	wantEmpty(t, temp)
}

func TestLiveCapsOfOurGroupHold(t *testing.T) {
	e := live(t)
	run := make([]byte, 6)
	rand.Read(run)
	m, err := limits.Open(limits.Config{RunID: hex.EncodeToString(run), XDGRuntimeDir: os.Getenv("XDG_RUNTIME_DIR")})
	var refused *limits.Refusal
	if errors.As(err, &refused) {
		need.Met(t, "limits", refused)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	const cap = 96 << 20
	for name, c := range map[string]struct {
		what   string
		killed bool
	}{
		"within the cap":    {what: "write=/tmp/x"},
		"beyond the memory": {what: "eat", killed: true},
	} {
		t.Run(name, func(t *testing.T) {
			g, err := m.New("kern-test", limits.Caps{MemoryBytes: cap, Pids: 32})
			if err != nil {
				t.Fatal(err)
			}
			s := probeSpec(t, c.what)
			s.MemoryBytes, s.Pids, s.RequireLimits = cap, 32, true
			b, err := e.Start(context.Background(), s, g)
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			k := conversation{t, b}
			if in, err := g.Contains(b.InitPID); err != nil || !in {
				t.Errorf("the first process is not in the group: %v", err)
			}
			k.ready(0)
			if err := g.ExcludeInit(); err != nil {
				t.Error(err)
			}
			out := k.launch(s)
			defer out.Close()
			io.Copy(io.Discard, out)
			if m, _, err := boxinit.Receive(int(b.Control.Fd())); err == nil && m.Exited != nil {
				if ws := syscall.WaitStatus(m.Exited.Status); ws.Signaled() != c.killed {
					t.Errorf("status %v", ws)
				}
			} else if !c.killed { // with the whole group's end goes the reporter
				t.Errorf("no report: %v", err)
			}
			if err := g.Kill(context.Background()); err != nil {
				t.Error(err)
			}
			if err := b.Close(); err != nil {
				t.Error(err)
			}
			st, err := g.Stats()
			if err != nil || (st.OOMKills > 0) != c.killed {
				t.Errorf("counters %+v, %v", st, err)
			}
			t.Logf("%s, %+v, kern said %q", g.By(), st, b.Note())
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestLiveAsANormalUser runs the tests above once more, as an id that is not
// root's and has no account.
func TestLiveAsANormalUser(t *testing.T) {
	need.Root(t)
	e := live(t)
	dir := shortDir(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, from := range map[string]string{"kern": e.bin.Path, "test": static(t)} {
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const uid = 54321
	temp := filepath.Join(dir, "t")
	if err := os.Mkdir(temp, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(temp, uid, uid); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(dir, "test"), "-test.run=^TestLive|^TestFake|^TestWhatKern|^TestKill", "-test.v")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + temp, "TMPDIR=" + temp, "KERN_BIN=" + filepath.Join(dir, "kern")}
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestLiveBoxRunsAStep") {
		t.Errorf("%v\n%s", err, out)
	}
	wantEmpty(t, temp)
}

func BenchmarkStart(b *testing.B) {
	e := live(b)
	s := liveSpec(b, "true")
	for b.Loop() {
		runLive(b, e, s)
	}
}
