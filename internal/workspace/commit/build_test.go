package commit_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/commit"
)

// build makes a tree from one line per inode, in order:
//
//	dir PATH [MODE]   file PATH MODE TEXT   link PATH TARGET   fifo PATH
//	sock PATH         hard PATH OTHER       sparse PATH SIZE TEXT
//
// A word may be a quoted Go string. Modes of folders are set at the end.
func build(t testing.TB, root, spec string) {
	t.Helper()
	type late struct {
		path string
		mode uint32
	}
	var modes []late
	do(t, os.MkdirAll(root, 0o755))
	for line := range strings.Lines(spec) {
		f := words(t, line)
		if len(f) == 0 {
			continue
		}
		path := filepath.Join(root, f[1])
		var err error
		switch f[0] {
		case "dir":
			mode := uint64(0o755)
			if len(f) > 2 {
				mode, _ = strconv.ParseUint(f[2], 8, 32)
			}
			if err = syscall.Mkdir(path, 0o700); f[1] == "." {
				err = nil
			}
			modes = append(modes, late{path, uint32(mode)})
		case "file":
			var mode uint64
			mode, err = strconv.ParseUint(f[2], 8, 32)
			if err == nil {
				err = os.WriteFile(path, []byte(f[3]), 0o600)
			}
			if err == nil {
				err = syscall.Chmod(path, uint32(mode))
			}
		case "link":
			err = os.Symlink(f[2], path)
		case "fifo":
			err = syscall.Mkfifo(path, 0o600)
		case "sock":
			err = syscall.Mknod(path, syscall.S_IFSOCK|0o600, 0)
		case "hard":
			err = os.Link(filepath.Join(root, f[2]), path)
		case "sparse":
			var size int64
			size, err = strconv.ParseInt(f[2], 0, 64)
			do(t, err, os.WriteFile(path, nil, 0o644), os.Truncate(path, size))
			file, oerr := os.OpenFile(path, os.O_WRONLY, 0)
			do(t, oerr)
			_, err = file.WriteAt([]byte(f[3]), size-int64(len(f[3])))
			do(t, file.Close())
		default:
			t.Fatalf("line %q: unknown kind", line)
		}
		if err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
	}
	for i := len(modes) - 1; i >= 0; i-- {
		do(t, syscall.Chmod(modes[i].path, modes[i].mode))
	}
}

func words(t testing.TB, line string) (list []string) {
	for line = strings.TrimSpace(line); line != ""; line = strings.TrimSpace(line) {
		if line[0] != '"' {
			word, rest, _ := strings.Cut(line, " ")
			list, line = append(list, word), rest
			continue
		}
		quoted, err := strconv.QuotedPrefix(line)
		if err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		word, _ := strconv.Unquote(quoted)
		list, line = append(list, word), line[len(quoted):]
	}
	return list
}

// do fails the test on the first error.
func do(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// tempDir is a folder that is taken away even if it holds what os.RemoveAll
// cannot enter.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "commit-test-")
	do(t, err)
	t.Cleanup(func() {
		if err := commit.RemoveTree(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func snapshot(t testing.TB, root string) *workspace.Tree {
	t.Helper()
	tree, err := workspace.Snapshot(context.Background(), root, nil, workspace.Options{})
	do(t, err)
	return tree
}

// lines is what differs between two trees, a line each.
func lines(before, after *workspace.Tree) []string {
	var out []string
	for c := range workspace.Changes(before, after) {
		if c.Unreadable && c.Change == workspace.Modified {
			continue // says no more than that a normal user cannot tell
		}
		out = append(out, c.Change+" "+c.Type+" "+strconv.Quote(c.RawPath())+" "+c.Mode+" "+c.Target)
	}
	return out
}

// fixture is a workspace in its old state, and a plain copy in its new one.
type fixture struct {
	dir, ws, after string
	old, new       *workspace.Tree
	changes        []workspace.Change
	options        commit.Options
}

func newFixture(t testing.TB, before, after string) *fixture {
	t.Helper()
	dir := tempDir(t)
	f := &fixture{dir: dir, ws: filepath.Join(dir, "ws"), after: filepath.Join(dir, "after")}
	build(t, f.ws, before)
	build(t, f.after, after)
	f.old, f.new = snapshot(t, f.ws), snapshot(t, f.after)
	f.changes = workspace.Diff(f.old, f.new)
	return f
}

func (f *fixture) open(t testing.TB) *commit.Store {
	t.Helper()
	s, err := commit.Open(f.ws, f.options)
	do(t, err)
	return s
}

// commit runs a whole transaction.
func (f *fixture) commit(t testing.TB) (commit.Result, error) {
	t.Helper()
	s := f.open(t)
	txn, err := s.New("build")
	do(t, err)
	res, err := txn.Commit(context.Background(), f.changes, f.after)
	if err != nil {
		_ = txn.Drop()
	}
	do(t, s.Close())
	return res, err
}

// beside is what lies in the fixture's folder, other than what it put there.
func (f *fixture) beside(t testing.TB) []string {
	t.Helper()
	list, err := os.ReadDir(f.dir)
	do(t, err)
	var out []string
	for _, e := range list {
		if e.Name() != "ws" && e.Name() != "after" {
			out = append(out, e.Name())
		}
	}
	return out
}

// descend makes a chain of folders by descriptors, since no path reaches that
// far, and a file at its end.
func descend(t testing.TB, root, name string, depth int) {
	t.Helper()
	fd, err := unix.Open(root, unix.O_DIRECTORY|unix.O_RDONLY, 0)
	do(t, err)
	for range depth {
		do(t, unix.Mkdirat(fd, name, 0o755))
		next, err := unix.Openat(fd, name, unix.O_DIRECTORY|unix.O_RDONLY, 0)
		do(t, err, unix.Close(fd))
		fd = next
	}
	f, err := unix.Openat(fd, "leaf", unix.O_CREAT|unix.O_WRONLY, 0o644)
	do(t, err, unix.Close(f), unix.Close(fd))
}
