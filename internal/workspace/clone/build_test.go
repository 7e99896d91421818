package clone

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// do fails the test on the first error.
func do(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// pair gives two empty folders of the user who runs the test.
func pair(t testing.TB) (from, to string) {
	t.Helper()
	root := t.TempDir()
	from, to = root+"/from", root+"/to"
	do(t, os.Mkdir(from, 0o755), os.Mkdir(to, 0o700))
	t.Cleanup(func() { open(from); open(to) })
	return from, to
}

// open lets the owner remove a tree whatever its modes.
func open(root string) {
	_ = exec.Command("chmod", "-R", "u+rwx", root).Run()
}

func mustClone(t testing.TB, from, to string, o Options) Result {
	t.Helper()
	r, err := Tree(context.Background(), from, to, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func snapshot(t testing.TB, root string) *workspace.Tree {
	t.Helper()
	tree, err := workspace.Snapshot(context.Background(), root, nil, workspace.Options{})
	do(t, err)
	return tree
}

// differences are what the workspace's own comparison sees.
func differences(t testing.TB, from, to string) []string {
	t.Helper()
	list := []string{}
	for _, c := range workspace.Diff(snapshot(t, from), snapshot(t, to)) {
		list = append(list, fmt.Sprintf("%s %s %q", c.Change, c.Type, c.RawPath()))
	}
	return list
}

// facts are what that comparison leaves out: owner, time and, of a file with
// several names, which of those in the tree are the same file.
func facts(t testing.TB, root string) map[string]string {
	t.Helper()
	out, first := map[string]string{}, map[identity]string{}
	for e := range snapshot(t, root).All() {
		var st unix.Stat_t
		if err := unix.Lstat(root+"/"+e.Path, &st); err != nil {
			continue
		}
		s := fmt.Sprintf("%d:%d %d.%09d %x", st.Uid, st.Gid, st.Mtim.Sec, st.Mtim.Nsec, st.Rdev)
		if st.Nlink > 1 && e.Type == "file" {
			id := identity{e.Device, e.Inode}
			if first[id] == "" {
				first[id] = e.Path
			}
			s += " same as " + first[id]
		}
		out[e.Path] = s
	}
	return out
}

// inside says whether this is the process that rerun started.
func inside() bool { return os.Getenv("CLONE_TEST_INSIDE") != "" }

// rerun runs the calling test in a process of its own, as a user who owns
// nothing but what it makes there.
func rerun(t *testing.T, uid int) {
	t.Helper()
	tmp, err := os.MkdirTemp("", "clone-as-"+strconv.Itoa(uid)+"-")
	do(t, err, os.Chown(tmp, uid, uid))
	t.Cleanup(func() { _ = os.RemoveAll(tmp) })
	var out bytes.Buffer
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$", "-test.v")
	cmd.Env = []string{"CLONE_TEST_INSIDE=1", "TMPDIR=" + tmp, "PATH=" + os.Getenv("PATH"), "CLONE_TEST_SETID=" + os.Getenv("CLONE_TEST_SETID")}
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", &out, &out
	if uid != os.Geteuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	if err := cmd.Run(); err != nil || !strings.Contains(out.String(), "--- PASS: "+t.Name()) {
		t.Errorf("as uid %d: %v\n%s", uid, err, out.String())
	}
}

// everyone runs a test as it is and, started by root, once more as nobody.
func everyone(t *testing.T, test func(t *testing.T)) {
	test(t)
	if os.Geteuid() == 0 {
		rerun(t, 65534)
	}
}

// nobody runs a test as a user whom modes stop.
func nobody(t *testing.T, test func(t *testing.T)) {
	if os.Geteuid() == 0 {
		rerun(t, 65534)
		return
	}
	test(t)
}
