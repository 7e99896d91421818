package disk_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/disk"
)

func TestRenew(t *testing.T) {
	open := func(t *testing.T) *disk.Room {
		t.Helper()
		r, err := disk.Open(of(t, disk.Loop, 16<<20, 4096))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
		return r
	}
	write := func(t *testing.T, r *disk.Room, n int) {
		t.Helper()
		for _, dir := range []string{r.Upper() + "/a/b", r.Work() + "/work"} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for _, f := range []string{r.Upper() + "/a/b/f", r.Work() + "/work/f"} {
			if err := os.WriteFile(f, make([]byte, n), 0o400); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(r.Upper()+"/a", 0); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("a room of which little was used is as good as new", func(t *testing.T) {
		r := open(t)
		write(t, r, 100_000)
		if u, err := r.Used(); err != nil || u.Bytes < 100_000 {
			t.Fatalf("the control: %+v, %v", u, err)
		}
		if !r.Renew() {
			t.Fatal("it was not renewed")
		}
		for _, dir := range []string{r.Upper(), r.Work()} {
			if left, err := filepath.Glob(dir + "/*"); err != nil || len(left) > 0 {
				t.Errorf("%v is left (%v)", left, err)
			}
		}
		if st, err := os.Stat(r.Upper()); err != nil || st.Mode().Perm() != 0o755 {
			t.Errorf("the upper folder is %v (%v), want mode 0755", st.Mode(), err)
		}
		if u, err := r.Used(); err != nil || u.Bytes > 4096 || u.Inodes > 0 {
			t.Errorf("%+v is used (%v), want nothing", u, err)
		}
	})
	t.Run("one of which much was used is not", func(t *testing.T) {
		r := open(t)
		write(t, r, 6<<20)
		if r.Renew() {
			t.Error("it was renewed")
		}
	})
	t.Run("nor one that is no file system of its own", func(t *testing.T) {
		r, err := disk.Open(of(t, disk.Sampler, 16<<20, 4096))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if r.Renew() {
			t.Error("it was renewed")
		}
	})
}
