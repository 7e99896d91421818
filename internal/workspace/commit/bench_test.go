package commit_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// BenchmarkCommit is the commit alone, without what begins and ends a store.
// From the second round on files are replaced: ext4 then starts to write out
// what replaces them, which is most of what it costs there.
func BenchmarkCommit(b *testing.B) {
	for _, files := range []int{10, 1000} {
		b.Run(fmt.Sprintf("files=%d", files), func(b *testing.B) {
			var spec strings.Builder
			for i := range files {
				fmt.Fprintf(&spec, "file f%d 0644 x\n", i)
			}
			f := newFixture(b, "", spec.String())
			for b.Loop() {
				b.StopTimer()
				after := filepath.Join(f.dir, "again")
				build(b, after, spec.String())
				s := f.open(b)
				txn, err := s.New("bench")
				do(b, err)
				b.StartTimer()
				_, err = txn.Commit(context.Background(), f.changes, after)
				b.StopTimer()
				do(b, err, s.Close(), os.RemoveAll(after))
				b.StartTimer()
			}
		})
	}
}
