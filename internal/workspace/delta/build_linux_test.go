package delta

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

func TestMain(m *testing.M) {
	if os.Getenv(overlayVariable) != "" {
		if err := overlayChild(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	boxtest.Become(os.Args)
	os.Exit(m.Run())
}

// build makes a tree from one line per inode, in order. A word may be a quoted
// Go string.
//
//	dir PATH [MODE]      file PATH [MODE] TEXT     link PATH TARGET
//	fifo PATH            sock PATH                 null PATH (device 1:3)
//	hard PATH OTHER      sparse PATH SIZE TEXT     (TEXT at the end)
//	white PATH           opaque PATH               mode PATH MODE
func build(t testing.TB, root, spec string) {
	t.Helper()
	for line := range strings.Lines(spec) {
		f := words(t, line)
		if len(f) == 0 {
			continue
		}
		if err := buildLine(root, f); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
	}
}

func buildLine(root string, f []string) error {
	path := filepath.Join(root, f[1])
	mode := func(i int, or uint32) uint32 {
		if len(f) <= i {
			return or
		}
		m, err := strconv.ParseUint(f[i], 8, 32)
		if err != nil {
			panic(err)
		}
		return uint32(m)
	}
	switch f[0] {
	case "dir":
		if err := syscall.Mkdir(path, 0o700); err != nil {
			return err
		}
		return syscall.Chmod(path, mode(2, 0o755))
	case "file":
		perm, text := uint32(0o644), f[2]
		if len(f) > 3 {
			perm, text = mode(2, 0), f[3]
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return err
		}
		return syscall.Chmod(path, perm)
	case "mode":
		return syscall.Chmod(path, mode(2, 0))
	case "link":
		return os.Symlink(f[2], path)
	case "fifo":
		return syscall.Mkfifo(path, 0o600)
	case "sock":
		return syscall.Mknod(path, syscall.S_IFSOCK|0o600, 0)
	case "null":
		return syscall.Mknod(path, syscall.S_IFCHR|0o600, int(unix.Mkdev(1, 3)))
	case "hard":
		return os.Link(filepath.Join(root, f[2]), path)
	case "white": // a user may make this one device
		return syscall.Mknod(path, syscall.S_IFCHR, 0)
	case "opaque":
		return unix.Setxattr(path, "user.overlay.opaque", []byte("y"), 0)
	case "sparse":
		size, err := strconv.ParseInt(f[2], 0, 64)
		if err != nil {
			return err
		}
		w, err := os.Create(path)
		if err != nil {
			return err
		}
		defer w.Close()
		if err := w.Truncate(size); err != nil {
			return err
		}
		_, err = w.WriteAt([]byte(f[3]), size-int64(len(f[3])))
		return err
	}
	return os.ErrInvalid
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

func do(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// layers makes a stack from specs, top first; the last is the workspace, in
// which marks mean nothing.
func layers(t testing.TB, specs ...string) []Layer {
	t.Helper()
	var stack []Layer
	for i, spec := range specs {
		dir := t.TempDir()
		do(t, os.Chmod(dir, 0o755))
		build(t, dir, spec)
		stack = append(stack, Layer{Dir: dir, Marks: i < len(specs)-1})
	}
	return stack
}

func mustRead(t testing.TB, stack []Layer, upper string) *Delta {
	t.Helper()
	d, err := Read(context.Background(), stack, upper, Options{})
	do(t, err)
	return d
}

func mustCompare(t testing.TB, stack []Layer, after string) *Delta {
	t.Helper()
	d, err := Compare(context.Background(), stack, after, Options{})
	do(t, err)
	return d
}

func mustSnapshot(t testing.TB, root string) *workspace.Tree {
	t.Helper()
	tree, err := workspace.Snapshot(context.Background(), root, nil, workspace.Options{})
	do(t, err)
	return tree
}

// short is a change as one line.
func short(c workspace.Change) string {
	s := c.Change + " " + c.Type + " " + strconv.Quote(c.RawPath()) + " " + c.Mode
	if c.Target != "" {
		s += " -> " + c.Target
	}
	if c.From != "" {
		s += " from " + c.From
	}
	if c.Unreadable {
		s += " unreadable"
	}
	return s
}

func shorts(list []workspace.Change) []string {
	out := []string{}
	for _, c := range list {
		out = append(out, short(c))
	}
	return out
}
