package steps

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// swapped does what whoever owns the folder above a workspace can do while root works
// on it: the folder of transactions goes, and links to a victim stand where the next
// ones will be. The victim has to be as it was when the test ends.
func swapped(t *testing.T, tree *Tree) {
	t.Helper()
	victim := t.TempDir()
	runs, err := filepath.Glob(filepath.Join(tree.store.Path(), "run-*"))
	if err != nil || len(runs) != 1 {
		t.Fatalf("%v (%v)", runs, err)
	}
	store := tree.store.Path()
	if err := os.Rename(store, store+".away"); err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		txn := filepath.Join(runs[0], fmt.Sprintf("txn-%06d", i))
		if err := os.MkdirAll(txn, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(victim, filepath.Join(txn, "upper")); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		list, err := os.ReadDir(victim)
		if err != nil || len(list) > 0 {
			t.Errorf("written through a link: %v (%v)", list, err)
		}
		if st, err := os.Stat(victim); err != nil || st.Mode().Perm() != 0o755 {
			t.Errorf("changed through a link: %v (%v)", st.Mode(), err)
		}
		if made, err := filepath.Glob(filepath.Join(runs[0], "*", ".*")); err != nil || len(made) > 0 {
			t.Errorf("made where another folder was planted: %v (%v)", made, err)
		}
		if err := os.RemoveAll(store); err != nil {
			t.Error(err)
		}
		if err := os.Rename(store+".away", store); err != nil {
			t.Error(err)
		}
	})
}

// Attack: a stranger who owns the folder above the workspace has root write elsewhere.
func TestFilesOfASetupGoWhereNobodySwappedTheFolder(t *testing.T) {
	tree, _ := openTree(t, map[string]string{"cron.d/job": "1", "req.txt": "2"})
	v, _ := written(t, tree, "b", "2")
	defer v.drop()
	swapped(t, tree)
	if sum, missing, err := v.shown(t.Context(), []string{"cron.d/job", "req.txt"}); err != nil || sum == "" || len(missing) > 0 {
		t.Errorf("%q %q %v", sum, missing, err)
	}
}

func TestWhatTheHostWritesGoesWhereNobodySwappedTheFolder(t *testing.T) {
	tree, dir := openTree(t, map[string]string{".git/config": withToken, "sub/.git/config": withToken, "f": "1"})
	v, _ := written(t, tree, "b", "2")
	swapped(t, tree)
	put := func(name string) error {
		return tree.Change(t.Context(), "host", nil, func(d *Draft) error { return d.File(name, []byte("2")) })
	}
	err := errors.Join(put("f"), put("in/a/folder")) // kept, with nothing of it in the workspace yet
	err = errors.Join(err, tree.Change(t.Context(), "host", func(to string) error {
		return os.WriteFile(filepath.Join(to, "staged"), nil, 0o600)
	}, func(d *Draft) error { return d.Fit(nil) }))
	err = errors.Join(err, tree.Whole(t.Context(), func(root string) error {
		_, err := os.Stat(filepath.Join(root, "in/a/folder"))
		return err
	}))
	if err != nil {
		t.Error(err)
	}
	v.drop()
	if err := os.RemoveAll(filepath.Join(dir, "sub")); err != nil { // for a mask that is another
		t.Fatal(err)
	}
	if err := put("last"); err != nil {
		t.Error(err)
	}
	if err := errors.Join(tree.bare, tree.half); err != nil || len(tree.failures()) > 0 {
		t.Error(err, tree.failures())
	}
	for _, name := range []string{"f", "in/a/folder", "staged", "last"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

func TestAShadowIsWhereNobodySwappedTheFolder(t *testing.T) {
	tree, dir := openTree(t, map[string]string{"f": "1"})
	swapped(t, tree)
	if err := tree.makeShadow(t.Context()); err != nil {
		t.Fatal(err)
	}
	txn, err := tree.shadow.New("s")
	if err == nil {
		err = errors.Join(os.WriteFile(filepath.Join(txn.UpperAt(), "f"), []byte("2"), 0o600), txn.Drop(), tree.shadow.Close())
	}
	if err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || string(b) != "1" {
		t.Errorf("%q %v", b, err)
	}
}
