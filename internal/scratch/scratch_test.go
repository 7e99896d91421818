package scratch

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestSweepTakesWhatAKilledRunLeftAndNothingElse(t *testing.T) {
	temp := t.TempDir()
	at := func(name string) string { return filepath.Join(temp, name) }
	alive, dead, young := must(Make(temp, Kern)), must(Make(temp, Probe)), must(Make(temp, Client))
	// As the kernel does when the program is killed.
	dead.lock.Close()
	young.lock.Close()
	// An overlay's work folder, which only root can look into.
	must(0, os.MkdirAll(filepath.Join(dead.Path, "work", "deep"), 0o755))
	must(0, os.Chmod(filepath.Join(dead.Path, "work"), 0))
	victim := filepath.Join(t.TempDir(), "victim")
	must(0, os.Mkdir(victim, 0o700))
	for _, name := range []string{"other", "us-kern-5x", "us-kern-", "us-mine-5", "us-5", "xus-kern-5", "us-kern-5-6", "us-kern-77"} {
		must(0, os.Mkdir(at(name), 0o700))
	}
	must(0, os.Mkdir(at("us-kern-1"), 0o755))
	must(0, os.Symlink(victim, at("us-kern-2")))
	must(0, os.WriteFile(at("us-kern-3"), nil, 0o600))
	want := map[string]bool{filepath.Base(alive.Path): true, filepath.Base(young.Path): true}
	for _, name := range []string{"other", "us-kern-5x", "us-kern-", "us-mine-5", "us-5", "xus-kern-5", "us-kern-5-6", "us-kern-1", "us-kern-2", "us-kern-3"} {
		want[name] = true
	}
	if os.Geteuid() == 0 {
		must(0, os.Chown(at("us-kern-77"), 54321, 54321))
		want["us-kern-77"] = true
	}
	old := time.Now().Add(-time.Hour)
	for _, e := range must(os.ReadDir(temp)) {
		if at(e.Name()) != young.Path && e.Name() != "us-kern-2" {
			must(0, os.Chtimes(at(e.Name()), old, old))
		}
	}
	must(0, os.Chtimes(victim, old, old))
	Sweep(temp, time.Now())
	left := map[string]bool{}
	for _, e := range must(os.ReadDir(temp)) {
		left[e.Name()] = true
	}
	if d := cmp.Diff(want, left); d != "" {
		t.Error(d)
	}
	if _, err := os.Stat(victim); err != nil {
		t.Error(err)
	}
	if err := alive.Remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(alive.Path); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", alive.Path, err)
	}
}

// Its owner may move what lies in a folder. What is then in the place of ours is
// neither written to nor removed, and ours is emptied all the same.
func TestWhatIsPutInThePlaceOfAFolderIsLeftAlone(t *testing.T) {
	temp, moved := t.TempDir(), filepath.Join(t.TempDir(), "moved")
	f := must(Make(temp, Doctor))
	must(0, os.MkdirAll(filepath.Join(f.At(), "a", "b"), 0o755))
	must(0, os.Chmod(filepath.Join(f.At(), "a"), 0))
	must(0, os.Rename(f.Path, moved))
	theirs := filepath.Join(f.Path, "theirs")
	must(0, os.MkdirAll(theirs, 0o755))
	must(0, os.WriteFile(filepath.Join(f.At(), "c"), nil, 0o600))
	if err := f.Remove(); err == nil {
		t.Error("what was put in its place was removed")
	}
	if _, err := os.Stat(theirs); err != nil {
		t.Error(err)
	}
	if left := must(os.ReadDir(moved)); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

// They stop everybody but root, who is somebody else here.
func TestFoldersWithoutPermissionsAreEmptied(t *testing.T) {
	f := must(Make(t.TempDir(), Doctor))
	defer f.Remove()
	done := make(chan error)
	go func() {
		if os.Geteuid() == 0 {
			must(0, os.Chown(f.Path, 54321, 54321))
			runtime.LockOSThread() // it is another's from here on, and ends with this
			if _, _, en := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), 54321, ^uintptr(0)); en != 0 {
				done <- en
				return
			}
		}
		err := os.MkdirAll(filepath.Join(f.At(), "work", "incompat", "volatile"), 0o700)
		for _, dir := range []string{"work/incompat/volatile", "work/incompat"} {
			err = errors.Join(err, os.Chmod(filepath.Join(f.At(), dir), 0))
		}
		done <- errors.Join(err, f.empty())
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if left := must(os.ReadDir(f.Path)); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

func TestAFolderIsItsOwnersAlone(t *testing.T) {
	f := must(Make(t.TempDir(), Doctor))
	if st := must(os.Stat(f.Path)); st.Mode().Perm() != 0o700 {
		t.Errorf("mode %v", st.Mode())
	}
	if !Named(filepath.Base(f.Path)) {
		t.Errorf("a sweep would not know %s", f.Path)
	}
	if _, err := Make(t.TempDir(), "else"); err == nil {
		t.Error("a kind that no sweep knows was made")
	}
	if _, err := Make("/nowhere", Kern); err == nil {
		t.Error("made in no folder")
	}
}
