package disk_test

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/disk"
)

// What was measured can also be removed; nothing outside is.
func TestRemoveContents(t *testing.T) {
	for _, tc := range hostile() {
		t.Run(tc.sentence, func(t *testing.T) {
			top := t.TempDir()
			must(t, os.MkdirAll(top+"/room/upper", 0o700), os.WriteFile(top+"/outside", []byte("x"), 0o600))
			must(t, os.Symlink(top, top+"/room/upper/link to the folder above"), os.Link(top+"/outside", top+"/room/upper/name of the file outside"))
			tc.make(t, top+"/room/upper")
			d, err := os.Open(top + "/room")
			must(t, err)
			defer d.Close()
			before := openFiles(t)
			if err := disk.RemoveContents(int(d.Fd())); err != nil {
				t.Fatal(err)
			}
			if list, err := os.ReadDir(top + "/room"); err != nil || len(list) > 0 {
				t.Errorf("left: %v %v", list, err)
			}
			if b, err := os.ReadFile(top + "/outside"); err != nil || string(b) != "x" {
				t.Errorf("outside: %q %v", b, err)
			}
			if now := openFiles(t); now != before {
				t.Errorf("%d files are open, were %d", now, before)
			}
		})
	}
	t.Run("what cannot be removed is said, and no descriptor stays open", func(t *testing.T) {
		boxtest.Need(t, "root")
		o := of(t, disk.Sampler, mib, 256)
		must(t, os.MkdirAll(o.Dir+"/a/b/c", 0o700), unix.Mount("x", o.Dir+"/a/b", "tmpfs", 0, "size=1m"))
		defer func() { must(t, unix.Unmount(o.Dir+"/a/b", 0)) }()
		d, err := os.Open(o.Dir)
		must(t, err)
		defer d.Close()
		before := openFiles(t)
		if err := disk.RemoveContents(int(d.Fd())); err == nil {
			t.Error("a mount was removed")
		}
		if now := openFiles(t); now != before {
			t.Errorf("%d files are open, were %d", now, before)
		}
	})
}

// A folder that somebody removed with all that was in it is empty. Whoever kept
// what a step wrote may have done that.
func TestRemoveContentsOfAFolderThatIsGone(t *testing.T) {
	top := t.TempDir()
	must(t, os.MkdirAll(top+"/room/upper", 0o700))
	d, err := os.Open(top + "/room")
	must(t, err)
	defer d.Close()
	must(t, os.RemoveAll(top+"/room"))
	if err := disk.RemoveContents(int(d.Fd())); err != nil {
		t.Error(err)
	}
}
