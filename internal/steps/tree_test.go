package steps

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/commit"
)

// written opens a view, writes a file to its layer and gives the changes.
func written(t *testing.T, tree *Tree, name, text string) (*view, []workspace.Change) {
	t.Helper()
	v, err := tree.view(t.Context(), PlanStep{ID: name, DiskMb: 4}, nil)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(v.room.Upper(), name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	d, err := v.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return v, d.Changes()
}

func openTree(t *testing.T, files map[string]string) (*Tree, string) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(dir, "ws")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tree, _, err := OpenTree(t.Context(), dir, TreeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
		if left, err := filepath.Glob(filepath.Join(filepath.Dir(dir), ".*")); err != nil || len(left) > 0 {
			t.Errorf("%v is left beside the workspace (%v)", left, err)
		}
	})
	return tree, dir
}

const withToken = "[core]\n\tbare = false\n[http \"https://example.com/\"]\n\textraheader = AUTHORIZATION: basic c2VjcmV0\n"

func TestTreeKeepsTheMaskThatHolds(t *testing.T) {
	tree, dir := openTree(t, map[string]string{".git/config": withToken, "sub/.git/config": withToken, "a": "1"})
	before := tree.maskDir
	if before == "" {
		t.Fatal("nothing is hidden")
	}
	v, changes := written(t, tree, "b", "2")
	if err := v.keep(t.Context(), changes); err != nil {
		t.Fatal(err)
	}
	if tree.maskDir != before {
		t.Error("the mask was made anew although nothing of it changed")
	}
	// A folder that is gone does not come back through the layer that hid
	// something in it.
	if err := os.RemoveAll(filepath.Join(dir, "sub")); err != nil {
		t.Fatal(err)
	}
	v, changes = written(t, tree, "c", "3")
	if err := v.keep(t.Context(), changes); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(tree.maskDir, "sub")); err == nil || tree.maskDir == before {
		t.Errorf("the layer still has the folder (%v)", err)
	}
	if b, err := os.ReadFile(filepath.Join(tree.maskDir, ".git/config")); err != nil || strings.Contains(string(b), "c2VjcmV0") || !strings.Contains(string(b), "bare") {
		t.Errorf("%q %v", b, err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, ".git/config")); err != nil || string(b) != withToken {
		t.Errorf("the real file is %q (%v)", b, err)
	}
}

// A step can fill the disk that the new mask is to be written to.
func TestTreeShowsNothingOnceItCannotHideWhatIsSecret(t *testing.T) {
	tree, dir := openTree(t, map[string]string{".git/config": withToken, "sub/.git/config": withToken})
	v, changes := written(t, tree, "b", "2")
	if err := os.RemoveAll(filepath.Join(dir, "sub")); err != nil { // so that a new one is needed
		t.Fatal(err)
	}
	store := tree.store
	full, err := commit.Open(t.TempDir(), commit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := full.Close(); err != nil {
		t.Fatal(err)
	}
	tree.store = full
	if _, err := tree.store.New("mask"); err == nil {
		t.Fatal("the control: a folder for a mask was made")
	}
	sr := &StepResult{ID: "s", Status: StatusPassed}
	(&Runner{Tree: tree}).conclude(t.Context(), v, PlanStep{ID: "s"}, sr, wrote{known: true, changes: 1, commit: changes})
	tree.store = store
	if b, err := os.ReadFile(filepath.Join(dir, "b")); err != nil || string(b) != "2" || sr.Status != StatusPassed || sr.Workspace != "committed" {
		t.Errorf("the step is %s (%s), %s, and the workspace has %q (%v)", sr.Status, sr.Reason, sr.Workspace, b, err)
	}
	if v, err := tree.view(t.Context(), PlanStep{ID: "next", DiskMb: 4}, nil); err == nil {
		v.drop()
		t.Errorf("the next step sees the workspace through %+v", v.stack)
	}
}

// Steps that run at once see the state they started from, and what one keeps is
// in the workspace when none of them runs any more.
func TestTreeSideBySide(t *testing.T) {
	tree, dir := openTree(t, map[string]string{"a": "1"})
	exists := func(name string) bool { _, err := os.Lstat(filepath.Join(dir, name)); return err == nil }
	one, first := written(t, tree, "one", "1")
	two, second := written(t, tree, "two", "2")
	same, third := written(t, tree, "one", "other")
	if err := one.keep(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if exists("one") {
		t.Error("the workspace changed while another step sees it")
	}
	late, fourth := written(t, tree, "late", "4")
	var b box.Spec
	late.show(&b)
	if len(b.Overlay.Lower) != 2 {
		t.Errorf("a later step sees %v, want what the first one kept and the workspace", b.Overlay.Lower)
	}
	if err := two.keep(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	if err := same.keep(t.Context(), third); err == nil || !strings.Contains(err.Error(), `"one" was changed`) {
		t.Errorf("the same file with another content: %v", err)
	}
	if exists("one") || exists("two") {
		t.Error("the workspace changed while a step sees it")
	}
	if err := late.keep(t.Context(), fourth); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"one": "1", "two": "2", "late": "4", "a": "1"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != want {
			t.Errorf("%s holds %q (%v), want %q", name, b, err, want)
		}
	}
	if f := tree.failures(); len(f) > 0 {
		t.Errorf("%v", f)
	}
}

func TestTreeThatOnlyShows(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ws")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	tree, _, err := OpenTree(t.Context(), dir, TreeOptions{OnlyShow: true})
	if err != nil {
		t.Fatal(err)
	}
	v, changes := written(t, tree, "made", "1")
	if err := v.keep(t.Context(), changes); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(tree.bottom, "made")); err != nil {
		t.Errorf("a later step would not see it: %v", err)
	}
	if err := tree.Close(); err != nil {
		t.Error(err)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
		t.Errorf("the workspace holds %v (%v)", list, err)
	}
}

// The workspace's own folder has a mode like any other, and all twelve bits of it.
func TestTreeShowsTheModeThatTheWorkspaceHasNow(t *testing.T) {
	tree, dir := openTree(t, map[string]string{"a": "1"})
	for i, mode := range []os.FileMode{0o700, 0o755 | os.ModeSetgid, 0o777 | os.ModeSticky, 0o755} {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		name := "f" + string(rune('0'+i))
		v, changes := written(t, tree, name, "x")
		if len(changes) != 1 || changes[0].Path != name {
			t.Errorf("mode %v: a step that wrote one file changed %+v", mode, changes)
		}
		if err := v.keep(t.Context(), changes); err != nil {
			t.Fatal(err)
		}
		if st, err := os.Stat(dir); err != nil || st.Mode()&^os.ModeDir != mode {
			t.Errorf("the workspace has mode %v (%v), want %v", st.Mode(), err, mode)
		}
	}
}

func TestOnlyWhatTheStepWroteCountsAsWritten(t *testing.T) {
	tree, _ := openTree(t, map[string]string{"a": "x"})
	v, err := tree.view(t.Context(), PlanStep{ID: "s", DiskMb: 4}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer v.drop()
	// As an overlay does when it is mounted.
	for _, dir := range []string{"work", "index", "incompat/volatile"} {
		if err := os.MkdirAll(filepath.Join(v.room.Work(), dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if use, err := v.used(t.Context()); err != nil || use.UsedBytes != 0 || use.UsedInodes != 0 || use.Full || use.Over {
		t.Errorf("of nothing: %+v, %v", use, err)
	}
	if err := os.WriteFile(filepath.Join(v.room.Upper(), "f"), make([]byte, 10000), 0o644); err != nil {
		t.Fatal(err)
	}
	if use, err := v.used(t.Context()); err != nil || use.UsedInodes != 1 || use.UsedBytes < 10000 || use.UsedBytes > 32<<10 {
		t.Errorf("of one file: %+v, %v", use, err)
	}
}

func TestAWorkspaceOfSomebodyElse(t *testing.T) {
	name := func(int) string { return "ann" }
	for _, tc := range []struct {
		sentence    string
		user, owner int
		want        string
	}{
		{"its owner can run steps on it", 1000, 1000, ""},
		{"root can run steps on anybody's", 0, 1000, ""},
		{"another user is told whose it is", 1001, 1000, "the workspace belongs to ann (uid 1000), and this is uid 1001: run as its owner, or give it to this account"},
		{"so it is with root's", 1001, 0, "the workspace belongs to ann (uid 0), and this is uid 1001: run as its owner, or give it to this account"},
	} {
		if got := notOwner(tc.user, tc.owner, name); got != tc.want {
			t.Errorf("%s: %q", tc.sentence, got)
		}
	}
	for _, tc := range []struct {
		sentence         string
		user, own, group int
		want             string
	}{
		{"of his own group he gets an overlay", 1000, 1000, 1000, ""},
		{"root's boxes have the workspace's group", 0, 0, 1000, ""},
		{
			"of another group he gets copies, and is told what spares them", 1000, 1000, 100,
			"it belongs to group 100, and this account's is 1000, the only one in a box; to spare the copies: chgrp -R 1000 '/w/a b'",
		},
	} {
		if got := otherGroup(tc.user, tc.own, tc.group, "/w/a b"); got != tc.want {
			t.Errorf("%s: %q", tc.sentence, got)
		}
	}
	if got := userName(0); got != "root" {
		t.Errorf("uid 0 is %q", got)
	}
}
