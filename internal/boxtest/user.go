package boxtest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
)

func mkfifo(path string) error { return unix.Mkfifo(path, 0o644) }

const (
	roleUser = "user"
	// plainID is nobody's: it has no row in passwd, as in many containers.
	plainID = 61_234
)

// runAsUser runs the suite in a process of a normal user, in a control group
// that was given to that user, as sudo would give one.
func runAsUser(t *testing.T, groups []string) {
	which := "^" + strings.Split(t.Name(), "/")[0] + "$"
	if len(groups) > 0 {
		which += "/^(" + strings.Join(groups, "|") + ")$"
	}
	dir := OpenDir(t)
	binary := filepath.Join(dir, "suite.test")
	if err := copyProgram("/proc/self/exe", binary); err != nil {
		t.Fatal(err)
	}
	home, temp := filepath.Join(dir, "home"), filepath.Join(dir, "tmp")
	for _, d := range []string{home, temp} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(d, plainID, plainID); err != nil {
			t.Fatal(err)
		}
	}
	built := program(t, dir)
	engines := forEverybody(t, dir, "KERN_BIN", "RUNSC_BIN")
	places, limited := delegate(t)
	// It waits for us to have put it into its groups.
	cmd := exec.Command("/bin/sh", "-c", `read go && exec "$@"`, "sh", binary,
		"-test.run="+which, "-test.v", "-test.timeout=300s")
	cmd.Dir = home
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: plainID, Gid: plainID}}
	cmd.Env = append(engines,
		roleVar+"="+roleUser, programVar+"="+built, "HOME="+home, "TMPDIR="+temp, "PATH="+os.Getenv("PATH"),
		"GOCACHE="+filepath.Join(home, "cache"), need.Require+"="+requiredOfUser(limited))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, g := range places {
		if err := os.WriteFile(filepath.Join(g, "cgroup.procs"), []byte(itoa(cmd.Process.Pid)), 0); err != nil {
			t.Errorf("place the user's process: %v", err)
		}
	}
	fmt.Fprintln(in, "go")
	in.Close()
	err = cmd.Wait()
	passed, skipped := tally(out.String())
	t.Logf("as user %d: %d facts hold, %d are skipped%s", plainID, passed, len(skipped), indent(skipped))
	if err != nil {
		t.Errorf("as user %d: %v\n%s", plainID, err, failures(out.String()))
	} else if passed == 0 {
		t.Errorf("as user %d nothing was tested:\n%s", plainID, out.String())
	}
}

// forEverybody copies what the variables name, which may lie in a folder that only
// root can enter, and gives the variables with the copies.
func forEverybody(t *testing.T, dir string, variables ...string) (environ []string) {
	for _, name := range variables {
		from := os.Getenv(name)
		if from == "" {
			continue
		}
		to := filepath.Join(dir, strings.ToLower(name))
		if err := copyProgram(from, to); err != nil {
			t.Fatalf("copy what %s names for user %d: %v", name, plainID, err)
		}
		environ = append(environ, name+"="+to)
	}
	return environ
}

// delegate makes a control group in each place where ours are made and gives it
// to the user. Without control groups there are none, and limit facts skip.
func delegate(t *testing.T) (groups []string, limited bool) {
	m, err := limits.Open(limits.Config{RunID: runID()})
	if err != nil {
		t.Logf("no control group for user %d: %v", plainID, err)
		return nil, false
	}
	defer m.Close()
	name := "boxtest-" + runID()
	for _, where := range m.Where() {
		dir := filepath.Join(where, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			// What the user's run left in it, the leaf of its own process, goes first.
			below, _ := filepath.Glob(dir + "/*/cgroup.procs")
			for _, b := range below {
				_ = os.Remove(filepath.Dir(b))
			}
			err := os.Remove(dir)
			for range 400 { // the kernel takes its time with the dead
				if err == nil {
					return
				}
				time.Sleep(5 * time.Millisecond)
				err = os.Remove(dir)
			}
			t.Errorf("take the user's control group away: %v", err)
		})
		for _, f := range []string{"", "cgroup.procs", "tasks", "cgroup.subtree_control", "cgroup.threads"} {
			if err := os.Chown(filepath.Join(dir, f), plainID, plainID); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
		}
		groups = append(groups, dir)
	}
	return groups, true
}

// requiredOfUser is what CI requires without what a normal user cannot have.
func requiredOfUser(limited bool) string {
	var out []string
	for _, n := range strings.Split(os.Getenv(need.Require), ",") {
		if slices.Contains([]string{"root", "idmap"}, n) || !limited && (n == "limits" || n == "cpu") {
			continue
		}
		out = append(out, n)
	}
	return strings.Join(out, ",")
}

// tally reads the output of a verbose test run.
func tally(out string) (passed int, skipped []string) {
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "--- PASS: "):
			passed++
		case strings.HasPrefix(line, "--- SKIP: "):
			skipped = append(skipped, strings.TrimPrefix(line, "--- SKIP: "))
		}
	}
	return passed, skipped
}

// failures is a verbose run's output without what went well.
func failures(out string) string {
	var b strings.Builder
	for line := range strings.Lines(out) {
		trimmed := strings.TrimSpace(line)
		if strings.HasPrefix(trimmed, "=== ") || strings.HasPrefix(trimmed, "--- PASS: ") {
			continue
		}
		b.WriteString(line)
	}
	return b.String()
}

func indent(list []string) string {
	var b strings.Builder
	for _, s := range list {
		b.WriteString("\n    " + s)
	}
	return b.String()
}
