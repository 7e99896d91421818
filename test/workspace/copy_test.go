package workspace_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
)

// Where something is mounted inside the workspace an overlay would not show it,
// so each step gets a copy, and the copy is compared in full.
func TestTheSameScriptLeavesTheSameTreeWithACopyOfTheWorkspace(t *testing.T) {
	need.Root(t)
	list := scripts(t, 3)
	eachWay(t, func(t *testing.T, w way) {
		for _, e := range list {
			if w.normal() && newScript(e.seed).shut {
				continue // what a normal user may not read is in no copy of his
			}
			p := newPlace(t, w)
			do(t, os.Remove(p.workspace))
			copyTree(t, e.first, p.workspace)
			at := filepath.Join(p.workspace, "mounted")
			do(t, os.Mkdir(at, 0o755))
			need.Met(t, "mounts", unix.Mount("tmpfs", at, "tmpfs", 0, "size=1m,mode=755"))
			mounted := true
			defer func() {
				if mounted {
					do(t, unix.Unmount(at, unix.MNT_DETACH))
				}
			}()
			do(t, os.WriteFile(filepath.Join(at, "there"), []byte("text"), 0o644))
			p.own(t)
			r := p.run(t, e.file(w))
			r.exits(0)
			if !slices.ContainsFunc(r.Notes, func(n string) bool {
				return strings.Contains(n, at+" is mounted inside the workspace") && strings.Contains(n, "copy")
			}) {
				t.Errorf("the report does not say why steps got a copy: %q", r.Notes)
			}
			if b, err := os.ReadFile(filepath.Join(at, "there")); err != nil || string(b) != "text" {
				t.Errorf("the file in the folder that is mounted is now %q, %v", b, err)
			}
			do(t, unix.Unmount(at, 0), os.Remove(at))
			mounted = false
			e.holds(t, p, r, "copy")
			p.clean(t)
			if t.Failed() {
				t.Fatalf("go on with -seed %d", e.seed)
			}
		}
	})
}
