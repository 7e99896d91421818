package report

import (
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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

func TestPrepareFolderRemovesOnlyWhatIsOurs(t *testing.T) {
	dir, ws := t.TempDir(), t.TempDir()
	for _, f := range []string{"report.json", "summary.md", "steps/a/stdout.log", "steps/b/deep/er", "mine/steps/x", "notes.txt", "junit.xml", "results.sarif", "other.xml"} {
		write(t, filepath.Join(dir, f))
	}
	write(t, filepath.Join(ws, "keep"))
	if err := os.Symlink(ws, filepath.Join(dir, "steps", "link")); err != nil {
		t.Fatal(err)
	}
	got, err := PrepareFolder(dir, ws)
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
	if _, err := PrepareFolder(dir, ws); err != nil {
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
	got, err := PrepareFolder(dir, t.TempDir())
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
		"a file":                                  {filepath.Join(base, "file"), ws, "not a directory"},
		"a file named steps":                      {filepath.Join(base, "taken"), ws, "steps is in the way"},
		"a folder named report.json":              {filepath.Join(base, "taken2"), ws, "report.json is in the way"},
		"a workspace that is not there":           {filepath.Join(base, "o"), filepath.Join(base, "no"), "find the workspace"},
	} {
		if got, err := PrepareFolder(c.dir, c.workspace); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
	}
	if got := tree(t, ws); len(got) > 0 {
		t.Errorf("something was made in the workspace: %v", got)
	}
	// A neighbour whose name begins with the workspace's is none of it.
	if _, err := PrepareFolder(ws+"-out", ws); err != nil {
		t.Errorf("a neighbour: %v", err)
	}
	os.RemoveAll(ws + "-out")
}

func TestWriteFolder(t *testing.T) {
	dir, ws := t.TempDir(), t.TempDir()
	dir, err := PrepareFolder(dir, ws)
	if err != nil {
		t.Fatal(err)
	}
	// A link put there later must be replaced, not written through.
	target := filepath.Join(ws, "victim")
	write(t, target)
	if err := os.Symlink(target, filepath.Join(dir, "report.json")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := WriteFolder(dir, pass()); err != nil {
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

func TestWriteFolderRefusesALink(t *testing.T) {
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	if err := WriteFolder(link, pass()); err == nil || !strings.Contains(err.Error(), "is not a folder") {
		t.Errorf("error %v", err)
	}
}

func TestWriteFolderWritesAllOrNothing(t *testing.T) {
	dir, err := PrepareFolder(t.TempDir(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "summary.md", "in the way"))
	if err := WriteFolder(dir, pass()); err == nil || !strings.Contains(err.Error(), "summary.md") {
		t.Errorf("error %v", err)
	}
	if diff := cmp.Diff([]string{"summary.md", "summary.md/in the way"}, tree(t, dir)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
