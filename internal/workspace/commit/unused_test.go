package commit_test

import (
	"context"
	"os"
	"strings"
	"testing"
)

func TestUnusedIsATransactionThatNobodyTriedToCommit(t *testing.T) {
	for _, tc := range []struct {
		sentence string
		with     func() context.Context
		want     bool // the commit is made
	}{
		{"a commit that failed may have staged some of it", func() context.Context {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			return ctx
		}, false},
		{"a commit that was made is over", context.Background, true},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			f := newFixture(t, "file a 0644 old", "file a 0644 new")
			s := f.open(t)
			txn, err := s.New("build")
			do(t, err)
			if !txn.Unused() {
				t.Error("a new transaction is not unused")
			}
			if _, err := txn.Commit(tc.with(), f.changes, f.after); (err == nil) != tc.want {
				t.Errorf("the commit: %v", err)
			}
			if txn.Unused() {
				t.Error("another step would be given it")
			}
			do(t, s.Close())
		})
	}
}

// Some are never dropped one by one, such as the layer that hides secrets.
func TestAStoreThatIsClosedHoldsNoDescriptor(t *testing.T) {
	f := newFixture(t, "file a 0644 old", "file a 0644 new")
	s := f.open(t)
	ours := map[string]bool{}
	for range 3 {
		txn, err := s.New("build")
		do(t, err)
		ours[txn.Dir()] = true
	}
	held := func() (n int) {
		fds, err := os.ReadDir("/proc/self/fd")
		do(t, err)
		for _, fd := range fds {
			to, _ := os.Readlink("/proc/self/fd/" + fd.Name())
			if ours[to] || ours[strings.TrimSuffix(to, " (deleted)")] {
				n++
			}
		}
		return n
	}
	if held() != len(ours) {
		t.Fatalf("%d of %d transactions hold a descriptor: this test looks in the wrong place", held(), len(ours))
	}
	do(t, s.Close())
	if n := held(); n > 0 {
		t.Errorf("%d descriptors are left", n)
	}
}
