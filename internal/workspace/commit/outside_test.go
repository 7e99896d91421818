package commit_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace/commit"
)

// outside is a folder that nothing may reach, and how to see that nothing did.
func outside(t *testing.T) (dir string, untouched func(string)) {
	t.Helper()
	dir = tempDir(t)
	build(t, dir, "file f 0644 outside\nfile gone 0644 outside\nfile m 0644 outside\ndir sub\nfile sub/f 0644 outside\ndir tree\nfile tree/f 0644 outside")
	before := snapshot(t, dir)
	return dir, func(when string) {
		t.Helper()
		if d := lines(before, snapshot(t, dir)); d != nil {
			t.Fatalf("%s: outside the workspace:\n%s", when, strings.Join(d, "\n"))
		}
	}
}

const (
	insideBefore = "dir d\nfile d/f 0644 old\nfile d/gone 0644 old\nfile d/m 0644 same\ndir d/sub\nfile d/sub/f 0644 old\ndir d/tree\nfile d/tree/f 0644 old"
	insideAfter  = "dir d 0700\nfile d/f 0644 new\nfile d/m 0600 same\ndir d/sub 0700\nfile d/sub/f 0644 new\nfile d/fresh 0644 new\ndir d/mk\nlink d/l x"
)

func TestAParentSwappedForALinkIsNotFollowed(t *testing.T) { // attack 100, 101
	for _, at := range []string{"store held", "about to write the journal", "wrote journal", "applied file", "applied remove"} {
		t.Run(at, func(t *testing.T) {
			out, untouched := outside(t)
			f := newFixture(t, insideBefore, insideAfter)
			d := filepath.Join(f.ws, "d")
			swapped := false
			f.options = f.options.WithStep(func(step string) {
				if step != at || swapped {
					return
				}
				swapped = true
				do(t, os.Rename(d, d+"-away"), os.Symlink(out, d))
				// The control: who follows the link is outside.
				control := filepath.Join(d, "control")
				do(t, os.WriteFile(control, nil, 0o600))
				if _, err := os.Lstat(filepath.Join(out, "control")); err != nil {
					t.Error(err)
				}
				do(t, os.Remove(control))
			})
			_, err := f.commit(t)
			untouched(at)
			if !swapped {
				t.Fatal("nothing was swapped")
			}
			begun := at != "store held" && at != "about to write the journal"
			if err == nil && !strings.HasPrefix(at, "applied") || err != nil && !errors.Is(err, commit.ErrChanged) {
				t.Errorf("got %v", err)
			}
			if !begun {
				if errors.Is(err, commit.ErrIncomplete) != (at == "about to write the journal") {
					t.Errorf("got %v", err)
				}
			}
			if !errors.Is(err, commit.ErrIncomplete) {
				return
			}
			if !strings.Contains(err.Error(), `"d" is no folder`) {
				t.Errorf("the error does not name it: %v", err)
			}
			// It stays like that until somebody sees to it.
			f.options = commit.Options{}
			if _, err := commit.Open(f.ws, f.options); !errors.Is(err, commit.ErrChanged) {
				t.Errorf("the next start: %v", err)
			}
			untouched(at + ", next start")
			do(t, os.Remove(d), os.Rename(d+"-away", d))
			if state := f.recovered(t, "put back"); state != "new" {
				t.Error(state)
			}
		})
	}
}

// TestSwapRace swaps a folder and a link to outside all the time.
func TestSwapRace(t *testing.T) { // attack 101
	out, untouched := outside(t)
	f := newFixture(t, insideBefore, insideAfter)
	d, link := filepath.Join(f.ws, "d"), filepath.Join(f.dir, "link")
	do(t, os.Symlink(out, link))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, d, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
				// Short pauses meet a commit in the middle, long ones let it be.
				time.Sleep(time.Duration(1<<rand.IntN(16)) * time.Microsecond)
			}
		}
	})
	s := f.open(t)
	seen := map[string]int{}
	met := func() bool { return seen["committed"] > 0 && seen["refused"]+seen["incomplete"] > 0 }
	start := time.Now()
	for time.Since(start) < 400*time.Millisecond || !met() && time.Since(start) < 20*time.Second {
		txn, err := s.New("build")
		do(t, err)
		txn.Keep = true
		_, err = txn.Commit(context.Background(), f.changes, f.after)
		switch {
		case err == nil:
			seen["committed"]++
		case errors.Is(err, commit.ErrIncomplete):
			seen["incomplete"]++
		case errors.Is(err, commit.ErrChanged):
			seen["refused"]++
			do(t, txn.Drop())
		default:
			t.Fatal(err)
		}
	}
	close(stop)
	wg.Wait()
	untouched("after the race")
	if !met() {
		t.Errorf("the race was not run: %v", seen)
	}
	t.Log(seen)
	if st, err := os.Lstat(d); err == nil && st.Mode()&os.ModeSymlink != 0 {
		do(t, unix.Renameat2(unix.AT_FDCWD, d, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE))
	}
	do(t, s.Close())
	s = f.open(t)
	do(t, s.Close(), os.Remove(link))
	untouched("at the end")
	if b := f.beside(t); b != nil {
		t.Errorf("left %q", b)
	}
}

func TestWhatTheHostDidMeanwhile(t *testing.T) {
	for _, tt := range []struct {
		name, want string // what the workspace is then; empty is what the step left
		change     func(ws, out string) error
	}{
		{"a folder stands where a file goes", "", func(ws, _ string) error {
			return errors.Join(os.Remove(ws+"/d/f"), os.MkdirAll(ws+"/d/f/x/y", 0o755))
		}},
		{"a link stands where a file goes", "", func(ws, out string) error {
			return errors.Join(os.Remove(ws+"/d/f"), os.Symlink(out+"/f", ws+"/d/f"))
		}},
		{"a link stands where a folder is made", "", func(ws, out string) error { return os.Symlink(out+"/sub", ws+"/d/mk") }},
		{"a link stands where a link goes", "", func(ws, out string) error { return os.Symlink(out+"/sub", ws+"/d/l") }},
		{"a folder of that name was made", "", func(ws, _ string) error { return os.Mkdir(ws+"/d/mk", 0o700) }},
		{"what is removed is a link by now", "", func(ws, out string) error {
			return errors.Join(os.RemoveAll(ws+"/d/tree"), os.Symlink(out+"/tree", ws+"/d/tree"))
		}},
		{"what is removed has more in it", "", func(ws, out string) error {
			return errors.Join(os.Mkdir(ws+"/d/tree/more", 0), os.Symlink(out, ws+"/d/tree/l"))
		}},
		{"what is removed is gone", "", func(ws, _ string) error { return os.RemoveAll(ws + "/d/tree") }},
		{"a file whose mode is set is a link by now", "dir d 0700\nfile d/f 0644 new\nlink d/m OUT/m\ndir d/sub 0700\nfile d/sub/f 0644 new\nfile d/fresh 0644 new\ndir d/mk\nlink d/l x", func(ws, out string) error {
			return errors.Join(os.Remove(ws+"/d/m"), os.Symlink(out+"/m", ws+"/d/m"))
		}},
		{"the folder that files go to is gone", "dir d 0700\nfile d/f 0644 new\ndir d/sub 0700\nfile d/sub/f 0644 new\nfile d/fresh 0644 new\ndir d/mk\nlink d/l x", func(ws, _ string) error {
			return os.RemoveAll(ws + "/d")
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, untouched := outside(t)
			f := newFixture(t, insideBefore, insideAfter)
			do(t, tt.change(f.ws, out))
			if _, err := f.commit(t); err != nil {
				t.Fatal(err)
			}
			untouched(tt.name)
			want := f.new
			if tt.want != "" {
				want = newFixture(t, strings.ReplaceAll(tt.want, "OUT", out), "").old
			}
			if d := lines(want, snapshot(t, f.ws)); d != nil {
				t.Errorf("differs:\n%s", strings.Join(d, "\n"))
			}
		})
	}
}

// TestRandomTrees commits many pairs of random trees.
func TestRandomTrees(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 7))
		f := newFixture(t, randomTree(r), randomTree(r))
		if _, err := f.commit(t); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if d := lines(f.new, snapshot(t, f.ws)); d != nil || f.beside(t) != nil {
			t.Fatalf("seed %d: left %q, differs:\n%s", seed, f.beside(t), strings.Join(d, "\n"))
		}
	}
}

// randomTree is a tree of few names, so that two of them meet often.
func randomTree(r *rand.Rand) string {
	var b strings.Builder
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	var fill func(dir string, depth int)
	fill = func(dir string, depth int) {
		for _, n := range []string{"a", "a-", "a.b", `b\n`, `\xff`} {
			p := dir + n
			quoted := `"` + p + `"`
			switch r.IntN(6) {
			case 0, 1:
				b.WriteString("file " + quoted + " " + pick("0644", "0755", "0444", "0600") + " " + pick("x", "y", `""`) + "\n")
			case 2:
				b.WriteString("link " + quoted + " " + pick("a", "..", "/etc", "/") + "\n")
			case 3, 4:
				if depth < 3 {
					b.WriteString("dir " + quoted + " " + pick("0755", "0555", "0700", "0500", "01777") + "\n")
					fill(p+"/", depth+1)
				}
			}
		}
	}
	fill("", 0)
	return b.String()
}
