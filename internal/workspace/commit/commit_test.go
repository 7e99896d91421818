package commit_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/commit"
)

// kinds has every kind of change at least once.
var kinds = []struct{ name, before, after string }{
	{"a file is created", "", "file a 0644 x"},
	{"a file is created with its mode", "", "file a 0751 x"},
	{"an empty file is created", "", `file a 0644 ""`},
	{"a file nobody may read is created", "", "file a 0000 x"},
	{"a file is modified", "file a 0644 x", "file a 0644 y"},
	{"a file is modified and its mode too", "file a 0644 x", "file a 0600 y"},
	{"a file that nobody may write to is modified", "file a 0444 x", "file a 0444 y"},
	{"a file is deleted", "file a 0644 x\nfile b 0644 x", "file b 0644 x"},
	{"a file's mode changes", "file a 0644 x", "file a 0755 x"},
	{"a folder's mode changes", "dir d 0755\nfile d/f 0644 x", "dir d 0700\nfile d/f 0644 x"},
	{"a sticky bit is kept", "dir d 0755", "dir d 01777"},
	{"the workspace's own mode changes", "file a 0644 x", "dir . 0711\nfile a 0644 x"},
	{"a link is created", "", "link l ../../outside"},
	{"a link is retargeted", "link l a", "link l b"},
	{"a link is deleted", "link l /etc/passwd", ""},
	{"a file becomes a link", "file a 0644 x", "link a b"},
	{"a link becomes a file", "link a /etc/passwd", "file a 0644 x"},
	{"a file becomes a folder", "file a 0644 x", "dir a\nfile a/f 0644 x"},
	{"a link becomes a folder", "link a /tmp", "dir a\nfile a/f 0644 x"},
	{"a folder becomes a file", "dir a\ndir a/b\nfile a/b/c 0644 x\nfile a-b 0644 x", "file a 0644 y\nfile a-b 0644 y"},
	{"a folder becomes a link to itself", "dir a\nfile a/b 0644 x", "link a a"},
	{"a FIFO becomes a file", "fifo p", "file p 0644 x"},
	{"a FIFO is deleted", "fifo p\nsock s", ""},
	{"folders are created", "", "dir a\ndir a/b 0700\ndir a/b/c\nfile a/b/c/f 0644 x\nfile a-b 0644 y"},
	{"folders are deleted", "dir a\ndir a/b\nfile a/b/f 0644 x\nlink a/b/l /\nfifo a/b/p\ndir a/b/shut 0\nfile a-b 0644 x", "file a-b 0644 x"},
	{"a read-only folder has its content changed", "dir d 0555\nfile d/a 0644 x\nfile d/b 0644 x", "dir d 0555\nfile d/a 0644 y\nfile d/c 0644 z\ndir d/e\nlink d/l x"},
	{"read-only folders in one another", "dir d 0555\ndir d/e 0500\nfile d/e/a 0644 x", "dir d 0555\ndir d/e 0500\nfile d/e/a 0644 y"},
	{"a read-only folder is created with content", "", "dir d 0555\ndir d/e 0555\nfile d/e/f 0444 x"},
	{"a read-only folder is deleted", "dir d 0555\ndir d/e 0555\nfile d/e/f 0444 x", ""},
	{"a read-only folder is opened, and changed", "dir d 0555\nfile d/a 0644 x", "dir d 0755\nfile d/a 0644 y"},
	{"a folder is shut, and changed", "dir d 0755\nfile d/a 0644 x", "dir d 0500\nfile d/a 0644 y"},
	{"a file in a read-only folder has its mode changed", "dir d 0555\nfile d/a 0644 x", "dir d 0555\nfile d/a 0600 x"},
	{"a read-only workspace", "dir . 0555\nfile a 0644 x", "dir . 0555\nfile b 0644 x"},
	{"names of any bytes", `file "a\nb" 0644 x
		file "\xff\xfe" 0644 x
		dir "d\r\x1b[2J"
		file "d\r\x1b[2J/\u202etxt" 0644 x`, `file "a\nb" 0644 y
		dir "d\r\x1b[2J"
		link "d\r\x1b[2J/\xc3" "\xc3\n"
		file " -rf" 0644 x`},
	{"the longest name", "", "file " + strings.Repeat("n", 255) + " 0644 x"},
	{"two names of one file become two files", "", "file a 0644 x\nhard b a\ndir d\nhard d/c a"},
	{"a renamed folder", "dir a\nfile a/f 0644 x\nfile a/g 0644 y", "dir b\nfile b/f 0644 x\nfile b/g 0644 y"},
	{"nothing changes", "file a 0644 x", "file a 0644 x"},
}

func TestAfterACommitTheWorkspaceIsWhatTheStepLeft(t *testing.T) {
	for _, tt := range kinds {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, tt.before, tt.after)
			if _, err := f.commit(t); err != nil {
				t.Fatal(err)
			}
			if d := lines(f.new, snapshot(t, f.ws)); d != nil {
				t.Errorf("differs from what the step left:\n%s", strings.Join(d, "\n"))
			}
			if b := f.beside(t); b != nil {
				t.Errorf("left behind: %q", b)
			}
		})
	}
}

func TestADroppedTransactionLeavesNothing(t *testing.T) {
	f := newFixture(t, "file a 0644 x", "file a 0644 y")
	s := f.open(t)
	txn, err := s.New("build")
	do(t, err)
	build(t, txn.Upper(), "dir d 0\nfile a 0644 y")
	build(t, txn.Work(), "dir work 0")
	do(t, txn.Drop(), txn.Drop())
	if _, err := os.Lstat(txn.Dir()); !os.IsNotExist(err) {
		t.Errorf("the transaction is there still: %v", err)
	}
	if _, err := txn.Commit(context.Background(), f.changes, f.after); err == nil {
		t.Error("what was dropped was committed")
	}
	do(t, s.Close(), s.Close())
	if d := lines(f.old, snapshot(t, f.ws)); d != nil || f.beside(t) != nil {
		t.Errorf("changed %q, left %q", d, f.beside(t))
	}
	if _, err := s.New("late"); err == nil {
		t.Error("a closed store begins transactions")
	}
}

// TestWhatTheUpperBringsAlong: marks of the overlay, attributes and set-id bits
// are not the workspace's.
func TestWhatTheUpperBringsAlong(t *testing.T) {
	f := newFixture(t, "file kept 0644 x", "file kept 0644 x\nfile a 0644 x\ndir d\nfile d/b 0444 x\nfile id 0755 x\ndir gid 0755")
	s := f.open(t)
	txn, err := s.New("build")
	do(t, err)
	up := txn.Upper()
	build(t, up, "file a 0644 x\ndir d\nfile d/b 0644 x\nfile id 0755 x\ndir gid 0755")
	for _, p := range []string{"a", "d/b", "d"} {
		do(t, unix.Setxattr(filepath.Join(up, p), "user.overlay.opaque", []byte("y"), 0),
			unix.Setxattr(filepath.Join(up, p), "user.note", []byte("y"), 0))
	}
	do(t, os.Chmod(filepath.Join(up, "d/b"), 0o444))
	for i := range f.changes {
		switch f.changes[i].Path {
		case "id":
			f.changes[i].Mode = "6755"
			do(t, syscall.Chmod(filepath.Join(up, "id"), 0o6755))
		case "gid":
			f.changes[i].Mode = "2755"
		}
	}
	past := time.Unix(1_500_000_000, 123_000_000)
	do(t, os.Chtimes(filepath.Join(up, "a"), past, past))
	res, err := txn.Commit(context.Background(), f.changes, up)
	do(t, err, s.Close())
	if d := lines(f.new, snapshot(t, f.ws)); d != nil {
		t.Errorf("differs:\n%s", strings.Join(d, "\n"))
	}
	if res.Moved != 3 || res.Copied != 0 || res.Across != 0 || res.How() != "renamed" {
		t.Errorf("got %+v, want three files renamed", res)
	}
	for _, p := range []string{"a", "d/b", "d"} {
		if n, err := unix.Listxattr(filepath.Join(f.ws, p), make([]byte, 1000)); n != 0 || err != nil {
			t.Errorf("%s has %d bytes of attributes (%v)", p, n, err)
		}
	}
	if st, err := os.Stat(filepath.Join(f.ws, "a")); err != nil || !st.ModTime().Equal(past) {
		t.Errorf("time %v (%v), want %v", st.ModTime(), err, past)
	}
}

// A name elsewhere of a file of the workspace is outside the workspace, and
// what a step does to its own view of the file must not reach it.
func TestOtherNamesOfAFileKeepWhatTheyHad(t *testing.T) { // attack 102
	f := newFixture(t, "file a 0644 x\nfile b 0644 x\nfile c 0644 x", "file a 0755 x\nfile b 0644 y")
	for _, n := range []string{"a", "b", "c"} {
		do(t, os.Link(filepath.Join(f.ws, n), filepath.Join(f.dir, n)))
	}
	if _, err := f.commit(t); err != nil {
		t.Fatal(err)
	}
	if d := lines(f.new, snapshot(t, f.ws)); d != nil {
		t.Errorf("differs:\n%s", strings.Join(d, "\n"))
	}
	for _, n := range []string{"a", "b", "c"} {
		text, err := os.ReadFile(filepath.Join(f.dir, n))
		st, serr := os.Stat(filepath.Join(f.dir, n))
		do(t, err, serr)
		if string(text) != "x" || st.Mode() != 0o644 {
			t.Errorf("outside, %s is now %q with mode %v", n, text, st.Mode())
		}
	}
}

func TestSpecialFilesAreNotMade(t *testing.T) { // attack 106
	f := newFixture(t, "file a 0644 x\nfifo old", "fifo a\nsock s\nfifo p\nfifo old")
	do(t, os.Chmod(filepath.Join(f.after, "old"), 0o644))
	f.changes = workspace.Diff(f.old, snapshot(t, f.after))
	res, err := f.commit(t)
	do(t, err)
	if d := cmp.Diff([]string{"a", "p", "s"}, res.Left); d != "" {
		t.Errorf("left out (-want +got):\n%s", d)
	}
	want := newFixture(t, "fifo old", "")
	do(t, os.Chmod(filepath.Join(want.ws, "old"), 0o644))
	if d := lines(snapshot(t, want.ws), snapshot(t, f.ws)); d != nil {
		t.Errorf("differs:\n%s", strings.Join(d, "\n"))
	}
}

func TestAListThatCannotBeIsRefused(t *testing.T) {
	change := func(kind, typ, path string) workspace.Change {
		return workspace.Change{Path: path, Change: kind, Type: typ, Mode: "0644", Target: "t"}
	}
	for _, tt := range []struct {
		name string
		list []workspace.Change
	}{
		{"a path that leads up", []workspace.Change{change("deleted", "file", "../f")}},
		{"a path that leads up in the middle", []workspace.Change{change("deleted", "file", "a/../../f")}},
		{"an absolute path", []workspace.Change{change("deleted", "file", "/etc/passwd")}},
		{"an empty path", []workspace.Change{change("deleted", "file", "")}},
		{"a path that ends in a slash", []workspace.Change{change("deleted", "dir", "a/")}},
		{"a dot within", []workspace.Change{change("deleted", "file", "a/./b")}},
		{"a byte that ends strings", []workspace.Change{change("deleted", "file", "a\x00b")}},
		{"the workspace deleted", []workspace.Change{change("deleted", "dir", ".")}},
		{"the workspace a file", []workspace.Change{change("retyped", "file", ".")}},
		{"an unknown kind", []workspace.Change{change("moved", "file", "a")}},
		{"an unknown type", []workspace.Change{change("created", "door", "a")}},
		{"no mode", []workspace.Change{{Path: "a", Change: "created", Type: "file"}}},
		{"a link without a target", []workspace.Change{{Path: "a", Change: "created", Type: "symlink", Mode: "0777"}}},
		{"a path named twice", []workspace.Change{change("created", "dir", "a"), change("deleted", "file", "a")}},
		{"something below a file", []workspace.Change{change("created", "file", "a"), change("created", "file", "a-b"), change("created", "file", "a/b")}},
		{"something below what is deleted", []workspace.Change{change("deleted", "dir", "a"), change("created", "file", "a/b")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, "file f 0644 x", "")
			f.changes = tt.list
			if _, err := f.commit(t); !errors.Is(err, commit.ErrPlan) {
				t.Errorf("got %v", err)
			}
			if d := lines(f.old, snapshot(t, f.ws)); d != nil {
				t.Errorf("changed:\n%s", strings.Join(d, "\n"))
			}
		})
	}
}

func TestFoldersComeDirectlyBeforeTheirContent(t *testing.T) {
	order := []string{".", "-", "a", "a/b", "a/b/c", "a/b-", "a\x01", "a-b", "b", "\xff"}
	for i, a := range order {
		for j, b := range order {
			got := commit.ComparePaths([]byte(a), []byte(b))
			if (got < 0) != (i < j) || (got == 0) != (i == j) {
				t.Errorf("%q and %q compare as %d", a, b, got)
			}
		}
	}
}

// TestKeepLeavesWhatOthersStillSee: a later step has the folder as a layer.
func TestKeepLeavesWhatOthersStillSee(t *testing.T) {
	f := newFixture(t, "", "dir d 0500\nfile d/a 0000 x\nfile d/b 0644 y")
	s := f.open(t)
	txn, err := s.New("build")
	do(t, err)
	txn.Keep = true
	res, err := txn.Commit(context.Background(), f.changes, f.after)
	do(t, err, s.Close())
	for _, root := range []string{f.ws, f.after} {
		if d := lines(f.new, snapshot(t, root)); d != nil {
			t.Errorf("%s differs:\n%s", root, strings.Join(d, "\n"))
		}
	}
	if res.Copied != 2 || res.Moved != 0 || res.How() != "copied" {
		t.Errorf("got %+v, want two copies", res)
	}
}

func TestSparseFilesStaySparse(t *testing.T) { // attack 110
	const gib = 1 << 30
	f := newFixture(t, "", "sparse huge 0x1000000000 end\nfile a 0644 x")
	s := f.open(t)
	txn, err := s.New("build")
	do(t, err)
	txn.Keep = true // so that it is copied
	_, err = txn.Commit(context.Background(), f.changes, f.after)
	do(t, err, s.Close())
	if d := lines(f.new, snapshot(t, f.ws)); d != nil {
		t.Errorf("differs:\n%s", strings.Join(d, "\n"))
	}
	var st unix.Stat_t
	do(t, unix.Stat(filepath.Join(f.ws, "huge"), &st))
	if st.Size != 64*gib || st.Blocks*512 > gib/1024 {
		t.Errorf("%d bytes take %d on the disk", st.Size, st.Blocks*512)
	}
}

func TestACommitEndsWithItsContextBeforeItCounts(t *testing.T) { // attack 160
	f := newFixture(t, "file a 0644 x", "file a 0644 y\nfile b 0644 y")
	ctx, cancel := context.WithCancel(context.Background())
	f.options = f.options.WithStep(func(at string) {
		if at == "store held" {
			cancel()
		}
	})
	s := f.open(t)
	txn, err := s.New("build")
	do(t, err)
	if _, err := txn.Commit(ctx, f.changes, f.after); !errors.Is(err, context.Canceled) || errors.Is(err, commit.ErrIncomplete) {
		t.Errorf("got %v", err)
	}
	do(t, txn.Drop(), s.Close())
	if d := lines(f.old, snapshot(t, f.ws)); d != nil || f.beside(t) != nil {
		t.Errorf("changed %q, left %q", d, f.beside(t))
	}
}

func TestAFolderNobodyCouldReadIsNotCommitted(t *testing.T) {
	for name, full := range map[string]bool{"empty": false, "with content": true} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, "", "dir d 0")
			for i := range f.changes {
				f.changes[i].Unreadable = f.changes[i].Path == "d"
			}
			if full {
				do(t, os.Chmod(filepath.Join(f.after, "d"), 0o700))
				build(t, f.after, "file d/f 0644 x\ndir d/g 0")
				do(t, os.Chmod(filepath.Join(f.after, "d"), 0))
			}
			_, err := f.commit(t)
			if errors.Is(err, commit.ErrUnreadable) != full || !full && err != nil {
				t.Errorf("got %v", err)
			}
			want := f.new
			if full {
				want = f.old
			}
			if d := lines(want, snapshot(t, f.ws)); d != nil {
				t.Errorf("differs:\n%s", strings.Join(d, "\n"))
			}
		})
	}
}

func TestSyncCommitsToo(t *testing.T) {
	f := newFixture(t, "file a 0644 x", "file b 0644 x")
	f.options.Sync = true
	if _, err := f.commit(t); err != nil {
		t.Fatal(err)
	}
	if d := lines(f.new, snapshot(t, f.ws)); d != nil || f.beside(t) != nil {
		t.Errorf("differs %q, left %q", d, f.beside(t))
	}
}
