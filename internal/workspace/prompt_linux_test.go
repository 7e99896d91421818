package workspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
)

// What an attacker does here: makes in a millisecond what keeps the host busy
// for seconds.

// preallocate makes a file that has blocks and in which nothing was written.
func preallocate(t *testing.T, path string, size int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	do(t, err)
	defer f.Close()
	switch err := unix.Fallocate(int(f.Fd()), 0, 0, size); err {
	case nil:
	case unix.EOPNOTSUPP, unix.ENOSPC:
		need.Met(t, "blocks", fmt.Errorf("preallocate %d bytes in %s: %w", size, filepath.Dir(path), err))
	default:
		t.Fatal(err)
	}
}

func TestPreallocatedFilesAreNotReadAsZeros(t *testing.T) {
	const size = 4 << 30
	root := t.TempDir()
	path := filepath.Join(root, "big")
	preallocate(t, path, size)
	start := time.Now()
	before := mustSnapshot(t, root, nil)
	took := time.Since(start)
	t.Logf("4 GiB in %v", took)
	for e := range before.All() {
		if e.Type == "file" && (e.SHA256 != "" || e.Size != size) {
			t.Errorf("its zeros were read: %+v", e)
		}
	}
	if took > 2*time.Second {
		t.Errorf("it took %v", took)
	}
	overwrite(t, path, size/2, "\x00\x00")
	if got := Diff(before, mustSnapshot(t, root, before)); len(got) != 0 {
		t.Errorf("zeros written into it: got %v, want nothing", shorts(got))
	}
	overwrite(t, path, size/2, "x")
	after := mustSnapshot(t, root, before)
	if d := gocmp.Diff([]string{`modified file "big" 0644`}, shorts(Diff(before, after))); d != "" {
		t.Errorf("one byte written into it (-want +got):\n%s", d)
	}
}

// Each is below the bound of one file; all together they are not.
func TestManySmallPreallocatedFilesAreNotReadAsZeros(t *testing.T) {
	root := t.TempDir()
	const files, size = 1024, 1 << 20
	for i := range files {
		preallocate(t, filepath.Join(root, string(rune('a'+i%26))+time.Duration(i).String()), size)
	}
	read := 0
	start := time.Now()
	for e := range mustSnapshot(t, root, nil).All() {
		if e.SHA256 != "" {
			read++
		}
	}
	t.Logf("%d files of 1 MiB in %v", files, time.Since(start))
	if read != MaxHoleBytes/size {
		t.Errorf("%d of %d files were read, want %d", read, files, MaxHoleBytes/size)
	}
}

// Whatever is being hashed, a cancelled run does not wait for it.
func TestSnapshotEndsInTheMiddleOfAHugeFile(t *testing.T) {
	for _, tt := range []struct {
		name string
		was  uint16 // flags of the file in prev
	}{
		{"that is read as it is", 0},
		{"of which each block is looked at", flagSparse},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			path := filepath.Join(root, "huge")
			build(t, root, "sparse huge 0x10000000000 end")
			before := mustSnapshot(t, root, nil)
			before.top.entries[0].flags = tt.was
			if tt.was&flagSparse != 0 {
				// Every other block, so that there is much to look at.
				for off := range int64(20_000) {
					overwrite(t, path, off*2*sparseBlock, "x")
				}
			}
			do(t, os.Chtimes(path, time.Now(), time.Now()))
			ctx, cancel := context.WithCancel(context.Background())
			s := newScan(ctx, before, Options{}.WithDefaults())
			s.holes.Store(math.MaxInt64)
			at := make(chan time.Time, 1)
			time.AfterFunc(20*time.Millisecond, func() { at <- time.Now(); cancel() })
			_, err := s.run(root)
			if !errors.Is(err, context.Canceled) {
				t.Fatalf("got %v: it was over before it was cancelled", err)
			}
			late := time.Since(<-at)
			t.Logf("%v after the cancel", late)
			if late > 500*time.Millisecond {
				t.Errorf("it ended %v after the cancel", late)
			}
		})
	}
}

// countdown is a context that is cancelled after it was asked so many times.
type countdown struct {
	context.Context
	left int
}

func (c *countdown) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

func TestSnapshotEndsInTheMiddleOfAHugeFolder(t *testing.T) {
	root := t.TempDir()
	build(t, root, "file 0 x")
	const names = 5000
	for i := range names {
		do(t, os.Link(filepath.Join(root, "0"), filepath.Join(root, "name"+time.Duration(i).String())))
	}
	whole := &countdown{context.Background(), math.MaxInt}
	s := newScan(whole, nil, Options{Workers: 1}.WithDefaults())
	_, err := s.run(root)
	do(t, err)
	if asked := math.MaxInt - whole.left; asked < names {
		t.Fatalf("it asked %d times whether to go on", asked)
	}
	for _, left := range []int{0, 1, 2, 3, 10, names / 2, names} {
		ctx := &countdown{context.Background(), left}
		s := newScan(ctx, nil, Options{Workers: 1}.WithDefaults())
		if _, err := s.run(root); !errors.Is(err, context.Canceled) {
			t.Errorf("after %d: got %v", left, err)
		}
		if ctx.left < -10 {
			t.Errorf("cancelled at question %d, it asked %d times more", left, -ctx.left)
		}
	}
}

// The listing of a folder is given up when another worker has failed, and the
// folder is then not looked into.
func TestAFolderIsNotReadAfterAFailureElsewhere(t *testing.T) {
	root := t.TempDir()
	build(t, root, "file f x")
	s := newScan(context.Background(), nil, Options{Workers: 1}.WithDefaults())
	s.fail(&node{}, "elsewhere", ErrMoved)
	if _, err := s.run(root); !errors.Is(err, ErrMoved) || errors.Is(err, errHalted) {
		t.Errorf("got %v, want the first failure", err)
	}
	if n := s.opened.Load(); n != 0 {
		t.Errorf("%d files were opened", n)
	}
}

func TestSorted(t *testing.T) {
	going := func() error { return nil }
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 2, sortRun - 1, sortRun, sortRun + 1, 2 * sortRun, 5*sortRun + 7} {
		list := make([]int, n)
		for i := range list {
			list[i] = r.IntN(n)
		}
		want := slices.Sorted(slices.Values(list))
		got, err := sorted(list, cmp.Compare[int], going)
		do(t, err)
		if !slices.Equal(got, want) {
			t.Errorf("%d elements are not sorted", n)
		}
	}
	stop := errors.New("stop")
	for asked := range 9 {
		left := asked
		_, err := sorted(make([]int, 5*sortRun), cmp.Compare[int], func() error {
			if left--; left < 0 {
				return stop
			}
			return nil
		})
		if !errors.Is(err, stop) {
			t.Errorf("told to stop at question %d: got %v", asked, err)
		}
	}
}
