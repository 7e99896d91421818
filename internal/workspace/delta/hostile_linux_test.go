package delta

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// deep makes a chain of folders by descriptors, since no path reaches that far,
// and a folder beside each, so that the way back is walked too.
func deep(t *testing.T, root string, depth int, text string) {
	t.Helper()
	fd, err := unix.Open(root, unix.O_DIRECTORY|unix.O_RDONLY, 0)
	do(t, err)
	for range depth {
		for _, name := range []string{"0side", "folder", "zside"} {
			do(t, unix.Mkdirat(fd, name, 0o755))
		}
		next, err := unix.Openat(fd, "folder", unix.O_DIRECTORY|unix.O_RDONLY, 0)
		do(t, err, unix.Close(fd))
		fd = next
	}
	f, err := unix.Openat(fd, "leaf", unix.O_CREAT|unix.O_WRONLY, 0o644)
	do(t, err)
	_, err = unix.Write(f, []byte(text))
	do(t, err, unix.Close(f), unix.Close(fd))
}

// TestADeepTree needs more folders at once than the process may have open. It
// runs in a process of its own, as the limit on descriptors is one's own.
func TestADeepTree(t *testing.T) { // attack 107
	const depth = 800 // twice PATH_MAX
	if os.Getenv(userVariable) == "" {
		asUser(t, t.Name())
		return
	}
	leaf := strings.Repeat("folder/", depth) + "leaf"
	one, two := layers(t, "", "file mine x"), t.TempDir()
	deep(t, one[0].Dir, depth, "one")
	deep(t, two, depth, "two")
	empty := t.TempDir()
	do(t, os.Chmod(two, 0o755), os.Chmod(empty, 0o755))
	var limit unix.Rlimit
	do(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit), unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 96, Max: limit.Max}))
	defer func() { do(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) }()
	want := []string{"modified file " + fmt.Sprintf("%q", leaf) + " 0644"}
	d := mustRead(t, one, two)
	if diff := cmp.Diff(want, shorts(d.Changes())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for what, open := range map[string]func(string) (*os.File, error){
		"one": d.OpenBefore, "two": d.OpenAfter,
		"one ": (&Delta{stack: d.stack}).OpenBefore, "two ": (&Delta{after: d.after}).OpenAfter,
	} {
		f, err := open(leaf)
		do(t, err)
		b, err := io.ReadAll(f)
		do(t, err, f.Close())
		if string(b) != strings.TrimSpace(what) {
			t.Errorf("got %q, want %q", b, what)
		}
	}
	d = mustCompare(t, one[:1], two)
	if diff := cmp.Diff(want, shorts(d.Changes())); diff != "" {
		t.Errorf("compared (-want +got):\n%s", diff)
	}
	// All of it gone, and all of it new.
	if n := mustCompare(t, one[:1], empty).Len(); n != 3*depth+1 {
		t.Errorf("%d paths deleted, want %d", n, 3*depth+1)
	}
	if n := mustRead(t, []Layer{{Dir: empty}}, two).Len(); n != 3*depth+1 {
		t.Errorf("%d paths created, want %d", n, 3*depth+1)
	}
	_, err := Read(context.Background(), one, two, Options{MaxDepth: depth - 1})
	if !errors.Is(err, workspace.ErrLimit) || len(err.Error()) > 1000 {
		t.Errorf("got %v, want a short error about depth", err)
	}
}

// TestWhatTheStepClosed runs as a user whom a mode of 000 stops.
func TestWhatTheStepClosed(t *testing.T) { // attack 107
	if os.Getenv(userVariable) == "" {
		asUser(t, t.Name())
		return
	}
	stack := layers(t, "dir d\nfile d/a one\nfile s secret\nfile k keep")
	upper := t.TempDir()
	build(t, upper, `dir d
		file d/a 0 two
		file d/n 0 new
		dir d/e
		file d/e/f 0200 deep
		mode d/e 0400
		mode d 0
		file s 0 secret
		file k 0044 keep
		mode . 0`)
	want := []string{`mode dir "." 0000`, `mode dir "d" 0000`, `modified file "d/a" 0000`, `created dir "d/e" 0400`,
		`created file "d/e/f" 0200`, `created file "d/n" 0000`, `mode file "k" 0044`, `mode file "s" 0000`}
	for range 2 {
		d := mustRead(t, stack, upper)
		if diff := cmp.Diff(want, shorts(d.Changes())); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		for _, c := range d.Changes() {
			if c.Type == "file" && c.SHA256 == "" {
				t.Errorf("%s was not read", c.Path)
			}
		}
		holdToItself(t, d)
		for _, p := range []string{"d", "d/e", "d/e/f", "."} {
			f, err := (&Delta{after: d.after}).After(p)
			do(t, err)
			if known, _ := d.After(p); known != f {
				t.Errorf("%s: got %v, want %v", p, f, known)
			}
		}
	}
	do(t, os.Chmod(upper, 0o700), os.Chmod(upper+"/d", 0o700), os.Chmod(upper+"/d/e", 0o700))
}

// TestWhatALayerDoesNotShow runs as a user whom a mode of 000 stops.
func TestWhatALayerDoesNotShow(t *testing.T) { // attack 107
	if os.Getenv(userVariable) == "" {
		asUser(t, t.Name())
		return
	}
	spec := `dir shut
		file shut/f x
		dir listed
		file listed/f x
		dir gone
		file gone/f x
		dir still
		file still/f x
		file secret abc
		file lost abc
		mode shut 0
		mode listed 0400
		mode gone 0
		mode still 0
		mode secret 0
		mode lost 0`
	stack := layers(t, spec)
	defer func() {
		for _, d := range []string{"shut", "listed", "gone", "still"} {
			do(t, os.Chmod(stack[0].Dir+"/"+d, 0o700))
		}
	}()
	upper := t.TempDir()
	do(t, os.Chmod(upper, 0o755))
	build(t, upper, `dir shut 0700
		file shut/f y
		white shut/g
		dir listed
		file listed/f y
		white gone
		dir still
		mode still 0
		file secret 0600 xyz
		white lost`)
	want := []string{`deleted dir "gone" 0000 unreadable`, `mode dir "listed" 0755`, `modified file "listed/f" 0644 unreadable`,
		`deleted file "lost" 0000 unreadable`, `modified file "secret" 0600 unreadable`, `mode dir "shut" 0700`,
		`modified file "shut/f" 0644 unreadable`, `deleted file "shut/g" 0000 unreadable`}
	d := mustRead(t, stack, upper)
	if diff := cmp.Diff(want, shorts(d.Changes())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, p := range []string{"shut/f", "shut/other", "secret"} {
		if f, err := d.OpenBefore(p); !errors.Is(err, os.ErrPermission) {
			t.Errorf("open %s before: got %v, %v", p, f, err)
		}
	}
	if st, err := os.Stat(stack[0].Dir + "/shut"); err != nil || st.Mode().Perm() != 0 {
		t.Errorf("the workspace itself was opened up: %v, %v", st, err)
	}
	do(t, os.Chmod(upper+"/still", 0o700))
}

func TestSpecialFilesAreNotOpened(t *testing.T) { // attack 106
	stack := layers(t, "fifo p\nfifo q\nsock s\nfile f x")
	upper := t.TempDir()
	build(t, upper, "fifo p\nfifo n\nfile q x\nfifo f")
	// An opener waits for a writer of the FIFO: were it opened, it would be let go.
	opened := make(chan string, 3)
	fifos := []string{upper + "/p", upper + "/n", stack[0].Dir + "/p"}
	for _, p := range fifos {
		go func() {
			f, err := os.OpenFile(p, os.O_WRONLY, 0)
			if err == nil {
				f.Close()
			}
			opened <- p
		}()
	}
	for range 20 {
		d := mustRead(t, stack, upper)
		for _, p := range []string{"p", "n", "f", "s", "q"} {
			if f, err := d.OpenAfter(p); p != "q" && err == nil {
				t.Errorf("opened %s", f.Name())
			}
			if f, err := d.OpenBefore(p); p != "f" && err == nil {
				t.Errorf("opened %s", f.Name())
			}
		}
		mustCompare(t, stack, upper)
		time.Sleep(time.Millisecond)
	}
	select {
	case p := <-opened:
		t.Errorf("%s was opened", p)
	default:
	}
	for _, p := range fifos {
		f, err := os.OpenFile(p, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		do(t, err)
		defer f.Close()
	}
	for range fifos {
		<-opened
	}
}

func TestLinksAreNeverFollowed(t *testing.T) { // attack 100
	outside := t.TempDir()
	build(t, outside, "file secret s\ndir d\nfile d/secret s")
	stack := layers(t, "link d "+outside+"/d\nlink secret "+outside+"/secret")
	upper := t.TempDir()
	build(t, upper, "link u "+outside+"/d\nlink up ../..\nlink s "+outside+"/secret")
	for _, d := range []*Delta{mustRead(t, stack, upper), {stack: stack, after: append([]Layer{{Dir: upper, Marks: true}}, stack...)}} {
		for _, p := range []string{"d/secret", "secret", "u/secret", "up/x", "s", "d/../secret", "/etc/passwd", "..", "", "a//b", "d/.", "a\x00b"} {
			for _, open := range []func(string) (*os.File, error){d.OpenBefore, d.OpenAfter} {
				if f, err := open(p); err == nil {
					t.Errorf("opened %q as %s", p, f.Name())
				}
			}
		}
		if f, err := d.After("u/secret"); f.Type != "" || err != nil {
			t.Errorf("beyond a link is %v, %v", f, err)
		}
		if f, err := d.After("u"); f.Target != outside+"/d" || err != nil {
			t.Errorf("the link is %v, %v", f, err)
		}
	}
}

func TestHugeFilesDoNotKeepUs(t *testing.T) {
	const huge = " 0x10000000000 "
	stack := layers(t, "sparse same"+huge+"x\nsparse other"+huge+"x\nsparse gone"+huge+"x\nsparse linked"+huge+"x\nsparse linked2"+huge+"x")
	upper := t.TempDir()
	do(t, os.Chmod(upper, 0o755))
	build(t, upper, "sparse same"+huge+"x\nsparse other"+huge+"y\nwhite gone\nsparse new"+huge+"x\nsparse linked"+huge+"x\nhard linked2 linked")
	start := time.Now()
	for _, d := range []*Delta{mustRead(t, stack, upper), mustCompare(t, stack, upper)} {
		got := []string{}
		for _, c := range d.Changes() {
			if c.Size == 1<<40 {
				got = append(got, c.Change+" "+c.Path+" "+c.SHA256)
			}
		}
		want := []string{"created new ", "modified other "}
		if len(d.after) > 1 {
			want = append([]string{"deleted gone "}, want...)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	if d := time.Since(start); d > 30*time.Second {
		t.Errorf("took %v", d)
	}
}

// TestManyNamesOfOneFile: a step can give a large file a hundred thousand names,
// over files of the same size.
func TestManyNamesOfOneFile(t *testing.T) {
	const names, size = 50, 16 << 20
	stack := layers(t, "")
	upper := t.TempDir()
	do(t, os.Chmod(upper, 0o755), os.WriteFile(upper+"/f0", make([]byte, size), 0o644))
	build(t, stack[0].Dir, "sparse f0 0x1000000 x")
	for i := 1; i < names; i++ {
		do(t, os.Link(upper+"/f0", fmt.Sprintf("%s/f%d", upper, i)))
		build(t, stack[0].Dir, fmt.Sprintf("sparse f%d 0x1000000 x", i))
	}
	d := mustRead(t, stack, upper)
	if d.Len() != names {
		t.Errorf("%d changes, want %d", d.Len(), names)
	}
	sums := map[string]int{}
	for _, c := range d.Changes() {
		sums[c.Change+c.SHA256]++
	}
	if len(sums) != 1 {
		t.Errorf("sums of one inode: %v", sums)
	}
}

// TestAnInodeWithSeveralNamesIsReadOnce: what was read once needs no file again.
func TestAnInodeWithSeveralNamesIsReadOnce(t *testing.T) { // attack 102
	f, err := os.Open(os.DevNull)
	do(t, err)
	defer f.Close()
	for _, links := range []uint32{1, 2} {
		r := newReader(&contents{ctx: context.Background(), seen: map[inode]*known{}})
		open := file{fd: int(f.Fd()), links: links}
		gone := file{fd: -1, size: 1, links: links}
		_, err := r.sum(open)
		do(t, err)
		_, err = r.blocks(open)
		do(t, err)
		_, sumErr := r.sum(gone)
		_, blocksErr := r.blocks(gone)
		if want := links == 1; (sumErr != nil) != want || (blocksErr != nil) != want {
			t.Errorf("%d links: %v, %v", links, sumErr, blocksErr)
		}
	}
}

func TestLimits(t *testing.T) {
	upper := "dir a\ndir a/b\nfile a/b/c x\nlink l " + strings.Repeat("t", 200)
	for _, tt := range []struct {
		name  string
		below string
		upper string
		opt   Options
		ok    bool
	}{
		{"as many entries as allowed", "", upper, Options{MaxEntries: 4}, true},
		{"one entry more", "", upper, Options{MaxEntries: 3}, false},
		{"as deep as allowed", "", upper, Options{MaxDepth: 2}, true},
		{"one folder deeper", "", upper, Options{MaxDepth: 1}, false},
		{"as much text as allowed", "", upper, Options{MaxText: 204}, true},
		{"a link target too much", "", upper, Options{MaxText: 203}, false},
		{"names too much", "", upper, Options{MaxText: 3}, false},
		{"paths longer than their names", "", "dir aaa\ndir aaa/bbb\nfile aaa/bbb/ccc x", Options{MaxText: 20}, false},
		{"each side has its own limit", upper, upper, Options{MaxEntries: 4}, true},
		{"what is deleted counts", "dir d\nfile d/a x\nfile d/b x", "white d", Options{MaxEntries: 1}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stack, dir := layers(t, tt.below), t.TempDir()
			do(t, os.Chmod(dir, 0o755))
			build(t, dir, tt.upper)
			_, err := Read(context.Background(), stack, dir, tt.opt)
			if (err == nil) != tt.ok || err != nil && !errors.Is(err, workspace.ErrLimit) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestReadingEndsWhenCancelled(t *testing.T) {
	stack, upper := layers(t, "file f x"), t.TempDir()
	build(t, upper, "file f y")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Read(ctx, stack, upper, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := Compare(ctx, stack, upper, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestWhatIsNotThereIsAnError(t *testing.T) {
	dir := t.TempDir()
	build(t, dir, "file f x")
	for _, tt := range []struct{ layer, upper string }{{"gone", "."}, {".", "gone"}, {"f", "."}, {".", "f"}} {
		_, err := Read(context.Background(), []Layer{{Dir: filepath.Join(dir, tt.layer)}}, filepath.Join(dir, tt.upper), Options{})
		if err == nil {
			t.Errorf("layer %s, upper %s: no error", tt.layer, tt.upper)
		}
	}
	if _, err := Read(context.Background(), nil, dir, Options{}); err == nil {
		t.Error("a stack of no layers: no error")
	}
}

// TestPathsThatDidNotChange: a delta knows the rest of the tree too.
func TestPathsThatDidNotChange(t *testing.T) {
	stack := layers(t, "dir d\nfile d/mid 0600 middle\nwhite d/low", "dir d\nfile d/low low\nfile d/base base\ndir e\nfile e/f x\nwhite forged")
	upper := t.TempDir()
	build(t, upper, "dir d\nfile d/new new\ndir e\nopaque e")
	d := mustRead(t, stack, upper)
	for _, tt := range []struct {
		path          string
		before, after Found
	}{
		{"d/mid", Found{Type: "file", Mode: 0o600, Size: 6}, Found{Type: "file", Mode: 0o600, Size: 6}},
		{"d/base", Found{Type: "file", Mode: 0o644, Size: 4}, Found{Type: "file", Mode: 0o644, Size: 4}},
		{"d/low", Found{}, Found{}},
		{"d/new", Found{}, Found{Type: "file", Mode: 0o644, Size: 3}},
		{"d", Found{Type: "dir", Mode: 0o755}, Found{Type: "dir", Mode: 0o755}},
		{"e/f", Found{Type: "file", Mode: 0o644, Size: 1}, Found{}},
		{"e/f/g", Found{}, Found{}},
		{"d/mid/x", Found{}, Found{}},
		{"nothing/at/all", Found{}, Found{}},
		{"forged", Found{Type: "device"}, Found{Type: "device"}},
		{strings.Repeat("n", 5000), Found{}, Found{}},
	} {
		before, err := d.Before(tt.path)
		do(t, err)
		after, err := d.After(tt.path)
		do(t, err)
		if before != tt.before || after != tt.after {
			t.Errorf("%.20s: %v and %v, want %v and %v", tt.path, before, after, tt.before, tt.after)
		}
	}
}

// TestAFolderSwappedForALinkLeadsNowhere: somebody rearranges the workspace
// while it is looked at.
func TestAFolderSwappedForALinkLeadsNowhere(t *testing.T) { // attack 101
	outside := t.TempDir()
	build(t, outside, "dir d\nfile d/f mine\nfile d/secret s\nfile f mine")
	stack := layers(t, "dir a\ndir a/d\nfile a/d/f mine\nfile a/f mine\nlink swapd "+outside+"/d\nlink swapf "+outside+"/f")
	upper := t.TempDir()
	do(t, os.Chmod(upper, 0o755))
	build(t, upper, "dir a\ndir a/d\nfile a/d/f mine\nfile a/f mine")
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		at := stack[0].Dir
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, n := range []string{"d", "f"} {
				_ = unix.Renameat2(unix.AT_FDCWD, at+"/a/"+n, unix.AT_FDCWD, at+"/swap"+n, unix.RENAME_EXCHANGE)
			}
		}
	}()
	seen := map[string]int{}
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); {
		// Below a link there is nothing: what the upper has there is new.
		for _, d := range []func() (*Delta, error){
			func() (*Delta, error) { return Read(context.Background(), stack, upper, Options{}) },
			func() (*Delta, error) { return Compare(context.Background(), stack, upper, Options{}) },
		} {
			d, err := d()
			if err != nil {
				if !errors.Is(err, workspace.ErrMoved) {
					t.Error(err)
				}
				seen["moved"]++
				continue
			}
			for _, c := range d.Changes() {
				if strings.Contains(c.Path, "secret") {
					t.Fatalf("%s: read outside the workspace", short(c))
				}
				seen[c.Change+" "+c.Path]++
			}
			seen["read"]++
			if f, err := d.OpenBefore("a/d/secret"); err == nil {
				t.Fatalf("opened %s", f.Name())
			}
		}
	}
	close(stop)
	<-ended
	// The control: both states were met, or the race proves nothing.
	if seen["retyped a/d"] == 0 || seen["read"] == seen["retyped a/d"] {
		t.Errorf("the race was not run: %v", seen)
	}
}
