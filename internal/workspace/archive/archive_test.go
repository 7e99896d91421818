package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

var old = time.Unix(1_500_000_000, 0)

func put(t *testing.T, file, text string, mode fs.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(file, old, old); err != nil {
		t.Fatal(err)
	}
}

// tree is what a workspace holds: mode, second of change, content or target.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		st, err := os.Lstat(p)
		if err != nil {
			return err
		}
		what := fmt.Sprint(st.Mode())
		switch {
		case st.Mode().IsRegular():
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			what += fmt.Sprintf(" %d %q", st.ModTime().Unix(), b)
		case st.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			what += " " + target
		}
		out[strings.TrimPrefix(p, dir+"/")] = what
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func pack(t *testing.T, dir string, o Options) ([]byte, Summary) {
	t.Helper()
	var b bytes.Buffer
	s, err := Write(context.Background(), dir, &b, o)
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), s
}

func unpack(dir string, archive []byte, o Options) (Summary, error) {
	return Restore(context.Background(), dir, bytes.NewReader(archive), o)
}

func sample(t *testing.T, names []string) string {
	t.Helper()
	dir := t.TempDir()
	for _, n := range names {
		put(t, filepath.Join(dir, n), "of "+n, 0o640)
	}
	put(t, dir+"/run.sh", "x", 0o755)
	put(t, dir+"/ro/f", "x", 0o444)
	if err := os.MkdirAll(dir+"/empty/below", 0o750); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"ro", "empty"} {
		if err := os.Chtimes(filepath.Join(dir, d), old, old); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir+"/ro", 0o555); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Chmod(dir+"/ro", 0o755) }) //nolint:errcheck // it may be gone
	return dir
}

var sampleNames = []string{"a", "b/c", "b/\xff\xfe", "b/new\nline", "b/" + strings.Repeat("long", 60), strings.Repeat("d/", 80) + "deep", "-rf", "spa ce"}

func TestWhatIsPackedIsRestored(t *testing.T) {
	dir := sample(t, sampleNames)
	want := tree(t, dir)
	b, s := pack(t, dir, Options{})
	to := t.TempDir()
	t.Cleanup(func() { os.Chmod(to+"/ro", 0o755) }) //nolint:errcheck // it may be gone
	for range 2 {                                   // into an empty workspace, and over a whole one
		got, err := unpack(to, b, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, tree(t, to)); diff != "" {
			t.Errorf("(-packed +restored)\n%s", diff)
		}
		if got.Files != s.Files || got.Bytes != s.Bytes || got.Folders != s.Folders {
			t.Errorf("restored %+v of %+v", got, s)
		}
	}
	if st, err := os.Stat(to + "/ro"); err != nil || st.ModTime().Unix() != old.Unix() {
		t.Errorf("a folder's time is not kept: %v %v", st.ModTime(), err)
	}
	put(t, to+"/other", "x", 0o600)
	put(t, to+"/a", "changed", 0o600)
	if _, err := unpack(to, b, Options{}); err != nil {
		t.Fatal(err)
	}
	want["other"] = tree(t, to)["other"]
	if diff := cmp.Diff(want, tree(t, to)); diff != "" || want["other"] == "" {
		t.Errorf("over a changed workspace (-want +got)\n%s", diff)
	}
}

func TestTheSameTreeGivesTheSameBytes(t *testing.T) {
	one, _ := pack(t, sample(t, sampleNames), Options{})
	names := append([]string{}, sampleNames...)
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	other := sample(t, names)
	for p := range tree(t, other) {
		for _, dir := range []string{filepath.Join(other, p)} {
			if st, err := os.Lstat(dir); err == nil && st.IsDir() {
				if err := os.Chtimes(dir, old, old); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	two, _ := pack(t, other, Options{})
	// The first tree's folders have the time they were made at.
	again := t.TempDir()
	t.Cleanup(func() { os.Chmod(again+"/ro", 0o755) }) //nolint:errcheck // it may be gone
	if _, err := unpack(again, two, Options{}); err != nil {
		t.Fatal(err)
	}
	three, _ := pack(t, again, Options{})
	if !bytes.Equal(two, three) {
		t.Error("a restored workspace packs otherwise")
	}
	if bytes.Contains(one, []byte("root")) {
		t.Error("an owner's name is in it")
	}
}

func TestWhatNoArchiveHoldsIsLeftOutAndNamed(t *testing.T) {
	dir := t.TempDir()
	put(t, dir+"/f", "x", 0o644)
	put(t, dir+"/secret", "x", 0o644)
	put(t, dir+"/scrubbed", "old text", 0o600)
	if err := os.Symlink("/etc/passwd", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(dir+"/pipe", 0o600); err != nil {
		t.Fatal(err)
	}
	b, s := pack(t, dir, Options{Look: func(p string) ([]byte, bool, bool) { return []byte("new"), p == "scrubbed", p == "secret" }})
	if diff := cmp.Diff([]string{"link", "pipe"}, s.LeftOut); diff != "" || s.OutOf != 2 {
		t.Errorf("left out (-want +got)\n%s", diff)
	}
	to := t.TempDir()
	if _, err := unpack(to, b, Options{}); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"f": "-rw-r--r-- 1500000000 \"x\"", "scrubbed": "-rw------- 1500000000 \"new\""}
	if diff := cmp.Diff(want, tree(t, to)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// archiveOf makes an archive of headers; a file's content is its own name.
func archiveOf(t *testing.T, hs ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, h := range hs {
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Typeflag == tar.TypeReg && h.Size == 0 {
			h.Size = int64(len(h.Name))
		}
		if h.Mode == 0 && h.Typeflag != tar.TypeXGlobalHeader {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatalf("%+v: %v", h, err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write([]byte(h.Name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestN154HostileArchivesChangeNothing: each is refused, names the entry, and
// leaves the workspace and what lies beside it as they were.
func TestN154HostileArchivesChangeNothing(t *testing.T) {
	good := tar.Header{Name: "good"}
	for _, c := range []struct {
		name, entry string
		archive     []byte
	}{
		{"an absolute path", "/abs", archiveOf(t, good, tar.Header{Name: "/abs"})},
		{"a path that leaves", "../out", archiveOf(t, good, tar.Header{Name: "../out"})},
		{"a path that would come back", "a/../b", archiveOf(t, good, tar.Header{Name: "a/../b"})},
		{"a path that ends in ..", "a/..", archiveOf(t, good, tar.Header{Name: "a/..", Typeflag: tar.TypeDir})},
		{"a symbolic link", "l", archiveOf(t, good, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/etc"}, tar.Header{Name: "l/passwd"})},
		{"a hard link", "l", archiveOf(t, good, tar.Header{Name: "l", Typeflag: tar.TypeLink, Linkname: "good"})},
		{"a device", "d", archiveOf(t, good, tar.Header{Name: "d", Typeflag: tar.TypeChar})},
		{"a block device", "d", archiveOf(t, good, tar.Header{Name: "d", Typeflag: tar.TypeBlock})},
		{"a FIFO", "d", archiveOf(t, good, tar.Header{Name: "d", Typeflag: tar.TypeFifo})},
		{"an entry that nobody knows", "d", archiveOf(t, good, tar.Header{Name: "d", Typeflag: 'Z'})},
		{"a file twice", "good", archiveOf(t, good, good)},
		{"a file in a file", "good/x", archiveOf(t, good, tar.Header{Name: "good/x"})},
		{"a file that is a folder", "d", archiveOf(t, tar.Header{Name: "d/x"}, tar.Header{Name: "d"})},
		{"a name that is too long", "xxxx", archiveOf(t, good, tar.Header{Name: strings.Repeat("x", 256)})},
		{"too deep", "x/x", archiveOf(t, good, tar.Header{Name: strings.Repeat("x/", 600) + "f"})},
		{"through a link of the workspace", "link/x", archiveOf(t, good, tar.Header{Name: "link/x"})},
		{"through a link, deep below", "link/a/b/x", archiveOf(t, good, tar.Header{Name: "link/a/b/x"})},
		{"onto a link of the workspace", "tolink", archiveOf(t, good, tar.Header{Name: "tolink"})},
		{"a folder onto a link", "link", archiveOf(t, good, tar.Header{Name: "link", Typeflag: tar.TypeDir})},
		{"a file onto a folder", "dir", archiveOf(t, good, tar.Header{Name: "dir"})},
		{"a folder onto a file", "file", archiveOf(t, good, tar.Header{Name: "file", Typeflag: tar.TypeDir})},
		{"onto a FIFO", "pipe", archiveOf(t, good, tar.Header{Name: "pipe"})},
		{"below a file", "file/x", archiveOf(t, good, tar.Header{Name: "file/x"})},
		{"a header for all", "", archiveOf(t, tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"path": "x"}}, good)},
		{"no archive", "", []byte("no archive")},
		{"an archive that is cut short", "", archiveOf(t, good, tar.Header{Name: "more"})[:60]},
		{"a wrong sum", "", wrongSum(archiveOf(t, good))},
	} {
		t.Run(c.name, func(t *testing.T) {
			outside := t.TempDir()
			put(t, outside+"/target", "safe", 0o644)
			ws := outside + "/ws"
			put(t, ws+"/file", "x", 0o644)
			put(t, ws+"/dir/x", "x", 0o644)
			for name, target := range map[string]string{"link": "..", "tolink": "../target"} {
				if err := os.Symlink(target, filepath.Join(ws, name)); err != nil {
					t.Fatal(err)
				}
			}
			if err := unix.Mkfifo(ws+"/pipe", 0o600); err != nil {
				t.Fatal(err)
			}
			before := tree(t, outside)
			_, err := unpack(ws, c.archive, Options{})
			var refused *RefusedError
			if !errors.As(err, &refused) {
				t.Fatalf("not refused: %v", err)
			}
			if !strings.HasPrefix(refused.Entry, c.entry) {
				t.Errorf("refused for %q, want %q: %v", refused.Entry, c.entry, err)
			}
			if diff := cmp.Diff(before, tree(t, outside)); diff != "" {
				t.Errorf("something was changed\n%s", diff)
			}
		})
	}
}

func wrongSum(b []byte) []byte {
	b = bytes.Clone(b)
	b[len(b)-8] ^= 1
	return b
}

func TestBombs(t *testing.T) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	if err := w.WriteHeader(&tar.Header{Name: "zeros", Typeflag: tar.TypeReg, Size: 64 << 20, Mode: 0o600}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, 64<<20)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	var behind bytes.Buffer
	z = gzip.NewWriter(&behind)
	if err := tar.NewWriter(z).Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := z.Write(make([]byte, 64<<20)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	var many []tar.Header
	for i := range 50 {
		many = append(many, tar.Header{Name: fmt.Sprint("f", i)})
	}
	for name, archive := range map[string][]byte{"bytes": b.Bytes(), "bytes behind the end": behind.Bytes(), "entries": archiveOf(t, many...)} {
		dir := t.TempDir()
		_, err := unpack(dir, archive, Options{MaxBytes: 1 << 20, MaxEntries: 40})
		var refused *RefusedError
		if !errors.As(err, &refused) {
			t.Errorf("%s: %v", name, err)
		}
		if left := tree(t, dir); len(left) > 0 {
			t.Errorf("%s: %v is left", name, left)
		}
	}
	// What would be refused is not packed.
	dir := t.TempDir()
	put(t, dir+"/a", strings.Repeat("x", 100), 0o600)
	put(t, dir+"/b", "x", 0o600)
	for name, o := range map[string]Options{"bytes": {MaxBytes: 50}, "entries": {MaxEntries: 1}} {
		var refused *RefusedError
		if _, err := Write(context.Background(), dir, &bytes.Buffer{}, o); !errors.As(err, &refused) {
			t.Errorf("pack more %s than is restored: %v", name, err)
		}
	}
}

func TestASecondNameKeepsItsContent(t *testing.T) {
	outside := t.TempDir()
	put(t, outside+"/victim", "safe", 0o644)
	ws := outside + "/ws"
	put(t, ws+"/x", "x", 0o644)
	if err := os.Link(outside+"/victim", ws+"/good"); err != nil {
		t.Fatal(err)
	}
	if _, err := unpack(ws, archiveOf(t, tar.Header{Name: "./good", Mode: 0o4777}), Options{}); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(outside + "/victim"); err != nil || string(b) != "safe" {
		t.Errorf("written through a hard link: %q %v", b, err)
	}
	st, err := os.Stat(ws + "/good")
	if err != nil || st.Mode() != 0o777 {
		t.Errorf("mode %v: %v", st.Mode(), err)
	}
}

// TestAnArchiveThatChangesMeanwhile: what was judged is what is written.
func TestAnArchiveThatChangesMeanwhile(t *testing.T) {
	dir := t.TempDir()
	r := &twoFaces{first: bytes.NewReader(archiveOf(t, tar.Header{Name: "a"})), second: bytes.NewReader(archiveOf(t, tar.Header{Name: "b"}))}
	if _, err := Restore(context.Background(), dir, r, Options{}); !errors.Is(err, errChanged) {
		t.Errorf("%v", err)
	}
	if left := tree(t, dir); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

type twoFaces struct{ first, second *bytes.Reader }

func (f *twoFaces) Read(b []byte) (int, error) { return f.first.Read(b) }
func (f *twoFaces) Seek(int64, int) (int64, error) {
	f.first = f.second
	return 0, nil
}

func FuzzRestore(f *testing.F) {
	f.Add("a", byte('0'), int64(0o644))
	f.Add("../a", byte('5'), int64(0o7777))
	f.Add("/a//b/.", byte('2'), int64(-1))
	f.Fuzz(func(t *testing.T, name string, kind byte, mode int64) {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		w := tar.NewWriter(z)
		if w.WriteHeader(&tar.Header{Name: name, Typeflag: kind, Mode: mode, Linkname: "/"}) != nil {
			return
		}
		if err := errors.Join(w.Close(), z.Close()); err != nil {
			return
		}
		outside := t.TempDir()
		ws := outside + "/ws"
		if err := os.Mkdir(ws, 0o755); err != nil {
			t.Fatal(err)
		}
		_, err := unpack(ws, b.Bytes(), Options{})
		var refused *RefusedError
		if err != nil && !errors.As(err, &refused) {
			t.Fatalf("%q: %v", name, err)
		}
		if left, err := os.ReadDir(outside); err != nil || len(left) != 1 {
			t.Fatalf("%q came out: %v", name, left)
		}
		if left, rerr := os.ReadDir(ws); rerr != nil || err != nil && len(left) != 0 {
			t.Fatalf("%q was refused and is there: %v", name, left)
		}
	})
}
