package commit_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
)

// plainID is nobody's: it has no row in passwd.
const plainID = 61_235

// asUser says that this process is the one that TestAsANormalUser started.
const asUser = "COMMIT_TEST_USER"

func TestMain(m *testing.M) {
	boxtest.Become(os.Args)
	if what := os.Getenv(crashVar); what != "" {
		crash(what)
		return
	}
	os.Exit(m.Run())
}

// TestAsANormalUser runs all other tests once more as a user whom modes stop.
func TestAsANormalUser(t *testing.T) {
	if os.Getenv(asUser) != "" {
		return
	}
	boxtest.Need(t, "root")
	dir, err := os.MkdirTemp("", "commit-user-")
	do(t, err, os.Chmod(dir, 0o711))
	defer func() { do(t, os.RemoveAll(dir)) }()
	binary, temp := filepath.Join(dir, "commit.test"), filepath.Join(dir, "tmp")
	program, err := os.ReadFile("/proc/self/exe")
	do(t, err, os.WriteFile(binary, program, 0o755), os.Mkdir(temp, 0o700), os.Chown(temp, plainID, plainID))
	var out bytes.Buffer
	args := []string{"-test.v", "-test.timeout=200s"}
	if testing.Short() {
		args = append(args, "-test.short")
	}
	cmd := exec.Command(binary, args...)
	cmd.Dir = temp
	cmd.Env = []string{asUser + "=1", "TMPDIR=" + temp}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: plainID, Gid: plainID}}
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	passed := strings.Count(out.String(), "--- PASS: ")
	t.Logf("as user %d: %d tests pass", plainID, passed)
	for line := range strings.Lines(out.String()) {
		if strings.Contains(line, "--- SKIP") {
			t.Log(strings.TrimSpace(line))
		}
	}
	if err != nil || passed < 20 {
		var b strings.Builder
		for line := range strings.Lines(out.String()) {
			if s := strings.TrimSpace(line); !strings.HasPrefix(s, "=== ") && !strings.HasPrefix(s, "--- PASS") {
				b.WriteString(line)
			}
		}
		t.Errorf("as user %d: %v\n%s", plainID, err, b.String())
	}
}

// otherDisk is a folder on another file system than the one for temporary
// files, and one in memory.
func otherDisk(t testing.TB, size string) string {
	t.Helper()
	boxtest.Need(t, "root")
	dir := tempDir(t)
	do(t, os.Chmod(dir, 0o755))
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size="+size); err != nil {
		t.Fatalf("mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func note(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
