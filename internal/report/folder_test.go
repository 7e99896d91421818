package report

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func write(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
}

func tree(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if rel, _ := filepath.Rel(dir, path); rel != "." {
			out = append(out, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	sort.Strings(out)
	return out
}

// prepared is the path of a report folder that is ready.
func prepared(dir, workspace string) (string, error) {
	f, err := Prepare(dir, workspace)
	if err != nil {
		return "", err
	}
	return f.Path, f.Close()
}

func TestPrepareFolderRemovesOnlyWhatIsOurs(t *testing.T) {
	dir, ws := t.TempDir(), t.TempDir()
	for _, f := range []string{"report.json", "summary.md", "steps/a/stdout.log", "steps/b/deep/er", "mine/steps/x", "notes.txt", "junit.xml", "results.sarif", "other.xml"} {
		write(t, filepath.Join(dir, f))
	}
	write(t, filepath.Join(ws, "keep"))
	if err := os.Symlink(ws, filepath.Join(dir, "steps", "link")); err != nil {
		t.Fatal(err)
	}
	got, err := prepared(dir, ws)
	if err != nil {
		t.Fatal(err)
	}
	if real, _ := filepath.EvalSymlinks(dir); got != real {
		t.Errorf("got %s, want %s", got, real)
	}
	if diff := cmp.Diff([]string{"mine", "mine/steps", "mine/steps/x", "notes.txt", "other.xml"}, tree(t, dir)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]string{"keep"}, tree(t, ws)); diff != "" {
		t.Errorf("the workspace behind a link was touched (-want +got)\n%s", diff)
	}
}

func TestPrepareFolderFollowsNoLink(t *testing.T) {
	dir, ws := t.TempDir(), t.TempDir()
	write(t, filepath.Join(ws, "target"))
	write(t, filepath.Join(ws, "folder", "file"))
	os.Symlink(filepath.Join(ws, "target"), filepath.Join(dir, "report.json"))
	os.Symlink(filepath.Join(ws, "folder"), filepath.Join(dir, "steps"))
	if _, err := prepared(dir, ws); err != nil {
		t.Fatal(err)
	}
	if got := tree(t, dir); len(got) > 0 {
		t.Errorf("links are left: %v", got)
	}
	if diff := cmp.Diff([]string{"folder", "folder/file", "target"}, tree(t, ws)); diff != "" {
		t.Errorf("what the links led to was touched (-want +got)\n%s", diff)
	}
}

func TestPrepareFolderMakesTheFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	got, err := prepared(dir, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(got); err != nil || !info.IsDir() {
		t.Errorf("%v, %v", info, err)
	}
}

func TestPrepareFolderRefuses(t *testing.T) {
	base, ws := t.TempDir(), t.TempDir()
	write(t, filepath.Join(base, "file"))
	write(t, filepath.Join(base, "taken", "steps"))
	write(t, filepath.Join(base, "taken2", "report.json", "x"))
	link := func(name, to string) string {
		p := filepath.Join(base, name)
		if err := os.Symlink(to, p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	wsLink := link("ws", ws)
	for name, c := range map[string]struct{ dir, workspace, want string }{
		"the workspace itself":                    {ws, ws, "inside the workspace"},
		"a folder in the workspace":               {filepath.Join(ws, "out"), ws, "inside the workspace"},
		"a link into the workspace":               {link("l1", ws), ws, "inside the workspace"},
		"a new folder behind such a link":         {filepath.Join(wsLink, "new", "out"), ws, "inside the workspace"},
		"a folder in a workspace given as a link": {filepath.Join(ws, "out"), wsLink, "inside the workspace"},
		"a link that leads nowhere":               {link("l2", filepath.Join(ws, "later")), ws, "does not exist"},
		"a file":                                  {filepath.Join(base, "file"), ws, "is not a folder"},
		"a file named steps":                      {filepath.Join(base, "taken"), ws, "steps is in the way"},
		"a folder named report.json":              {filepath.Join(base, "taken2"), ws, "report.json is in the way"},
		"a workspace that is not there":           {filepath.Join(base, "o"), filepath.Join(base, "no"), "find the workspace"},
	} {
		if got, err := prepared(c.dir, c.workspace); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
	}
	if got := tree(t, ws); len(got) > 0 {
		t.Errorf("something was made in the workspace: %v", got)
	}
	// A neighbour whose name begins with the workspace's is none of it.
	if _, err := prepared(ws+"-out", ws); err != nil {
		t.Errorf("a neighbour: %v", err)
	}
	os.RemoveAll(ws + "-out")
}

func TestWriteFolder(t *testing.T) {
	dir, ws := t.TempDir(), t.TempDir()
	folder, err := Prepare(dir, ws)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	// A link put there later must be replaced, not written through.
	target := filepath.Join(ws, "victim")
	write(t, target)
	if err := os.Symlink(target, filepath.Join(dir, "report.json")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := folder.Write(pass()); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"junit.xml", "report.html", "report.json", "results.sarif", "summary.md"}, tree(t, dir)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for _, f := range Formats {
		if f.File == "" {
			continue
		}
		got, err := os.ReadFile(filepath.Join(dir, f.File))
		want := render(t, f, pass())
		if f.Within != nil {
			var b strings.Builder
			if err := f.Within(&b, pass(), os.DirFS(dir)); err != nil || b.String() == want {
				t.Errorf("%s: %v, and the folder made no difference", f.File, err)
			}
			want = b.String()
		}
		if err != nil || string(got) != want {
			t.Errorf("%s: %v, %d bytes", f.File, err, len(got))
		}
	}
	if b, _ := os.ReadFile(target); string(b) != "x" {
		t.Error("a link was written through")
	}
}

// Whoever may change the folder above has it moved away, and another in its place.
func TestAFolderIsWrittenWhereverItIsByThen(t *testing.T) {
	above, ws := t.TempDir(), t.TempDir()
	dir, moved, victim := filepath.Join(above, "deep", "report"), filepath.Join(above, "moved"), t.TempDir()
	folder, err := Prepare(dir, ws)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	if err := errors.Join(os.Rename(filepath.Dir(dir), moved), os.Mkdir(filepath.Join(victim, "report"), 0o755), os.Symlink(victim, filepath.Dir(dir))); err != nil {
		t.Fatal(err)
	}
	if err := folder.Write(pass()); err != nil {
		t.Fatal(err)
	}
	requests, err := folder.OpenRequests()
	if err != nil {
		t.Fatal(err)
	}
	requests.Close()
	if _, err := folder.WritePatch("x"); err != nil {
		t.Fatal(err)
	}
	if got := tree(t, victim); len(got) != 1 {
		t.Errorf("written where a link leads: %v", got)
	}
	if got := tree(t, filepath.Join(moved, "report")); len(got) != 7 {
		t.Errorf("%v", got)
	}
}

func TestWriteFolderWritesAllOrNothing(t *testing.T) {
	folder, err := Prepare(t.TempDir(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	dir := folder.Path
	write(t, filepath.Join(dir, "summary.md", "in the way"))
	if err := folder.Write(pass()); err == nil || !strings.Contains(err.Error(), "summary.md") {
		t.Errorf("error %v", err)
	}
	if diff := cmp.Diff([]string{"summary.md", "summary.md/in the way"}, tree(t, dir)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// Whoever owns the folder may put a pipe in the place of a log, or of what it lies in,
// between any two looks. Nobody waits for it.
func TestAPipeInThePlaceOfALog(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "steps"), 0o755), os.WriteFile(filepath.Join(dir, "steps/log"), []byte("text"), 0o644)); err != nil {
		t.Fatal(err)
	}
	files := plainFiles{root}
	if b, err := fs.ReadFile(files, "steps/log"); err != nil || string(b) != "text" {
		t.Errorf("a log reads %q, %v", b, err)
	}
	if err := errors.Join(os.Remove(filepath.Join(dir, "steps/log")), unix.Mkfifo(filepath.Join(dir, "steps/log"), 0o644)); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		f, err := files.Open("steps/log")
		if err == nil {
			f.Close()
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("a pipe was opened")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("somebody waits for the other end of a pipe")
	}
}
