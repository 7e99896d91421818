package stage

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A root with what an image can hold: a file, a folder, and links that lead out.
func root(t *testing.T) (base, outside string) {
	t.Helper()
	base, outside = t.TempDir(), t.TempDir()
	for _, err := range []error{
		os.Mkdir(filepath.Join(base, "dir"), 0o755),
		os.WriteFile(filepath.Join(base, "file"), []byte("of the image"), 0o644),
		os.Symlink(outside, filepath.Join(base, "out")),
		os.Symlink(filepath.Join(outside, "x"), filepath.Join(base, "dir", "link")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return base, outside
}

func empty(t *testing.T, dir string) {
	t.Helper()
	if list, err := os.ReadDir(dir); err != nil || len(list) != 0 {
		t.Errorf("outside there is %v (%v)", list, err)
	}
}

func TestPlace(t *testing.T) {
	base, outside := root(t)
	for _, tc := range []struct {
		sentence, target string
		dir              bool
		inside           string
		want             error
	}{
		{"what is there is found", "/dir", true, "", nil},
		{"what is missing is made, with the folders above", "/a/b/c", true, "", nil},
		{"a file too", "/a/f", false, "", nil},
		{"the root is a place", "/", true, "", nil},
		{"dots lead no higher than the root", "/../../dir", true, "", nil},
		{"a file is no folder", "/file", true, "", unix.ENOTDIR},
		{"nor is a link to one", "/out", true, "", unix.ENOTDIR},
		{"and nothing is made behind a link", "/out/x", true, "", unix.ENOTDIR},
		{"in what is the host's nothing is made", "/dir/new", true, "/dir", unix.ENOENT},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			fd, err := Place(base, tc.target, tc.dir, tc.inside)
			if err == nil {
				unix.Close(fd)
			}
			if !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
				t.Errorf("%v, want %v", err, tc.want)
			}
		})
	}
	empty(t, outside)
	if _, err := os.Lstat(filepath.Join(base, "dir", "new")); !os.IsNotExist(err) {
		t.Errorf("it was made: %v", err)
	}
}

func TestWriteAndLink(t *testing.T) {
	base, outside := root(t)
	if err := Write(base, "/dir/link", "ours", 0o644); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(filepath.Join(base, "dir", "link")); err != nil || string(b) != "ours" {
		t.Errorf("%q %v", b, err)
	}
	if st, err := os.Lstat(filepath.Join(base, "dir", "link")); err != nil || !st.Mode().IsRegular() {
		t.Errorf("a link was written through: %v %v", st, err)
	}
	if err := Write(base, "/out/x", "ours", 0o644); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("behind a link: %v", err)
	}
	if err := Link(base, "/bin/sh", "dash"); err != nil {
		t.Error(err)
	}
	if to, err := os.Readlink(filepath.Join(base, "bin", "sh")); err != nil || to != "dash" {
		t.Errorf("%q %v", to, err)
	}
	if err := Link(base, "/out/sh", "dash"); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("behind a link: %v", err)
	}
	empty(t, outside)
}

// A source that has become a link is none, but for our own program.
func TestOpenFollowsNoLink(t *testing.T) {
	base, _ := root(t)
	if fd, err := Open(Source{Path: filepath.Join(base, "out")}); !errors.Is(err, unix.ELOOP) {
		t.Errorf("%d %v", fd, err)
	}
	if fd, err := Open(Source{Path: filepath.Join(base, "none")}); !errors.Is(err, unix.ENOENT) {
		t.Errorf("%d %v", fd, err)
	}
}
