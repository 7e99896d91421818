package steps

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What lies above the layer that hides what is secret would show it.
func TestNothingSecretIsTakenFromTheHostWhileAStepRuns(t *testing.T) {
	tree, dir := openTree(t, map[string]string{".git/config": withToken, "a": "1"})
	put := func(name, text string) error {
		return tree.Change(t.Context(), "host", nil, func(d *Draft) error { return d.File(name, []byte(text)) })
	}
	v, _ := written(t, tree, "b", "2")
	if err := put(".git/config", withToken+"\n"); err == nil || !strings.Contains(err.Error(), "what is secret") {
		t.Errorf("got %v", err)
	}
	if err := put("a", "2"); err != nil {
		t.Errorf("the control: %v", err)
	}
	v.drop()
	if err := put(".git/config", strings.ReplaceAll(withToken, "c2VjcmV0", "b3RoZXI=")); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]string{"a": "2", ".git/config": strings.ReplaceAll(withToken, "c2VjcmV0", "b3RoZXI=")} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != want {
			t.Errorf("%s is %q (%v)", name, b, err)
		}
	}
	if b, err := os.ReadFile(filepath.Join(tree.maskDir, ".git/config")); err != nil || strings.Contains(string(b), "b3RoZXI=") {
		t.Errorf("steps see %q (%v)", b, err)
	}
}

// What the host writes while nothing runs is as secret as what was there before, also
// where nothing was.
func TestWhatTheHostWroteIsHiddenToo(t *testing.T) {
	for name, before := range map[string]map[string]string{
		"nothing was secret":   {"a": "1"},
		"something was secret": {"a": "1", ".git/config": withToken},
	} {
		t.Run(name, func(t *testing.T) {
			tree, dir := openTree(t, before)
			const token = "//registry.example.com/:_authToken=SEKRET\n"
			for _, path := range []string{".npmrc", "sub/.git/config"} {
				text := token
				if path != ".npmrc" {
					text = withToken
				}
				if err := tree.Change(t.Context(), "host", nil, func(d *Draft) error { return d.File(path, []byte(text)) }); err != nil {
					t.Fatal(err)
				}
				if b, err := os.ReadFile(filepath.Join(dir, path)); err != nil || string(b) != text {
					t.Errorf("%s is %q on the host (%v)", path, b, err)
				}
				hidden := filepath.Join(tree.maskDir, path)
				b, err := os.ReadFile(hidden)
				var st unix.Stat_t
				if serr := unix.Lstat(hidden, &st); tree.maskDir == "" || serr != nil {
					t.Errorf("nothing hides %s (%v)", path, serr)
				} else if strings.Contains(string(b), "SEKRET") || strings.Contains(string(b), "c2VjcmV0") {
					t.Errorf("steps see %q of %s (%v)", b, path, err)
				}
			}
		})
	}
}

// hostWrites puts a file into the workspace as WriteFile does.
func hostWrites(t *testing.T, tree *Tree, name, text string) error {
	t.Helper()
	return tree.Change(t.Context(), "WriteFile "+name, nil, func(d *Draft) error { return d.File(name, []byte(text)) })
}

// The folder on the host can change, or its disk fill up, before what was kept gets there.
func TestWhatTheHostWroteIsNotLostInSilence(t *testing.T) {
	for _, tc := range []struct {
		sentence string
		saw      bool // the second step began after the host wrote
		restore  bool // and wrote once more, what cannot be one with that
	}{
		{"a step that did not see it keeps what it wrote", false, false},
		{"one that saw it was made for what is not there", true, false},
		{"another change of the host's stands by itself", false, true},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			tree, dir := openTree(t, map[string]string{"d/old": "1", "e/old": "1"})
			long, _ := written(t, tree, "z", "1")
			first, changes := written(t, tree, "first", "1")
			if err := hostWrites(t, tree, "d/x", "2"); err != nil {
				t.Fatal(err)
			}
			if tc.restore {
				err := tree.Change(t.Context(), "Restore", func(to string) error {
					return errors.Join(os.WriteFile(filepath.Join(to, "r1"), nil, 0o644), os.WriteFile(filepath.Join(to, "r2"), nil, 0o644))
				}, nil)
				if err != nil {
					t.Fatal(err)
				}
			}
			if tc.saw {
				first.drop()
				first, changes = written(t, tree, "first", "1")
			}
			if err := first.keep(t.Context(), changes); err != nil {
				t.Fatal(err)
			}
			if err := tree.Lost(false); err != nil {
				t.Fatalf("before anything could fail: %v", err)
			}
			// The folder that it is to go into is a file by now.
			if err := errors.Join(os.RemoveAll(filepath.Join(dir, "d")), os.WriteFile(filepath.Join(dir, "d"), nil, 0o644)); err != nil {
				t.Fatal(err)
			}
			long.drop()
			if err := tree.Lost(false); err == nil || !strings.Contains(err.Error(), "WriteFile d/x: ") {
				t.Errorf("lost: %v", err)
			}
			if err := tree.Lost(false); err != nil {
				t.Errorf("told twice: %v", err)
			}
			b, _ := os.ReadFile(filepath.Join(dir, "first"))
			if f := tree.failures(); (f["first"] != nil) != tc.saw || (string(b) == "1") == tc.saw || f["WriteFile d/x"] != nil {
				t.Errorf("first is %q, failures %v", b, f)
			}
			if _, err := os.Stat(filepath.Join(dir, "r2")); (err == nil) != tc.restore {
				t.Errorf("r2: %v", err)
			}
		})
	}
}

func TestACallThatWasOverIsNotLostInSilence(t *testing.T) {
	tree, dir := openTree(t, map[string]string{"d/old": "1"})
	long, _ := written(t, tree, "z", "1")
	v, changes := written(t, tree, "d/y", "1")
	if err := v.keep(t.Context(), changes); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.RemoveAll(filepath.Join(dir, "d")), os.WriteFile(filepath.Join(dir, "d"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	long.drop()
	(&Runner{Tree: tree}).undo(map[string]*StepResult{}, nil) // at the end of another call
	if err := tree.Lost(false); err == nil || !strings.Contains(err.Error(), "had ended wrote d/y") {
		t.Errorf("lost: %v", err)
	}
}

// Any number of files can be written while one thing runs: a box has room for few layers.
func TestFilesThatTheHostWritesAreOneLayer(t *testing.T) {
	tree, dir := openTree(t, map[string]string{"d/old": "1", "f": "1"})
	if err := os.Chmod(filepath.Join(dir, "d"), 0o750); err != nil {
		t.Fatal(err)
	}
	long, changes := written(t, tree, "z", "1")
	put := func(name, text string) {
		t.Helper()
		if err := hostWrites(t, tree, name, text); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	for i := range 300 {
		put(fmt.Sprintf("d/e%d/x", i%7), strconv.Itoa(i))
	}
	put("f", "2")
	put("f", "3")
	put("g", "1")
	if n := len(tree.kept); n != 1 {
		t.Errorf("%d layers", n)
	}
	if n := len(tree.kept[0].calls); n != 9 {
		t.Errorf("by %q", tree.kept[0].calls)
	}
	// What a step sees stays as it is.
	v, seen := written(t, tree, "f", "step")
	if at, err := os.ReadFile(filepath.Join(tree.kept[0].after, "f")); err != nil || string(at) != "3" {
		t.Errorf("%q %v", at, err)
	}
	put("f", "4")
	put("h", "1")
	if n := len(tree.kept); n != 2 {
		t.Errorf("%d layers", n)
	}
	if err := v.keep(t.Context(), seen); err == nil || !strings.Contains(err.Error(), `"f" was changed by this step and, meanwhile, by WriteFile f;`) {
		t.Errorf("got %v", err)
	}
	put("f", "5") // no step sees that layer now
	if n := len(tree.kept); n != 2 {
		t.Errorf("%d layers", n)
	}
	put("f", "1") // as it was on the host
	if err := long.keep(t.Context(), changes); err != nil {
		t.Error(err)
	}
	if err := tree.Lost(true); err != nil || len(tree.kept) > 0 {
		t.Error(err, len(tree.kept))
	}
	for name, want := range map[string]string{"d/e0/x": "294", "d/e5/x": "299", "f": "1", "g": "1", "h": "1", "z": "1", "d/old": "1"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != want {
			t.Errorf("%s is %q (%v), want %q", name, b, err, want)
		}
	}
	if st, err := os.Stat(filepath.Join(dir, "d")); err != nil || st.Mode().Perm() != 0o750 {
		t.Errorf("%v %v", st.Mode(), err)
	}
}

// What cannot be one layer is bounded, and the error says what to do.
func TestHowMuchTheHostCanHaveKept(t *testing.T) {
	tree, _ := openTree(t, map[string]string{"f": "1"})
	long, _ := written(t, tree, "z", "1")
	defer long.drop()
	for i := range maxHostKept + 1 {
		err := tree.Change(t.Context(), "Restore", func(to string) error {
			return errors.Join(os.WriteFile(filepath.Join(to, "a"), []byte(strconv.Itoa(i)), 0o644), os.WriteFile(filepath.Join(to, "b"), []byte(strconv.Itoa(i)), 0o644))
		}, nil)
		if over := i == maxHostKept; over != (err != nil) || over && !strings.Contains(err.Error(), "close the kernel") {
			t.Fatalf("change %d: %v", i, err)
		}
	}
	tree.kept = append(tree.kept, make([]*layer, mostKept-maxHostKept)...)
	if _, err := tree.view(t.Context(), PlanStep{ID: "a", DiskMb: 4}, nil); err == nil || !strings.Contains(err.Error(), "close the kernel") {
		t.Errorf("a box of more layers than there can be: %v", err)
	}
	tree.kept = tree.kept[:maxHostKept]
}

// What ends while all is read is not brought in between.
func TestWholeStandsStill(t *testing.T) {
	tree, dir := openTree(t, map[string]string{"f": "1"})
	v, changes := written(t, tree, "f", "2")
	err := tree.Whole(t.Context(), func(root string) error {
		if err := errors.Join(v.keep(t.Context(), changes), hostWrites(t, tree, "g", "2")); err != nil {
			return err
		}
		b, err := os.ReadFile(filepath.Join(root, "f"))
		if _, e := os.Stat(filepath.Join(root, "g")); e == nil || string(b) != "1" {
			t.Errorf("%q, %v: it changed while it was read", b, e)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"f", "g"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != "2" {
			t.Errorf("%s is %q (%v) afterwards", name, b, err)
		}
	}
}
