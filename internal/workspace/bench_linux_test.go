package workspace

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// manyFiles makes 100,000 files of 1 KiB in 1,000 folders.
func manyFiles(b *testing.B) string {
	b.Helper()
	root := b.TempDir()
	text := make([]byte, 1024)
	for d := range 1000 {
		dir := filepath.Join(root, fmt.Sprintf("pkg%02d", d/50), fmt.Sprintf("folder%03d", d))
		do(b, os.MkdirAll(dir, 0o755))
		for f := range 100 {
			copy(text, fmt.Sprintf("%d %d", d, f))
			do(b, os.WriteFile(filepath.Join(dir, fmt.Sprintf("file%03d.txt", f)), text, 0o644))
		}
	}
	return root
}

// Benchmark100000Files measures both snapshots, and beside them what a shell
// and git do for the same question. The page cache is warm for all.
func Benchmark100000Files(b *testing.B) {
	root := manyFiles(b)
	before := mustSnapshot(b, root, nil)
	b.Run("op=snapshot/prev=none", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			mustSnapshot(b, root, nil)
		}
	})
	b.Run("op=snapshot/prev=none/workers=1", func(b *testing.B) {
		for b.Loop() {
			if _, err := Snapshot(context.Background(), root, nil, Options{Workers: 1}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("op=snapshot/prev=same", func(b *testing.B) {
		before := mustSnapshot(b, root, nil)
		b.ReportAllocs()
		for b.Loop() {
			if _, opened := scanned(b, root, before); opened > 0 {
				b.Fatalf("%d files opened", opened)
			}
		}
	})
	b.Run("op=diff/changed=0", func(b *testing.B) {
		after := mustSnapshot(b, root, before)
		for b.Loop() {
			Diff(before, after)
		}
	})
	b.Run("op=diff/changed=all", func(b *testing.B) {
		empty := &Tree{root: before.root, places: before.places, settled: before.settled}
		for b.Loop() {
			if n := len(Diff(empty, before)); n != int(before.Len()) {
				b.Fatal(n)
			}
		}
	})
	for name, script := range map[string]string{
		"peer=sha256sum":  `find . -type f -print0 | xargs -0 -P "$(nproc)" -n 2000 sha256sum >/dev/null`,
		"peer=find-ctime": `find . -printf '%p %i %C@ %s %m\n' >/dev/null`,
		"peer=git-status": `git --git-dir=../bench.git --work-tree=. status --porcelain`,
	} {
		if name == "peer=git-status" {
			out, err := exec.Command("sh", "-c", `cd "$0" && git init -q --bare ../bench.git && git --git-dir=../bench.git --work-tree=. add -A`, root).CombinedOutput()
			if err != nil {
				b.Logf("no git to compare with: %v %s", err, out)
				continue
			}
		}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if out, err := exec.Command("sh", "-c", `cd "$0" && `+script, root).CombinedOutput(); err != nil {
					b.Fatalf("%v %s", err, out)
				}
			}
		})
	}
}
