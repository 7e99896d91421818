package workspace

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestLinksAreNeverFollowed(t *testing.T) { // attack 100
	outside, root := t.TempDir(), t.TempDir()
	build(t, outside, "file secret s\ndir d\nfile d/secret s")
	build(t, root, "link file "+outside+"/secret\nlink dir "+outside+"/d\nlink up ../..\nlink self .\nlink loop loop")
	tree, opened := scanned(t, root, nil)
	var got []string
	for e := range tree.All() {
		got = append(got, e.Type+" "+e.Path+" "+e.Target)
	}
	want := []string{"dir . ", "symlink dir " + outside + "/d", "symlink file " + outside + "/secret",
		"symlink loop loop", "symlink self .", "symlink up ../.."}
	if d := cmp.Diff(want, got); d != "" || opened != 0 {
		t.Errorf("opened %d files, want none (-want +got):\n%s", opened, d)
	}
	// What a link points to may change; the link has not.
	overwrite(t, filepath.Join(outside, "secret"), 0, "t")
	if got := Diff(tree, mustSnapshot(t, root, tree)); len(got) != 0 {
		t.Errorf("got %v, want nothing", shorts(got))
	}
}

func TestAFolderSwappedForALinkLeadsNowhere(t *testing.T) { // attack 101
	outside, root := t.TempDir(), t.TempDir()
	build(t, outside, "dir d\nfile d/secret s\nfile f secret")
	build(t, root, "dir a\ndir a/d\nfile a/d/mine m\nfile a/f mine\nlink swapd "+outside+"/d\nlink swapf "+outside+"/f")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, n := range []string{"d", "f"} {
				_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(root, "a", n), unix.AT_FDCWD, filepath.Join(root, "swap"+n), unix.RENAME_EXCHANGE)
			}
		}
	})
	secret := sha256.Sum256([]byte("secret"))
	seen := map[string]int{}
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); {
		tree, err := Snapshot(context.Background(), root, nil, Options{Workers: 4})
		if err != nil {
			if !errors.Is(err, ErrMoved) {
				t.Error(err)
			}
			seen["moved"]++
			continue
		}
		for e := range tree.All() {
			if strings.Contains(e.Path, "secret") || e.SHA256 == hex.EncodeToString(secret[:]) {
				t.Fatalf("read %q outside the workspace", e.Path)
			}
			seen[e.Path+" "+e.Type]++
		}
	}
	close(stop)
	wg.Wait()
	// The control: both states were met, or the race proves nothing.
	if seen["a/d dir"] == 0 || seen["a/d symlink"] == 0 {
		t.Errorf("the race was not run: %v", seen)
	}
}

func TestAHardLinkedInodeIsReadOnce(t *testing.T) { // attack 102
	root := t.TempDir()
	build(t, root, "file a x\nhard b a\ndir d\nhard d/c a\nfile other x")
	tree, opened := scanned(t, root, nil)
	if opened != 2 {
		t.Errorf("opened %d files, want 2", opened)
	}
	inodes := map[uint64]int{}
	for e := range tree.All() {
		if e.Type == "file" {
			inodes[e.Inode]++
			if e.SHA256 != "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881" {
				t.Errorf("%s: sum %q", e.Path, e.SHA256)
			}
		}
	}
	if len(inodes) != 2 {
		t.Errorf("got inodes %v, want one with three names and one with one", inodes)
	}
}

func TestSpecialFilesAreNotOpened(t *testing.T) { // attack 106
	root := t.TempDir()
	build(t, root, "fifo p\nsock s")
	want := int64(2)
	if os.Geteuid() == 0 {
		build(t, root, "char c")
		want++
	}
	// An opener waits for a writer of the FIFO: were it opened, it would be let go.
	opened := make(chan error, 1)
	go func() {
		f, err := os.OpenFile(filepath.Join(root, "p"), os.O_WRONLY, 0)
		if err == nil {
			f.Close()
		}
		opened <- err
	}()
	for range 20 {
		tree := mustSnapshot(t, root, nil)
		if tree.Len() != want {
			t.Fatalf("got %d entries, want %d", tree.Len(), want)
		}
		time.Sleep(time.Millisecond)
	}
	select {
	case <-opened:
		t.Error("the FIFO was opened")
	default:
	}
	f, err := os.OpenFile(filepath.Join(root, "p"), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	do(t, err, <-opened, f.Close())
}

// deep makes a chain of folders by descriptors, since no path reaches that far,
// and a folder and a file beside each, so that the way back is walked too.
func deep(t *testing.T, root, name string, depth int) {
	t.Helper()
	fd, err := unix.Open(root, unix.O_DIRECTORY|unix.O_RDONLY, 0)
	do(t, err)
	for range depth {
		for _, side := range []string{"0side", name, "zside"} {
			do(t, unix.Mkdirat(fd, side, 0o755))
		}
		next, err := unix.Openat(fd, name, unix.O_DIRECTORY|unix.O_RDONLY, 0)
		do(t, err, unix.Close(fd))
		fd = next
	}
	f, err := unix.Openat(fd, "leaf", unix.O_CREAT|unix.O_WRONLY, 0o644)
	do(t, err, unix.Close(f), unix.Close(fd))
}

// TestDeepTree runs in a process that may hold few descriptors.
func TestDeepTree(t *testing.T) { // attack 107
	const depth = 4000
	if os.Getenv("WORKSPACE_TEST_ROOT") == "" {
		root := t.TempDir()
		if os.Geteuid() == 0 {
			root = onTmpfs(t) // making folders is what takes long
		}
		deep(t, root, strings.Repeat("d", 16), depth)
		rerun(t, root, os.Geteuid())
		return
	}
	root := os.Getenv("WORKSPACE_TEST_ROOT")
	do(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 128, Max: 128}))
	empty := &Tree{top: &dir{}}
	for _, workers := range []int{1, 4} {
		tree, err := Snapshot(context.Background(), root, nil, Options{Workers: workers})
		do(t, err)
		empty.root, empty.places, empty.settled = tree.root, tree.places, tree.settled
		total, longest := 0, 0
		for c := range Changes(empty, tree) {
			total++
			longest = max(longest, len(c.Path))
		}
		if want := 3*depth + 1; total != want || tree.Len() != int64(want) || longest != 17*depth+4 {
			t.Errorf("listed %d entries of %d, longest path %d; want %d and %d", total, tree.Len(), longest, want, 17*depth+4)
		}
	}
	_, err := Snapshot(context.Background(), root, nil, Options{MaxDepth: depth - 1})
	if !errors.Is(err, ErrLimit) || len(err.Error()) > 1000 {
		t.Errorf("got %v, want a short error about depth", err)
	}
}

// TestUnreadable runs as a user whom a mode of 000 stops.
func TestUnreadable(t *testing.T) { // attack 107
	if os.Getenv("WORKSPACE_TEST_ROOT") == "" {
		root, err := os.MkdirTemp("", "workspace-unreadable-")
		do(t, err)
		defer os.RemoveAll(root)
		uid := os.Geteuid()
		if uid == 0 {
			uid = 65534
			do(t, os.Chown(root, uid, uid))
		}
		rerun(t, root, uid)
		return
	}
	root := os.Getenv("WORKSPACE_TEST_ROOT")
	at := func(p string) string { return filepath.Join(root, p) }
	build(t, root, `dir listed
		file listed/f x
		link listed/l t
		dir shut
		file shut/f x
		file secret x
		dir still
		file still/f x
		file stillf x
		file open x`)
	do(t, os.Chmod(at("still"), 0), os.Chmod(at("stillf"), 0))
	before := mustSnapshot(t, root, nil)
	settle(t, before)
	do(t, os.Chmod(at("listed"), 0o400), os.Chmod(at("shut"), 0), os.Chmod(at("secret"), 0))
	build(t, root, "dir new 0\nfile newf 0 x")
	after := mustSnapshot(t, root, before)
	want := []string{
		`mode dir "listed" 0400`,
		`modified file "listed/f" 0000 unreadable`,
		`modified symlink "listed/l" 0000 unreadable`,
		`created dir "new" 0000 unreadable`,
		`created file "newf" 0000 unreadable`,
		`modified file "secret" 0000 unreadable`,
		`mode dir "shut" 0000 unreadable`,
	}
	if d := cmp.Diff(want, shorts(Diff(before, after))); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	for _, c := range Diff(before, after) {
		if c.Unreadable && c.SHA256 != "" {
			t.Errorf("%s: has a sum that nobody read", c.Path)
		}
	}

	// Opened, changed and shut again: the mode is as before, the change time not.
	settle(t, after)
	do(t, os.Chmod(at("still"), 0o700))
	overwrite(t, at("still/f"), 0, "y")
	do(t, os.Chmod(at("still"), 0), os.Chmod(at("stillf"), 0o600))
	overwrite(t, at("stillf"), 0, "y")
	do(t, os.Chmod(at("stillf"), 0))
	got := []string{}
	for _, c := range Diff(after, mustSnapshot(t, root, after)) {
		if !strings.HasPrefix(c.Path, "listed/") { // nothing vouches for these
			got = append(got, short(c))
		}
	}
	want = []string{`modified dir "still" 0000 unreadable`, `modified file "stillf" 0000 unreadable`}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("shut again (-want +got):\n%s", d)
	}

	do(t, os.Chmod(root, 0))
	shut, err := Snapshot(context.Background(), root, after, Options{})
	do(t, err)
	if got := shorts(Diff(after, shut)); len(got) != 1 || got[0] != `mode dir "." 0000 unreadable` {
		t.Errorf("the workspace itself shut: got %v", got)
	}
	do(t, os.Chmod(root, 0o700))
	for _, d := range []string{"listed", "shut", "still", "new"} {
		do(t, os.Chmod(at(d), 0o700))
	}
}

// rerun runs the calling test in a process of its own, as a user.
func rerun(t *testing.T, root string, uid int) {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = []string{"WORKSPACE_TEST_ROOT=" + root, "TMPDIR=/tmp"}
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = &out, &out
	if uid != os.Geteuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	if err := cmd.Run(); err != nil || !strings.Contains(out.String(), "--- PASS: "+t.Name()) {
		t.Errorf("as uid %d: %v\n%s", uid, err, out.String())
	}
}

func TestLimits(t *testing.T) {
	root := t.TempDir()
	build(t, root, "dir a\ndir a/b\nfile a/b/c x\nlink l "+strings.Repeat("t", 200))
	for _, tt := range []struct {
		name string
		opt  Options
		ok   bool
	}{
		{"as many entries as allowed", Options{MaxEntries: 4}, true},
		{"one entry more", Options{MaxEntries: 3}, false},
		{"as deep as allowed", Options{MaxDepth: 2}, true},
		{"one folder deeper", Options{MaxDepth: 1}, false},
		{"as much text as allowed", Options{MaxText: 204}, true},
		{"a link target too much", Options{MaxText: 203}, false},
		{"names too much", Options{MaxText: 3}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Snapshot(context.Background(), root, nil, tt.opt)
			if (err == nil) != tt.ok || err != nil && !errors.Is(err, ErrLimit) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestSnapshotEndsWhenCancelled(t *testing.T) {
	root := t.TempDir()
	build(t, root, "sparse big 0x10000000000 x")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Snapshot(ctx, root, nil, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestNoWorkspaceIsAnError(t *testing.T) {
	root := t.TempDir()
	build(t, root, "file f x\nlink l .")
	for _, p := range []string{"", "f", "gone"} {
		path := p
		if p != "" {
			path = filepath.Join(root, p)
		}
		if tree, err := Snapshot(context.Background(), path, nil, Options{}); err == nil {
			t.Errorf("%q: got a tree of %d entries", p, tree.Len())
		}
	}
	if tree := mustSnapshot(t, filepath.Join(root, "l"), nil); tree.Len() != 2 {
		t.Errorf("through a link of the caller's: got %d entries, want 2", tree.Len())
	}
}

func TestSparseFiles(t *testing.T) { // attack 110, as far as reading goes
	const tib = 1 << 40
	root := t.TempDir()
	at := func(p string) string { return filepath.Join(root, p) }
	build(t, root, fmt.Sprintf("sparse huge %d end\nsparse small 3000001 end\nsparse zeros 200000 \"\"", int64(tib)))
	before := mustSnapshot(t, root, nil)
	for e := range before.All() {
		want := ""
		if e.Path == "small" || e.Path == "zeros" {
			b, err := os.ReadFile(at(e.Path))
			do(t, err)
			sum := sha256.Sum256(b)
			want = hex.EncodeToString(sum[:])
		}
		if e.SHA256 != want {
			t.Errorf("%s: got sum %q, want %q", e.Path, e.SHA256, want)
		}
	}
	check := func(what string, want ...string) {
		t.Helper()
		got := shorts(Diff(before, mustSnapshot(t, root, before)))
		if d := cmp.Diff(append([]string{}, want...), got); d != "" {
			t.Errorf("%s (-want +got):\n%s", what, d)
		}
	}
	overwrite(t, at("huge"), tib/2+5, "\x00\x00\x00")
	overwrite(t, at("huge"), tib-3, "end")
	overwrite(t, at("small"), 70_000, strings.Repeat("\x00", 500_000))
	overwrite(t, at("zeros"), 0, strings.Repeat("\x00", 200_000))
	check("zeros written into holes are no change")
	overwrite(t, at("huge"), tib/2+5, "x")
	overwrite(t, at("small"), 1_000_000, "x")
	check("one byte in a hole", `modified file "huge" 0644`, `modified file "small" 0644`)
	before = mustSnapshot(t, root, before)
	overwrite(t, at("huge"), tib/2+5, "\x00")
	overwrite(t, at("huge"), tib/2+5+2*sparseBlock, "x")
	check("the same byte in another block", `modified file "huge" 0644`)
}

// Many sparse files together must not cost more than one.
func TestHolesReadAsZerosAreBounded(t *testing.T) {
	root := t.TempDir()
	build(t, root, "sparse a 0x200000 x\nsparse b 0x200000 x\nsparse c 0x200000 x")
	s := newScan(context.Background(), nil, Options{}.WithDefaults())
	s.holes.Store(0x300000)
	before, err := s.run(root)
	do(t, err)
	sums := 0
	for e := range before.All() {
		if e.SHA256 != "" {
			sums++
		}
	}
	if sums != 1 {
		t.Errorf("%d of three files have a sum, want one", sums)
	}
	for _, n := range []string{"a", "b", "c"} {
		do(t, os.Chtimes(filepath.Join(root, n), time.Now(), time.Now()))
	}
	if got := Diff(before, mustSnapshot(t, root, before)); len(got) != 0 {
		t.Errorf("touched: got %v, want nothing", shorts(got))
	}
}

// A log that a program outside the box writes to does not stop a run.
func TestAFileThatKeepsGrowing(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "log")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	do(t, err)
	defer f.Close()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	line := bytes.Repeat([]byte("x"), 64<<10)
	wg.Go(func() {
		for range 500 {
			select {
			case <-stop:
				return
			default:
				_, _ = f.Write(line)
			}
		}
	})
	tree := mustSnapshot(t, root, nil)
	for range 5 {
		tree = mustSnapshot(t, root, tree)
		for e := range tree.All() {
			if e.Path == "log" && e.SHA256 != "" && e.Size == 0 && e.SHA256[:4] != "e3b0" {
				t.Errorf("a sum of something else: %+v", e)
			}
		}
	}
	close(stop)
	wg.Wait()
	last := mustSnapshot(t, root, tree)
	b, err := os.ReadFile(path)
	do(t, err)
	sum := sha256.Sum256(b)
	if got := last.top.entries[0].sha256(); got != hex.EncodeToString(sum[:]) {
		t.Errorf("at rest: got %q, want %x", got, sum)
	}
}
