package steps

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
)

// Engines follow no link to what they show, and a descriptor's name is one.
func TestACopyOfTheWorkspaceCanBeOpenedWithoutFollowingLinks(t *testing.T) {
	ws, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ws = filepath.Join(ws, "ws")
	if err := os.MkdirAll(ws, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(ws, "a"), []byte("a"), 0o600); err != nil {
		t.Fatal(err)
	}
	tree, _, err := OpenTree(t.Context(), ws, TreeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	tree.UseCopies("a test wants one")
	v, err := tree.view(t.Context(), PlanStep{ID: "s", DiskMb: 4, MemoryMb: 512}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer v.drop()
	var b box.Spec
	v.show(&b)
	if b.Overlay != nil || b.Workspace == ws {
		t.Fatalf("no copy: %+v", b)
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, filepath.Join(b.Workspace, "a"), &unix.OpenHow{Flags: unix.O_PATH, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		t.Fatalf("open a of %s: %v", b.Workspace, err)
	}
	unix.Close(fd)
}
