package disk_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/disk"
	"github.com/untrusted-steps/untrusted-steps/internal/idmap"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
)

const (
	mib = 1 << 20
	// plainID is nobody's.
	plainID = 61_234
	userVar = "DISK_TEST_AS_USER"
	// baseVar names the plain folder of a box, which has no tree.
	baseVar = "DISK_TEST_BASE"
)

func TestMain(m *testing.M) {
	boxtest.Become(os.Args)
	switch {
	case len(os.Args) > 1 && os.Args[1] == "box":
		inBox(os.Args[2:])
	case len(os.Args) > 1 && os.Args[1] == "hold":
		hold(os.Args[2], os.Args[3])
	}
	os.Exit(m.Run())
}

// home is a folder as Options wants one.
func home(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// of are options for one kind of room, so that no better one is taken.
func of(t testing.TB, kind string, bytes, inodes int64) disk.Options {
	t.Helper()
	o := disk.Options{Dir: home(t), Bytes: bytes, Inodes: inodes, Root: true, MemoryBytes: 2 * bytes, UID: os.Geteuid(), GID: os.Getegid(), Mode: 0o755}
	switch kind {
	case disk.Loop:
		boxtest.Need(t, "root", "loop")
	case disk.Tmpfs:
		boxtest.Need(t, "root", "tmpfs")
		o.Control = "/nonexistent"
	case disk.Sampler:
		o.Root = false
	}
	return o
}

func open(t testing.TB, kind string, bytes, inodes int64) *disk.Room {
	t.Helper()
	return openOptions(t, kind, of(t, kind, bytes, inodes))
}

func openOptions(t testing.TB, kind string, o disk.Options) *disk.Room {
	t.Helper()
	r, err := disk.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if r.By() != kind {
		t.Fatalf("the room is a %s, want %s: %s", r.By(), kind, r.Why())
	}
	return r
}

// fill writes to a file until it cannot, or until so much is written.
func fill(path string, limit int64) (int64, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	buf := bytes.Repeat([]byte("x"), 64<<10)
	var n int64
	for n < limit {
		k, err := f.Write(buf[:min(int64(len(buf)), limit-n)])
		n += int64(k)
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// makeFiles makes empty files until it cannot, or until there are so many.
func makeFiles(dir string, limit int) (int, error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return 0, err
	}
	for i := range limit {
		f, err := os.Create(filepath.Join(dir, strconv.Itoa(i)))
		if err != nil {
			return i + 1, err
		}
		f.Close()
	}
	return limit + 1, nil
}

// inBox is the box of one test: a user namespace with an overlay whose upper is
// on the tree that came as descriptor 3.
func inBox(ops []string) {
	if err := overlay(); err != nil {
		fmt.Println("box:", err)
		os.Exit(1)
	}
	// The test may have to put us somewhere first.
	_, _ = io.Copy(io.Discard, os.Stdin)
	for _, op := range ops {
		verb, arg, _ := strings.Cut(op, " ")
		n, _ := strconv.ParseInt(arg, 10, 64)
		var did int64
		var err error
		switch verb {
		case "fill":
			did, err = fill("/tmp/at/big", n)
		case "files":
			var k int
			k, err = makeFiles("/tmp/at/many", int(n))
			did = int64(k)
		case "remove":
			err = os.Remove("/tmp/at/" + arg)
		case "replace":
			if err = os.RemoveAll("/tmp/at/" + arg); err == nil {
				err = os.Mkdir("/tmp/at/"+arg, 0o755)
			}
		case "sparse":
			var f *os.File
			if f, err = os.Create("/tmp/at/sparse"); err == nil {
				err = f.Truncate(n)
				f.Close()
			}
		case "setid":
			if err = os.WriteFile("/tmp/at/setid", []byte("#!/bin/true\n"), 0o755); err == nil {
				err = os.Chmod("/tmp/at/setid", os.ModeSetuid|0o755)
			}
		}
		var errno syscall.Errno
		errors.As(err, &errno)
		fmt.Println(verb, did, int(errno))
	}
	os.Exit(0)
}

func overlay() error {
	room := 3
	if base := os.Getenv(baseVar); base != "" {
		// Before our own /tmp hides it.
		var err error
		if room, err = unix.OpenTree(unix.AT_FDCWD, base, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC); err != nil {
			return fmt.Errorf("clone %s: %w", base, err)
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("box", "/tmp", "tmpfs", 0, "size=1m"); err != nil {
		return err
	}
	for _, d := range []string{"lower", "lower/folder", "room", "at"} {
		if err := os.Mkdir("/tmp/"+d, 0o755); err != nil {
			return err
		}
	}
	for _, f := range []string{"a", "folder/b"} {
		if err := os.WriteFile("/tmp/lower/"+f, []byte("lower"), 0o644); err != nil {
			return err
		}
	}
	if err := unix.MoveMount(room, "", unix.AT_FDCWD, "/tmp/room", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("move the tree in: %w", err)
	}
	return unix.Mount("box", "/tmp/at", "overlay", 0, "lowerdir=/tmp/lower,upperdir=/tmp/room/upper,workdir=/tmp/room/work,userxattr")
}

// box runs operations in a box whose writable layer is in the room, as an
// engine would: on an id-mapped tree. It gives what each did.
func box(t *testing.T, r *disk.Room, owner idmap.Ids, ops ...string) []string {
	t.Helper()
	return boxIn(t, limits.None(), r, owner, ops...)
}

func boxIn(t *testing.T, g *limits.Group, r *disk.Room, owner idmap.Ids, ops ...string) []string {
	t.Helper()
	boxtest.Need(t, "userns", "overlay")
	if r.Base() != "" {
		cmd := exec.Command("/proc/self/exe", append([]string{"box"}, ops...)...)
		cmd.Env = []string{baseVar + "=" + r.Base()}
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		}
		return answers(t, g, cmd, ops)
	}
	boxtest.Need(t, "idmap")
	tree, err := r.Tree()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(tree)
	var m idmap.Mapper
	defer m.Close()
	ns, err := m.Owner(owner)
	if err != nil {
		t.Fatal(err)
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns)}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		t.Fatalf("map the ids of the tree: %v", err)
	}
	dup, err := unix.FcntlInt(uintptr(tree), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(dup), "tree")
	defer f.Close()
	cmd := exec.Command("/proc/self/exe", append([]string{"box"}, ops...)...)
	cmd.ExtraFiles = []*os.File{f}
	cmd.Env = []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: idmap.Box.UID, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: idmap.Box.GID, Size: 1}},
		Credential:  &syscall.Credential{NoSetGroups: true},
	}
	return answers(t, g, cmd, ops)
}

// answers runs a box in a group and gives a line for each operation.
func answers(t *testing.T, g *limits.Group, cmd *exec.Cmd, ops []string) []string {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	err = g.Join(cmd.Process.Pid)
	in.Close()
	if err := errors.Join(err, cmd.Wait()); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != len(ops) {
		t.Fatalf("%d operations, answers: %q", len(ops), lines)
	}
	return lines
}

// hold makes a room, writes something, says so, and waits to be killed.
func hold(kind, dir string) {
	o := disk.Options{Dir: dir, Bytes: 16 * mib, Inodes: 4096, Root: true, MemoryBytes: 64 * mib}
	if kind == disk.Tmpfs {
		o.Control = "/nonexistent"
	}
	r, err := disk.Open(o)
	if err == nil {
		_, err = fill(r.Upper()+"/x", mib)
	}
	if err != nil || r.By() != kind {
		fmt.Println("hold:", err)
		os.Exit(1)
	}
	fmt.Println("held")
	time.Sleep(time.Minute)
}

// devices are the loop devices in use with what is behind them, and the rows of
// our table of mounts.
func devices(t testing.TB) (out []string) {
	t.Helper()
	paths, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range paths {
		if b, err := os.ReadFile(p); err == nil {
			out = append(out, p+" "+strings.TrimSpace(string(b)))
		}
	}
	return out
}

func mounts(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// mine are those devices whose image lies in a folder of this test.
func mine(t testing.TB, dir string) (out []string) {
	t.Helper()
	for _, d := range devices(t) {
		if strings.Contains(d, " "+dir+"/") {
			out = append(out, d)
		}
	}
	return out
}
