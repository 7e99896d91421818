package patch

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// file is one path of a tree in a test.
type file struct {
	kind string // "" is a regular file
	mode fs.FileMode
	text string // content, or a link's target
}

func text(s string) file { return file{mode: 0o644, text: s} }
func link(s string) file { return file{kind: "symlink", text: s} }
func dir() file          { return file{kind: "dir", mode: 0o755} }

type tree map[string]file

// lay makes a tree. Folders above a path are made with it.
func lay(t *testing.T, root string, files tree) {
	t.Helper()
	for name, f := range files {
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		switch f.kind {
		case "symlink":
			err = os.Symlink(f.text, p)
		case "fifo":
			err = syscall.Mkfifo(p, 0o644)
		case "dir":
			if err = os.MkdirAll(p, 0o755); err == nil {
				err = os.Chmod(p, f.mode)
			}
		default:
			if err = os.WriteFile(p, []byte(f.text), 0o644); err == nil {
				err = os.Chmod(p, f.mode)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// seen is what git can tell of a tree.
func seen(t *testing.T, root string) tree {
	t.Helper()
	out := tree{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, p)
		if d.IsDir() {
			if rel == ".git" {
				return fs.SkipDir
			}
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(p)
			out[rel] = link(target)
			return err
		case info.Mode().IsRegular():
			b, err := os.ReadFile(p)
			mode := fs.FileMode(0o644)
			if info.Mode()&0o100 != 0 {
				mode = 0o755
			}
			out[rel] = file{mode: mode, text: string(b)}
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// dirs is a Source of two real trees.
type dirs struct{ before, after string }

func look(root, path string) (Found, error) {
	r, err := os.OpenRoot(root)
	if err != nil {
		return Found{}, err
	}
	defer r.Close()
	for i := range path {
		if path[i] == '/' {
			if info, err := r.Lstat(path[:i]); err != nil || !info.IsDir() {
				return Found{}, nil
			}
		}
	}
	info, err := os.Lstat(filepath.Join(root, path))
	if os.IsNotExist(err) {
		return Found{}, nil
	}
	if err != nil {
		return Found{}, err
	}
	f := Found{Type: "fifo", Mode: uint32(info.Mode().Perm()), Size: info.Size()}
	switch {
	case info.IsDir():
		f.Type = "dir"
	case info.Mode()&fs.ModeSymlink != 0:
		f.Type = "symlink"
		f.Target, err = os.Readlink(filepath.Join(root, path))
	case info.Mode().IsRegular():
		f.Type = "file"
	}
	return f, err
}

func (d dirs) Before(p string) (Found, error)          { return look(d.before, p) }
func (d dirs) After(p string) (Found, error)           { return look(d.after, p) }
func (d dirs) OpenBefore(p string) (*os.File, error)   { return os.Open(filepath.Join(d.before, p)) }
func (d dirs) OpenAfter(p string) (*os.File, error)    { return os.Open(filepath.Join(d.after, p)) }
func (d dirs) changes(t *testing.T) []workspace.Change { return changesOf(t, d.before, d.after) }

func changesOf(t *testing.T, before, after string) []workspace.Change {
	t.Helper()
	b, err := workspace.Snapshot(context.Background(), before, nil, workspace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	a, err := workspace.Snapshot(context.Background(), after, nil, workspace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return workspace.Diff(b, a)
}

// git runs git on nobody's configuration.
func git(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "LC_ALL=C",
		"GIT_CEILING_DIRECTORIES=" + filepath.Dir(dir),
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com",
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func mustGit(t *testing.T, dir string, args ...string) {
	t.Helper()
	if out, err := git(t, dir, args...); err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
}

// applies writes the patch from one tree to the other and holds git to it: in a
// repository, where it comes to the index as well, and outside of one.
func applies(t *testing.T, before, after tree) (Summary, string) {
	t.Helper()
	boxtest.Need(t, "git")
	d := dirs{t.TempDir(), t.TempDir()}
	lay(t, d.before, before)
	lay(t, d.after, after)
	var b bytes.Buffer
	sum, err := Write(context.Background(), &b, d.changes(t), d, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if sum.Bytes != int64(b.Len()) {
		t.Errorf("the summary says %d bytes, there are %d", sum.Bytes, b.Len())
	}
	if sum.Files == 0 {
		return sum, b.String()
	}
	name := filepath.Join(t.TempDir(), "changes.patch")
	if err := os.WriteFile(name, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	want := seen(t, d.after)

	repo := t.TempDir()
	lay(t, repo, before)
	mustGit(t, repo, "init", "-q", ".")
	mustGit(t, repo, "add", "-A", ".")
	mustGit(t, repo, "commit", "-q", "--allow-empty", "-m", "before")
	for _, args := range [][]string{{"apply", "--check", name}, {"apply", "--index", name}, {"diff", "--exit-code"}} {
		if out, err := git(t, repo, args...); err != nil {
			t.Fatalf("git %q: %v\n%s\n%q", args, err, out, short(b.String()))
		}
	}
	if diff := cmp.Diff(want, seen(t, repo), cmp.AllowUnexported(file{})); diff != "" {
		t.Fatalf("in a repository (-want +got):\n%s\n%q", diff, short(b.String()))
	}

	plain := t.TempDir()
	lay(t, plain, before)
	if out, err := git(t, plain, "apply", name); err != nil {
		t.Fatalf("git apply outside of a repository: %v\n%s", err, out)
	}
	if diff := cmp.Diff(want, seen(t, plain), cmp.AllowUnexported(file{})); diff != "" {
		t.Fatalf("outside of a repository (-want +got):\n%s\n%q", diff, short(b.String()))
	}
	return sum, b.String()
}

func short(s string) string { return s[:min(len(s), 4000)] }
