package workspace

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// build makes a tree from one line per inode, in order:
//
//	dir PATH [MODE]      file PATH [MODE] TEXT     link PATH TARGET
//	fifo PATH            sock PATH                 char PATH
//	hard PATH OTHER      sparse PATH SIZE TEXT     (TEXT at the end)
//
// A word may be a quoted Go string.
func build(t testing.TB, root, spec string) {
	t.Helper()
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
			if err = syscall.Mkdir(path, 0o700); err == nil {
				err = syscall.Chmod(path, uint32(mode))
			}
		case "file":
			mode, text := uint64(0o644), f[2]
			if len(f) > 3 {
				mode, err = strconv.ParseUint(f[2], 8, 32)
				text = f[3]
			}
			if err == nil {
				err = os.WriteFile(path, []byte(text), 0o600)
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
		case "char":
			err = syscall.Mknod(path, syscall.S_IFCHR|0o600, int(unix.Mkdev(1, 3)))
		case "hard":
			err = os.Link(filepath.Join(root, f[2]), path)
		case "sparse":
			var size int64
			size, err = strconv.ParseInt(f[2], 0, 64)
			if err == nil {
				err = os.WriteFile(path, nil, 0o644)
			}
			if err == nil {
				err = os.Truncate(path, size)
			}
			if err == nil {
				overwrite(t, path, size-int64(len(f[3])), f[3])
			}
		default:
			t.Fatalf("line %q: unknown kind", line)
		}
		if err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
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

// overwrite changes bytes in place.
func overwrite(t testing.TB, path string, off int64, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte(text), off); err != nil {
		t.Fatal(err)
	}
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

func mustSnapshot(t testing.TB, root string, prev *Tree) *Tree {
	t.Helper()
	tree, err := Snapshot(context.Background(), root, prev, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// short is a change as one line.
func short(c Change) string {
	s := c.Change + " " + c.Type + " " + strconv.Quote(c.RawPath()) + " " + c.Mode
	if c.Target != "" {
		s += " -> " + c.Target
	}
	if c.Unreadable {
		s += " unreadable"
	}
	return s
}

func shorts(list []Change) []string {
	out := []string{}
	for _, c := range list {
		out = append(out, short(c))
	}
	return out
}
