package scrub

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

const secret = "ZQSECRETQZ"

func write(t testing.TB, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func find(t testing.TB, dir string, o Options) Mask {
	t.Helper()
	m, err := Find(context.Background(), dir, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range m.Notes {
		if strings.Contains(n, secret) {
			t.Errorf("a note tells the secret: %s", n)
		}
	}
	return m
}

// sums are all files of a tree by content, mode and time.
func sums(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		what := fmt.Sprint(st.Mode(), st.ModTime())
		if st.Mode().IsRegular() {
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			what += fmt.Sprintf(" %x", sha256.Sum256(b))
		}
		out[p] = what
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// holding gives the files of a tree in which the secret stands.
func holding(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	for p := range sums(t, dir) {
		if st, err := os.Lstat(p); err != nil || !st.Mode().IsRegular() {
			continue
		}
		if b, err := os.ReadFile(p); err == nil && strings.Contains(string(b), secret) {
			out = append(out, p)
		}
	}
	return out
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "protocol.file.allow=always", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return string(out)
}

func copyOf(t *testing.T, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	if out, err := exec.Command("cp", "-a", dir, to).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v %s", err, out)
	}
	return to
}

// repository makes what a checkout leaves: a repository with a module, a second
// working tree, a bare and a nested one, each with a token in its configuration.
func repository(t *testing.T) string {
	t.Helper()
	lib := filepath.Join(t.TempDir(), "lib")
	write(t, lib+"/l", "l")
	git(t, lib, "init")
	git(t, lib, "add", ".")
	git(t, lib, "commit", "-m", "lib")

	dir := filepath.Join(t.TempDir(), "ws")
	write(t, dir+"/f", "one\n")
	git(t, dir, "init")
	git(t, dir, "submodule", "add", lib, "deep/lib")
	git(t, dir, "add", ".")
	git(t, dir, "commit", "-m", "first")
	write(t, dir+"/f", "two\n")
	git(t, dir, "worktree", "add", "tree")
	git(t, dir, "config", "extensions.worktreeConfig", "true")
	git(t, dir+"/tree", "config", "--worktree", "http.extraheader", secret)
	git(t, dir, "init", "nested/inner")
	git(t, dir, "init", "--bare", "bare")
	token := "AUTHORIZATION: basic " + secret
	for _, at := range []string{dir, dir + "/deep/lib", dir + "/nested/inner", dir + "/bare"} {
		git(t, at, "config", "http.https://github.com/.extraheader", token)
		git(t, at, "config", "includeIf.gitdir:"+at+".path", "../included")
		git(t, at, "config", "credential.helper", "store --file=../store")
	}
	git(t, dir, "remote", "add", "origin", "https://x-access-token:"+secret+"@github.com/a/b")
	write(t, dir+"/.git/FETCH_HEAD", "0\tnot-for-merge\tbranch 'a' of https://u:"+secret+"@github.com/a/b\n")
	write(t, dir+"/included", "[http]\n\textraheader = "+secret+"\n[include]\n\tpath = more\n")
	write(t, dir+"/more", "[http]\n\textraheader = "+secret+"\n")
	write(t, dir+"/store", "https://u:"+secret+"@github.com\n")
	write(t, dir+"/nested/inner/included", secret)
	write(t, dir+"/deep/included", "a name that nothing leads to")
	write(t, dir+"/.git/modules/deep/included", secret)
	git(t, dir, "reflog")
	return dir
}

// TestM146CheckoutTokenIsNotInTheBox: the token of a checkout stands nowhere in
// what a box sees, and git works on it as before.
func TestM146CheckoutTokenIsNotInTheBox(t *testing.T) {
	dir := repository(t)
	before := sums(t, dir)
	m := find(t, dir, Options{})
	if len(holding(t, dir)) < 9 {
		t.Fatalf("the control: the workspace itself has the token in %v only", holding(t, dir))
	}
	copied := copyOf(t, dir)
	if err := m.Apply(copied); err != nil {
		t.Fatal(err)
	}
	if left := holding(t, copied); len(left) > 0 {
		t.Errorf("the token is still in %v\n%s", left, strings.Join(m.Notes, "\n"))
	}
	if diff := cmp.Diff(before, sums(t, dir)); diff != "" {
		t.Errorf("the workspace itself was changed\n%s", diff)
	}
	for _, args := range [][]string{{"log", "--oneline"}, {"diff"}, {"branch", "-a"}, {"submodule", "status"}, {"fsck"}, {"stash", "list"}} {
		if a, b := git(t, dir, args...), git(t, copied, args...); a != b {
			t.Errorf("git %v: %q, was %q", args, b, a)
		}
	}
	if got := git(t, copied, "status", "--short"); !strings.Contains(got, " M f\n") {
		t.Errorf("git status: %q", got)
	}
	if got := git(t, copied, "config", "--get", "remote.origin.url"); got != "https://github.com/a/b\n" {
		t.Errorf("the remote is %q", got)
	}
	for _, sub := range []string{"deep/lib", "nested/inner", "bare"} {
		git(t, filepath.Join(copied, sub), "config", "--list")
	}
	if b, err := os.ReadFile(copied + "/deep/included"); err != nil || len(b) == 0 {
		t.Error("a file that nothing leads to is hidden")
	}
}

func TestFind(t *testing.T) {
	const token = "[http]\n\textraheader = " + secret + "\n"
	for _, c := range []struct {
		name   string
		files  map[string]string
		links  map[string]string
		hidden []string
		shown  []string // with another text
		home   string
	}{
		{name: "a workspace without secrets has an empty mask", files: map[string]string{"a": "b", ".git/config": "[core]\n\tbare = false\n"}},
		{name: "a configuration that cannot be parsed is hidden", files: map[string]string{".git/config": "[http\n" + token}, hidden: []string{".git/config"}},
		{name: "a configuration that is a link is hidden, and what it leads to is scrubbed", files: map[string]string{"x": token}, links: map[string]string{".git/config": "../x"}, hidden: []string{".git/config"}, shown: []string{"x"}},
		{name: "a link that leaves is not followed", links: map[string]string{".git/config": "../../../../../../etc/passwd"}, hidden: []string{".git/config"}},
		{name: "a link in a circle", links: map[string]string{".git/config": "config"}, hidden: []string{".git/config"}},
		{name: "an include by an absolute path", files: map[string]string{".git/config": "[include]\n\tpath = @WS@/a/b\n", "a/b": token}, hidden: []string{"a/b"}, shown: []string{".git/config"}},
		{name: "an include through a link", files: map[string]string{".git/config": "[include]\n\tpath = ../l/b\n", "a/b": token}, links: map[string]string{"l": "a"}, hidden: []string{"a/b"}, shown: []string{".git/config"}},
		{name: "an include of the home", files: map[string]string{".git/config": "[include]\n\tpath = ~/x\n", "home/x": token}, hidden: []string{"home/x"}, shown: []string{".git/config"}, home: "home"},
		{name: "an include of a folder hides no project", files: map[string]string{".git/config": "[include]\n\tpath = ..\n", "a/b": "x"}, shown: []string{".git/config"}},
		{name: "a key that an ssh command names, seen from the tree", files: map[string]string{".git/config": "[core]\n\tsshCommand = ssh -i keys/id\n", "keys/id": secret}, hidden: []string{"keys/id"}, shown: []string{".git/config"}},
		{name: "a branch called config is no configuration", files: map[string]string{".git/HEAD": "x", ".git/objects/x": "", ".git/refs/heads/config": "0123\n", ".git/logs/refs/heads/config": "0 1\n"}},
		{name: "a module called config", files: map[string]string{".git/modules/config/config": token, ".git/modules/config/HEAD": "x", ".git/modules/config/objects/x": ""}, shown: []string{".git/modules/config/config"}},
		{name: "a module that is not whole", files: map[string]string{".git/modules/a/b/config": token}, shown: []string{".git/modules/a/b/config"}},
		{name: "copies that an editor left", files: map[string]string{".git/config~": token, ".git/config.lock": token, ".git/configured": "no configuration"}, hidden: []string{".git/configured"}, shown: []string{".git/config.lock", ".git/config~"}},
		{name: "a project's own config", files: map[string]string{"config": token, "a/config": "x", "config.json": "auth"}},
		{name: "files of credentials, at any depth", files: map[string]string{"a/.git-credentials": "x", "a/.pypirc": "x", "b/.docker/config.json": `{"auths":{}}`, ".git/credentials": "x", "t/git-credentials-1f.config": token}, hidden: []string{".git/credentials", "a/.git-credentials", "a/.pypirc", "b/.docker/config.json", "t/git-credentials-1f.config"}},
		{name: "a .netrc only if it has a password", files: map[string]string{"a/.netrc": "machine h login l password " + secret, "b/_netrc": "machine h"}, hidden: []string{"a/.netrc"}},
		{name: "settings of other programs, only with a password", files: map[string]string{".hg/hgrc": "[paths]\ndefault = https://u:" + secret + "@h", "hgrc": "password", "a/pip.conf": "index-url = https://h/", "b/pip.conf": "index-url = https://u:" + secret + "@h/", "auth.json": `{"github-oauth":{}}`, "c/auth.json": "{}", "NuGet.Config": "<add key=\"ClearTextPassword\">"}, hidden: []string{".hg/hgrc", "NuGet.Config", "auth.json", "b/pip.conf"}},
		{name: "an .npmrc without its tokens", files: map[string]string{"a/.npmrc": "a=b\n//h/:_authToken=" + secret + "\n", "b/.npmrc": "//h/:_authToken=${T}\n"}, shown: []string{"a/.npmrc"}},
		{name: "an .npmrc that is a link", files: map[string]string{"x": "_auth=" + secret}, links: map[string]string{".npmrc": "x"}, shown: []string{"x"}},
		{name: "a .gitconfig", files: map[string]string{"a/.gitconfig": token}, shown: []string{"a/.gitconfig"}},
		{name: "M148: the workspace is the home", files: map[string]string{".ssh/id": "x", ".aws/credentials": "x", ".config/gh/hosts.yml": "x", ".config/other": "x", ".cargo/credentials.toml": "x", ".cargo/bin/x": "x", ".npmrc": "a=b"}, hidden: []string{".aws", ".cargo/credentials.toml", ".config/gh", ".npmrc", ".ssh"}, home: "."},
		{name: "M148: the home lies in the workspace", files: map[string]string{"h/u/.ssh/id": "x", "h/u/.config/git/config": token, ".ssh/id": "x"}, hidden: []string{"h/u/.ssh"}, shown: []string{"h/u/.config/git/config"}, home: "h/u"},
		{name: "M148: a home of links", files: map[string]string{"dot/ssh/id": "x", "dot/config/gh/hosts.yml": "x", "work": "x"}, links: map[string]string{".ssh": "dot/ssh", ".config": "dot/config"}, hidden: []string{".ssh", "dot/config/gh", "dot/ssh"}, home: "."},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for p, text := range c.files {
				write(t, filepath.Join(dir, p), strings.ReplaceAll(text, "@WS@", dir))
			}
			for p, target := range c.links {
				if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, p)), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink(target, filepath.Join(dir, p)); err != nil {
					t.Fatal(err)
				}
			}
			o := Options{}
			if c.home != "" {
				o.Home = filepath.Join(dir, c.home)
			}
			m := find(t, dir, o)
			var shown []string
			for _, f := range m.Files {
				shown = append(shown, f.Path)
				if strings.Contains(string(f.Text), secret) {
					t.Errorf("%s is shown with the secret", f.Path)
				}
				if _, replaced, _ := m.Look(f.Path); !replaced || !m.Covers(f.Path) {
					t.Errorf("%s is not covered", f.Path)
				}
			}
			hidden := m.Hidden
			if len(hidden) == 0 {
				hidden = nil
			}
			if diff := cmp.Diff(c.hidden, hidden); diff != "" {
				t.Errorf("hidden (-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(c.shown, shown); diff != "" {
				t.Errorf("shown with another text (-want +got)\n%s", diff)
			}
			if m.Empty() != (len(c.hidden)+len(c.shown) == 0) {
				t.Errorf("Empty is %v", m.Empty())
			}
			if !m.Empty() && len(m.Notes) == 0 {
				t.Error("nothing is said of it")
			}
			copied := copyOf(t, dir)
			if err := m.Apply(copied); err != nil {
				t.Fatal(err)
			}
			for _, h := range c.hidden {
				if _, err := os.Lstat(filepath.Join(copied, h)); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s is in the copy: %v", h, err)
				}
				if !m.Covers(h) || !m.Covers(h+"/below") {
					t.Errorf("%s is not covered", h)
				}
			}
		})
	}
}

// TestRefreshIsFindAfterSteps: behind a mask a step moves, removes and writes,
// and what is committed of it is masked as if it had been looked for anew.
func TestRefreshIsFindAfterSteps(t *testing.T) {
	dir := t.TempDir()
	token := "[http]\n\textraheader = " + secret + "\n"
	for _, p := range []string{".git/config", "gone/.git/config", "retyped/.git/config", "link/.git/config"} {
		write(t, filepath.Join(dir, p), token)
	}
	write(t, dir+"/.pypirc", secret)
	write(t, dir+"/gone/.pypirc", secret)
	m := find(t, dir, Options{})
	for _, p := range []string{"gone", "retyped", "link"} {
		if err := os.RemoveAll(filepath.Join(dir, p)); err != nil {
			t.Fatal(err)
		}
	}
	write(t, dir+"/retyped", "a file")
	if err := os.Symlink(".", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	write(t, dir+"/.git/config", token+"[user]\n\tname = new\n")
	if err := os.Chmod(dir+"/.git", 0o711); err != nil {
		t.Fatal(err)
	}
	got, err := m.Refresh(context.Background(), dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := find(t, dir, Options{})
	got.Notes, want.Notes = nil, nil
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Mask{}, File{}, folderLook{})); diff != "" {
		t.Errorf("(-found +refreshed)\n%s", diff)
	}
	if len(got.Files) != 1 || !strings.Contains(string(got.Files[0].Text), "name = new") {
		t.Errorf("%+v", got.Files)
	}
}

func TestOtherThanFilesAreNotOpened(t *testing.T) {
	dir := t.TempDir()
	for _, p := range []string{".git/config", ".npmrc", ".netrc", "a/.git-credentials"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, p)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mkfifo(filepath.Join(dir, p), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(t, dir+"/b/.git/config", strings.Repeat("#", maxConfig+1))
	m := find(t, dir, Options{})
	want := []string{".git/config", ".netrc", ".npmrc", "a/.git-credentials", "b/.git/config"}
	if diff := cmp.Diff(want, m.Hidden); diff != "" {
		t.Errorf("hidden (-want +got)\n%s", diff)
	}
}

// TestWhatWeMayNotLookAtIsHidden: the box could change the mode and look.
func TestWhatWeMayNotLookAtIsHidden(t *testing.T) {
	if os.Geteuid() == 0 {
		asUser(t)
		return
	}
	dir := t.TempDir()
	write(t, dir+"/shut/.npmrc", "x")
	write(t, dir+"/listed/.npmrc", "x")
	write(t, dir+"/above/sub/f", "x")
	write(t, dir+"/.git/config", "[core]\n")
	for p, mode := range map[string]fs.FileMode{"shut": 0, "listed": 0o444, "above": 0o444, ".git/config": 0} {
		if err := os.Chmod(filepath.Join(dir, p), mode); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.Chmod(filepath.Join(dir, p), 0o755); err != nil {
				t.Error(err)
			}
		})
	}
	m := find(t, dir, Options{})
	if diff := cmp.Diff([]string{".git/config", "above", "listed", "shut"}, m.Hidden); diff != "" {
		t.Errorf("hidden (-want +got)\n%s", diff)
	}
}

// asUser runs the test again as somebody whom modes keep out.
func asUser(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	for at := dir; at != os.TempDir() && at != "/"; at = filepath.Dir(at) {
		if err := os.Chmod(at, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/test", self, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(dir+"/test", "-test.run", "^"+t.Name()+"$", "-test.v")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "TMPDIR="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestASecondNameOfASecretIsHidden(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/.git/config", "[http]\n\textraheader = "+secret+"\n")
	write(t, dir+"/.pypirc", secret)
	for from, to := range map[string]string{".git/config": "a/b", ".pypirc": "a/c"} {
		if err := os.MkdirAll(dir+"/a", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Link(filepath.Join(dir, from), filepath.Join(dir, to)); err != nil {
			t.Fatal(err)
		}
	}
	m := find(t, dir, Options{})
	if diff := cmp.Diff([]string{".pypirc", "a/b", "a/c"}, m.Hidden); diff != "" {
		t.Errorf("hidden (-want +got)\n%s", diff)
	}
}

func TestNamesInNotesAreInert(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a\x1b[31m\n::error::\u202e\xff/.pypirc", "x")
	m := find(t, dir, Options{})
	if len(m.Hidden) != 1 || len(m.Notes) != 1 || strings.ContainsAny(m.Notes[0], "\x1b\n\u202e") || !utf8.ValidString(m.Notes[0]) {
		t.Errorf("%q %q", m.Hidden, m.Notes)
	}
}

func TestDeepTreesAreReadAndRemoved(t *testing.T) {
	dir := t.TempDir()
	home, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(home)
	const deep = 1500 // longer than PATH_MAX
	fd, err := unix.Dup(home)
	if err != nil {
		t.Fatal(err)
	}
	for i := range deep {
		name := "ddd"
		if i == 0 {
			name = ".ssh"
		}
		if err := unix.Mkdirat(fd, name, 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		unix.Close(fd)
		if err != nil {
			t.Fatal(err)
		}
		fd = next
	}
	if err := unix.Mkdirat(fd, ".git", 0o755); err != nil {
		t.Fatal(err)
	}
	c, err := unix.Openat(fd, ".git/config", unix.O_CREAT|unix.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(c, []byte("[http]\nextraheader = "+secret)); err != nil {
		t.Fatal(err)
	}
	unix.Close(c)
	unix.Close(fd)
	m := find(t, dir, Options{})
	if len(m.Hidden) != 1 || strings.Count(m.Hidden[0], "/") != maxMaskDepth-1 || len(m.Files) > 0 {
		t.Fatalf("hidden %d, files %d", len(m.Hidden), len(m.Files))
	}
	layer := t.TempDir()
	if err := m.Write(layer, os.Getuid(), os.Getgid()); err != nil {
		t.Fatal(err)
	}
	if err := m.Apply(dir); err != nil {
		t.Fatal(err)
	}
	if again := find(t, dir, Options{}); !again.Empty() {
		t.Error("a copy that was scrubbed has something to hide")
	}
	if _, err := Find(context.Background(), dir, Options{MaxDepth: 100}); !errors.Is(err, workspace.ErrLimit) {
		t.Errorf("beyond MaxDepth: %v", err)
	}
	m = find(t, dir, Options{Home: dir})
	if err := m.Apply(dir); err != nil {
		t.Fatal(err)
	}
	if err := removeAll(home, ".ssh"); err != nil {
		t.Fatal(err)
	}
	top, err := unix.Open(layer, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(top)
	if err := removeAll(top, ".ssh"); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{dir, layer} {
		if left, err := os.ReadDir(d); err != nil || len(left) > 0 {
			t.Errorf("%v is left: %v", left, err)
		}
	}
}

func TestLimits(t *testing.T) {
	dir := t.TempDir()
	for i := range 20 {
		write(t, fmt.Sprintf("%s/%d/.npmrc", dir, i), "a=b")
	}
	for name, o := range map[string]Options{"entries": {MaxEntries: 30}, "files found": {MaxFound: 10}} {
		if _, err := Find(context.Background(), dir, o); !errors.Is(err, workspace.ErrLimit) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Find(ctx, dir, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// BenchmarkFind is over 100,000 files in 2,000 folders.
func BenchmarkFind(b *testing.B) {
	dir := b.TempDir()
	for i := range 2000 {
		at := fmt.Sprintf("%s/%d/%d", dir, i/50, i)
		if err := os.MkdirAll(at, 0o755); err != nil {
			b.Fatal(err)
		}
		for j := range 50 {
			if err := os.WriteFile(fmt.Sprintf("%s/file%d.go", at, j), nil, 0o644); err != nil {
				b.Fatal(err)
			}
		}
	}
	write(b, dir+"/.git/config", "[http]\nextraheader = x\n")
	for b.Loop() {
		if m := find(b, dir, Options{}); len(m.Files) != 1 {
			b.Fatal("not found")
		}
	}
}
