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

// A box has one group. Where the workspace belongs to another one, nothing of it
// could be changed through an overlay, and a layer cannot be given to a group that
// the user is not in: a run was refused for it, without a word on what helps.
func TestAWorkspaceOfAnotherGroup(t *testing.T) {
	need.Root(t)
	eachWay(t, func(t *testing.T, w way) {
		p := newPlace(t, w)
		old := filepath.Join(p.workspace, "sub/old")
		do(t, os.Mkdir(filepath.Dir(old), 0o755), os.WriteFile(old, []byte("a"), 0o644))
		p.own(t)
		const other = 54321
		for _, name := range []string{"", "sub", "sub/old"} {
			do(t, os.Lchown(filepath.Join(p.workspace, name), -1, other))
		}
		r := p.run(t, w.file("", scriptStep{id: "change", text: "printf b >>sub/old; printf c >sub/new"}))
		r.exits(0)
		for name, want := range map[string]string{"sub/old": "ab", "sub/new": "c"} {
			if b, err := os.ReadFile(filepath.Join(p.workspace, name)); err != nil || string(b) != want {
				t.Errorf("%s is %q, %v", name, b, err)
			}
		}
		told := slices.ContainsFunc(r.Notes, func(n string) bool { return strings.Contains(n, "chgrp -R") && strings.Contains(n, p.workspace) })
		if told != w.normal() { // root's boxes have the group of the workspace
			t.Errorf("notes %q", r.Notes)
		}
		p.clean(t)
	})
}
