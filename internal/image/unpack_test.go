package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// anEntry is an entry of a tar in a test.
type anEntry struct {
	name, text, link string
	kind             byte // 0 is a file
	mode             int64
	pax              map[string]string
}

func file(name, text string) anEntry   { return anEntry{name: name, text: text, mode: 0o644} }
func dir(name string) anEntry          { return anEntry{name: name, kind: tar.TypeDir, mode: 0o755} }
func symlink(name, to string) anEntry  { return anEntry{name: name, link: to, kind: tar.TypeSymlink} }
func hardlink(name, to string) anEntry { return anEntry{name: name, link: to, kind: tar.TypeLink} }

var longAgo = time.Unix(1_000_000_000, 0)

// aTar writes entries as they are: nothing is made harmless.
func aTar(t testing.TB, list ...anEntry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range list {
		h := &tar.Header{Name: e.name, Linkname: e.link, Typeflag: e.kind, Mode: e.mode, Size: int64(len(e.text)), ModTime: longAgo, PAXRecords: e.pax, Uid: 12345, Gid: 54321}
		switch e.kind {
		case 0:
			h.Typeflag = tar.TypeReg
		case tar.TypeChar, tar.TypeBlock:
			h.Devmajor, h.Devminor = 1, 5
		case tar.TypeXGlobalHeader:
			*h = tar.Header{Name: e.name, Typeflag: e.kind, PAXRecords: e.pax}
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func aLayer(plain []byte) layer { return packedLayer(plain, plain) }

func packedLayer(plain, packed []byte) layer {
	return layer{digest: sum(packed), size: int64(len(packed)), diff: sum(plain), open: func(context.Context) (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(packed)), nil
	}}
}

func gzipped(t testing.TB, plain []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zstded(t testing.TB, plain []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(plain, nil)
}

// aStore is a store in a folder of its own, with the folder around it, in which an
// attack would leave its mark.
func aStore(t testing.TB) (s *Store, around string) {
	t.Helper()
	around = t.TempDir()
	return &Store{Dir: filepath.Join(around, "images")}, around
}

// made unpacks layers as an image of them would be.
func made(t testing.TB, s *Store, layers ...layer) (*Image, error) {
	t.Helper()
	found := picked{layers: layers, id: sum([]byte(fmt.Sprint(t.Name(), layers)))}
	found.digest = found.id
	b, err := s.begin(t.Context(), found)
	if err != nil {
		t.Fatal(err)
	}
	defer b.end()
	if err := b.unpack(t.Context(), nil); err != nil {
		return nil, err
	}
	img, err := b.keep("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { img.Close() })
	return img, nil
}

// tree lists what is in a folder: name, and text, target or /.
func tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(dir, p)
		if err != nil || rel == "." {
			return err
		}
		switch {
		case d.IsDir():
			out[rel] = "/"
		case d.Type()&fs.ModeSymlink != 0:
			to, err := os.Readlink(p)
			out[rel] = "-> " + to
			return err
		case d.Type()&fs.ModeNamedPipe != 0:
			out[rel] = "fifo"
		default:
			b, err := os.ReadFile(p)
			out[rel] = string(b)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestLayersMakeARoot(t *testing.T) {
	for _, tc := range []struct {
		sentence string
		layers   [][]anEntry
		want     map[string]string
	}{
		{"files, folders and links", [][]anEntry{{dir("./"), dir("etc/"), file("etc/a", "A"), symlink("etc/l", "a"), symlink("abs", "/etc/a"), hardlink("etc/h", "etc/a"), {name: "p", kind: tar.TypeFifo, mode: 0o644}}},
			map[string]string{"etc": "/", "etc/a": "A", "etc/l": "-> a", "abs": "-> /etc/a", "etc/h": "A", "p": "fifo"}},
		{"folders that no entry names are made", [][]anEntry{{file("a/b/c", "C")}}, map[string]string{"a": "/", "a/b": "/", "a/b/c": "C"}},
		{"a later layer replaces", [][]anEntry{{file("a", "1"), dir("d"), file("d/x", "X"), symlink("l", "a")}, {file("a", "2"), file("d", "now a file"), dir("l"), file("l/in", "I")}},
			map[string]string{"a": "2", "d": "now a file", "l": "/", "l/in": "I"}},
		{"a folder in both layers has what both have", [][]anEntry{{dir("d"), file("d/1", "1")}, {dir("d"), file("d/2", "2")}}, map[string]string{"d": "/", "d/1": "1", "d/2": "2"}},
		{"a whiteout takes away a file, and a folder", [][]anEntry{{file("a", "A"), dir("d"), file("d/x", "X"), file("d/y/z", "Z"), file("k", "K")}, {file(".wh.a", ""), file("d/.wh.x", ""), file("d/.wh.y", "")}},
			map[string]string{"d": "/", "k": "K"}},
		{"an opaque whiteout takes away what was in the folder, wherever it stands", [][]anEntry{{file("d/x", "X"), file("d/s/t", "T")}, {dir("d"), file("d/s/n", "N"), file("d/new", "N"), file("d/.wh..wh..opq", "")}},
			map[string]string{"d": "/", "d/new": "N", "d/s": "/", "d/s/n": "N"}},
		{"an opaque whiteout of all", [][]anEntry{{file("d/x", "X")}, {file(".wh..wh..opq", ""), file("n", "N")}}, map[string]string{"n": "N"}},
		{"a whiteout of what its own layer has does not take that", [][]anEntry{{file("a", "old")}, {file("a", "new"), file(".wh.a", "")}}, map[string]string{"a": "new"}},
		{"a whiteout of nothing", [][]anEntry{{file(".wh.a", ""), file("no/.wh.x", "")}}, map[string]string{}},
		{"what AUFS kept for itself is left out", [][]anEntry{{dir(".wh..wh.plnk"), file(".wh..wh.plnk/1", "x"), file(".wh..wh.aufs", "")}}, map[string]string{}},
		{"a link to a folder of a layer below is followed within the root", [][]anEntry{{dir("usr/bin"), symlink("bin", "usr/bin"), symlink("abs", "/usr")}, {file("bin/a", "A"), file("abs/b", "B")}},
			map[string]string{"usr": "/", "usr/bin": "/", "bin": "-> usr/bin", "abs": "-> /usr", "usr/bin/a": "A", "usr/b": "B"}},
		{"a hard link to a file of a layer below, written as some tools do", [][]anEntry{{file("usr/a", "A")}, {hardlink("b", "/usr/a"), hardlink("usr/a", "b")}}, map[string]string{"usr": "/", "usr/a": "A", "b": "A"}},
		{"a name in a PAX header", [][]anEntry{{file(strings.Repeat("long/", 40)+"a", "A")}}, longTree()},
		{"a global header that says nothing", [][]anEntry{{{name: "g", kind: tar.TypeXGlobalHeader, pax: map[string]string{"comment": "a commit"}}, file("a", "A")}}, map[string]string{"a": "A"}},
		{"no layer at all", nil, map[string]string{}},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			s, _ := aStore(t)
			var layers []layer
			for _, l := range tc.layers {
				layers = append(layers, aLayer(aTar(t, l...)))
			}
			img, err := made(t, s, layers...)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tc.want, tree(t, img.Root)); d != "" {
				t.Error(d)
			}
		})
	}
}

func longTree() map[string]string {
	out := map[string]string{}
	p := ""
	for range 40 {
		p = filepath.Join(p, "long")
		out[p] = "/"
	}
	out[filepath.Join(p, "a")] = "A"
	return out
}

func TestLayersMayBePacked(t *testing.T) {
	plain := aTar(t, file("a", "A"))
	for name, packed := range map[string][]byte{"not at all": plain, "gzip": gzipped(t, plain), "zstd": zstded(t, plain), "gzip twice in a row": append(gzipped(t, plain[:512]), gzipped(t, plain[512:])...)} {
		t.Run(name, func(t *testing.T) {
			s, _ := aStore(t)
			img, err := made(t, s, packedLayer(plain, packed))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(map[string]string{"a": "A"}, tree(t, img.Root)); d != "" {
				t.Error(d)
			}
		})
	}
}

// What is unpacked is ours, readable to us, and has no powers.
func TestModesAndOwners(t *testing.T) {
	s, _ := aStore(t)
	img, err := made(t, s, aLayer(aTar(t,
		anEntry{name: "suid", text: "x", mode: 0o6755}, anEntry{name: "secret", text: "x", mode: 0o000}, anEntry{name: "group", text: "x", mode: 0o640},
		anEntry{name: "shut", kind: tar.TypeDir, mode: 0o000}, file("shut/in", "x"), anEntry{name: "tmp", kind: tar.TypeDir, mode: 0o1777}, anEntry{name: "sgid", kind: tar.TypeDir, mode: 0o2755},
		anEntry{name: "cap", text: "x", mode: 0o755, pax: map[string]string{"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", "SCHILY.xattr.user.a": "b"}})))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]uint32{"suid": 0o755, "secret": 0o400, "group": 0o640, "shut": 0o700, "tmp": 0o1777, "sgid": 0o755, "cap": 0o755}
	for name, mode := range want {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(img.Root, name), &st); err != nil {
			t.Fatal(err)
		}
		if st.Mode&0o7777 != mode || int(st.Uid) != os.Geteuid() || int(st.Gid) != os.Getegid() {
			t.Errorf("%s has mode %o and belongs to %d:%d, want %o and us", name, st.Mode&0o7777, st.Uid, st.Gid, mode)
		}
		if st.Mtim.Sec != longAgo.Unix() {
			t.Errorf("%s is of %v", name, time.Unix(st.Mtim.Unix()))
		}
	}
	if n, err := unix.Llistxattr(filepath.Join(img.Root, "cap"), nil); err == nil && n != 0 {
		list := make([]byte, n)
		_, _ = unix.Llistxattr(filepath.Join(img.Root, "cap"), list)
		for _, x := range strings.Split(string(list), "\x00") {
			if strings.HasPrefix(x, "user.") || x == "security.capability" {
				t.Errorf("it has the attribute %s", x)
			}
		}
	}
}

// TestN154 : each attack is refused, nothing is left, and the same layer without it is
// unpacked.
func TestN154HostileLayersAreRefused(t *testing.T) {
	deep := strings.Repeat("d/", maxDepth) + "x"
	for _, tc := range []struct {
		sentence string
		layers   [][]anEntry
		control  [][]anEntry
		raw      []byte // in place of layers
	}{
		{sentence: "a file above the root", layers: [][]anEntry{{file("../evil", "x")}}, control: [][]anEntry{{file("evil", "x")}}},
		{sentence: ".. in the middle", layers: [][]anEntry{{dir("a"), file("a/../../evil", "x")}}, control: [][]anEntry{{dir("a"), file("a/evil", "x")}}},
		{sentence: ".. that stays inside", layers: [][]anEntry{{dir("a"), file("a/../b", "x")}}, control: [][]anEntry{{dir("a"), file("b", "x")}}},
		{sentence: "an absolute path", layers: [][]anEntry{{file("/evil", "x")}}, control: [][]anEntry{{file("./evil", "x")}}},
		{sentence: "a character device", layers: [][]anEntry{{{name: "null", kind: tar.TypeChar, mode: 0o666}}}, control: [][]anEntry{{file("null", "")}}},
		{sentence: "a block device", layers: [][]anEntry{{{name: "sda", kind: tar.TypeBlock, mode: 0o666}}}, control: [][]anEntry{{file("sda", "")}}},
		{sentence: "a symlink that climbs out", layers: [][]anEntry{{symlink("l", "../../../../etc/shadow")}}, control: [][]anEntry{{symlink("l", "etc/shadow")}}},
		{sentence: "a symlink that climbs out of a folder", layers: [][]anEntry{{symlink("a/l", "../../evil")}}, control: [][]anEntry{{symlink("a/l", "../evil")}}},
		{sentence: "an absolute symlink that climbs out", layers: [][]anEntry{{symlink("l", "/../evil")}}, control: [][]anEntry{{symlink("l", "/evil")}}},
		{sentence: "a symlink to nothing", layers: [][]anEntry{{symlink("l", "")}}, control: [][]anEntry{{symlink("l", ".")}}},
		{sentence: "a hard link to a file above", layers: [][]anEntry{{hardlink("h", "../around")}}, control: [][]anEntry{{file("a", ""), hardlink("h", "a")}}},
		{sentence: "a hard link to a file of the host by its path", layers: [][]anEntry{{hardlink("h", "/etc/passwd")}}, control: [][]anEntry{{file("etc/passwd", ""), hardlink("h", "/etc/passwd")}}},
		{sentence: "a hard link through a symlink out of the root", layers: [][]anEntry{{symlink("l", "/etc")}, {hardlink("h", "l/passwd")}}, control: [][]anEntry{{symlink("l", "/etc"), file("etc/passwd", "p")}, {hardlink("h", "l/passwd")}}},
		{sentence: "a hard link to a folder", layers: [][]anEntry{{dir("d"), hardlink("h", "d")}}, control: [][]anEntry{{file("d", ""), hardlink("h", "d")}}},
		{sentence: "a hard link to itself", layers: [][]anEntry{{hardlink("h", "h")}}, control: [][]anEntry{{file("a", ""), hardlink("h", "a")}}},
		{sentence: "a hard link to the root", layers: [][]anEntry{{hardlink("h", "/")}}, control: [][]anEntry{{file("a", ""), hardlink("h", "a")}}},
		{sentence: "a file through a link to nowhere", layers: [][]anEntry{{symlink("l", "/nowhere"), file("l/x", "x")}}, control: [][]anEntry{{symlink("l", "/somewhere"), dir("somewhere"), file("l/x", "x")}}},
		{sentence: "a file through a link to itself", layers: [][]anEntry{{symlink("l", "l"), file("l/x", "x")}}, control: [][]anEntry{{symlink("l", "d"), dir("d"), file("l/x", "x")}}},
		{sentence: "a whiteout through a link of its layer", layers: [][]anEntry{{symlink("l", "/"), file("l/.wh.etc", "")}}, control: [][]anEntry{{dir("l"), file("l/.wh.etc", "")}}},
		{sentence: "a whiteout through a link of a layer below", layers: [][]anEntry{{file("d/x", "X"), symlink("l", "d")}, {file("l/.wh.x", "")}}, control: [][]anEntry{{file("d/x", "X"), symlink("l", "d")}, {file("d/.wh.x", "")}}},
		{sentence: "an opaque whiteout through a link", layers: [][]anEntry{{file("d/x", "X"), symlink("l", "d")}, {file("l/.wh..wh..opq", "")}}, control: [][]anEntry{{file("d/x", "X")}, {file("d/.wh..wh..opq", "")}}},
		{sentence: "a whiteout of ..", layers: [][]anEntry{{file("d/.wh...", "")}}, control: [][]anEntry{{file("d/.wh.x", "")}}},
		{sentence: "a whiteout of the folder itself", layers: [][]anEntry{{file("d/.wh..", "")}}, control: [][]anEntry{{file("d/.wh.x", "")}}},
		{sentence: "a whiteout of nothing", layers: [][]anEntry{{file("d/.wh.", "")}}, control: [][]anEntry{{file("d/.wh.x", "")}}},
		{sentence: "an entry in a whiteout", layers: [][]anEntry{{file(".wh.a/b", "")}}, control: [][]anEntry{{file("a/b", "")}}},
		{sentence: "a PAX header that puts another path in place", raw: withPAX("path", "../evil", aTar(t, file("good", "x"))), control: [][]anEntry{{file("good", "x")}}},
		{sentence: "a PAX header that puts another target in place", raw: withPAX("linkpath", "../../evil", aTar(t, symlink("good", "a"))), control: [][]anEntry{{symlink("good", "a")}}},
		{sentence: "a PAX header that makes a file of another size", raw: withPAX("size", "4096", aTar(t, file("good", "x"))), control: [][]anEntry{{file("good", "x")}}},
		{sentence: "a PAX header that makes a sparse file", raw: withPAX("GNU.sparse.realsize", "1099511627776", withPAX("GNU.sparse.major", "1", aTar(t, file("good", "x")))), control: [][]anEntry{{file("good", "x")}}},
		{sentence: "a global PAX header that does it for all", layers: [][]anEntry{{{name: "g", kind: tar.TypeXGlobalHeader, pax: map[string]string{"path": "../evil"}}, file("good", "x")}}, control: [][]anEntry{{file("good", "x")}}},
		{sentence: "a sparse file", raw: sparseTar(), control: [][]anEntry{{file("s", "x")}}},
		{sentence: "more folders than any path has", layers: [][]anEntry{{file(deep, "x")}}, control: [][]anEntry{{file(strings.TrimPrefix(deep, "d/"), "x")}}},
		{sentence: "a name that no file system has", layers: [][]anEntry{{file(strings.Repeat("n", 256), "x")}}, control: [][]anEntry{{file(strings.Repeat("n", 255), "x")}}},
		{sentence: "a path that no system call takes", layers: [][]anEntry{{dir(strings.Repeat(strings.Repeat("n", 100)+"/", 41))}}, control: [][]anEntry{{dir(strings.Repeat(strings.Repeat("n", 100)+"/", 30))}}},
		{sentence: "a tree that grows through links", layers: growing(10), control: [][]anEntry{{dir("d")}}},
		{sentence: "the root as a file", layers: [][]anEntry{{{name: "./", kind: tar.TypeSymlink, link: "/etc"}}}, control: [][]anEntry{{dir("./")}}},
		{sentence: "a type that no layer has", layers: [][]anEntry{{{name: "c", kind: tar.TypeCont}}}, control: [][]anEntry{{file("c", "")}}},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			s, around := aStore(t)
			if err := os.WriteFile(filepath.Join(around, "around"), []byte("of the host"), 0o600); err != nil {
				t.Fatal(err)
			}
			attack := asLayers(t, tc.layers)
			if tc.raw != nil {
				attack = []layer{aLayer(tc.raw)}
			}
			img, err := made(t, s, attack...)
			if !errors.Is(err, ErrRefused) {
				t.Fatalf("got %v (%v), want that it is refused", err, img)
			}
			if OfHost(err) {
				t.Errorf("it is called the host's doing: %v", err)
			}
			untouched(t, s, around)
			if _, err := made(t, s, asLayers(t, tc.control)...); err != nil {
				t.Errorf("control: the same without it is refused: %v", err)
			}
		})
	}
}

// growing makes folders at the end of links to the ends of the last ones.
func growing(n int) [][]anEntry {
	long := strings.TrimSuffix(strings.Repeat("d/", 60), "/")
	list := []anEntry{dir(long), symlink("l0", "/"+long)}
	at := long
	for i := range n {
		list = append(list, dir(fmt.Sprintf("l%d/%s", i, long)))
		at += "/" + long
		list = append(list, symlink(fmt.Sprintf("l%d", i+1), "/"+at))
	}
	return [][]anEntry{list}
}

func asLayers(t testing.TB, list [][]anEntry) (out []layer) {
	t.Helper()
	for _, l := range list {
		out = append(out, aLayer(aTar(t, l...)))
	}
	return out
}

// withPAX puts a PAX header in front of an archive, which a writer would not do.
func withPAX(key, value string, archive []byte) []byte {
	record := fmt.Sprintf(" %s=%s\n", key, value)
	n := len(record) + 1
	for len(fmt.Sprint(n))+len(record) != n {
		n++
	}
	body := fmt.Sprint(n) + record
	h := header('x', int64(len(body)))
	block := make([]byte, (len(body)+511)/512*512)
	copy(block, body)
	return append(append(h, block...), archive...)
}

// header is a block as ustar has it.
func header(kind byte, size int64) []byte {
	h := make([]byte, 512)
	copy(h, "PaxHeaders/x")
	copy(h[100:], fmt.Sprintf("0000644\x000000000\x000000000\x00%011o\x0000000000000\x00", size))
	h[156] = kind
	copy(h[257:], "ustar\x0000")
	return summed(h)
}

// summed puts the checksum of a header into it.
func summed(h []byte) []byte {
	copy(h[148:], "        ")
	n := 0
	for _, c := range h {
		n += int(c)
	}
	copy(h[148:], fmt.Sprintf("%06o\x00 ", n))
	return h
}

// sparseTar has a file of a terabyte in a few blocks, in the form of old GNU tar.
func sparseTar() []byte {
	h := make([]byte, 512)
	copy(h, "s")
	copy(h[100:], "0000644\x000000000\x000000000\x0000000000000\x0000000000000\x00")
	h[156] = 'S'
	copy(h[257:], "ustar  \x00")
	copy(h[386:], "00000000000\x0000000000000\x00")
	copy(h[483:], "77777777777\x00")
	return append(summed(h), make([]byte, 1024)...)
}

// untouched fails if anything of an image, or beside the store, is there.
func untouched(t testing.TB, s *Store, around string) {
	t.Helper()
	got := tree(t, around)
	var left []string
	for p := range got {
		switch {
		case p == "around" && got[p] == "of the host":
		case p == "images", strings.HasPrefix(p, "images/locks"), p == "images/"+blobsDir, p == "images/"+rootsDir, p == "images/"+refsDir, p == "images/"+tmpDir:
		default:
			left = append(left, p)
		}
	}
	sort.Strings(left)
	if len(left) > 0 {
		t.Errorf("there is now: %q", left)
	}
}

func TestN154BombsAreRefused(t *testing.T) {
	zeros := aTar(t, file("zeros", strings.Repeat("\x00", 4<<20)))
	many := []anEntry{}
	for i := range 300 {
		many = append(many, file(fmt.Sprint(i), ""))
	}
	for _, tc := range []struct {
		sentence string
		limits   Limits
		layers   []layer
	}{
		{"bytes in one layer", Limits{Unpacked: 1 << 20}, []layer{packedLayer(zeros, gzipped(t, zeros))}},
		{"bytes in all layers together", Limits{Unpacked: 6 << 20}, []layer{packedLayer(zeros, zstded(t, zeros)), packedLayer(zeros, gzipped(t, zeros))}},
		{"bytes behind the end of the archive", Limits{Unpacked: 1 << 20}, []layer{aLayer(append(aTar(t), make([]byte, 2<<20)...))}},
		{"entries", Limits{Entries: 299}, []layer{aLayer(aTar(t, many...))}},
		{"bytes of names", Limits{Names: 789}, []layer{aLayer(aTar(t, many...))}},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			s, around := aStore(t)
			s.Limits = tc.limits
			if _, err := made(t, s, tc.layers...); !errors.Is(err, ErrRefused) {
				t.Errorf("got %v, want that it is refused", err)
			}
			untouched(t, s, around)
			s.Limits = Limits{}
			if _, err := made(t, s, tc.layers...); err != nil {
				t.Errorf("control: within the bounds it is refused: %v", err)
			}
		})
	}
}

func TestALayerThatIsNotWhatItsSumsSay(t *testing.T) {
	plain := aTar(t, file("a", "A"))
	for name, change := range map[string]func(*layer){
		"another digest":          func(l *layer) { l.digest = someDigest },
		"another sum of the tar":  func(l *layer) { l.diff = someDigest },
		"more bytes than it says": func(l *layer) { l.size-- },
		"fewer bytes":             func(l *layer) { l.size++ },
		"it ends too soon": func(l *layer) {
			*l = packedLayer(plain, gzipped(t, plain)[:40])
		},
		"no archive": func(l *layer) { *l = aLayer([]byte(strings.Repeat("no archive", 100))) },
	} {
		t.Run(name, func(t *testing.T) {
			s, around := aStore(t)
			l := aLayer(plain)
			change(&l)
			if _, err := made(t, s, l); !errors.Is(err, ErrRefused) {
				t.Errorf("got %v, want that it is refused", err)
			}
			untouched(t, s, around)
		})
	}
}

// The host's own failures are not the image's.
func TestAHostWithoutRoom(t *testing.T) {
	if !OfHost(&applyError{"write", unix.ENOSPC}) || OfHost(applied("x", unix.ELOOP)) || !OfHost(applied("x", unix.EDQUOT)) || OfHost(nil) {
		t.Error("a full disk is the host's doing, a link that leads nowhere is not")
	}
}

// FuzzLayer: whatever bytes are a layer, nothing outside the root is touched, and what
// was vetted and unpacked has nothing but what a root may have.
func FuzzLayer(f *testing.F) {
	for _, l := range [][]anEntry{
		{file("a/b", "x"), symlink("l", "/a"), file("l/c", "y"), hardlink("h", "a/b")}, {file("a/.wh.b", ""), file("a/.wh..wh..opq", "")},
		{symlink("a", "b"), symlink("b", "a"), file("a/x", "")}, {dir("d"), file("d", "x"), dir("d"), symlink("d", "/"), file("d/x", "")}, {{name: "p", kind: tar.TypeFifo}}, {file("../x", "")},
		{{name: "x", pax: map[string]string{"path": "y"}}},
	} {
		f.Add(aTar(f, l...))
	}
	f.Add(sparseTar())
	f.Fuzz(func(t *testing.T, raw []byte) {
		around := t.TempDir()
		at := filepath.Join(around, "root")
		if err := os.Mkdir(at, 0o755); err != nil {
			t.Fatal(err)
		}
		r, err := openRoot(at)
		if err != nil {
			t.Fatal(err)
		}
		defer r.close()
		r.nextLayer()
		l := aLayer(raw)
		l.diff = "" // packed ones are fine
		s := &spent{limits: Limits{Unpacked: 1 << 20, Entries: 200, Names: 1 << 20}}
		if err := l.walk(t.Context(), s, r.apply); err == nil {
			if err := r.finish(); err != nil {
				t.Error(err)
			}
		} else if !errors.Is(err, ErrRefused) {
			t.Errorf("%v", err)
		}
		if list, err := os.ReadDir(around); err != nil || len(list) != 1 {
			t.Errorf("beside the root there is %v (%v)", list, err)
		}
		err = filepath.WalkDir(at, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			st, err := d.Info()
			if err == nil && st.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeDevice|fs.ModeSocket) != 0 {
				t.Errorf("%s has mode %s", p, st.Mode())
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
}

func mkfifo(at string) error { return unix.Mkfifo(at, 0o600) }
