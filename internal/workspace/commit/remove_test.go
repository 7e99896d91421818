package commit_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/commit"
)

// fewFiles lets this process open few files, until the test ends.
func fewFiles(t *testing.T, most uint64) {
	t.Helper()
	var was unix.Rlimit
	do(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	do(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: min(most, was.Cur), Max: was.Max}))
	t.Cleanup(func() { do(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was)) })
}

func TestRemoveTreeRemovesAnything(t *testing.T) { // attack 107
	out, untouched := outside(t)
	for _, tt := range []struct {
		name string
		make func(t *testing.T, dir string)
	}{
		{"an empty folder", func(t *testing.T, dir string) { build(t, dir, "") }},
		{"nothing", func(*testing.T, string) {}},
		{"a file", func(t *testing.T, dir string) { do(t, os.WriteFile(dir, nil, 0)) }},
		{"a link to outside", func(t *testing.T, dir string) { do(t, os.Symlink(out, dir)) }},
		{"links to outside", func(t *testing.T, dir string) {
			build(t, dir, "link a "+out+"\ndir d\nlink d/b "+out+"/sub\nlink d/c "+out+"/f")
		}},
		{"an overlay's work folder", func(t *testing.T, dir string) {
			build(t, dir, "dir upper\ndir work\ndir work/work 0\ndir work/index 0")
		}},
		{"folders nobody may enter, in one another", func(t *testing.T, dir string) {
			build(t, dir, "dir a\ndir a/b\ndir a/b/c\nfile a/b/c/f 0 x\nfifo a/b/p")
			for _, p := range []string{"a/b/c", "a/b", "a", "."} {
				do(t, os.Chmod(filepath.Join(dir, p), 0))
			}
		}},
		{"a path deeper than a path can be", func(t *testing.T, dir string) {
			build(t, dir, "")
			descend(t, dir, strings.Repeat("d", 200), 2000)
		}},
		{"deep trees with names that are in the way", func(t *testing.T, dir string) {
			build(t, dir, "dir a\nfile .lifted-1 0644 x\ndir .lifted-2\nfile .lifted-2/f 0644 x")
			descend(t, dir+"/a", "d", 200)
			build(t, dir, "dir b")
			descend(t, dir+"/b", "d", 200)
		}},
		{"many entries", func(t *testing.T, dir string) {
			build(t, dir, "")
			for i := range 5000 {
				do(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%0100d", i)), nil, 0o600))
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			parent := tempDir(t)
			dir := filepath.Join(parent, "dir")
			tt.make(t, dir)
			fewFiles(t, 96)
			do(t, commit.RemoveTree(dir))
			if list, err := os.ReadDir(parent); err != nil || len(list) != 0 {
				t.Errorf("left %v (%v)", list, err)
			}
			untouched(tt.name)
		})
	}
	for _, bad := range []string{"/", "", ".", ".."} {
		if err := commit.RemoveTree(bad); err == nil {
			t.Fatalf("removed %q", bad)
		}
	}
}

func TestRemoveTreeDoesNotEmptyWhatIsMounted(t *testing.T) {
	disk := otherDisk(t, "1m")
	build(t, disk, "dir d\ndir d/at")
	other := filepath.Join(disk, "d", "at")
	do(t, unix.Mount("tmpfs", other, "tmpfs", 0, "size=1m"))
	build(t, other, "file f 0644 x")
	err := commit.RemoveTree(filepath.Join(disk, "d"))
	if err == nil || !strings.Contains(err.Error(), "at") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Lstat(filepath.Join(other, "f")); err != nil {
		t.Error(err)
	}
	do(t, unix.Unmount(other, 0), commit.RemoveTree(filepath.Join(disk, "d")))
}

func TestDeepTreesAreCommitted(t *testing.T) { // attack 107
	const depth = 4000
	f := newFixture(t, "", "")
	descend(t, f.after, "d", depth)
	f.new = snapshot(t, f.after)
	f.changes = workspace.Diff(f.old, f.new)
	if len(f.changes) != depth+1 {
		t.Fatalf("%d changes", len(f.changes))
	}
	fewFiles(t, 256)
	_, err := f.commit(t)
	do(t, err)
	if d := lines(f.new, snapshot(t, f.ws)); d != nil || f.beside(t) != nil {
		t.Errorf("created: left %q, %d differences", f.beside(t), len(d))
	}
	f.changes = workspace.Diff(f.new, f.old)
	_, err = f.commit(t)
	do(t, err)
	if d := lines(f.old, snapshot(t, f.ws)); d != nil || f.beside(t) != nil {
		t.Errorf("deleted: left %q, %d differences", f.beside(t), len(d))
	}
}
