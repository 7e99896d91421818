package steps

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/scratch"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// storing is a runner whose clock stands still, with a store of its own.
func storing(t *testing.T, store string, now time.Time) *Runner {
	t.Helper()
	r := &Runner{SetupStore: store, Tree: &Tree{}, Now: func() time.Time { return now }}
	r.Tree.owner.uid, r.Tree.owner.gid = os.Geteuid(), os.Getegid()
	return r
}

// keepAs keeps a setup of so many bytes under a key, as if last used at a time.
func keepAs(t *testing.T, r *Runner, key string, bytes int, used time.Time) {
	t.Helper()
	after := t.TempDir()
	if err := os.WriteFile(filepath.Join(after, "f"), make([]byte, bytes), 0o644); err != nil {
		t.Fatal(err)
	}
	l := &layer{id: "a", after: after, held: after, changes: []workspace.Change{{Path: "f", Change: workspace.Created, Type: "file", Mode: "0644"}}}
	if err := r.keepSetup(t.Context(), key, l, false); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(filepath.Join(r.SetupStore, key, setupRecord), used, used); err != nil {
		t.Fatal(err)
	}
}

func keyOf(c string) string { return strings.Repeat(c, 64) }

// inStore are the first letters of what is in a store.
func inStore(t *testing.T, store string) (names []string) {
	t.Helper()
	list, err := os.ReadDir(store)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if isKey(e.Name()) {
			names = append(names, e.Name()[:1])
		} else {
			names = append(names, e.Name())
		}
	}
	return names
}

func TestKeptSetupsAreBounded(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	const day = 24 * time.Hour
	for _, tc := range []struct {
		sentence string
		keptFor  time.Duration
		most     int64
		want     []string
		gone     int
	}{
		{"what is within both bounds stays", 30 * day, 1 << 30, []string{"a", "b", "c"}, 0},
		{"what nothing used for long goes", 10 * day, 1 << 30, []string{"a", "b"}, 1},
		{"of too much, what was last used longest ago goes", 30 * day, 5 << 20, []string{"a", "b"}, 1},
		{"what is larger than the bound alone stays, if it was the last used", 30 * day, 1, []string{"a"}, 2},
		{"however large, the last used goes by its age", day / 2, 1 << 30, nil, 3},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			store := filepath.Join(t.TempDir(), "setups")
			r := storing(t, store, now)
			keepAs(t, r, keyOf("a"), 2<<20, now.Add(-day))
			keepAs(t, r, keyOf("b"), 2<<20, now.Add(-2*day))
			keepAs(t, r, keyOf("c"), 2<<20, now.Add(-20*day))
			gone, err := pruneSetups(t.Context(), store, now, tc.keptFor, tc.most)
			if got := inStore(t, store); err != nil || gone != tc.gone || !slices.Equal(got, tc.want) {
				t.Errorf("%d are gone, and there are %q (%v); want %d and %q", gone, got, err, tc.gone, tc.want)
			}
		})
	}
}

// A run that sees a kept setup has it as the layer of a mounted overlay.
func TestAKeptSetupInUseIsNotTakenAway(t *testing.T) {
	now := time.Now()
	store := filepath.Join(t.TempDir(), "setups")
	r := storing(t, store, now)
	keepAs(t, r, keyOf("a"), 1000, now)
	keepAs(t, r, keyOf("b"), 1000, now.Add(-100*24*time.Hour))
	l, rec, err := r.keptLayer(keyOf("b"))
	if err != nil || l == nil || rec.Step != "a" {
		t.Fatalf("%+v %+v %v", l, rec, err)
	}
	// It was of use just now, so only the sum is a reason; and then that it is held.
	for _, most := range []int64{1 << 30, 1} {
		if gone, err := pruneSetups(t.Context(), store, now.Add(time.Second), time.Hour, most); gone > 1 || err != nil {
			t.Errorf("%d are gone (%v)", gone, err)
		}
		if gone, err := pruneSetups(t.Context(), store, now.Add(100*24*time.Hour), time.Hour, most); gone > 1 || err != nil {
			t.Errorf("%d are gone (%v)", gone, err)
		}
		if _, err := os.Stat(filepath.Join(l.after, "f")); err != nil {
			t.Errorf("what a run sees is gone: %v", err)
		}
	}
	for _, f := range r.Tree.held { // as Close does
		f.Close()
	}
	if _, err := pruneSetups(t.Context(), store, now.Add(100*24*time.Hour), time.Hour, 1); err != nil {
		t.Error(err)
	}
	if got := inStore(t, store); len(got) != 0 {
		t.Errorf("the control: once nothing uses it, there is %q", got)
	}
	if l, _, err := r.keptLayer(keyOf("b")); l != nil || err != nil {
		t.Errorf("what is gone is %+v (%v)", l, err)
	}
}

// A store that others can write to is nobody's to clean up, and what is in it that
// no run has put there stays.
func TestPruneTouchesNothingButKeptSetups(t *testing.T) {
	now := time.Now()
	store := filepath.Join(t.TempDir(), "setups")
	r := storing(t, store, now)
	keepAs(t, r, keyOf("a"), 1000, now.Add(-100*24*time.Hour))
	for _, name := range []string{"mine", keyOf("G"), keyOf("a")[:63]} {
		if err := os.Mkdir(filepath.Join(store, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	// One that has no record, and one whose folder nobody may enter.
	if err := os.MkdirAll(filepath.Join(store, keyOf("b"), setupUpper, "closed"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(store, keyOf("b"), setupUpper, "closed"), 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(store, 0o777); err != nil {
		t.Fatal(err)
	}
	if gone, err := pruneSetups(t.Context(), store, now, time.Hour, 1); gone != 0 || err == nil {
		t.Errorf("in a folder of everybody's %d are gone (%v)", gone, err)
	}
	sr := &StepResult{}
	r.boundSetups(t.Context(), sr)
	if got := fmt.Sprint(sr.Notes); !strings.Contains(got, "could not be removed") {
		t.Errorf("a run says %s", got)
	}
	if err := os.Chmod(store, 0o700); err != nil {
		t.Fatal(err)
	}
	if gone, err := pruneSetups(t.Context(), store, now, time.Hour, 1); gone != 2 || err != nil {
		t.Errorf("%d are gone (%v)", gone, err)
	}
	want := []string{keyOf("G"), keyOf("a")[:63], "mine"}
	if got := inStore(t, store); !slices.Equal(got, want) {
		t.Errorf("there are %q, want %q", got, want)
	}
}

// Two runs that end at once take away the same, and neither has anything to say of it.
func TestTwoRunsPruneAtOnce(t *testing.T) {
	now := time.Now()
	store := filepath.Join(t.TempDir(), "setups")
	r := storing(t, store, now)
	for _, c := range "0123456789abcdef" {
		keepAs(t, r, keyOf(string(c)), 10, now.Add(-100*24*time.Hour))
	}
	root, err := scratch.OpenOwn(store, false)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if taken, there, err := takeAway(root, store, strings.Repeat("0a", 32)); taken || there || err != nil {
		t.Errorf("what another run has taken away: %v %v %v", taken, there, err)
	}
	var all atomic.Int64
	var runs sync.WaitGroup
	for range 4 {
		runs.Go(func() {
			gone, err := pruneSetups(t.Context(), store, now, time.Hour, 1)
			if err != nil {
				t.Error(err)
			}
			all.Add(int64(gone))
		})
	}
	runs.Wait()
	if got := inStore(t, store); len(got) > 0 || all.Load() != 16 {
		t.Errorf("%d of 16 are gone, and there are %q", all.Load(), got)
	}
}

// A setup that another run puts there at this moment is there or is not.
func TestAKeptSetupThatComesWhileItIsLookedFor(t *testing.T) {
	now := time.Now()
	base := t.TempDir()
	r := storing(t, filepath.Join(base, "setups"), now)
	made := storing(t, filepath.Join(base, "made"), now)
	keepAs(t, r, keyOf("f"), 10, now)
	defer func() {
		for _, f := range r.Tree.held { // as Close does
			f.Close()
		}
	}()
	for i := range 100 {
		key := fmt.Sprintf("%064x", i)
		keepAs(t, made, key, 10, now)
		var put sync.WaitGroup
		put.Go(func() {
			if err := os.Rename(filepath.Join(made.SetupStore, key), filepath.Join(r.SetupStore, key)); err != nil {
				t.Error(err)
			}
		})
		for {
			l, _, err := r.keptLayer(key)
			if err != nil {
				t.Fatal(err)
			}
			if l != nil {
				break
			}
		}
		put.Wait()
	}
}

// A run that was killed leaves what it was making, and no lock on it.
func TestWhatAKilledRunWasMakingIsSwept(t *testing.T) {
	now := time.Now()
	store := filepath.Join(t.TempDir(), "setups")
	r := storing(t, store, now)
	keepAs(t, r, keyOf("a"), 10, now)
	left := filepath.Join(store, "us-setup-123")
	if err := os.MkdirAll(filepath.Join(left, "entry", setupUpper), 0o700); err != nil {
		t.Fatal(err)
	}
	alive, err := scratch.Make(store, scratch.Setup)
	if err != nil {
		t.Fatal(err)
	}
	old := now.Add(-time.Hour)
	if err := errors.Join(os.Chtimes(left, old, old), os.Chtimes(alive.Path, old, old)); err != nil {
		t.Fatal(err)
	}
	if gone, err := pruneSetups(t.Context(), store, now, time.Hour, 1<<30); gone != 0 || err != nil {
		t.Errorf("%d are gone (%v)", gone, err)
	}
	if got, want := inStore(t, store), []string{"a", filepath.Base(alive.Path)}; !slices.Equal(got, want) {
		t.Errorf("there are %q, want %q", got, want)
	}
	if err := alive.Remove(); err != nil {
		t.Error(err)
	}
}
