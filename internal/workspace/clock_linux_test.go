package workspace

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
)

// scanned takes a snapshot and says how many files were opened.
func scanned(t testing.TB, root string, prev *Tree) (*Tree, int64) {
	t.Helper()
	s := newScan(context.Background(), prev, Options{}.WithDefaults())
	tree, err := s.run(root)
	if err != nil {
		t.Fatal(err)
	}
	return tree, s.opened.Load()
}

// settle ages a tree: as if it had been taken when the clock had moved on.
func settle(t testing.TB, tree *Tree) {
	t.Helper()
	for i := range tree.settled {
		if tree.settled[i] == never {
			need.Met(t, "change times", fmt.Errorf("those of the file system under %s cannot be relied on", t.TempDir()))
		}
		tree.settled[i] += 1e9
	}
}

// onTmpfs gives a folder on a tmpfs.
func onTmpfs(t *testing.T) string {
	t.Helper()
	need.Root(t)
	dir := t.TempDir()
	need.Met(t, "mounts", unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=16m"))
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// mappedWrite changes a file the way that hides from change times on tmpfs.
func mappedWrite(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	do(t, err)
	defer f.Close()
	mem, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	do(t, err)
	mem[0] ^= 0xff
	do(t, unix.Munmap(mem))
}

func TestAnUnchangedTreeIsNotOpened(t *testing.T) {
	root := t.TempDir()
	build(t, root, "file a x\ndir d\nfile d/b y\nhard d/c a\nsparse s 1048576 x")
	before, opened := scanned(t, root, nil)
	if opened != 3 {
		t.Errorf("first snapshot opened %d files, want 3: each inode once", opened)
	}
	settle(t, before)
	after, opened := scanned(t, root, before)
	if opened != 0 {
		t.Errorf("second snapshot opened %d files, want none", opened)
	}
	if after.top != before.top {
		t.Error("an unchanged tree is not shared with the earlier one")
	}
	overwrite(t, filepath.Join(root, "d/b"), 0, "z")
	if _, opened := scanned(t, root, before); opened != 1 {
		t.Errorf("one file was written to, %d were opened", opened)
	}
}

func TestAFileAsYoungAsTheSnapshotIsReadAgain(t *testing.T) {
	root := t.TempDir()
	build(t, root, "file a x")
	before, _ := scanned(t, root, nil)
	settle(t, before)
	e := before.top.find([]byte("a"), 0)
	for _, tt := range []struct {
		name    string
		settled int64
		opened  int64
	}{
		{"changed in the tick before", e.ctime + 1, 0},
		{"changed in the tick of the snapshot", e.ctime, 1},
		{"changed after the snapshot began", e.ctime - 1, 1},
		{"clock unknown", never, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before.settled[e.place] = tt.settled
			if _, opened := scanned(t, root, before); opened != tt.opened {
				t.Errorf("opened %d files, want %d", opened, tt.opened)
			}
		})
	}
}

// The write may fall into the tick in which the snapshot read the file, so that
// size, inode and every time stamp are as before.
func TestAWriteRightAfterTheSnapshotIsSeen(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "a")
	build(t, root, "file a 000000")
	prev := mustSnapshot(t, root, nil)
	for i := 1; i <= 300; i++ {
		st, err := os.Stat(path)
		do(t, err)
		overwrite(t, path, 0, strconv.Itoa(100000 + i)[:6])
		do(t, os.Chtimes(path, st.ModTime(), st.ModTime()))
		next := mustSnapshot(t, root, prev)
		if got := Diff(prev, next); len(got) != 1 || got[0].Change != Modified {
			t.Fatalf("write %d: got %v, want one modified file", i, shorts(got))
		}
		prev = next
	}
}

func TestAMappedWriteOnTmpfsIsSeen(t *testing.T) {
	root := onTmpfs(t)
	build(t, root, "file a x")
	do(t, os.Truncate(filepath.Join(root, "a"), 4096))
	before, _ := scanned(t, root, nil)
	mappedWrite(t, filepath.Join(root, "a"))
	after, opened := scanned(t, root, before)
	if got := Diff(before, after); len(got) != 1 || got[0].Change != Modified {
		t.Errorf("got %v, want one modified file (opened %d)", shorts(got), opened)
	}
	// The control: the kernel did hide it, and the proof did notice.
	if a, b := before.top.entries[0], after.top.entries[0]; a.ctime != b.ctime {
		t.Logf("this kernel moves the change time: %d, %d", a.ctime, b.ctime)
	}
	fd, err := unix.Open(root, unix.O_TMPFILE|unix.O_RDWR|unix.O_EXCL, 0o600)
	do(t, err)
	m := mount{probe: fd}
	defer m.close()
	m.prove()
	if a, b := before.top.entries[0], after.top.entries[0]; m.proven != (a.ctime != b.ctime) {
		t.Errorf("the proof says %v about a file system whose change times are %d and %d", m.proven, a.ctime, b.ctime)
	}
}

func TestAMountInTheWorkspaceIsReadByItsOwnRules(t *testing.T) {
	need.Root(t)
	root := t.TempDir()
	build(t, root, "file a x\ndir m")
	do(t, unix.Mount("tmpfs", filepath.Join(root, "m"), "tmpfs", 0, "size=1m"))
	defer unix.Unmount(filepath.Join(root, "m"), unix.MNT_DETACH)
	build(t, root, "file m/b x\nfile m/c x")
	before, _ := scanned(t, root, nil)
	for i, at := range before.settled {
		if at != never {
			before.settled[i] += 1e9
		}
	}
	after, opened := scanned(t, root, before)
	if got := Diff(before, after); len(got) != 0 || opened < 2 {
		t.Errorf("got %v with %d files opened, want none changed and both files on tmpfs opened", shorts(got), opened)
	}
}

func TestTheProbeLeavesNothingBehind(t *testing.T) {
	root := t.TempDir()
	build(t, root, "file a x")
	st, err := os.Stat(root)
	do(t, err)
	mustSnapshot(t, root, mustSnapshot(t, root, nil))
	now, err := os.Stat(root)
	do(t, err)
	names, err := os.ReadDir(root)
	do(t, err)
	if len(names) != 1 || !st.ModTime().Equal(now.ModTime()) {
		t.Errorf("got %d names and folder time %v, want 1 and %v", len(names), now.ModTime(), st.ModTime())
	}
}

func TestAnOverlayIsReadByItsChangeTimes(t *testing.T) {
	need.Root(t)
	base, root := t.TempDir(), t.TempDir()
	build(t, base, "dir lower\ndir upper\ndir work\nfile lower/same x\nfile lower/written x\nfile lower/mapped x\nfile lower/gone x\nfile lower/touched x")
	do(t, os.Truncate(filepath.Join(base, "lower/mapped"), 4096))
	opt := "lowerdir=" + base + "/lower,upperdir=" + base + "/upper,workdir=" + base + "/work"
	need.Met(t, "mounts", unix.Mount("overlay", root, "overlay", 0, opt))
	defer unix.Unmount(root, unix.MNT_DETACH)
	before, _ := scanned(t, root, nil)
	settle(t, before)
	if _, opened := scanned(t, root, before); opened != 0 {
		t.Errorf("unchanged, %d files were opened", opened)
	}
	overwrite(t, filepath.Join(root, "written"), 0, "y")
	overwrite(t, filepath.Join(root, "touched"), 0, "x")
	mappedWrite(t, filepath.Join(root, "mapped"))
	do(t, os.Remove(filepath.Join(root, "gone")))
	after, opened := scanned(t, root, before)
	want := []string{`deleted file "gone" 0644`, `modified file "mapped" 0644`, `modified file "written" 0644`}
	if d := cmp.Diff(want, shorts(Diff(before, after))); d != "" || opened != 3 {
		t.Errorf("opened %d files, want 3 (-want +got):\n%s", opened, d)
	}
}
