package pinned

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const program = "#!/bin/sh\necho thing version 1.2\n"

func thing(sum string) Kind {
	return Kind{Name: "thing", Env: "THING_BIN", Flag: "--thing-sha256", Get: "get thing", Release: "1.2", Sum: sum, MaxBytes: 1 << 20, Version: func(line string) (string, error) {
		v, ok := strings.CutPrefix(line, "thing version ")
		if !ok {
			return "", errors.New("another")
		}
		return v, nil
	}}
}

func sumOf(text string) string {
	s := sha256.Sum256([]byte(text))
	return hex.EncodeToString(s[:])
}

func TestFind(t *testing.T) {
	put := func(t *testing.T, text string) string {
		t.Helper()
		at := filepath.Join(t.TempDir(), "thing")
		if err := os.WriteFile(at, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return at
	}
	const other = "#!/bin/sh\necho hello\n"
	for _, tc := range []struct {
		sentence, text, sum, accept, want string
	}{
		{"one with another sum is refused", program, sumOf(other), "", "not the pinned build"},
		{"one that is admitted but is something else is refused", other, sumOf(program), sumOf(other), `not thing: it answers "hello"`},
		{"where none is pinned one has to be admitted", program, "", "", "no thing is pinned"},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			at := put(t, tc.text)
			getenv := func(n string) string { return map[string]string{"THING_BIN": at}[n] }
			_, err := Find(context.Background(), thing(tc.sum), getenv, "", tc.accept)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
	t.Run("a program that is not admitted is not started", func(t *testing.T) {
		mark := filepath.Join(t.TempDir(), "mark")
		at := put(t, "#!/bin/sh\ntouch "+mark+"\necho thing version 1.2\n")
		if _, err := Verify(context.Background(), thing(sumOf(program)), at, ""); err == nil {
			t.Fatal("it is accepted")
		}
		if _, err := os.Stat(mark); err == nil {
			t.Error("it was started")
		}
	})
	t.Run("on PATH a wrong one is passed over, and none is told with what was refused", func(t *testing.T) {
		wrong := put(t, other)
		getenv := func(n string) string { return map[string]string{"PATH": "relative:" + filepath.Dir(wrong)}[n] }
		_, err := Find(context.Background(), thing(sumOf(program)), getenv, "", "")
		var nf *NotFoundError
		if !errors.As(err, &nf) || len(nf.Refused) != 1 || !strings.Contains(err.Error(), `"get thing"`) {
			t.Errorf("%v", err)
		}
	})
	t.Run("how to accept another build is told of one that the caller brings, never of a changed one in our cache", func(t *testing.T) {
		k := thing(sumOf(program))
		home := t.TempDir()
		cached := CachePath(func(n string) string { return map[string]string{"HOME": home}[n] }, "thing", k.Sum)
		onPath := put(t, other)
		if err := errors.Join(os.MkdirAll(filepath.Dir(cached), 0o700), os.WriteFile(cached, []byte(other), 0o755)); err != nil {
			t.Fatal(err)
		}
		link := filepath.Join(t.TempDir(), "link")
		if err := os.Symlink(cached, link); err != nil {
			t.Fatal(err)
		}
		linked := CachePath(func(string) string { return t.TempDir() }, "thing", k.Sum)
		if err := errors.Join(os.MkdirAll(filepath.Dir(linked), 0o700), os.Symlink(onPath, linked)); err != nil {
			t.Fatal(err)
		}
		recipe, again := "--thing-sha256 "+sumOf(other), `"get thing" replaces it`
		for _, tc := range []struct {
			sentence         string
			vars             map[string]string
			cached           string
			recipe, replaces bool
		}{
			{"the cache", nil, cached, false, true},
			{"the cache, named by the variable", map[string]string{"THING_BIN": cached}, "", false, true},
			{"the cache, behind a link", map[string]string{"THING_BIN": link}, "", false, true},
			{"a link in the cache", nil, linked, false, true},
			{"the variable", map[string]string{"THING_BIN": onPath}, cached, true, false},
			{"PATH", map[string]string{"PATH": filepath.Dir(onPath)}, "", true, false},
		} {
			_, err := Find(context.Background(), k, func(n string) string { return tc.vars[n] }, tc.cached, "")
			if err == nil || strings.Contains(err.Error(), recipe) != tc.recipe || strings.Contains(err.Error(), again) != tc.replaces || strings.Count(err.Error(), "get thing") > 1 {
				t.Errorf("%s: %v", tc.sentence, err)
			}
		}
		// Who knows the sum may accept it all the same, before anything asks what it is.
		if isPinned, err := admitted(k, true, sumOf(other), sumOf(other)); err != nil || isPinned {
			t.Errorf("accepted by its sum: pinned %v, %v", isPinned, err)
		}
	})
	t.Run("a file that changed is not current", func(t *testing.T) {
		at := put(t, program)
		// A script cannot be run from memory; what is looked at is the file.
		f, err := os.Open(at)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		id, err := identify(at, f)
		if err != nil {
			t.Fatal(err)
		}
		b := &Binary{Path: at, id: id}
		if !b.Current() {
			t.Error("it has not changed")
		}
		if err := os.WriteFile(at, []byte(other), 0o755); err != nil {
			t.Fatal(err)
		}
		if b.Current() {
			t.Error("it has changed")
		}
	})
}

func TestLookPath(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"tools", "ws/bin"} {
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, name), 0o755), os.WriteFile(filepath.Join(dir, name, "go"), []byte("x"), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	tools, ws := filepath.Join(dir, "tools"), filepath.Join(dir, "ws")
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "linked"), 0o755), os.Symlink(ws+"/bin/go", filepath.Join(dir, "linked/go")), os.Symlink(ws, filepath.Join(dir, "way"))); err != nil {
		t.Fatal(err)
	}
	t.Chdir(ws)
	for name, c := range map[string]struct {
		path  string
		avoid []string
		want  string // folder
	}{
		"the first":                               {ws + "/bin:" + tools, nil, ws + "/bin"},
		"nothing is in no folder":                 {ws + "/bin:" + tools, []string{""}, ws + "/bin"},
		"none of the workspace":                   {ws + "/bin:" + tools, []string{ws}, tools},
		"nor by a link that lies elsewhere":       {dir + "/linked:" + tools, []string{ws}, tools},
		"nor by another name of the workspace":    {dir + "/way/bin:" + tools, []string{ws}, tools},
		"nor where that is what is to be avoided": {ws + "/bin:" + tools, []string{dir + "/way"}, tools},
		"nor of wherever we stand":                {"bin::.:" + tools, nil, tools},
		"there is none":                           {ws + "/bin", []string{ws}, ""},
		"a name that begins like it":              {tools, []string{dir + "/tool"}, tools},
	} {
		got, err := LookPath("go", c.path, c.avoid...)
		if c.want == "" {
			if err == nil {
				t.Errorf("%s: got %s", name, got)
			}
		} else if err != nil || got != filepath.Join(c.want, "go") {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
}

func TestPath(t *testing.T) {
	dir := t.TempDir()
	ws, tools := filepath.Join(dir, "ws"), filepath.Join(dir, "tools")
	if err := errors.Join(os.MkdirAll(ws+"/bin", 0o755), os.MkdirAll(tools, 0o755), os.Symlink(ws, dir+"/way"), os.Symlink(ws+"/bin", dir+"/bin")); err != nil {
		t.Fatal(err)
	}
	t.Chdir(ws)
	path := strings.Join([]string{ws + "/bin", "bin", "", ".", dir + "/way/bin", dir + "/bin", tools + "/../ws/bin", dir + "/none", tools, ws, dir + "//ws/./bin/"}, ":")
	for _, avoid := range []string{ws, ws + "/", dir + "/way"} {
		got := Environ([]string{"A=1", "PATH=/theirs", "PATHEXT=x", "PYTHONPATH=" + ws + ":" + tools, "LD_PRELOAD=" + dir + "/way/bin", "GOROOT=", "SSL_CERT_FILE=" + ws + "/ca"}, path, "", avoid)
		if want := "A=1 PATHEXT=x PYTHONPATH=" + tools + " SSL_CERT_FILE=" + ws + "/ca PATH=" + tools; strings.Join(got, " ") != want {
			t.Errorf("without %s: %q, want %q", avoid, got, want)
		}
	}
	for home, want := range map[string]string{ws + "/home": "PYTHONNOUSERSITE=1 GIT_CONFIG_GLOBAL=/dev/null HOME=" + ws + "/home PATH=" + tools, tools: "HOME=" + tools + " PATH=" + tools} {
		if got := strings.Join(Environ([]string{"HOME=" + home}, tools, ws), " "); got != want {
			t.Errorf("at home in %s: %q, want %q", home, got, want)
		}
	}
	if got := Path(path); got != strings.Join([]string{ws + "/bin", dir + "/way/bin", dir + "/bin", tools + "/../ws/bin", tools, ws, dir + "//ws/./bin/"}, ":") {
		t.Errorf("with nothing to avoid: %q", got)
	}
}

func TestIn(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.MkdirAll(dir+"/ws/a", 0o755), os.Symlink(dir+"/ws", dir+"/way"), os.Symlink("/", dir+"/root")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path, folder string
		want         bool
	}{
		{"/ws", "/ws", true}, {"/ws/a", "/ws/", true}, {"/ws/none/b", "/ws", true}, {"/way/none/b", "/ws", true}, {"/ws/none", "/way", true},
		{"/wst", "/ws", false}, {"/ws/..", "/ws", false}, {"/ws/..b", "/ws", true}, {"/way/../x", "/ws", false}, {"/ws", "/root", false}, {"", "/ws", false}, {"/ws", "", false},
	} {
		at := func(p string) string {
			if p == "" {
				return ""
			}
			return dir + p
		}
		if got := In(at(c.path), at(c.folder)); got != c.want {
			t.Errorf("%q in %q: %v", c.path, c.folder, got)
		}
	}
	if In("/usr/bin", "/") {
		t.Error("all is in /")
	}
}

func TestUserFolder(t *testing.T) {
	for _, c := range []struct{ xdg, home, want string }{
		{"/x", "/h", "/x"}, {"", "/h", "/h/.in"}, {"x", "/h", "/h/.in"}, {"", "", ""}, {"x", "h", ""}, {".", ".", ""},
	} {
		getenv := func(n string) string { return map[string]string{"XDG_IN_HOME": c.xdg, "HOME": c.home}[n] }
		if got := UserFolder(getenv, "XDG_IN_HOME", ".in"); got != c.want {
			t.Errorf("%q and %q: got %q, want %q", c.xdg, c.home, got, c.want)
		}
	}
}
