package commit_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/commit"
)

// crashVar tells this test binary to be a process that ends itself: what it
// does, at which step, and where.
const crashVar = "COMMIT_TEST_CRASH"

// hard is a pair of trees with everything in it that takes several steps.
const (
	hardBefore = `dir . 0755
		file changed 0644 old
		file gone 0644 old
		file moded 0644 same
		dir emptied
		dir emptied/a
		file emptied/a/f 0644 old
		dir emptied/b 0500
		file emptied/b/f 0644 old
		dir ro 0555
		file ro/f 0644 old
		dir ro/in 0500
		file ro/in/f 0444 old
		dir opened 0555
		file opened/f 0644 old
		dir tofile
		file tofile/x 0644 old
		dir tofile/y
		file tofile/y/z 0644 old
		file todir 0644 old
		link tolink old
		file "\xff\n" 0644 old
		file same 0644 same`
	hardAfter = `dir . 0750
		file changed 0640 new
		file moded 0755 same
		dir ro 0555
		file ro/f 0644 new
		link ro/l new
		dir ro/in 0500
		file ro/in/f 0444 new
		file ro/in/g 0444 new
		dir opened 0755
		file opened/f 0644 new
		file tofile 0644 new
		dir todir 0555
		file todir/f 0644 new
		dir todir/g 0700
		link tolink new
		file "\xff\n" 0644 new
		file same 0644 same
		dir fresh 01777
		dir fresh/b
		file fresh/b/c 0600 new`
)

// crash is the other process. It is given a number or a name, and ends itself
// with SIGKILL at the step of that number, or at the first of that name.
func crash(what string) {
	f := strings.SplitN(what, "|", 5)
	n := 0
	o := commit.Options{}.WithStep(func(name string) {
		if n++; f[1] == name || f[1] == strconv.Itoa(n) {
			note("killed at %d: %s", n, name)
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
	})
	if f[4] != "" {
		o.StateDirs = []string{f[4]}
	}
	if err := crashing(f[0], f[2], f[3], o); err != nil {
		note("%v", err)
		os.Exit(1)
	}
	note("finished")
}

func crashing(what, ws, after string, o commit.Options) error {
	if what == "recover" {
		s, err := commit.Open(ws, o)
		return errors.Join(err, closeIf(s))
	}
	ctx := context.Background()
	from, err := workspace.Snapshot(ctx, ws, nil, workspace.Options{})
	if err != nil {
		return err
	}
	to, err := workspace.Snapshot(ctx, after, nil, workspace.Options{})
	if err != nil {
		return err
	}
	s, err := commit.Open(ws, o)
	if err != nil {
		return err
	}
	txn, err := s.New("build")
	if err == nil {
		_, err = txn.Commit(ctx, workspace.Diff(from, to), after)
	}
	return errors.Join(err, closeIf(s))
}

func closeIf(s *commit.Store) error {
	if s == nil {
		return nil
	}
	return s.Close()
}

// crashed runs the other process. It says whether it was killed, and where.
func (f *fixture) crashed(t *testing.T, what string, at int) (killed bool, where string) {
	t.Helper()
	return f.crashedAt(t, what, strconv.Itoa(at))
}

func (f *fixture) crashedAt(t *testing.T, what, at string) (killed bool, where string) {
	t.Helper()
	state := ""
	if f.options.StateDirs != nil {
		state = f.options.StateDirs[0]
	}
	var out bytes.Buffer
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{crashVar + "=" + strings.Join([]string{what, at, f.ws, f.after, state}, "|"), "TMPDIR=" + os.TempDir()}
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if err == nil {
		return false, ""
	}
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !ws.Signaled() || ws.Signal() != unix.SIGKILL {
		t.Fatalf("%s, to be killed at %s: %v\n%s", what, at, err, out.String())
	}
	return true, strings.TrimSpace(out.String())
}

// recovered opens the store once more and says which state that gives.
func (f *fixture) recovered(t *testing.T, where string) (state string) {
	t.Helper()
	s := f.open(t)
	words := strings.Join(s.Recovered(), "\n")
	do(t, s.Close())
	now := snapshot(t, f.ws)
	toOld, toNew := lines(f.old, now), lines(f.new, now)
	if b := f.beside(t); b != nil {
		t.Errorf("%s: left behind: %q", where, b)
	}
	switch {
	case toNew == nil:
		state = "new"
	case toOld == nil:
		state = "old"
	default:
		t.Errorf("%s: mixed. To the old tree:\n%s\nto the new one:\n%s", where, strings.Join(toOld, "\n"), strings.Join(toNew, "\n"))
		return "mixed"
	}
	completed := strings.Contains(words, `completed the commit of step "build" of an earlier run`)
	if completed && state == "old" {
		t.Errorf("%s: says %q and the workspace is old", where, words)
	}
	return state
}

func TestKilledAtAnyStepTheWorkspaceIsOldOrNew(t *testing.T) { // attack 160, 161
	across := func(t *testing.T, f *fixture) {
		// Beside the workspace is no place, and the other one is on a disk.
		disk := otherDisk(t, "16m")
		f.ws = filepath.Join(disk, "ws")
		build(t, f.ws, hardBefore)
		do(t, os.WriteFile(filepath.Join(disk, ".ws.untrusted-steps"), nil, 0o600))
		f.options.StateDirs = []string{filepath.Join(f.dir, "state")}
	}
	for _, tt := range []struct {
		name   string
		stride int
		setUp  func(*testing.T, *fixture)
	}{
		{"the store beside the workspace", 1, func(*testing.T, *fixture) {}},
		{"the store on another disk", 2, across},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stride := tt.stride
			if testing.Short() {
				stride *= 7
			}
			seen := map[string]int{}
			last := "old"
			steps := 0
			for at := 1; ; at += stride {
				f := newFixture(t, hardBefore, hardAfter)
				tt.setUp(t, f)
				killed, where := f.crashed(t, "commit", at)
				state := f.recovered(t, where)
				seen[state]++
				if state == "mixed" || t.Failed() {
					t.FailNow()
				}
				if last == "new" && state == "old" {
					t.Fatalf("%s: old, and killed a step before it was new", where)
				}
				last = state
				if !killed {
					break
				}
				steps++
			}
			t.Logf("killed at %d steps: %d times old, %d times new", steps, seen["old"], seen["new"])
			if seen["old"] < 3 || seen["new"] < 3 || last != "new" {
				t.Errorf("not every phase was met: %v", seen)
			}
		})
	}
}

// TestRecoveryIsKilledToo ends a recovery at every step of it, for commits that
// ended at several.
func TestRecoveryIsKilledToo(t *testing.T) {
	f := newFixture(t, hardBefore, hardAfter)
	_, where := f.crashedAt(t, "commit", "wrote journal")
	number, _, _ := strings.Cut(strings.TrimPrefix(where, "killed at "), ":")
	first, err := strconv.Atoi(number) // the step that made the commit
	do(t, err)
	stride := 5
	if testing.Short() {
		stride = 11
	}
	total := 0
	for _, later := range []int{-2, 0, 9, 25, 40} {
		for at := 1; ; at += stride {
			f := newFixture(t, hardBefore, hardAfter)
			_, where := f.crashed(t, "commit", first+later)
			killed, again := f.crashed(t, "recover", at)
			want := "new"
			if later < 0 {
				want = "old"
			}
			if state := f.recovered(t, where+", and "+again); state != want {
				t.Fatalf("%s, and %s: %s, want %s", where, again, state, want)
			}
			total++
			if !killed {
				break
			}
		}
	}
	t.Logf("%d pairs of kills", total)

	// Killed again and again, each time a step later.
	f = newFixture(t, hardBefore, hardAfter)
	f.crashed(t, "commit", first)
	for at := 1; ; at++ {
		if killed, _ := f.crashed(t, "recover", at); !killed {
			break
		}
	}
	if state := f.recovered(t, "killed again and again"); state != "new" {
		t.Error(state)
	}
}

// What the owner does between a crash and the next start is not undone where
// the commit had been carried out already.
func TestWhatWasAppliedIsNotAppliedAgain(t *testing.T) {
	f := newFixture(t, "file a 0644 old\nfile b 0644 old\nfile c 0644 old", "file b 0644 new\nfile c 0644 new")
	if killed, _ := f.crashedAt(t, "commit", "applied file"); !killed {
		t.Fatal("it was never applied")
	}
	// a is removed and b replaced by then; c is not.
	do(t, os.WriteFile(filepath.Join(f.ws, "a"), []byte("mine"), 0o644), os.WriteFile(filepath.Join(f.ws, "b"), []byte("mine"), 0o644))
	s := f.open(t)
	if w := s.Recovered(); len(w) != 1 || w[0] != `completed the commit of step "build" of an earlier run that ended in the middle of it` {
		t.Errorf("says %q", w)
	}
	do(t, s.Close())
	for name, want := range map[string]string{"a": "mine", "b": "mine", "c": "new"} {
		if got, err := os.ReadFile(filepath.Join(f.ws, name)); string(got) != want {
			t.Errorf("%s is %q (%v), want %q", name, got, err, want)
		}
	}
}
