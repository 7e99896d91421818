package scrub_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/scrub"
)

// TestAnOverlayShowsWhatTheMaskSays: the kernel takes the layer for what it is
// meant to be, in a user namespace, as a box mounts it.
func TestAnOverlayShowsWhatTheMaskSays(t *testing.T) {
	boxtest.Need(t, "userns", "overlay")
	const secret = "ZQSECRETQZ"
	base := t.TempDir()
	ws, layer, at := base+"/ws", base+"/layer", base+"/at"
	for _, d := range []string{ws + "/a/.ssh", ws + "/b", layer, at} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for p, text := range map[string]string{"f": "one", "a/.ssh/id": secret, "a/other": "x", "b/.npmrc": "x=y\n_auth=" + secret + "\n", "b/sister": "x", ".netrc": "password " + secret} {
		if err := os.WriteFile(filepath.Join(ws, p), []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("git", "init", ws).CombinedOutput(); err != nil {
		t.Fatalf("git: %v %s", err, out)
	}
	if out, err := exec.Command("git", "-C", ws, "config", "http.extraheader", secret).CombinedOutput(); err != nil {
		t.Fatalf("git: %v %s", err, out)
	}
	if err := os.Chmod(ws+"/b", 0o551); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, d := range []string{ws, layer} {
			if err := os.Chmod(d+"/b", 0o755); err != nil {
				t.Error(err)
			}
		}
	})
	m, err := scrub.Find(context.Background(), ws, scrub.Options{Home: ws + "/a"})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Write(layer, os.Getuid(), os.Getgid()); err != nil {
		t.Fatal(err)
	}
	script := `set -eu
mount -t overlay -o "userxattr,lowerdir=$2:$1" overlay "$3"
cd "$3"
grep -r ` + secret + ` . && exit 7
ls -A a b
stat -c '%a %n' b b/.npmrc
cat b/.npmrc
test ! -e .netrc
git status --short
git config --get core.bare
`
	out, err := exec.Command("unshare", "-rm", "sh", "-c", script, "sh", ws, layer, at).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"a:\nother\n", "b:\n.npmrc\nsister\n", "551 b\n", "640 b/.npmrc\n", "x=y\n", "?? f\n", "false\n"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	// The layer is the owner's, and has the times of the workspace.
	var a, b unix.Stat_t
	if err := unix.Lstat(ws+"/b", &a); err != nil {
		t.Fatal(err)
	}
	if err := unix.Lstat(layer+"/b", &b); err != nil {
		t.Fatal(err)
	}
	if a.Mtim.Sec != b.Mtim.Sec || a.Mode != b.Mode || a.Uid != b.Uid {
		t.Errorf("the layer's folder is %+v, the workspace's %+v", b, a)
	}
}

func TestRootGivesTheLayerAway(t *testing.T) {
	boxtest.Need(t, "root")
	ws, layer := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(ws+"/a", 0o755); err != nil {
		t.Fatal(err)
	}
	for p, text := range map[string]string{"a/.npmrc": "_auth=x\n", "a/.pypirc": "x"} {
		if err := os.WriteFile(filepath.Join(ws, p), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m, err := scrub.Find(context.Background(), ws, scrub.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Write(layer, 4711, 4712); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{".", "a", "a/.npmrc", "a/.pypirc"} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(layer, p), &st); err != nil {
			t.Fatal(err)
		}
		if st.Uid != 4711 || st.Gid != 4712 {
			t.Errorf("%s belongs to %d:%d", p, st.Uid, st.Gid)
		}
	}
}
