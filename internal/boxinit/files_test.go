package boxinit

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const fileBoundVar = "BOXINIT_TEST_FILE_BYTES"

// TestChildBoundsFiles is no test: it is the process that TestBoundFiles starts,
// for a hard limit that is lowered does not come back.
func TestChildBoundsFiles(t *testing.T) {
	text := os.Getenv(fileBoundVar)
	if text == "" {
		return
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if err := boundFiles(n); err != nil {
		os.Stdout.WriteString("refused: " + err.Error() + "\n")
		os.Exit(0)
	}
	cmd := exec.Command("/bin/sh", "-c", `ulimit -Sf; ulimit -Hf; ulimit -Hf unlimited 2>/dev/null && echo raised
		exit 0`)
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	// A capability over the machine would raise the limit; a step has none.
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 61_234, Gid: 61_234}}
	}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	os.Stdout.Write(out)
	os.Exit(0)
}

func TestBoundFiles(t *testing.T) {
	run := func(t *testing.T, bytes string) []string {
		t.Helper()
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestChildBoundsFiles$")
		cmd.Env = []string{fileBoundVar + "=" + bytes}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.Fields(string(out))
	}
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &own); err != nil {
		t.Fatal(err)
	}
	// The shell counts in pieces of 512 bytes.
	t.Run("the step has the bound, soft and hard, and cannot raise it", func(t *testing.T) {
		if got := run(t, "40960"); strings.Join(got, " ") != "80 80" {
			t.Errorf("%v", got)
		}
	})
	t.Run("no bound leaves what there was", func(t *testing.T) {
		want := "unlimited"
		if own.Max != unix.RLIM_INFINITY {
			want = strconv.FormatUint(own.Max/512, 10)
		}
		if got := run(t, "0"); len(got) < 2 || got[1] != want {
			t.Errorf("%v, want %s", got, want)
		}
	})
	t.Run("less than none is refused, for it would read as the largest bound", func(t *testing.T) {
		if got := strings.Join(run(t, "-1"), " "); !strings.HasPrefix(got, "refused:") {
			t.Errorf("%s", got)
		}
	})
}

// The bound comes with the message that starts the step, and holds there.
func TestServeBoundsTheStepsFiles(t *testing.T) {
	ours, theirs, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestChildServes$")
	cmd.Env = append(Environ(), serveVar+"=1")
	cmd.ExtraFiles = []*os.File{theirs}
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	defer func() { ours.Close(); _ = cmd.Wait() }()
	hear := func() Message {
		t.Helper()
		m, _, err := Receive(int(ours.Fd()))
		if err != nil || m.Failed != nil {
			t.Fatalf("%+v %v %s", m.Failed, err, said.String())
		}
		return m
	}
	if err := Send(int(ours.Fd()), Message{Prepare: &Prepare{}}); err != nil {
		t.Fatal(err)
	}
	if m := hear(); m.Ready == nil {
		t.Fatalf("%+v", m)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	start := Start{Argv: []string{"/bin/sh", "-c", "ulimit -Sf; ulimit -Hf"}, Env: []string{}, Workdir: "/", FileBytes: 1 << 20}
	if err := Send(int(ours.Fd()), Message{Start: &start}, int(null.Fd()), int(write.Fd()), int(write.Fd())); err != nil {
		t.Fatal(err)
	}
	write.Close()
	if m := hear(); m.Started == nil {
		t.Fatalf("%+v", m)
	}
	out, err := io.ReadAll(read)
	if got := strings.Join(strings.Fields(string(out)), " "); err != nil || got != "2048 2048" {
		t.Errorf("%q %v", got, err)
	}
	if m := hear(); m.Exited == nil || m.Exited.Status != 0 {
		t.Errorf("%+v", m)
	}
}

const serveVar = "BOXINIT_TEST_SERVE"

// TestChildServes is no test: it is the first process of another one's box.
func TestChildServes(t *testing.T) {
	if os.Getenv(serveVar) != "" {
		Serve(3)
	}
}
