package clone

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// Benchmark10000Files copies 10,000 files of 1 KiB in 100 folders, and beside it
// lets cp do so. Emptying the target is not measured.
func Benchmark10000Files(b *testing.B) {
	from, _ := pair(b)
	for d := range 100 {
		dir := fmt.Sprintf("%s/folder%03d", from, d)
		do(b, os.Mkdir(dir, 0o755))
		for f := range 100 {
			do(b, os.WriteFile(fmt.Sprintf("%s/file%03d.txt", dir, f), make([]byte, 1024), 0o644))
		}
	}
	for _, bm := range []struct {
		name string
		copy func(to string) error
	}{
		{"by=clone/workers=1", func(to string) error {
			_, err := newCopying(context.Background(), Options{}, 1).run(from, to)
			return err
		}},
		{"by=clone/workers=2", func(to string) error {
			_, err := newCopying(context.Background(), Options{}, 2).run(from, to)
			return err
		}},
		{"by=clone/workers=4", func(to string) error {
			_, err := newCopying(context.Background(), Options{}, 4).run(from, to)
			return err
		}},
		{"by=cp-a", func(to string) error { return exec.Command("cp", "-a", from+"/.", to).Run() }},
	} {
		b.Run(bm.name, func(b *testing.B) {
			to := b.TempDir() + "/to"
			for b.Loop() {
				b.StopTimer()
				do(b, os.RemoveAll(to), os.Mkdir(to, 0o700))
				b.StartTimer()
				do(b, bm.copy(to))
			}
		})
	}
}
