package boxtest

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
)

// layered is a box whose workspace is an overlay over the layers, the top one
// first, and the folder that takes what it writes.
func (s *suite) layered(t testing.TB, text string, lower ...string) (j step, upper string) {
	t.Helper()
	base := workspace(t)
	for _, name := range []string{box.UpperName, box.WorkName} {
		if err := os.Mkdir(filepath.Join(base, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { // an overlay's own folders have no permissions
		for _, name := range []string{"work", "work/incompat", "work/incompat/volatile"} {
			_ = os.Chmod(filepath.Join(base, box.WorkName, name), 0o700)
		}
	})
	j = s.shell(t, text)
	j.Overlay = &box.Overlay{Lower: lower, Base: base, UID: os.Geteuid(), GID: os.Getegid()}
	j.Workspace = lower[len(lower)-1]
	return j, filepath.Join(base, box.UpperName)
}

// filled is a folder of the caller's with files in it.
func filled(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := workspace(t)
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// unchanged fails unless a tree on the host has exactly these files.
func unchanged(t testing.TB, dir string, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		got[name] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(want, got) {
		t.Errorf("%s was changed: it holds %q, want %q", dir, got, want)
	}
}

// overlayFacts are about a workspace that a box can write without changing it.
func (s *suite) overlayFacts(t *testing.T) {
	Need(t, "overlay")

	t.Run("what a box writes lands in its own layer, belongs to the caller, and the workspace stays", func(t *testing.T) {
		t.Parallel()
		files := map[string]string{"a": "one\n", "b": "two\n", "d/c": "three\n", "gone/x": "x\n"}
		lower := filled(t, files)
		j, upper := s.layered(t, `
			test "$(cat a b d/c)" = "one
two
three"
			echo changed > a; rm b; rm -r gone; mkdir gone; echo new > gone/y; echo made > d/made; ln -s a link; chmod 751 d/c
			test ! -e b && test ! -e gone/x && test "$(cat a)" = changed && test "$(stat -c %u:%g d/made a .)" = "0:0
0:0
0:0"`, lower)
		r := s.run(t, j)
		r.passed(t)
		unchanged(t, lower, files)
		for name, want := range map[string]string{"a": "changed\n", "d/made": "made\n", "gone/y": "new\n"} {
			if b, err := os.ReadFile(filepath.Join(upper, name)); err != nil || string(b) != want {
				t.Errorf("the box's layer has %q at %s (%v), want %q", b, name, err, want)
			}
		}
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(upper, "b"), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != 0 {
			t.Errorf("a deleted file's mark has mode %o and number %d (%v), want a character device 0:0", st.Mode, st.Rdev, err)
		}
		mark := make([]byte, 8)
		if n, err := unix.Getxattr(filepath.Join(upper, "gone"), "user.overlay.opaque", mark); err != nil || string(mark[:n]) != "y" {
			t.Errorf("a folder that was removed and made anew is marked %q (%v), want y", mark[:max(n, 0)], err)
		}
		for _, name := range []string{"a", "d/made", "link", "gone"} {
			info, err := os.Lstat(filepath.Join(upper, name))
			if err != nil {
				t.Fatal(err)
			}
			if sys := info.Sys().(*syscall.Stat_t); int(sys.Uid) != os.Geteuid() || int(sys.Gid) != os.Getegid() {
				t.Errorf("%s belongs to %d:%d on disk, not to the caller", name, sys.Uid, sys.Gid)
			}
		}
	})

	t.Run("an upper layer hides what a lower one has, and a mark in the workspace itself is no mark", func(t *testing.T) {
		t.Parallel()
		lower := filled(t, map[string]string{"a": "below\n", "b": "below\n", "dir/x": "below\n"})
		mask := filled(t, map[string]string{"a": "above\n", "dir/y": "above\n"})
		if err := unix.Mknod(filepath.Join(mask, "b"), unix.S_IFCHR, 0); err != nil {
			t.Fatal(err)
		}
		// Forged in the workspace: it has no layer below that it could hide.
		if err := unix.Setxattr(filepath.Join(lower, "dir"), "user.overlay.opaque", []byte("y"), 0); err != nil {
			t.Fatal(err)
		}
		j, _ := s.layered(t, `cat a; ls dir; test ! -e b; echo x > b; cat b`, mask, lower)
		r := s.run(t, j)
		r.passed(t)
		if want := "above\nx\ny\nx\n"; r.stdout != want {
			t.Errorf("the box read %q, want %q", r.stdout, want)
		}
		holds(t, mask+"/dir", map[string]string{"y": "above\n"})
	})

	t.Run("no layer is to be found in the box, and none can be reached through /proc", func(t *testing.T) {
		t.Parallel()
		lower := filled(t, map[string]string{"a": "one\n"})
		j, _ := s.layered(t, `cut -d' ' -f5 /proc/self/mountinfo | sort | uniq -d; grep -c ' /workspace ' /proc/self/mountinfo; ls -A /step`, lower)
		r := s.run(t, j)
		r.passed(t)
		lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
		if once := map[bool]string{false: "1", true: "0"}[s.differ.NoWorkspaceMount]; lines[0] != once {
			t.Errorf("something is mounted twice, or the workspace is not: %q", r.stdout)
		}
	})

	t.Run("G88 I102 a box can forge no mark: not a device 0:0, not an overlay's attribute", func(t *testing.T) {
		t.Parallel()
		lower := filled(t, map[string]string{"a": "one\n", "d/x": "x\n"})
		j, upper := s.layered(t, `mknod forged c 0 0 2>/dev/null && echo made
			python3 -c '
import os
for p in ["a","d"]:
    for n in ["user.overlay.opaque","user.overlay.whiteout","user.overlay.redirect","trusted.overlay.opaque"]:
        try: os.setxattr(p, n, b"y")
        except OSError as e: pass
' 2>/dev/null; true`, lower)
		s.run(t, j).passed(t)
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(upper, "forged"), &st); err == nil {
			t.Errorf("the box made a device 0:0 in its layer")
		}
		for _, p := range []string{"a", "d"} {
			for _, name := range []string{"user.overlay.opaque", "user.overlay.whiteout", "user.overlay.redirect"} {
				if n, err := unix.Getxattr(filepath.Join(upper, p), name, nil); err == nil {
					t.Errorf("the box gave %s the mark %s (%d bytes) in its layer", p, name, n)
				}
			}
		}
	})

	t.Run("renaming a folder of the workspace works as moving it", func(t *testing.T) {
		t.Parallel()
		lower := filled(t, map[string]string{"old/x": "x\n"})
		j, upper := s.layered(t, `mv old new; test ! -e old; cat new/x`, lower)
		r := s.run(t, j)
		r.passed(t)
		if b, err := os.ReadFile(filepath.Join(upper, "new/x")); err != nil || string(b) != "x\n" {
			t.Errorf("new/x holds %q (%v)", b, err)
		}
	})

	t.Run("a mount inside the workspace is made in the box's own layer", func(t *testing.T) {
		t.Parallel()
		lower := filled(t, map[string]string{"sub/x": "x\n"})
		dir := mounted(t, map[string]string{"m": "of the mount"})
		j, _ := s.layered(t, `cat sub/m; echo w > sub/w`, lower)
		j.Mounts = append(j.Mounts, box.Mount{Source: dir, Target: "/workspace/sub"})
		r := s.run(t, j)
		r.passed(t)
		if r.stdout != "of the mount" {
			t.Errorf("the mount reads %q", r.stdout)
		}
		unchanged(t, lower, map[string]string{"sub/x": "x\n"})
		holds(t, dir, map[string]string{"m": "of the mount", "w": "w\n"})
	})
}
