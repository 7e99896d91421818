package kern

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/pinned"
)

const wheelKern = "wheel's kern"

// wheel makes a wheel of these members.
func wheel(t *testing.T, members ...[2]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, m := range members {
		w, err := z.Create(m[0])
		if err == nil {
			_, err = w.Write([]byte(m[1]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func archive(t *testing.T, name, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, e := range [][2]string{{"README", "x"}, {name, text}} {
		if err := w.WriteHeader(&tar.Header{Name: e[0], Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(e[1]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e[1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// pipBin is a PATH with a pip that delivers a wheel, or says why not.
func pipBin(t *testing.T, wheel []byte) string {
	t.Helper()
	dir := t.TempDir()
	text := "#!/bin/sh\necho 'no such package' >&2\nexit 1\n"
	if wheel != nil {
		if err := os.WriteFile(filepath.Join(dir, "the.whl"), wheel, 0o644); err != nil {
			t.Fatal(err)
		}
		text = fmt.Sprintf(`#!/bin/sh
echo "$@" > %[1]s/args; /bin/pwd > %[1]s/pwd
while [ "$1" != --dest ]; do shift; done
/bin/cp %[1]s/the.whl "$2/kern.whl"
`, dir)
	}
	program(t, dir, "python3", text, 0o755)
	return dir
}

func TestInstall(t *testing.T) {
	member := "kern_sandbox-" + wheelVersion + wheelMember
	for name, c := range map[string]struct {
		wheel   []byte
		release []byte
		want    string // content of what is installed
		errs    []string
	}{
		"from the wheel":                            {wheel: wheel(t, [2]string{member, wheelKern}), want: wheelKern},
		"from the release where pip has none":       {release: archive(t, "kern", wheelKern), want: wheelKern},
		"the release may have a folder":             {release: archive(t, "kern-0.33.0/kern", wheelKern), want: wheelKern},
		"each source's failure is said":             {errs: []string{"pip download kern-sandbox==", "no such package", "the release of kern", "404"}},
		"another program in the wheel is not kept":  {wheel: wheel(t, [2]string{member, "evil"}), errs: []string{"what came has the SHA-256 " + sumOf([]byte("evil"))}},
		"a wheel for another platform holds none":   {wheel: wheel(t, [2]string{"kern_sandbox/__init__.py", ""}), errs: []string{"the wheel holds no"}},
		"a wheel with two of them is refused":       {wheel: wheel(t, [2]string{member, wheelKern}, [2]string{"x" + wheelMember, "evil"}), errs: []string{"two programs"}},
		"a member elsewhere in the wheel is not it": {wheel: wheel(t, [2]string{"../../" + member, wheelKern}), errs: []string{"the wheel holds no"}},
		"a wheel that is none":                      {wheel: []byte("x"), errs: []string{"open the wheel"}},
		"an archive that is none":                   {release: []byte("x"), errs: []string{"open the archive"}},
		"an archive without kern":                   {release: archive(t, "other", wheelKern), errs: []string{"the archive holds no kern"}},
		"another program in the archive":            {release: archive(t, "kern", "evil"), errs: []string{"it was not kept"}},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if c.release == nil || r.URL.Path != "/v"+Version+"/kern-x86_64.tar.gz" {
					http.NotFound(w, r)
					return
				}
				w.Write(c.release)
			}))
			defer srv.Close()
			cache, temp := t.TempDir(), t.TempDir()
			sum := sumOf([]byte(wheelKern))
			o := InstallOptions{
				Getenv: env(map[string]string{"XDG_CACHE_HOME": cache, "PATH": pipBin(t, c.wheel)}), Env: []string{},
				Arch: "amd64", Client: srv.Client(), Release: srv.URL + "/v%s/kern-%s.tar.gz", Temp: temp,
				pins: []pin{{Version: Version, Arch: "amd64", SHA256: sum}},
			}
			path, err := Install(context.Background(), o)
			wantEmpty(t, temp)
			if c.errs != nil {
				if err == nil {
					t.Fatalf("installed %s", path)
				}
				for _, want := range c.errs {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%q is not in: %v", want, err)
					}
				}
				if left, _ := filepath.Glob(filepath.Join(cache, "untrusted-steps", "kern", "*", "*")); len(left) > 0 {
					t.Errorf("left behind: %v", left)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if want := filepath.Join(cache, "untrusted-steps", "kern", sum, "kern"); path != want {
				t.Errorf("installed at %s, want %s", path, want)
			}
			got, err := os.ReadFile(path)
			if err != nil || string(got) != c.want {
				t.Errorf("installed %q, %v", got, err)
			}
			if err := pinned.Executable(path); err != nil {
				t.Error(err)
			}
			// Once it is there, nothing is asked for.
			o.Getenv = env(map[string]string{"XDG_CACHE_HOME": cache})
			srv.Close()
			if again, err := Install(context.Background(), o); err != nil || again != path {
				t.Errorf("a second install: %s, %v", again, err)
			}
			// A damaged one is not taken for it.
			if err := os.WriteFile(path, []byte("evil"), 0o755); err != nil {
				t.Fatal(err)
			}
			if _, err := Install(context.Background(), o); err == nil {
				t.Error("a damaged file in the cache was taken")
			}
		})
	}
}

func TestInstallRunsPipWhereNothingLies(t *testing.T) {
	bin := pipBin(t, wheel(t, [2]string{"x" + wheelMember, wheelKern}))
	o := InstallOptions{
		Getenv: env(map[string]string{"XDG_CACHE_HOME": t.TempDir(), "PATH": bin}), Env: []string{}, Arch: "arm64",
		pins: []pin{{Version: Version, Arch: "arm64", SHA256: sumOf([]byte(wheelKern))}},
	}
	if _, err := Install(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	args, _ := os.ReadFile(filepath.Join(bin, "args"))
	for _, want := range []string{"-m pip download", "--no-deps", "--only-binary=:all:", "--platform manylinux2014_aarch64", "kern-sandbox==" + wheelVersion} {
		if !strings.Contains(string(args), want) {
			t.Errorf("%q is not in pip's arguments: %s", want, args)
		}
	}
	cwd, _ := os.Getwd()
	pwd, _ := os.ReadFile(filepath.Join(bin, "pwd"))
	if got := strings.TrimSpace(string(pwd)); got == cwd || got == os.TempDir() || got == "" {
		t.Errorf("pip ran in %q, where somebody may have put a module of its own", got)
	}
}

// Attack: the workspace is on PATH, and among Python's folders, which its jobs want for
// code of their own; pip asks programs for the name of the system.
func TestInstallRunsNothingOfTheWorkspace(t *testing.T) {
	dir := t.TempDir()
	ws, tools := filepath.Join(dir, "ws"), filepath.Join(dir, "tools")
	for _, at := range []string{ws + "/bin", tools} {
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(ws+"/bin", dir+"/way"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lsb_release", "python3"} {
		program(t, ws+"/bin", name, "#!/bin/sh\necho ran >>"+dir+"/ran\n", 0o755)
	}
	program(t, tools, "python3", "#!/bin/sh\nlsb_release\necho \"path $PYTHONPATH\" >"+dir+"/env\nexit 1\n", 0o755)
	t.Chdir(ws)
	path := ws + "/bin:" + dir + "/way:bin::" + tools
	_, err := Install(context.Background(), InstallOptions{
		Getenv: env(map[string]string{"XDG_CACHE_HOME": t.TempDir(), "PATH": path}), Env: []string{"PATH=" + path, "PYTHONPATH=" + ws + ":" + tools},
		Avoid: []string{"", ws}, Arch: "amd64", Release: "http://127.0.0.1:1/%s/%s", Temp: t.TempDir(),
	})
	if err == nil {
		t.Fatal("control: there is none to install")
	}
	if _, err := os.Stat(dir + "/ran"); err == nil {
		t.Error("a program of the workspace was started")
	}
	if got, err := os.ReadFile(dir + "/env"); err != nil || string(got) != "path "+tools+"\n" {
		t.Errorf("Python was told %q (%v)", got, err)
	}
}

func TestInstallWithoutAPlaceOrAPin(t *testing.T) {
	for name, c := range map[string]struct {
		o    InstallOptions
		want string
	}{
		"no home":            {InstallOptions{Getenv: env(nil), Arch: "amd64"}, "HOME"},
		"a relative home":    {InstallOptions{Getenv: env(map[string]string{"HOME": "x"}), Arch: "amd64"}, "HOME"},
		"an unknown machine": {InstallOptions{Getenv: env(map[string]string{"HOME": "/x"}), Arch: "riscv64"}, "no kern is pinned for riscv64"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Install(context.Background(), c.o); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestCopyAtMostStopsABomb(t *testing.T) {
	var b bytes.Buffer
	if err := copyAtMost(&b, zeros{}, 1000); err == nil || b.Len() > 1001 {
		t.Errorf("%v after %d bytes", err, b.Len())
	}
	b.Reset()
	if err := copyAtMost(&b, strings.NewReader("xx"), 2); err != nil || b.Len() != 2 {
		t.Errorf("%v after %d bytes", err, b.Len())
	}
}
