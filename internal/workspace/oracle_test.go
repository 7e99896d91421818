package workspace

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// look reads a tree the plain way: everything, every time.
func look(t *testing.T, root string) map[string][3]string {
	t.Helper()
	seen := map[string][3]string{}
	do(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := os.Lstat(path)
		if err != nil {
			return err
		}
		sys := st.Sys().(*syscall.Stat_t)
		content := ""
		switch {
		case st.Mode().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			content = string(b)
		case st.Mode()&fs.ModeSymlink != 0:
			if content, err = os.Readlink(path); err != nil {
				return err
			}
		}
		rel, _ := filepath.Rel(root, path)
		seen[rel] = [3]string{TypeWord(uint16(sys.Mode)), fmt.Sprintf("%04o", sys.Mode&0o7777), content}
		return nil
	}))
	return seen
}

func compareLooks(a, b map[string][3]string) []string {
	var paths []string
	for p := range a {
		paths = append(paths, p)
	}
	for p := range b {
		if _, ok := a[p]; !ok {
			paths = append(paths, p)
		}
	}
	slices.Sort(paths)
	list := []string{}
	for _, p := range paths {
		x, hadIt := a[p]
		y, hasIt := b[p]
		kind, what := "", y
		switch {
		case !hasIt:
			kind, what = Deleted, x
		case !hadIt:
			kind = Created
		case x[0] != y[0]:
			kind = Retyped
		case x[2] != y[2]:
			kind = Modified
		case x[1] != y[1]:
			kind = Mode
		}
		if kind != "" {
			s := fmt.Sprintf("%s %s %q %s", kind, what[0], p, what[1])
			if what[0] == "symlink" {
				s += " -> " + what[2]
			}
			list = append(list, s)
		}
	}
	return list
}

// TestRandomStepsAgainstThePlainWay lets random steps run one after another in
// one folder, each snapshot building on the last.
func TestRandomStepsAgainstThePlainWay(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 10
	}
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 7))
		root := t.TempDir()
		tree, seen := mustSnapshot(t, root, nil), look(t, root)
		for round := range rounds {
			var script []string
			for range 1 + r.IntN(12) {
				script = append(script, randomOp(r, root))
			}
			next, now := mustSnapshot(t, root, tree), look(t, root)
			if d := cmp.Diff(compareLooks(seen, now), shorts(Diff(tree, next))); d != "" {
				t.Fatalf("seed %d, step %d (-want +got):\n%s\nafter\n%s", seed, round, d, strings.Join(script, "\n"))
			}
			var listed int64
			for e := range next.All() {
				if _, ok := now[e.Path]; !ok {
					t.Fatalf("seed %d: the tree has %q, the folder has not", seed, e.Path)
				}
				listed++
			}
			if listed != int64(len(now)) || next.Len() != listed-1 {
				t.Fatalf("seed %d: the tree has %d entries and says %d, the folder %d", seed, listed, next.Len(), len(now))
			}
			tree, seen = next, now
		}
	}
}

// randomOp does one thing that may fail: few names make it collide often.
func randomOp(r *rand.Rand, root string) string {
	path := func() string {
		names := []string{"a", "b", "a-", "a.b", ".git", "z\n", "\xff"}
		p := root
		for range 1 + r.IntN(3) {
			p = filepath.Join(p, names[r.IntN(len(names))])
		}
		return p
	}
	p, q := path(), path()
	// Two sizes and few letters: the same content comes back often.
	text := strings.Repeat(string(rune('a'+r.IntN(3))), 1+4000*r.IntN(2))
	var err error
	op := r.IntN(11)
	switch op {
	case 0, 1:
		err = os.MkdirAll(p, 0o755)
	case 2, 3:
		// Never through a link, nor waiting for somebody at the end of a FIFO.
		var f *os.File
		if f, err = os.OpenFile(p, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o644); err == nil {
			_, err = f.WriteString(text)
			f.Close()
		}
	case 4:
		err = os.Symlink(filepath.Base(q), p)
	case 5:
		// os.RemoveAll opens the parent, and waits if that is a FIFO.
		if st, e := os.Stat(filepath.Dir(p)); e == nil && st.IsDir() {
			err = os.RemoveAll(p)
		}
	case 6:
		err = os.Rename(p, q)
	case 7:
		err = os.Link(p, q)
	case 8:
		if st, e := os.Lstat(p); e == nil && st.Mode()&fs.ModeSymlink == 0 {
			err = syscall.Chmod(p, uint32([]int{0o755, 0o644 | 0o111, 0o4755, 0o1777}[r.IntN(4)]))
		}
	case 9:
		err = syscall.Mkfifo(p, 0o600)
	case 10:
		if st, e := os.Lstat(p); e == nil && st.Mode().IsRegular() {
			err = os.Truncate(p, int64(r.IntN(3))*100_000)
			_ = os.Chtimes(p, st.ModTime(), st.ModTime())
		}
	}
	return fmt.Sprintf("%d %q %q: %v", op, p, q, err)
}
