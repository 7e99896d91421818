package commit_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/commit"
)

const storeOf = ".ws.untrusted-steps"

// begun is a fixture whose process died when it had just made its commit: its
// store has a journal that the next start carries out.
func begun(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t, "file a 0644 old", "file a 0644 new\nfile b 0644 new")
	if killed, _ := f.crashedAt(t, "commit", "wrote journal"); !killed {
		t.Fatal("no step made the commit")
	}
	return f
}

// In a folder such as /tmp anybody may have made what lies beside the
// workspace, and whoever can write to a store can write a journal.
func TestAForgedStoreIsNotUsed(t *testing.T) { // attack 161
	for _, tt := range []struct {
		name, why string
		root      bool
		forge     func(store string) error
	}{
		{"the control: nobody touched it", "", false, func(string) error { return nil }},
		{"a link to a store", "other than a folder", false, func(store string) error {
			return errors.Join(os.Rename(store, store+"-real"), os.Symlink(store+"-real", store))
		}},
		{"a file", "other than a folder", false, func(store string) error {
			return errors.Join(os.Rename(store, store+"-real"), os.WriteFile(store, nil, 0o600))
		}},
		{"a folder that all may write to", "open to others (mode 0777)", false, func(store string) error { return os.Chmod(store, 0o777) }},
		{"a folder that a group may look into", "open to others (mode 0710)", false, func(store string) error { return os.Chmod(store, 0o710) }},
		{"a folder of another user", "belongs to user 61235", true, func(store string) error { return os.Chown(store, plainID, plainID) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.root {
				boxtest.Need(t, "root")
			}
			f := begun(t)
			do(t, os.Chmod(f.dir, os.ModeSticky|0o777))
			store := filepath.Join(f.dir, storeOf)
			do(t, tt.forge(store))
			kept := store
			if _, err := os.Lstat(store + "-real"); err == nil {
				kept = store + "-real"
			}
			before := snapshot(t, kept)
			f.options.StateDirs = []string{filepath.Join(f.dir, "state", "of", "ws")}
			s := f.open(t)
			passed := strings.Join(s.Passed(), "\n")
			if tt.why == "" {
				if s.Path() != store || passed != "" || lines(f.new, snapshot(t, f.ws)) != nil {
					t.Errorf("used %q (%s); want the journal carried out", s.Path(), passed)
				}
				do(t, s.Close())
				return
			}
			if s.Path() != f.options.StateDirs[0] || !strings.Contains(passed, tt.why) || !strings.Contains(passed, store) {
				t.Errorf("used %q and says %q; want it to say %q", s.Path(), passed, tt.why)
			}
			do(t, s.Close())
			if d := lines(f.old, snapshot(t, f.ws)); d != nil {
				t.Errorf("the forged journal was carried out:\n%s", strings.Join(d, "\n"))
			}
			if d := lines(before, snapshot(t, kept)); d != nil {
				t.Errorf("what is not ours was changed:\n%s", strings.Join(d, "\n"))
			}
		})
	}
}

func TestAStoreInTheWorkspaceIsNotUsed(t *testing.T) {
	f := newFixture(t, "dir in", "")
	do(t, os.WriteFile(filepath.Join(f.dir, storeOf), nil, 0o600), os.Symlink(f.ws, filepath.Join(f.dir, "way")))
	for _, state := range []string{filepath.Join(f.ws, "in"), filepath.Join(f.dir, "way", "x", "y"), f.ws, "relative"} {
		f.options.StateDirs = []string{state}
		s, err := commit.Open(f.ws, f.options)
		if err == nil {
			t.Errorf("%s: used %q", state, s.Path())
			do(t, s.Close())
			continue
		}
		for _, want := range []string{f.ws, storeOf, "other than a folder", state, "XDG_STATE_HOME"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: the error does not name %q: %v", state, want, err)
			}
		}
		if d := lines(f.old, snapshot(t, f.ws)); d != nil {
			t.Errorf("%s: changed:\n%s", state, strings.Join(d, "\n"))
		}
	}
	// The workspace within the store is no better.
	inner := filepath.Join(f.dir, "outer", "ws")
	do(t, os.MkdirAll(inner, 0o700), os.Chmod(filepath.Dir(inner), 0o700), os.WriteFile(filepath.Join(f.dir, "outer", storeOf), nil, 0o600))
	if s, err := commit.Open(inner, commit.Options{StateDirs: []string{filepath.Dir(inner)}}); err == nil || !strings.Contains(err.Error(), "within one another") {
		t.Errorf("got %v, %v", s, err)
	}
}

func TestWhatIsKeptInMemoryOrNotAtAllIsNoStore(t *testing.T) {
	boxtest.Need(t, "root")
	f := newFixture(t, "", "")
	do(t, os.WriteFile(filepath.Join(f.dir, storeOf), nil, 0o600))
	mem := otherDisk(t, "1m")
	f.options.StateDirs = []string{filepath.Join(mem, "state")}
	if s, err := commit.Open(f.ws, f.options); err == nil || !strings.Contains(err.Error(), "tmpfs, which is memory") {
		t.Errorf("got %v, %v", s, err)
	}
	if list, err := os.ReadDir(mem); len(list) != 0 {
		t.Errorf("left %v there (%v)", list, err)
	}
}

func TestALivingRunIsNotTouched(t *testing.T) { // attack 162
	f := newFixture(t, "file a 0644 x", "file a 0644 y\nfile b 0644 y")
	mine := f.open(t)
	txn, err := mine.New("build")
	do(t, err, os.WriteFile(filepath.Join(txn.Upper(), "f"), nil, 0o644))
	// Runs that come and go, in this process and in one that dies.
	for at := range 12 {
		f.crashed(t, "recover", at)
	}
	other := f.open(t)
	if w := strings.Join(other.Recovered(), "\n"); strings.Contains(w, "completed") {
		t.Errorf("says %q", w)
	}
	do(t, other.Close())
	if _, err := os.Lstat(filepath.Join(txn.Upper(), "f")); err != nil {
		t.Fatalf("the living run has lost what its step wrote: %v", err)
	}
	_, err = txn.Commit(context.Background(), f.changes, f.after)
	do(t, err, mine.Close())
	if d := lines(f.new, snapshot(t, f.ws)); d != nil || f.beside(t) != nil {
		t.Errorf("differs %q, left %q", d, f.beside(t))
	}
}

// A run that dies while another lives is completed before the other commits:
// later, it would undo what came after it.
func TestACommitCompletesThatOfARunThatDied(t *testing.T) {
	f := begun(t)
	// This store is older than the crash, as far as it knows.
	hidden := filepath.Join(f.dir, "hidden")
	store := filepath.Join(f.dir, storeOf)
	list, err := filepath.Glob(store + "/run-*")
	do(t, err, os.Rename(list[0], hidden))
	s := f.open(t)
	do(t, os.Rename(hidden, list[0]))
	after := filepath.Join(f.dir, "mine")
	build(t, after, "file a 0644 mine")
	changes := newFixture(t, "file a 0644 old", "file a 0644 mine").changes
	txn, err := s.New("later")
	do(t, err)
	_, err = txn.Commit(context.Background(), changes, after)
	do(t, err)
	if w := s.Recovered(); len(w) != 1 {
		t.Errorf("says %q", w)
	}
	do(t, s.Close(), os.RemoveAll(after))
	want := newFixture(t, "file a 0644 mine\nfile b 0644 new", "")
	if d := lines(want.old, snapshot(t, f.ws)); d != nil || f.beside(t) != nil {
		t.Errorf("differs %q, left %q", d, f.beside(t))
	}
}

func TestRunsAtOnce(t *testing.T) {
	f := newFixture(t, "", "")
	var wg sync.WaitGroup
	const runs, each = 6, 8
	for run := range runs {
		wg.Go(func() {
			for i := range each {
				name := fmt.Sprintf("f%d-%d", run, i)
				g := newFixture(t, "", "file "+name+" 0644 x")
				g.ws = f.ws
				if _, err := g.commit(t); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got := snapshot(t, f.ws).Len(); got != runs*each {
		t.Errorf("%d files, want %d", got, runs*each)
	}
	if b := f.beside(t); b != nil {
		t.Errorf("left %q", b)
	}
}

// The last user of a store takes it away between any two looks of the next.
func TestAStoreComesAndGoes(t *testing.T) {
	f := newFixture(t, "", "")
	stop, gone := make(chan bool), make(chan bool)
	go func() {
		defer close(gone)
		for {
			select {
			case <-stop:
				return
			default:
				_ = os.Mkdir(filepath.Join(f.dir, storeOf), 0o700)
				_ = os.Remove(filepath.Join(f.dir, storeOf))
				time.Sleep(20 * time.Microsecond)
			}
		}
	}()
	for range 300 {
		p := filepath.Join(f.dir, storeOf)
		s, err := commit.Open(f.ws, commit.Options{})
		if err != nil {
			t.Error(err)
			break
		}
		if s.Path() != p {
			t.Errorf("took %q", s.Path())
		}
		do(t, s.Close())
	}
	close(stop)
	<-gone
}

// A journal is for the folder it was written for, whatever lies there now.
func TestAJournalIsForOneFolder(t *testing.T) {
	t.Run("a new folder has the workspace's path", func(t *testing.T) {
		f := begun(t)
		do(t, os.Rename(f.ws, f.ws+"-before"))
		build(t, f.ws, "file a 0644 old")
		s := f.open(t)
		words := strings.Join(s.Recovered(), "\n")
		do(t, s.Close())
		if d := lines(f.old, snapshot(t, f.ws)); d != nil || !strings.Contains(words, "no longer at") {
			t.Errorf("says %q, and changed:\n%s", words, strings.Join(d, "\n"))
		}
	})
	t.Run("the store has another workspace's name", func(t *testing.T) {
		f := begun(t)
		other := filepath.Join(f.dir, "other")
		build(t, other, "file a 0644 old")
		do(t, os.Rename(filepath.Join(f.dir, storeOf), filepath.Join(f.dir, ".other.untrusted-steps")))
		s, err := commit.Open(other, commit.Options{})
		do(t, err, s.Close())
		if d := lines(f.old, snapshot(t, other)); d != nil {
			t.Errorf("changed:\n%s", strings.Join(d, "\n"))
		}
		do(t, os.Rename(filepath.Join(f.dir, ".other.untrusted-steps"), filepath.Join(f.dir, storeOf)), os.RemoveAll(other))
		if state := f.recovered(t, "its own again"); state != "new" {
			t.Errorf("its own workspace's run finds it %s", state)
		}
	})
}

func TestATornJournalIsNotGuessedAt(t *testing.T) {
	f := begun(t)
	list, err := filepath.Glob(filepath.Join(f.dir, storeOf, "run-*", "txn-*", "journal"))
	do(t, err)
	text, err := os.ReadFile(list[0])
	do(t, err)
	for name, bad := range map[string]string{
		"empty":                "",
		"without its end":      string(text[:strings.LastIndex(strings.TrimSpace(string(text)), "\n")+1]),
		"a line too few":       strings.Replace(string(text), `"ops":2`, `"ops":3`, 1),
		"of a later version":   strings.Replace(string(text), `"version":1`, `"version":2`, 1),
		"a path that leads up": strings.Replace(string(text), `"path":"YQ=="`, `"path":"Li4vYQ=="`, 1),
		"an unknown op":        strings.Replace(string(text), `"do":"file"`, `"do":"exec"`, 1),
	} {
		if bad == string(text) {
			t.Fatalf("%s: the journal is not spoiled:\n%s", name, text)
		}
		do(t, os.WriteFile(list[0], []byte(bad), 0o600))
		if s, err := commit.Open(f.ws, f.options); err == nil {
			t.Errorf("%s: recovered as %q", name, s.Recovered())
		} else if !strings.Contains(err.Error(), filepath.Join(f.dir, storeOf)) || !strings.Contains(err.Error(), "remove that folder") {
			t.Errorf("%s: the error does not help: %v", name, err)
		}
		if d := lines(f.old, snapshot(t, f.ws)); d != nil {
			t.Errorf("%s: changed:\n%s", name, strings.Join(d, "\n"))
		}
	}
	do(t, os.WriteFile(list[0], text, 0o600))
	if state := f.recovered(t, "the journal is whole again"); state != "new" {
		t.Errorf("the control is %s", state)
	}
}

func TestAFullDiskLeavesTheWorkspaceOld(t *testing.T) { // attack 164
	fill := func(dir string) {
		f, err := os.Create(filepath.Join(dir, "fill"))
		do(t, err)
		for buf := make([]byte, 4096); err == nil; {
			_, err = f.Write(buf)
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Error(err)
		}
		f.Close()
	}
	for _, at := range []string{"store held", "about to write the journal", ""} {
		t.Run("full "+at, func(t *testing.T) {
			disk := otherDisk(t, "1m")
			f := newFixture(t, "", "file a 0644 x\nfile b 0644 x")
			f.ws = filepath.Join(disk, "ws")
			build(t, f.ws, "file a 0644 old\ndir d")
			f.old = snapshot(t, f.ws)
			if at == "" {
				do(t, os.WriteFile(filepath.Join(f.after, "b"), make([]byte, 4<<20), 0o644))
			}
			f.new = snapshot(t, f.after)
			list := newFixture(t, "file a 0644 old\ndir d", "file a 0644 x\nfile b 0644 x").changes
			f.changes = list
			f.options = f.options.WithStep(func(step string) {
				if step == at {
					fill(disk)
				}
			})
			if _, err := f.commit(t); !errors.Is(err, unix.ENOSPC) || errors.Is(err, commit.ErrIncomplete) {
				t.Errorf("got %v", err)
			}
			if d := lines(f.old, snapshot(t, f.ws)); d != nil {
				t.Errorf("changed:\n%s", strings.Join(d, "\n"))
			}
			_ = os.Remove(filepath.Join(disk, "fill"))
			if left, err := os.ReadDir(disk); err != nil || len(left) != 1 {
				t.Errorf("left %v (%v)", left, err)
			}
		})
	}
}

// What root commits belongs to the workspace's owner.
func TestRootCommitsForTheOwner(t *testing.T) {
	boxtest.Need(t, "root")
	f := newFixture(t, "file a 0644 old\ndir d\nfile m 0600 x", "file a 0644 new\ndir d\nfile d/b 0600 new\nlink d/l x\ndir e\ndir e/f\nfile e/f/g 0644 new\nfile m 0644 x")
	do(t, os.Chown(f.ws, 1234, 5678), os.Chown(filepath.Join(f.ws, "m"), 1234, 5678))
	s := f.open(t)
	txn, err := s.New("build")
	do(t, err)
	for _, p := range []string{txn.Upper(), txn.Work()} {
		wantOwner(t, p)
	}
	st, err := os.Stat(txn.Upper())
	do(t, err)
	if st.Mode().Perm() != 0o755 {
		t.Errorf("the upper has mode %v, and the workspace 0755", st.Mode())
	}
	_, err = txn.Commit(context.Background(), f.changes, f.after)
	do(t, err, s.Close())
	for _, p := range []string{"a", "d/b", "d/l", "e", "e/f", "e/f/g", "m"} {
		wantOwner(t, filepath.Join(f.ws, p))
	}
	if d := lines(f.new, snapshot(t, f.ws)); d != nil {
		t.Errorf("differs:\n%s", strings.Join(d, "\n"))
	}
}

func wantOwner(t *testing.T, path string) {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil || st.Uid != 1234 || st.Gid != 5678 {
		t.Errorf("%s belongs to %d:%d (%v), want 1234:5678", path, st.Uid, st.Gid, err)
	}
}
