package delta

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// Benchmark100000Files: a step changed ten files of a hundred thousand. Beside
// it is what two snapshots, a full compare and git do for the same question. The
// page cache is warm for all.
func Benchmark100000Files(b *testing.B) {
	below, upper := b.TempDir(), b.TempDir()
	text := make([]byte, 1024)
	for d := range 1000 {
		dir := filepath.Join(fmt.Sprintf("pkg%02d", d/50), fmt.Sprintf("folder%03d", d))
		do(b, os.MkdirAll(filepath.Join(below, dir), 0o755))
		for f := range 100 {
			copy(text, fmt.Sprintf("%d %d", d, f))
			do(b, os.WriteFile(filepath.Join(below, dir, fmt.Sprintf("file%03d.txt", f)), text, 0o644))
		}
		if d%100 == 0 {
			do(b, os.MkdirAll(filepath.Join(upper, dir), 0o755))
			do(b, os.WriteFile(filepath.Join(upper, dir, "file050.txt"), text, 0o644))
		}
	}
	do(b, os.Chmod(upper, 0o755), os.Chmod(below, 0o755))
	stack := []Layer{{Dir: below}}
	b.Run("op=read/changed=10", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if n := mustRead(b, stack, upper).Len(); n != 10 {
				b.Fatal(n)
			}
		}
	})
	b.Run("op=compare/changed=0", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if n := mustCompare(b, stack, below).Len(); n != 0 {
				b.Fatal(n)
			}
		}
	})
	before := mustSnapshot(b, below)
	b.Run("peer=snapshot+diff", func(b *testing.B) {
		for b.Loop() {
			after, err := workspace.Snapshot(context.Background(), below, before, workspace.Options{})
			do(b, err)
			workspace.Diff(before, after)
		}
	})
	git := func(script string) ([]byte, error) {
		return exec.Command("sh", "-c", `cd "$0" && export GIT_DIR="$1" GIT_WORK_TREE=. && `+script, below, upper+".git").CombinedOutput()
	}
	if out, err := git("git init -q && git add -A"); err != nil {
		b.Logf("no git to compare with: %v %s", err, out)
		return
	}
	b.Run("peer=git-status", func(b *testing.B) {
		for b.Loop() {
			if out, err := git("git status --porcelain >/dev/null"); err != nil {
				b.Fatalf("%v %s", err, out)
			}
		}
	})
}
