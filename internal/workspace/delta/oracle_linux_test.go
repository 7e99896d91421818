package delta

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// TestRandomStepsOnAnOverlay lets random steps run on a real overlay and on a
// plain copy. What is read from the overlay's upper must be what two snapshots
// of the copy give, and what a full compare gives. The uppers of two steps
// become layers of the next; then the workspace is what they made of it.
func TestRandomStepsOnAnOverlay(t *testing.T) {
	base := overlayBase(t)
	seeds, rounds := uint64(6), 6
	if testing.Short() {
		seeds = 2
	}
	seen := map[string]int{}
	for seed := range seeds {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			randomSteps(t, rand.New(rand.NewPCG(seed, 4)), filepath.Join(base, fmt.Sprint(seed)), rounds, seen)
		})
	}
	// The control: steps that do nothing prove nothing.
	for _, kind := range []string{created, modified, deleted, moded, retyped, "whiteout", "opaque"} {
		if seen[kind] == 0 {
			t.Errorf("no step did any %q: %v", kind, seen)
		}
	}
}

func randomSteps(t *testing.T, r *rand.Rand, base string, rounds int, seen map[string]int) {
	do(t, os.Mkdir(base, 0o755))
	at := func(i int, name string) string { return filepath.Join(base, fmt.Sprintf("%s%d", name, i)) }
	do(t, os.Mkdir(at(0, "before"), 0o755), os.Mkdir(at(0, "bottom"), 0o755))
	stack := []Layer{{Dir: at(0, "bottom")}}
	for round := range rounds {
		before, after := at(round, "before"), at(round, "after")
		if round%3 == 0 && round > 0 {
			copyTree(t, before, at(round, "bottom"))
			stack = []Layer{{Dir: at(round, "bottom")}}
		}
		var lower []string
		for _, l := range stack {
			lower = append(lower, l.Dir)
		}
		o := newOverlay(t, lower...)
		st, err := os.Lstat(before)
		do(t, err, os.Chmod(o.Upper, st.Mode()))
		n := 20 + r.IntN(40)
		if round == 0 {
			n = 200 // something to begin with
		}
		for range n {
			o.Ops = append(o.Ops, randomOp(r))
		}
		done, err := onOverlay(o)
		do(t, err)
		copyTree(t, before, after)
		script := ""
		for i, op := range o.Ops {
			if op.Do == "forgedevice" && done[i] {
				t.Fatal("the overlay took a device 0:0")
			}
			if !done[i] || op.Do == "forge" {
				continue
			}
			script += op.String() + "\n"
			do(t, op.apply(after))
		}

		want := workspace.Diff(mustSnapshot(t, before), mustSnapshot(t, after))
		countMarks(t, o.Upper, seen)
		files := openFiles(t)
		read := mustRead(t, stack, o.Upper)
		got := read.Changes()
		full := mustCompare(t, stack, after).Changes()
		if d := cmp.Diff(got, full); d != "" {
			t.Errorf("round %d: the upper (-) and the full compare (+) differ:\n%s\nafter\n%s", round, d, script)
		}
		for i := range got {
			if got[i].From != "" {
				seen["from"]++
			}
			got[i].From = ""
		}
		if d := cmp.Diff(want, slices.Clip(got)); d != "" && len(want)+len(got) > 0 {
			t.Fatalf("round %d (-snapshots +upper):\n%s\nafter\n%s", round, d, script)
		}
		for _, c := range want {
			seen[c.Change]++
		}
		holdToItself(t, read)
		if n := openFiles(t); n != files {
			t.Fatalf("round %d: %d files open, %d before", round, n, files)
		}
		stack = append([]Layer{{Dir: o.Upper, Marks: true}}, stack...)
		copyTree(t, after, at(round+1, "before"))
	}
}

// countMarks counts what the kernel has put into an upper.
func countMarks(t *testing.T, upper string, seen map[string]int) {
	t.Helper()
	do(t, filepath.WalkDir(upper, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var buf [8]byte
		if n, err := unix.Lgetxattr(path, "user.overlay.opaque", buf[:]); err == nil && string(buf[:n]) == "y" {
			seen["opaque"]++
		}
		if d.Type()&fs.ModeCharDevice != 0 {
			seen["whiteout"]++
		}
		return nil
	}))
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	do(t, err)
	return len(list)
}

// copyTree copies a tree, without its hard links: an overlay breaks those of the
// layers below.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	do(t, filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(from, path)
		dst := filepath.Join(to, rel)
		st, err := os.Lstat(path)
		if err != nil {
			return err
		}
		mode := st.Sys().(*syscall.Stat_t).Mode & 0o7777
		switch st.Mode().Type() {
		case fs.ModeSymlink:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(target, dst)
		case fs.ModeDir:
			err = os.Mkdir(dst, 0o755)
		case fs.ModeNamedPipe:
			err = syscall.Mkfifo(dst, 0o600)
		default:
			var b []byte
			if b, err = os.ReadFile(path); err == nil {
				err = os.WriteFile(dst, b, 0o600)
			}
		}
		if err != nil {
			return err
		}
		return syscall.Chmod(dst, mode)
	}))
}

// randomOp is one thing that may fail: few names make it collide often.
func randomOp(r *rand.Rand) op {
	path := func() string {
		names := []string{"a", "b", "a-", "a.b", ".git", "z\n", ".wh.a"}
		p := ""
		for range 1 + r.IntN(3) {
			p = filepath.Join(p, names[min(r.IntN(len(names)), r.IntN(len(names)))])
		}
		return p
	}
	kinds := []string{"mkdir", "mkdir", "mkdir", "write", "write", "write", "write", "symlink", "unlink", "rmdir", "rmall", "rename",
		"rename", "exchange", "link", "chmod", "fifo", "truncate", "touch", "swapdir", "swapdir", "forge", "forgedevice"}
	o := op{Do: kinds[r.IntN(len(kinds))], P: path(), Q: path()}
	// Two sizes and few letters: the same content comes back often.
	o.Text = strings.Repeat(string(rune('a'+r.IntN(3))), []int{0, 1, 1, 70_000}[r.IntN(4)])
	// No set-id bits: a write takes them from a user and not from root, and what
	// runs on the copy may be root.
	o.Mode = []uint32{0o755, 0o644 | 0o111, 0o1755, 0o1777, 0o700}[r.IntN(5)]
	if o.Do == "chmod" && r.IntN(8) == 0 {
		o.P = "."
	}
	return o
}

// TestRandomStepsAsAUser is the same as a user who is not root.
func TestRandomStepsAsAUser(t *testing.T) { asUser(t, "TestRandomStepsOnAnOverlay") }

// asUser runs a test in a process of its own, as nobody if we are root.
func asUser(t *testing.T, test string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "delta-user-")
	do(t, err)
	defer os.RemoveAll(dir)
	var out bytes.Buffer
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+test+"$", "-test.v", "-test.short")
	cmd.Env = append(os.Environ(), "TMPDIR="+dir, userVariable+"=1")
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = &out, &out
	if os.Geteuid() == 0 {
		do(t, os.Chown(dir, 65534, 65534))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	err = cmd.Run()
	if strings.Contains(out.String(), "--- SKIP: "+test) {
		t.Log("skipped there:\n" + out.String())
		return
	}
	if err != nil || !strings.Contains(out.String(), "--- PASS: "+test) {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// userVariable is set in the process that asUser starts.
const userVariable = "DELTA_TEST_USER"
