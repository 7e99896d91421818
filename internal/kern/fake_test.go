package kern

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
	"github.com/untrusted-steps/untrusted-steps/internal/idmap"
)

// fake is the engine over this test program, which plays kern.
func fake(t testing.TB, temp string) *Engine {
	t.Helper()
	self := static(t)
	e, err := Open(context.Background(), Options{Getenv: env(map[string]string{"KERN_BIN": self}), SHA256: sumOfFile(self), Temp: temp, View: hostView, Program: self})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

func TestFakeKernBuildsABoxAndItsFolderGoes(t *testing.T) {
	temp := shortDir(t)
	e := fake(t, temp)
	s := liveSpec(t, "/bin/sh", "-c", "echo out; exit 3")
	s.Workdir = "/"
	c := start(t, e, s)
	if c.b.InitPID <= 0 {
		t.Error("the first process is not named")
	}
	if left, _ := filepath.Glob(filepath.Join(temp, "*", stepName, "control")); len(left) > 0 {
		t.Errorf("the control socket is still there: %v", left)
	}
	c.b.Control.Close()
	if end := <-c.b.Ended; end.Signal != 0 || end.Err != nil {
		t.Errorf("ended %+v, want by itself", end)
	}
	for range 2 {
		if err := c.b.Close(); err != nil {
			t.Error(err)
		}
	}
	wantEmpty(t, temp)
}

// shortDir is a temporary folder whose path leaves room for a socket's name.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "k")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestFakeKernThatDoesNotBuildABox(t *testing.T) {
	for name, c := range map[string]struct {
		id, want string
	}{
		"what kern said is in the error": {id: "refuses", want: "something this kern will not do"},
		"words without end are cut":      {id: "floods", want: "xxx"},
		"a kern that dies is an error":   {id: "dies", want: "ended before the box's first process reported"},
	} {
		t.Run(name, func(t *testing.T) {
			temp := shortDir(t)
			s := liveSpec(t, "true")
			s.ID = c.id
			_, err := fake(t, temp).Start(context.Background(), s, uncapped{})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want an error with %q", err, c.want)
			}
			if len(err.Error()) > 2*maxWords {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			var se *box.StartupError
			if errors.As(err, &se) {
				t.Error("blames the step for what kern did")
			}
			wantEmpty(t, temp)
		})
	}
}

func TestFakeKernThatHangsIsEndedWithTheContext(t *testing.T) {
	temp := shortDir(t)
	s := liveSpec(t, "true")
	s.ID = "hangs"
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	begun := time.Now()
	_, err := fake(t, temp).Start(ctx, s, uncapped{})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "kern was building the box") {
		t.Errorf("got %v, want the deadline and how far kern was", err)
	}
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
	wantEmpty(t, temp)
}

// told gives what a kern says that tells all it can see.
func told(t *testing.T) string {
	t.Helper()
	s := liveSpec(t, "true")
	s.ID, s.Env = "tells", []string{"PASSED=s3cret"}
	_, err := fake(t, shortDir(t)).Start(context.Background(), s, uncapped{})
	if err == nil {
		t.Fatal("started")
	}
	return err.Error()
}

func TestWhatKernIsGiven(t *testing.T) {
	t.Setenv("KERN_ALLOW_UNCAPPED", "1")
	t.Setenv("SECRET", "s3cret")
	r, w, err := os.Pipe() // a descriptor that leaked from whoever started us
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if _, _, e := syscall.Syscall(syscall.SYS_FCNTL, w.Fd(), syscall.F_SETFD, 0); e != 0 {
		t.Fatal(e)
	}
	said := told(t)
	if strings.Contains(said, "s3cret") || strings.Contains(said, "ALLOW_UNCAPPED") {
		t.Errorf("kern sees the caller's or the step's variables: %s", said)
	}
	for _, fd := range []string{"fd 3", "fd 6", "fd 7", "fd 8", "fd 9"} {
		if i := strings.Index(said, fd); i >= 0 {
			t.Errorf("kern has a descriptor it was not given: %s", said[i:min(len(said), i+40)])
		}
	}
	if !strings.Contains(said, "fd 4 pipe") || !strings.Contains(said, "fd 5 pipe") {
		t.Errorf("kern has not its two pipes: %s", said)
	}
}

func TestKernOfARunByRootIsNotRoot(t *testing.T) {
	need.Root(t)
	said := told(t)
	if !strings.Contains(said, "groups=0 cwd=/") {
		t.Errorf("kern has root's groups or folder: %s", said)
	}
	if !strings.Contains(said, "uid=1987654320 gid=1987654320") {
		t.Errorf("kern runs as root: %s", said)
	}
	for _, hidden := range []string{"sees / usr", "sees / etc", "sees / root", "sees / home", "sees /root", "sees /home"} {
		if strings.Contains(said, hidden) {
			t.Errorf("kern %s of the host", hidden)
		}
	}
}

func TestWhatEndedTheFirstProcessIsKernsWord(t *testing.T) {
	s := liveSpec(t, "true")
	s.ID = "signals"
	c := start(t, fake(t, shortDir(t)), s)
	c.b.Control.Close()
	if end := <-c.b.Ended; end.Signal != int(syscall.SIGKILL) {
		t.Errorf("got %+v, want SIGKILL from kern's report", end)
	}
}

func TestKillEndsABoxAtOnce(t *testing.T) {
	temp := shortDir(t)
	c := start(t, fake(t, temp), liveSpec(t, "true"))
	c.b.Kill()
	select {
	case end := <-c.b.Ended:
		if end.Signal != int(syscall.SIGKILL) {
			t.Errorf("ended %+v, want SIGKILL", end)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("still there 5 s after it was killed")
	}
	if err := c.b.Close(); err != nil {
		t.Error(err)
	}
	wantEmpty(t, temp)
}

func TestAMissingSourceOfTheStepIsTheStepsDoing(t *testing.T) {
	for name, change := range map[string]func(*box.Spec){
		"mounts": func(s *box.Spec) { s.Mounts = []box.Mount{{Source: "/nonexistent/x", Target: "/x"}} },
		"image":  func(s *box.Spec) { s.Root = box.Root{Kind: box.RootDir, Dir: "/nonexistent/root"} },
	} {
		t.Run(name, func(t *testing.T) {
			temp := shortDir(t)
			s := liveSpec(t, "true")
			change(&s)
			_, err := fake(t, temp).Start(context.Background(), s, uncapped{})
			var se *box.StartupError
			if !errors.As(err, &se) || !strings.Contains(se.Why, name) {
				t.Errorf("got %v, want a StartupError that names %s", err, name)
			}
			wantEmpty(t, temp)
		})
	}
}

func TestAMountSourceThatBecameALinkIsRefused(t *testing.T) {
	need.Root(t) // a normal user's kern opens the sources itself
	dir := t.TempDir()
	link := filepath.Join(dir, "m")
	if err := os.Symlink("/etc", link); err != nil {
		t.Fatal(err)
	}
	s := liveSpec(t, "true")
	s.Mounts = []box.Mount{{Source: link, Target: "/m"}}
	_, err := fake(t, shortDir(t)).Start(context.Background(), s, uncapped{})
	var se *box.StartupError
	if !errors.As(err, &se) {
		t.Errorf("got %v, want a StartupError", err)
	}
}

func TestALauncherWithoutAnOrderEnds(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"no order at all":      {"", "EOF"},
		"not an order":         {"x", "read the order"},
		"no command":           {"{}", "names no command"},
		"a stage with root":    {`{"argv":["kern"],"stage":{"uid":0,"gid":1}}`, "as root"},
		"a stage with group 0": {`{"argv":["kern"],"stage":{"uid":1,"gid":0}}`, "as root"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := readOrder(strings.NewReader(c.in)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	if _, err := readOrder(io.LimitReader(zeros{}, maxOrder+10)); err == nil {
		t.Error("an order without end was taken")
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestFolderRefusesAScriptNameThatLeavesIt(t *testing.T) {
	for _, name := range []string{"", ".", "..", "../x", "a/b"} {
		temp := shortDir(t)
		if _, err := makeFolder(temp, idmap.Ids{UID: os.Geteuid(), GID: os.Getegid()}, &box.Script{Name: name}); err == nil {
			t.Errorf("script name %q was taken", name)
		}
		wantEmpty(t, temp)
	}
}

func TestFolderRefusesAPathThatIsTooLongForSockets(t *testing.T) {
	temp := filepath.Join(shortDir(t), strings.Repeat("x", 100))
	if err := os.Mkdir(temp, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := makeFolder(temp, idmap.Ids{UID: os.Geteuid(), GID: os.Getegid()}, nil); err == nil || !strings.Contains(err.Error(), "TMPDIR") {
		t.Errorf("got %v, want an error that names TMPDIR", err)
	}
	wantEmpty(t, temp)
}

func TestAnImageNeedsAStaticFirstProcess(t *testing.T) {
	e := fake(t, shortDir(t))
	s := liveSpec(t, "true")
	s.Root = box.Root{Kind: box.RootDir, Dir: "/img"}
	if err := e.Check(s); err != nil {
		t.Errorf("a static program: %v", err)
	}
	e.opts.Program = "/bin/sh"
	if err := e.Check(s); err == nil || !strings.Contains(err.Error(), "CGO_ENABLED=0") {
		t.Errorf("got %v for a program with a loader, want an error that says how to build it", err)
	}
	s.Root = box.Root{}
	if err := e.Check(s); err != nil {
		t.Errorf("with the host's own loader in the box: %v", err)
	}
}
