package disk_test

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/disk"
)

func closed(b *testing.B, r *disk.Room, kind string) {
	b.Helper()
	if r.By() != kind {
		b.Fatalf("%s: %s", r.By(), r.Why())
	}
	if err := r.Close(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkOpenClose is what each step pays.
func BenchmarkOpenClose(b *testing.B) {
	for _, mb := range []int64{16, 1024} {
		for _, kind := range []string{disk.Loop, disk.Tmpfs, disk.Sampler} {
			b.Run(fmt.Sprintf("kind=%s/mb=%d", kind, mb), func(b *testing.B) {
				o := of(b, kind, mb*mib, mb*256)
				var images disk.Images
				o.Images = &images
				for b.Loop() {
					r, err := disk.Open(o)
					if err != nil {
						b.Fatal(err)
					}
					closed(b, r, kind)
				}
			})
		}
		b.Run(fmt.Sprintf("kind=loop/mb=%d/images=none", mb), func(b *testing.B) {
			o := of(b, disk.Loop, mb*mib, mb*256)
			for b.Loop() {
				r, err := disk.Open(o)
				if err != nil {
					b.Fatal(err)
				}
				closed(b, r, disk.Loop)
			}
		})
	}
}

// BenchmarkStep is a room with a tree for an engine, 16 MiB written and settled.
func BenchmarkStep(b *testing.B) {
	for _, kind := range []string{disk.Loop, disk.Tmpfs, disk.Sampler} {
		b.Run("kind="+kind, func(b *testing.B) {
			o := of(b, kind, 64*mib, 64*256)
			var images disk.Images
			o.Images = &images
			for b.Loop() {
				r, err := disk.Open(o)
				if err != nil {
					b.Fatal(err)
				}
				tree, err := r.Tree()
				if err != nil {
					b.Fatal(err)
				}
				_, err = fill(r.Upper()+"/x", 16*mib)
				if err == nil {
					_, err = r.Used()
				}
				if err == nil {
					err = r.Settle()
				}
				if err != nil {
					b.Fatal(err)
				}
				if tree >= 0 {
					unix.Close(tree)
				}
				closed(b, r, kind)
			}
		})
	}
}

// BenchmarkUsed is one look.
func BenchmarkUsed(b *testing.B) {
	for _, n := range []int{10, 10_000} {
		for _, kind := range []string{disk.Loop, disk.Tmpfs, disk.Sampler} {
			b.Run(fmt.Sprintf("kind=%s/files=%d", kind, n), func(b *testing.B) {
				r := open(b, kind, 1<<30, 256<<10)
				for i := range 100 {
					if _, err := makeFiles(fmt.Sprintf("%s/%d", r.Upper(), i), n/100); err != nil {
						b.Fatal(err)
					}
				}
				if err := os.WriteFile(r.Upper()+"/x", make([]byte, mib), 0o600); err != nil {
					b.Fatal(err)
				}
				for b.Loop() {
					if _, err := r.Used(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
