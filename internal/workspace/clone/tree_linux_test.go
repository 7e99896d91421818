package clone

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// TestOneThing copies trees of few entries and holds the copy to the original.
func TestOneThing(t *testing.T) {
	long := strings.Repeat("x", 255)
	write := func(p, text string, mode uint32) {
		do(t, os.WriteFile(p, []byte(text), 0o600), syscall.Chmod(p, mode))
	}
	for _, tt := range []struct {
		name string
		make func(at string)
		want Result // Reflinked is looked at elsewhere
	}{
		{"an empty folder", func(string) {}, Result{}},
		{"a file with its mode", func(at string) { write(at+"/f", "text", 0o751) }, Result{Entries: 1, Bytes: 4}},
		{"an empty file", func(at string) { write(at+"/f", "", 0o400) }, Result{Entries: 1}},
		{"set-id bits of a file that is ours", func(at string) {
			write(at+"/u", "a", 0o4755)
			write(at+"/g", "b", 0o2755)
			write(at+"/t", "c", 0o1644)
		}, Result{Entries: 3, Bytes: 3}},
		{"names of any bytes", func(at string) {
			for _, n := range []string{"\xff\xfe", "new\nline", "-rf", " ", "\\", "*", long, "...", "\x01"} {
				write(at+"/"+n, n, 0o644)
			}
		}, Result{Entries: 9, Bytes: 2 + 8 + 3 + 1 + 1 + 1 + 255 + 3 + 1}},
		{"a folder that nobody may write to, with what is in it", func(at string) {
			do(t, os.MkdirAll(at+"/d/e", 0o755))
			write(at+"/d/e/f", "x", 0o444)
			do(t, syscall.Chmod(at+"/d/e", 0o555), syscall.Chmod(at+"/d", 0o3555))
		}, Result{Entries: 3, Bytes: 1}},
		{"links with their raw targets, and nothing behind them", func(at string) {
			for i, target := range []string{"/etc/passwd", "..", ".", "loop", "gone", "\xff", strings.Repeat("y", 4000)} {
				do(t, os.Symlink(target, fmt.Sprintf("%s/l%d", at, i)))
			}
			do(t, os.Symlink("loop", at+"/loop"))
		}, Result{Entries: 8}},
		{"FIFOs and sockets", func(at string) {
			do(t, syscall.Mkfifo(at+"/p", 0o600), syscall.Mknod(at+"/s", syscall.S_IFSOCK|0o600, 0),
				syscall.Chmod(at+"/p", 0o622), syscall.Chmod(at+"/s", 0))
		}, Result{Entries: 2}},
		{"hard links, of each other and across folders", func(at string) {
			do(t, os.MkdirAll(at+"/a/b", 0o755))
			write(at+"/f", "once", 0o644)
			do(t, os.Link(at+"/f", at+"/g"), os.Link(at+"/f", at+"/a/b/h"))
			write(at+"/other", "once", 0o644)
		}, Result{Entries: 6, Bytes: 8}},
		{"a hard link to a file outside", func(at string) {
			write(at+"/../outside", "out", 0o644)
			do(t, os.Link(at+"/../outside", at+"/f"), os.Remove(at+"/../outside"))
		}, Result{Entries: 1, Bytes: 3}},
		{"a device 0:0", func(at string) {
			do(t, unix.Mknod(at+"/w", unix.S_IFCHR, 0))
		}, Result{Entries: 1}},
		{"a file of a terabyte with nothing in it", func(at string) {
			write(at+"/f", "", 0o644)
			do(t, os.Truncate(at+"/f", 1<<40))
		}, Result{Entries: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			everyone(t, func(t *testing.T) {
				from, to := pair(t)
				tt.make(from)
				do(t, os.Chtimes(from, time.Time{}, time.Unix(1_000_000_000, 123456789)))
				want, wantFacts := tt.want, facts(t, from)
				got := mustClone(t, from, to, Options{})
				want.Reflinked = got.Reflinked
				if d := cmp.Diff(want, got); d != "" {
					t.Errorf("(-want +got):\n%s", d)
				}
				if d := cmp.Diff([]string{}, differences(t, from, to)); d != "" {
					t.Errorf("differs (-want +got):\n%s", d)
				}
				if d := cmp.Diff(wantFacts, facts(t, to)); d != "" {
					t.Errorf("(-original +copy):\n%s", d)
				}
			})
		})
	}
}

// TestRandomTrees is the same for trees nobody thought of.
func TestRandomTrees(t *testing.T) {
	everyone(t, func(t *testing.T) {
		for seed := range uint64(8) {
			r := rand.New(rand.NewPCG(seed, 4))
			from, to := pair(t)
			made := grow(t, r, from)
			wantFacts := facts(t, from)
			got := mustClone(t, from, to, Options{})
			if got.Entries != int64(made) || len(got.Absent) > 0 || got.Reowned > 0 {
				t.Errorf("seed %d: made %d entries, the copy says %+v", seed, made, got)
			}
			if d := cmp.Diff([]string{}, differences(t, from, to)); d != "" {
				t.Fatalf("seed %d (-want +got):\n%s", seed, d)
			}
			if d := cmp.Diff(wantFacts, facts(t, to)); d != "" {
				t.Fatalf("seed %d (-original +copy):\n%s", seed, d)
			}
		}
	})
}

// grow makes a random tree and answers how many entries it has. Modes are set
// last, since they would be in the way; the owner can always read.
func grow(t *testing.T, r *rand.Rand, root string) int {
	t.Helper()
	dirs, files := []string{root}, []string{}
	modes := map[string]uint32{}
	n := 50 + r.IntN(300)
	for i := range n {
		p := fmt.Sprintf("%s/%c%d\xff", dirs[r.IntN(len(dirs))], 'a'+r.IntN(26), i)
		var err error
		switch kind := r.IntN(14); {
		case kind < 3:
			err = os.Mkdir(p, 0o700)
			dirs, modes[p] = append(dirs, p), []uint32{0o755, 0o555, 0o500, 0o1777, 0o2755}[r.IntN(5)]
		case kind == 3:
			err = os.Symlink(strings.Repeat("../", r.IntN(9))+"x", p)
		case kind == 4:
			err = syscall.Mkfifo(p, 0o640)
		case kind < 7 && len(files) > 0:
			err = os.Link(files[r.IntN(len(files))], p)
		default:
			f, e := os.Create(p)
			do(t, e)
			for range r.IntN(4) { // pieces with holes between
				b := make([]byte, r.IntN(70_000)>>r.IntN(12))
				for i := range b {
					b[i] = byte(r.Uint32())
				}
				_, e = f.WriteAt(b, int64(r.IntN(300_000)>>r.IntN(16)))
				do(t, e)
			}
			if r.IntN(4) == 0 {
				do(t, f.Truncate(int64(r.IntN(400_000))))
			}
			err = f.Close()
			files, modes[p] = append(files, p), []uint32{0o644, 0o755, 0o400, 0o4755, 0o2711 | 0o400}[r.IntN(5)]
		}
		do(t, err)
	}
	for p := range modes {
		if os.Geteuid() == 0 && r.IntN(2) == 0 {
			do(t, os.Lchown(p, r.IntN(2000), r.IntN(2000)))
		}
		at := time.Unix(r.Int64N(2_000_000_000), r.Int64N(1_000_000_000))
		do(t, os.Chtimes(p, time.Time{}, at))
	}
	slices.Reverse(dirs)
	for _, p := range append(files, dirs...) {
		if m, ok := modes[p]; ok {
			do(t, syscall.Chmod(p, m))
		}
	}
	return n
}

func TestWhatCannotBeReadIsAbsent(t *testing.T) {
	nobody(t, func(t *testing.T) {
		from, to := pair(t)
		for _, d := range []string{"shut", "listed", "in", "in/deep", "still"} {
			do(t, os.Mkdir(from+"/"+d, 0o700))
		}
		for _, f := range []string{"shut/f", "listed/f", "in/deep/secret", "in/f\xff", "open"} {
			do(t, os.WriteFile(from+"/"+f, []byte("x"), 0o600))
		}
		do(t, os.Symlink("x", from+"/listed/l"))
		for _, p := range []string{"shut", "in/deep/secret", "in/f\xff", "still"} {
			do(t, os.Chmod(from+"/"+p, 0))
		}
		do(t, os.Chmod(from+"/listed", 0o400))
		got := mustClone(t, from, to, Options{})
		want := Result{Entries: 4, Bytes: 1, Absent: []string{"in/deep/secret", "in/f\xff", "listed/f", "listed/l", "shut", "still"}}
		want.Reflinked = got.Reflinked
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
		do(t, os.Chmod(to+"/listed", 0o700)) // to look
		for _, p := range want.Absent {
			if _, err := os.Lstat(to + "/" + p); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%q: %v, want nothing there", p, err)
			}
		}
		_, empty := pair(t)
		do(t, os.Chmod(from, 0))
		if got := mustClone(t, from, empty, Options{}); !slices.Equal(got.Absent, []string{"."}) {
			t.Errorf("the folder itself shut: %+v", got)
		}
	})
}

// TestRootReadsEverything: no mode stops it, and folders are closed when filled.
func TestRootReadsEverything(t *testing.T) {
	need.Root(t)
	from, to := pair(t)
	do(t, os.MkdirAll(from+"/shut/in", 0o700), os.WriteFile(from+"/shut/in/f", []byte("x"), 0),
		unix.Mknod(from+"/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))),
		unix.Mknod(from+"/disk", unix.S_IFBLK|0o600, int(unix.Mkdev(240, 7))),
		os.Lchown(from+"/null", 5, 6), os.Chmod(from+"/shut/in", 0), os.Chmod(from+"/shut", 0))
	do(t, os.WriteFile(from+"/su", []byte("x"), 0o600), os.Lchown(from+"/su", 1234, 1235), syscall.Chmod(from+"/su", 0o6755))
	want := facts(t, from)
	got := mustClone(t, from, to, Options{})
	// A host may refuse devices to root too; then they are absent, by name.
	if got.Entries+int64(len(got.Absent)) != 6 || got.Reowned != 0 {
		t.Errorf("got %+v", got)
	}
	for _, p := range got.Absent {
		if p != "null" && p != "disk" {
			t.Errorf("%q is absent", p)
		}
		delete(want, p)
		do(t, os.Remove(from+"/"+p))
	}
	delete(want, ".")
	now := facts(t, to)
	delete(now, ".")
	if d := cmp.Diff(want, now); d != "" {
		t.Errorf("(-original +copy):\n%s", d)
	}
	if d := differences(t, from, to); len(d) > 0 {
		t.Errorf("differs: %v", d)
	}
}

func TestASetIDBitIsNotMovedToAnotherOwner(t *testing.T) {
	if !inside() {
		need.Root(t)
		from, err := os.MkdirTemp("", "clone-setid-")
		do(t, err, os.Chmod(from, 0o755))
		t.Cleanup(func() { _ = os.RemoveAll(from) })
		do(t, os.WriteFile(from+"/su", []byte("x"), 0o755), syscall.Chmod(from+"/su", 0o6755))
		t.Setenv("CLONE_TEST_SETID", from)
		rerun(t, 65534)
		return
	}
	_, to := pair(t)
	mustClone(t, os.Getenv("CLONE_TEST_SETID"), to, Options{})
	st, err := os.Lstat(to + "/su")
	do(t, err)
	if st.Mode() != 0o755 {
		t.Errorf("a copy that is ours has mode %v, want 0755", st.Mode())
	}
}

func TestMarksOfAnUpperLayer(t *testing.T) {
	everyone(t, func(t *testing.T) {
		for _, marks := range []bool{false, true} {
			from, to := pair(t)
			for d, attr := range map[string]string{"opaque": "user.overlay.opaque=y", "long": "user.overlay.opaque=yes",
				"x": "user.overlay.opaque=x", "origin": "user.overlay.origin=abc", "other": "user.other=y"} {
				do(t, os.Mkdir(from+"/"+d, 0o555), os.Chmod(from+"/"+d, 0o755))
				k, v, _ := strings.Cut(attr, "=")
				do(t, unix.Setxattr(from+"/"+d, k, []byte(v), 0), os.Chmod(from+"/"+d, 0o555))
			}
			do(t, unix.Mknod(from+"/white", unix.S_IFCHR, 0))
			mustClone(t, from, to, Options{Marks: marks})
			if d := differences(t, from, to); len(d) > 0 {
				t.Errorf("differs: %v", d)
			}
			got := []string{}
			for _, d := range []string{"opaque", "long", "x", "origin", "other"} {
				b := make([]byte, 100)
				n, err := unix.Listxattr(to+"/"+d, b)
				do(t, err)
				for _, k := range strings.Split(strings.TrimRight(string(b[:n]), "\x00"), "\x00") {
					if strings.HasPrefix(k, "user.") {
						got = append(got, d+" "+k)
					}
				}
			}
			want := []string{}
			if marks {
				want = []string{"opaque user.overlay.opaque"}
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("marks %v (-want +got):\n%s", marks, d)
			}
		}
	})
}

func TestHolesStayHoles(t *testing.T) {
	from, to := pair(t)
	const tib = 1 << 40
	f, err := os.Create(from + "/huge")
	do(t, err, f.Truncate(tib))
	for _, off := range []int64{0, 1 << 20, 1 << 30, tib - 3} {
		_, err := f.WriteAt([]byte("end"), off)
		do(t, err)
	}
	do(t, f.Close())
	// Preallocated: it takes disk, and was never written to.
	f, err = os.Create(from + "/pre")
	do(t, err)
	if err := unix.Fallocate(int(f.Fd()), 0, 0, 64<<20); err != nil {
		t.Logf("no fallocate here: %v", err)
	}
	do(t, f.Truncate(64<<20), f.Close())
	got := mustClone(t, from, to, Options{MaxBytes: 4 << 20})
	t.Logf("%+v", got)
	for _, n := range []string{"huge", "pre"} {
		var a, b unix.Stat_t
		do(t, unix.Lstat(from+"/"+n, &a), unix.Lstat(to+"/"+n, &b))
		if a.Size != b.Size || b.Blocks > a.Blocks {
			t.Errorf("%s: %d bytes in %d blocks became %d in %d", n, a.Size, a.Blocks, b.Size, b.Blocks)
		}
	}
	if d := differences(t, from, to); len(d) > 0 {
		t.Errorf("differs: %v", d)
	}
}

func TestContentIsSharedWhereTheFileSystemCan(t *testing.T) {
	from, to := pair(t)
	do(t, os.WriteFile(from+"/f", make([]byte, 100_000), 0o644), os.WriteFile(from+"/empty", nil, 0o644))
	a, err := os.Open(from + "/f")
	do(t, err)
	b, err := os.Create(filepath.Join(t.TempDir(), "probe"))
	do(t, err)
	can := unix.IoctlFileClone(int(b.Fd()), int(a.Fd()))
	do(t, a.Close(), b.Close())
	var st unix.Statfs_t
	do(t, unix.Statfs(from, &st))
	t.Logf("file system %#x: FICLONE: %v", st.Type, can)
	if got := mustClone(t, from, to, Options{}); got.Reflinked != (can == nil) {
		t.Errorf("Reflinked is %v", got.Reflinked)
	}
	if d := differences(t, from, to); len(d) > 0 {
		t.Errorf("differs: %v", d)
	}
}

func TestLimits(t *testing.T) {
	from, to := pair(t)
	do(t, os.MkdirAll(from+"/a/b", 0o755), os.WriteFile(from+"/a/b/f", make([]byte, 1000), 0o644), os.Symlink("x", from+"/l"))
	for _, tt := range []struct {
		name string
		opt  Options
		ok   bool
	}{
		{"as many entries as allowed", Options{MaxEntries: 4}, true},
		{"one entry more", Options{MaxEntries: 3}, false},
		{"as many bytes as allowed", Options{MaxBytes: 1000}, true},
		{"one byte more", Options{MaxBytes: 999}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			do(t, os.RemoveAll(to), os.Mkdir(to, 0o700))
			_, err := Tree(context.Background(), from, to, tt.opt)
			if (err == nil) != tt.ok || err != nil && !errors.Is(err, workspace.ErrLimit) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	from, to := pair(t)
	do(t, os.Mkdir(from+"/d", 0o755), os.WriteFile(from+"/d/f", []byte("x"), 0o644), os.Mkdir(from+"/d/in", 0o755), os.Symlink(to, to+"link"))
	for _, tt := range []struct{ name, from, to, want string }{
		{"a copy into the original", from, from + "/d/in", "lies in the one to copy"},
		{"a folder onto itself", to, to, "lies in the one to copy"},
		{"a folder that is not empty", to, from, "not empty"},
		{"a folder that is not there", from, to + "/gone", "no such file"},
		{"a link to a folder", from, to + "link", "not a directory"},
		{"an original that is a file", from + "/d/f", to, "not a directory"},
		{"no original", from + "/gone", to, "no such file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := Tree(context.Background(), tt.from, tt.to, Options{})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %+v, %v; want %q", r, err, tt.want)
			}
		})
	}
}

// endsAfter is a context that is cancelled once it was asked some times.
type endsAfter struct {
	context.Context
	left atomic.Int64
}

func (e *endsAfter) Err() error {
	if e.left.Add(-1) < 0 {
		return context.Canceled
	}
	return nil
}

func TestItEndsWhenCancelled(t *testing.T) {
	from, _ := pair(t)
	for i := range 1000 {
		do(t, os.WriteFile(fmt.Sprintf("%s/f%d", from, i), []byte("x"), 0o644))
	}
	for _, asked := range []int64{0, 1, 2, 50, 700} {
		_, to := pair(t)
		ctx := &endsAfter{Context: context.Background()}
		ctx.left.Store(asked)
		r, err := Tree(ctx, from, to, Options{})
		if !errors.Is(err, context.Canceled) || r.Entries != 0 {
			t.Errorf("after %d: got %+v, %v", asked, r, err)
		}
		left, err := os.ReadDir(to)
		do(t, err)
		// It is asked at least once for each file.
		if int64(len(left)) > asked {
			t.Errorf("after %d: %d files were copied", asked, len(left))
		}
	}
	// In the middle of one file.
	from, to := pair(t)
	do(t, os.WriteFile(from+"/big", make([]byte, 64<<20), 0o644))
	ctx := &endsAfter{Context: context.Background()}
	ctx.left.Store(12)
	if _, err := Tree(ctx, from, to, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
