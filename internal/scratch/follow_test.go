package scratch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
)

func TestFollowTakesNoLinkOfSomebodyElse(t *testing.T) {
	need.Root(t)
	at := must(filepath.EvalSymlinks(t.TempDir()))
	must(0, os.MkdirAll(filepath.Join(at, "real", "in"), 0o755))
	must(0, os.WriteFile(filepath.Join(at, "file"), nil, 0o644))
	for name, to := range map[string]string{"ours": "real", "absolute": filepath.Join(at, "real"), "theirs": "real", "nowhere": "none/at/all", "round": "round", "up": "real/../real/in"} {
		must(0, os.Symlink(to, filepath.Join(at, name)))
	}
	must(0, os.Lchown(filepath.Join(at, "theirs"), 54321, 54321))
	for _, c := range []struct{ path, real, err string }{
		{path: "real/in", real: "real/in"},
		{path: "ours/in", real: "real/in"},
		{path: "absolute/in/new/deep", real: "real/in/new/deep"},
		{path: "up/new", real: "real/in/new"},
		{path: "theirs", err: "belongs to user 54321"},
		{path: "theirs/in", err: "belongs to user 54321"},
		{path: "nowhere/x", err: "does not exist"},
		{path: "round", err: "too many links"},
		{path: "file", err: "not a folder"},
		{path: "file/x", err: "not a directory"},
	} {
		dir, real, err := Follow(filepath.Join(at, c.path), 0o755)
		switch {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v", c.path, err)
			}
			continue
		case err != nil:
			t.Errorf("%s: %v", c.path, err)
			continue
		}
		if real != filepath.Join(at, c.real) || !os.SameFile(must(dir.Stat()), must(os.Stat(real))) {
			t.Errorf("%s leads to %s, and not to %s", c.path, real, c.real)
		}
		dir.Close()
	}
	if _, err := os.Lstat(filepath.Join(at, "none")); err == nil {
		t.Error("something was made where a link leads to nothing")
	}
	if _, _, err := Follow("relative", 0o755); err == nil {
		t.Error("a path without a beginning was followed")
	}
}

func TestRootKeepsNothingWhereOthersCouldSwapIt(t *testing.T) {
	need.Root(t)
	dir := t.TempDir()
	for _, c := range []struct {
		name string
		mode os.FileMode
		uid  int
		ok   bool
	}{
		{"roots", 0o755, 0, true},
		{"like tmp", 0o777 | os.ModeSticky, 0, true},
		{"open", 0o777, 0, false},
		{"of a group", 0o775, 0, false},
		{"theirs", 0o755, 54321, false},
		{"theirs, and sticky", 0o777 | os.ModeSticky, 54321, false},
	} {
		for _, below := range []string{"", "/tmp"} {
			at := filepath.Join(dir, c.name)
			must(0, os.MkdirAll(at+below, 0o755))
			must(0, os.Chown(at, c.uid, c.uid))
			must(0, os.Chmod(at, c.mode))
			if err := RootsWay(at + below); (err == nil) != c.ok {
				t.Errorf("%s%s: %v", c.name, below, err)
			}
		}
	}
}

// Attack: nobody of a user namespace, who is an account there as any other, owns what
// root would take for the machine's own root's.
func TestWhoHasNoIDIsNotWhoHasTheSameOne(t *testing.T) {
	for uidMap, want := range map[string]bool{
		"         0          0 4294967295\n":                      true, // the machine itself
		"         0     100000      65536\n":                      true,
		"         0       1000          1\n     1 100000 65536\n": true,
		"         0       1000          1\n":                      false,
		"         0     100000      65534\n":                      false,
		"     65535     100000          9\n":                      false,
		"     65534     100000          1\n":                      true,
		"":                                                        true,
		"nonsense":                                                true,
		"a 0 1\n":                                                 true,
	} {
		if got := hasID(uidMap, 65534); got != want {
			t.Errorf("%q: %v", uidMap, got)
		}
	}
}
