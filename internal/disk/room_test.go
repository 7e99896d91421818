package disk_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/disk"
	"github.com/untrusted-steps/untrusted-steps/internal/idmap"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
)

func TestWhichKind(t *testing.T) {
	for _, tc := range []struct {
		sentence string
		needs    []string
		change   func(*disk.Options)
		want     string
		why      []string
	}{
		{"root with loop devices has a file system on one", []string{"root", "loop"}, func(*disk.Options) {}, disk.Loop, nil},
		{"without loop devices, at half of the memory, it is in memory", []string{"root", "tmpfs"},
			func(o *disk.Options) { o.Control = "/nonexistent"; o.MemoryBytes = 2 * o.Bytes }, disk.Tmpfs, []string{"no loop device", "/nonexistent", "no such file"}},
		{"over half of the memory it is a plain folder", []string{"root"},
			func(o *disk.Options) { o.Control = "/nonexistent"; o.MemoryBytes = 2*o.Bytes - 1 }, disk.Sampler, []string{"no loop device", "half of the step's memory"}},
		{"without a memory cap nothing is put in memory", []string{"root"},
			func(o *disk.Options) { o.Control = "/nonexistent"; o.MemoryBytes = 0 }, disk.Sampler, []string{"no memory cap"}},
		{"without mkfs.ext4 there is no loop, and the package to install is named", []string{"root", "loop"},
			func(o *disk.Options) { o.Programs = []string{"/nonexistent"}; o.MemoryBytes = 0 }, disk.Sampler, []string{"mkfs.ext4", "/nonexistent", "e2fsprogs"}},
		{"a device that is no control device is none", []string{"root"},
			func(o *disk.Options) { o.Control = "/dev/null"; o.MemoryBytes = 0 }, disk.Sampler, []string{"no loop device", "inappropriate ioctl"}},
		{"a normal user has a plain folder", nil, func(o *disk.Options) { o.Root = false; o.MemoryBytes = 1 << 40 }, disk.Sampler, []string{"only root"}},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			boxtest.Need(t, tc.needs...)
			o := disk.Options{Dir: home(t), Bytes: 4 * mib, Inodes: 1024, Root: true, UID: os.Geteuid(), GID: os.Getegid()}
			tc.change(&o)
			r := openOptions(t, tc.want, o)
			for _, w := range tc.why {
				if !strings.Contains(r.Why(), w) {
					t.Errorf("%q is not said: %s", w, r.Why())
				}
			}
			if tc.why == nil && r.Why() != "" {
				t.Errorf("the best kind has an excuse: %s", r.Why())
			}
			size, base := int64(0), ""
			if tc.want == disk.Sampler {
				size, base = o.Bytes, filepath.Dir(r.Named())
			}
			if r.FileSize() != size || r.Base() != base {
				t.Errorf("file size %d, want %d; base %q, want %q", r.FileSize(), size, r.Base(), base)
			}
			for _, d := range []string{r.Upper(), r.Work()} {
				if list, err := os.ReadDir(d); err != nil || len(list) > 0 {
					t.Errorf("%s: %d entries (%v)", d, len(list), err)
				}
			}
			fd, err := r.Tree()
			if err != nil || (fd < 0) != (tc.want == disk.Sampler) {
				t.Errorf("tree %d %v", fd, err)
			}
			if fd >= 0 {
				unix.Close(fd)
			}
			if u, err := r.Used(); err != nil || u != (disk.Usage{}) {
				t.Errorf("nothing was written, used: %+v %v", u, err)
			}
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	loose := t.TempDir()
	if err := os.Chmod(loose, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		sentence string
		o        disk.Options
		says     string
	}{
		{"the zero value, which is no room at all", disk.Options{}, "absolute"},
		{"a relative folder", disk.Options{Dir: "x", Bytes: mib, Inodes: 256}, "absolute"},
		{"no bytes", disk.Options{Dir: home(t), Inodes: 256}, "0 bytes"},
		{"fewer than none", disk.Options{Dir: home(t), Bytes: -1, Inodes: 256}, "-1 bytes"},
		{"absurdly many", disk.Options{Dir: home(t), Bytes: 1 << 60, Inodes: 256}, "can be had"},
		{"no files", disk.Options{Dir: home(t), Bytes: mib}, "0 files"},
		{"a folder that is not there", disk.Options{Dir: "/nonexistent", Bytes: mib, Inodes: 256}, "no such file"},
		{"a folder that others can enter", disk.Options{Dir: loose, Bytes: mib, Inodes: 256}, "only its owner"},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			r, err := disk.Open(tc.o)
			if err == nil {
				r.Close()
				t.Fatal("it was opened")
			}
			if !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v does not say %q", err, tc.says)
			}
		})
	}
}

// What was asked for can be written, little more can, and the kernel says so.
func TestTheKernelHoldsTheBound(t *testing.T) {
	for _, kind := range []string{disk.Loop, disk.Tmpfs} {
		for _, mb := range []int64{1, 8, 64} {
			t.Run(fmt.Sprintf("%s of %d MiB: bytes up to the bound are written, past it is ENOSPC", kind, mb), func(t *testing.T) {
				r := open(t, kind, mb*mib, mb*256)
				if n, err := fill(r.Upper()+"/x", mb*mib); err != nil {
					t.Fatalf("%d bytes, %v", n, err)
				}
				n, err := fill(r.Upper()+"/x", mb*mib)
				if !errors.Is(err, unix.ENOSPC) {
					t.Fatalf("%d bytes more, %v", n, err)
				}
				if over := float64(n) / float64(mb*mib); over > 0.05 {
					t.Errorf("%d bytes over the bound, %.1f %%", n, 100*over)
				}
				u, err := r.Used()
				if err != nil || !u.Full || u.Bytes < mb*mib || float64(u.Bytes) > 1.06*float64(mb*mib) {
					t.Errorf("%+v %v", u, err)
				}
				if err := os.Remove(r.Upper() + "/x"); err != nil {
					t.Fatal(err)
				}
				if u, err := r.Used(); err != nil || u.Full || u.Bytes > 64<<10 {
					t.Errorf("with the file gone: %+v %v", u, err)
				}
			})
			t.Run(fmt.Sprintf("%s of %d MiB: files up to the bound are made, past it is ENOSPC", kind, mb), func(t *testing.T) {
				r := open(t, kind, mb*mib, mb*256)
				n, err := makeFiles(r.Upper()+"/d", int(mb*512))
				if !errors.Is(err, unix.ENOSPC) {
					t.Fatalf("%d files, %v", n, err)
				}
				if made := int64(n - 1); made < mb*256 || made > mb*256*105/100+32 {
					t.Errorf("%d files, asked for %d", made, mb*256)
				}
				if u, err := r.Used(); err != nil || !u.Full || u.Inodes < mb*256 {
					t.Errorf("%+v %v", u, err)
				}
			})
		}
		t.Run(kind+": a sparse file of a TiB takes no room, and what is written in it does", func(t *testing.T) {
			r := open(t, kind, 8*mib, 2048)
			f, err := os.Create(r.Upper() + "/sparse")
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := f.Truncate(1 << 40); err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt(make([]byte, mib), 1<<39); err != nil {
				t.Fatal(err)
			}
			if u, err := r.Used(); err != nil || u.Full || u.Bytes < mib || u.Bytes > mib+256<<10 || u.Inodes != 1 {
				t.Errorf("%+v %v", u, err)
			}
		})
	}
}

// Every size can be had, with little more than was asked for.
func TestLoopSizes(t *testing.T) {
	for _, s := range []struct{ bytes, inodes int64 }{
		{disk.MinBytes, disk.MinInodes}, {disk.MinBytes, 256}, {3*mib + 1, 768}, {127 * mib, 127 * 256}, {128 * mib, 128 * 256},
		{129 * mib, 129 * 256}, {1 << 30, 256 << 10}, {1 << 30, 100}, {5 << 30, 5 * 256 << 10}, {64 << 30, 64 * 256 << 10}, {1 << 40, 1 << 28},
	} {
		t.Run(fmt.Sprintf("%d bytes and %d files", s.bytes, s.inodes), func(t *testing.T) {
			r := open(t, disk.Loop, s.bytes, s.inodes)
			var st unix.Statfs_t
			if err := unix.Statfs(r.Upper(), &st); err != nil {
				t.Fatal(err)
			}
			bytes, inodes := int64(st.Bavail)*st.Bsize, int64(st.Ffree)
			t.Logf("bytes +%.3f %%, files +%d", 100*float64(bytes-s.bytes)/float64(s.bytes), inodes-s.inodes)
			if bytes < s.bytes || float64(bytes) > 1.03*float64(s.bytes)+128<<10 {
				t.Errorf("%d bytes can be written", bytes)
			}
			if inodes < s.inodes || float64(inodes) > 1.05*float64(s.inodes)+600 {
				t.Errorf("%d files can be made", inodes)
			}
		})
	}
}

// The room is what an engine lays an overlay over, in a box of another id.
func TestInABox(t *testing.T) {
	boxtest.Need(t, "root")
	for _, kind := range []string{disk.Loop, disk.Tmpfs} {
		owner := idmap.Ids{UID: 1234, GID: 5678}
		options := func(t *testing.T) disk.Options {
			o := of(t, kind, 8*mib, 2048)
			o.UID, o.GID, o.Mode = owner.UID, owner.GID, 0o750
			return o
		}
		t.Run(kind+": what a box writes, removes and replaces is in upper, as the workspace's owner", func(t *testing.T) {
			r := openOptions(t, kind, options(t))
			got := box(t, r, owner, "fill 1000", "remove a", "replace folder", "setid", "sparse 1099511627776")
			if want := "[fill 1000 0 remove 0 0 replace 0 0 setid 0 0 sparse 0 0]"; fmt.Sprint(got) != want {
				t.Fatalf("%v, want %v", got, want)
			}
			var st unix.Stat_t
			at := func(name string) *unix.Stat_t {
				t.Helper()
				if err := unix.Lstat(filepath.Join(r.Upper(), name), &st); err != nil {
					t.Fatal(err)
				}
				return &st
			}
			if s := at(""); s.Mode&0o7777 != 0o750 || int(s.Uid) != owner.UID || int(s.Gid) != owner.GID {
				t.Errorf("upper: mode %o, owner %d:%d", s.Mode, s.Uid, s.Gid)
			}
			if s := at("big"); s.Size != 1000 || int(s.Uid) != owner.UID || int(s.Gid) != owner.GID {
				t.Errorf("what was written: %d bytes, owner %d:%d", s.Size, s.Uid, s.Gid)
			}
			if s := at("a"); s.Mode&unix.S_IFMT != unix.S_IFCHR || s.Rdev != 0 {
				t.Errorf("what was removed: mode %o, device %x", s.Mode, s.Rdev)
			}
			var b [8]byte
			if n, err := unix.Lgetxattr(r.Upper()+"/folder", "user.overlay.opaque", b[:]); err != nil || string(b[:n]) != "y" {
				t.Errorf("what was replaced: %q %v", b[:max(n, 0)], err)
			}
			if s := at("setid"); s.Mode&unix.S_ISUID == 0 {
				t.Errorf("the set-id bit is not there for the manifest to see: %o", s.Mode)
			}
			var fs unix.Statfs_t
			if err := unix.Statfs(r.Upper(), &fs); err != nil || fs.Flags&unix.ST_NOSUID == 0 || fs.Flags&unix.ST_NODEV == 0 {
				t.Errorf("flags %x: set-id bits or devices would have power outside (%v)", fs.Flags, err)
			}
		})
		t.Run(kind+": the box meets the bound, and the room is measured when the box is gone", func(t *testing.T) {
			r := openOptions(t, kind, options(t))
			got := box(t, r, owner, fmt.Sprintf("fill %d", 8*mib), fmt.Sprintf("fill %d", 8*mib))
			var n, enospc int64
			if got[0] != fmt.Sprintf("fill %d 0", 8*mib) {
				t.Errorf("up to the bound: %s", got[0])
			}
			if _, err := fmt.Sscanf(got[1], "fill %d %d", &n, &enospc); err != nil || enospc != int64(unix.ENOSPC) || n > 8*mib/20 {
				t.Errorf("past it: %s", got[1])
			}
			if u, err := r.Used(); err != nil || !u.Full {
				t.Errorf("%+v %v", u, err)
			}
		})
		t.Run(kind+": files run out in the box", func(t *testing.T) {
			r := openOptions(t, kind, options(t))
			got := box(t, r, owner, "files 10000")
			if !strings.HasSuffix(got[0], fmt.Sprintf(" %d", unix.ENOSPC)) {
				t.Errorf("%s", got[0])
			}
			if u, err := r.Used(); err != nil || !u.Full || u.Inodes < 2048 || u.Inodes > 2200 {
				t.Errorf("%+v %v", u, err)
			}
		})
		t.Run(kind+": a second tree shows the same files, with ids of its own", func(t *testing.T) {
			r := openOptions(t, kind, options(t))
			box(t, r, owner, "fill 100")
			if got := box(t, r, owner, "remove big"); got[0] != "remove 0 0" {
				t.Errorf("%v", got)
			}
		})
	}
}

// A normal user's box lays its overlay over plain folders.
func TestInABoxOnPlainFolders(t *testing.T) {
	boxtest.Need(t, "normal user")
	o := of(t, disk.Sampler, 8*mib, 2048)
	r, err := disk.Open(o)
	must(t, err)
	got := box(t, r, idmap.Ids{}, "fill 1000000", "remove a", "replace folder", "sparse 1099511627776", "files 20")
	if want := "[fill 1000000 0 remove 0 0 replace 0 0 sparse 0 0 files 21 0]"; fmt.Sprint(got) != want {
		t.Errorf("%v, want %v", got, want)
	}
	u, err := r.Used()
	// big, a's mark, folder, sparse, many and its 20.
	if err != nil || u.Full || u.Inodes != 25 || u.Bytes < 1_000_000 || u.Bytes > 1_200_000 {
		t.Errorf("%+v %v", u, err)
	}
	box(t, r, idmap.Ids{}, fmt.Sprintf("fill %d", 9*mib))
	if u, err := r.Used(); err != nil || !u.Full || !u.Over(8*mib, 2048) {
		t.Errorf("%+v %v", u, err)
	}
	// overlayfs leaves a folder without permissions in work.
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if list, err := os.ReadDir(o.Dir); err != nil || len(list) > 0 {
		t.Errorf("left: %v %v", list, err)
	}
}

// What a step writes to its own file system passes through two page caches. Both
// can be given back: a cap on memory must not make writing to disk an oom.
func TestWritingMoreThanTheMemoryCapIsNoOOM(t *testing.T) {
	boxtest.Need(t, "root", "limits")
	m, err := limits.Open(limits.Config{RunID: fmt.Sprintf("%016x", os.Getpid())})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	g, err := m.New("disk", limits.Caps{MemoryBytes: 48 * mib, Pids: 32})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	owner := idmap.Ids{}
	r := open(t, disk.Loop, 256*mib, 1024)
	begun := time.Now()
	got := boxIn(t, g, r, owner, fmt.Sprintf("fill %d", 200*mib))
	t.Logf("200 MiB with 48 of memory took %v", time.Since(begun))
	if want := fmt.Sprintf("fill %d 0", 200*mib); got[0] != want {
		t.Errorf("%s, want %s", got[0], want)
	}
	st, err := g.Stats()
	if err != nil || st.OOMKills > 0 {
		t.Errorf("%d oom kills (%v)", st.OOMKills, err)
	}
	t.Logf("peak %d MiB", st.PeakMemory>>20)
	begun = time.Now()
	if err := r.Settle(); err != nil {
		t.Error(err)
	}
	t.Logf("settled in %v", time.Since(begun))
}

func TestWatch(t *testing.T) {
	for _, kind := range []string{disk.Loop, disk.Tmpfs, disk.Sampler} {
		for _, what := range []struct {
			name string
			do   func(*disk.Room) error
		}{
			{"bytes", func(r *disk.Room) error { _, err := fill(r.Upper()+"/x", 9*mib); return err }},
			{"files", func(r *disk.Room) error { _, err := makeFiles(r.Upper()+"/d", 3000); return err }},
		} {
			t.Run(kind+": too many "+what.name+" are noticed", func(t *testing.T) {
				t.Parallel()
				r := open(t, kind, 8*mib, 2048)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				over := r.Watch(ctx)
				if err := what.do(r); err != nil && !errors.Is(err, unix.ENOSPC) {
					t.Fatal(err)
				}
				select {
				case <-over:
				case <-time.After(20 * time.Second):
					t.Fatal("nobody noticed")
				}
				u, err := r.Used()
				if bytes, inodes := r.Bound(); err != nil || !u.Full && !u.Over(bytes, inodes) {
					t.Errorf("%+v %v", u, err)
				}
			})
		}
		t.Run(kind+": what is within bounds is left alone", func(t *testing.T) {
			t.Parallel()
			r := open(t, kind, 8*mib, 2048)
			ctx, cancel := context.WithCancel(t.Context())
			over := r.Watch(ctx)
			if _, err := fill(r.Upper()+"/x", 7*mib); err != nil {
				t.Fatal(err)
			}
			select {
			case <-over:
				t.Error("it was said to be over")
			case <-time.After(500 * time.Millisecond):
			}
			cancel()
			select {
			case <-over:
				t.Error("the end of the watch was taken for the bound")
			case <-time.After(100 * time.Millisecond):
			}
		})
	}
}

// What is read after a step must not be looked into by anybody else: a look can
// open a folder for a moment.
func TestSettleEndsTheWatching(t *testing.T) {
	for _, kind := range []string{disk.Loop, disk.Tmpfs, disk.Sampler} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := open(t, kind, 8*mib, 2048)
			over := r.Watch(t.Context())
			if err := r.Settle(); err != nil {
				t.Fatal(err)
			}
			if _, err := fill(r.Upper()+"/x", 9*mib); err != nil && !errors.Is(err, unix.ENOSPC) {
				t.Fatal(err)
			}
			select {
			case <-over:
				t.Error("somebody looked after the end")
			case <-time.After(500 * time.Millisecond):
			}
		})
	}
}

func TestNextLook(t *testing.T) {
	for _, tc := range []struct {
		sentence   string
		took, want time.Duration
	}{
		{"a short look is followed by another after a tenth of a second", time.Millisecond, 100 * time.Millisecond},
		{"a long one makes the watching rare, so that it takes a tenth of a processor", 100 * time.Millisecond, 900 * time.Millisecond},
		{"none at all is a short one", 0, 100 * time.Millisecond},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			if got := disk.NextLook(tc.took); got != tc.want {
				t.Errorf("%v, want %v", got, tc.want)
			}
		})
	}
}

func TestTrim(t *testing.T) {
	data := make([]byte, 6*4096+100)
	data[0], data[4096], data[3*4096], data[6*4096+5] = 1, 1, 1, 1
	if got, want := fmt.Sprint(disk.Trimmed(data)), "[[0 2] [3 1] [6 0]]"; got != want {
		t.Errorf("%v, want %v", got, want)
	}
}

// Attack: whoever may change a folder above puts another in its place, with the same
// names in it that lead elsewhere. What root makes, changes and removes is not there.
func TestAFolderSwappedAboveIsNotWrittenTo(t *testing.T) {
	above, victim := t.TempDir(), t.TempDir()
	dir := filepath.Join(above, "store", "txn")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	at, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	if err := os.Rename(filepath.Join(above, "store"), filepath.Join(above, "moved")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(filepath.Join(above, "store"), 0o700), os.Symlink(victim, dir)); err != nil {
		t.Fatal(err)
	}
	r, err := disk.Open(disk.Options{Dir: dir, At: fmt.Sprintf("/proc/self/fd/%d", at.Fd()), Bytes: disk.MinBytes, Inodes: disk.MinInodes, Folders: true})
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := filepath.Join(victim, filepath.Base(r.Base()), "upper")
	if err := os.MkdirAll(elsewhere, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(r.Upper(), 0o755), os.WriteFile(r.Upper()+"/f", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(elsewhere)
	if err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v: it was changed through a link", st, err)
	}
	if list, _ := os.ReadDir(elsewhere); len(list) > 0 {
		t.Errorf("written through a link: %v", list)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(elsewhere); err != nil {
		t.Errorf("removed through a link: %v", err)
	}
	if list, _ := os.ReadDir(filepath.Join(above, "moved", "txn")); len(list) > 0 {
		t.Errorf("%v is left", list)
	}
}
