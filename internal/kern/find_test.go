package kern

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/pinned"
)

// program writes a script and gives its path and sum.
func program(t *testing.T, dir, name, text string, mode os.FileMode) (path, sum string) {
	t.Helper()
	path = filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return path, sumOf([]byte(text))
}

func env(vars map[string]string) func(string) string {
	return func(k string) string { return vars[k] }
}

const honest = "#!/bin/sh\necho kern v0.0.0-test\n"

func TestFindRefusesWithReasons(t *testing.T) {
	true_, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		text  string
		mode  os.FileMode
		admit bool // with --kern-sha256 of this very file
		want  string
	}{
		"a program that is not admitted is refused by its sum":        {text: honest, mode: 0o755, want: "not the pinned build of kern " + Version + ": its SHA-256 is"},
		"an admitted program that says nothing is not kern":           {text: string(true_), mode: 0o755, admit: true, want: "not kern: it answers"},
		"an admitted program that says another name is not kern":      {text: "#!/bin/sh\necho kernel 1\n", mode: 0o755, admit: true, want: `not kern: it answers "kernel 1"`},
		"an admitted program that fails is not kern":                  {text: "#!/bin/sh\necho kern 1\nexit 3\n", mode: 0o755, admit: true, want: "not kern: --version: exit status 3"},
		"an answer without end is cut":                                {text: "#!/bin/sh\nyes 'x' | tr -d '\\n' | head -c 1000000\n", mode: 0o755, admit: true, want: "..."},
		"a file that cannot be executed is refused":                   {text: honest, mode: 0o644, want: "not executable"},
		"the refusal says how to accept this one":                     {text: honest, mode: 0o755, want: "--kern-sha256 " + sumOf([]byte(honest))},
		"a program that is not admitted is not run even for its name": {text: "#!/bin/sh\ntouch \"$0.ran\"; echo kern 1\n", mode: 0o755, want: "not the pinned build"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path, sum := program(t, dir, "kern", c.text, c.mode)
			o := Options{Getenv: env(map[string]string{"KERN_BIN": path}), Arch: "amd64"}
			if c.admit {
				o.SHA256 = sum
			}
			_, err := Open(context.Background(), o)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
			if err != nil && !strings.Contains(err.Error(), path) {
				t.Errorf("%v does not name the program", err)
			}
			if left, _ := filepath.Glob(filepath.Join(dir, "*.ran")); len(left) > 0 {
				t.Error("the program was run")
			}
		})
	}
}

func TestFindOrder(t *testing.T) {
	cache, p1, p2 := t.TempDir(), t.TempDir(), t.TempDir()
	good, sum := program(t, p2, "kern", honest, 0o755)
	bad, _ := program(t, p1, "kern", "#!/bin/sh\necho kern evil\n", 0o755)
	path := p1 + ":" + p2
	for name, c := range map[string]struct {
		vars   map[string]string
		cached string
		want   string // path, or part of the error
		fails  bool
	}{
		"a wrong kern on PATH is passed over":                        {vars: map[string]string{"PATH": path}, want: good},
		"KERN_BIN never falls through to PATH":                       {vars: map[string]string{"KERN_BIN": bad, "PATH": p2}, want: "KERN_BIN=" + bad, fails: true},
		"KERN_BIN that is not there never falls through":             {vars: map[string]string{"KERN_BIN": "/nonexistent", "PATH": p2}, want: "KERN_BIN=/nonexistent", fails: true},
		"KERN_BIN that is a folder is refused":                       {vars: map[string]string{"KERN_BIN": cache, "PATH": p2}, want: "not a regular file", fails: true},
		"the install cache comes before PATH":                        {vars: map[string]string{"PATH": p2}, cached: good, want: good},
		"nothing found says what was refused and how to install":     {vars: map[string]string{"PATH": p1}, want: bad + " (PATH)", fails: true},
		"nothing found names the command that installs":              {vars: map[string]string{}, want: "kern install", fails: true},
		"a relative entry of PATH is where a workspace could put it": {vars: map[string]string{"PATH": ".::bin"}, want: "no usable kern", fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := pinned.Find(context.Background(), kind("amd64"), env(c.vars), c.cached, sum)
			switch {
			case c.fails && err == nil:
				t.Fatalf("found %s, want none", b.Path)
			case c.fails:
				if !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want an error with %q", err, c.want)
				}
			case err != nil:
				t.Fatal(err)
			default:
				defer b.Close()
				if b.Path != c.want {
					t.Errorf("found %s, want %s", b.Path, c.want)
				}
				if b.Version != "v0.0.0-test" || b.Pinned {
					t.Errorf("version %q, pinned %v", b.Version, b.Pinned)
				}
			}
		})
	}
}

func TestAProgramSwappedAfterItWasVerifiedIsRefused(t *testing.T) {
	path, sum := program(t, t.TempDir(), "kern", honest, 0o755)
	e, err := Open(context.Background(), Options{Getenv: env(map[string]string{"KERN_BIN": path}), SHA256: sum, Arch: "amd64"})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if _, err := e.verified(context.Background()); err != nil {
		t.Fatalf("unchanged: %v", err)
	}
	// The same length, in place.
	if err := os.WriteFile(path, []byte(strings.Replace(honest, "test", "evil", 1)), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := e.verified(context.Background()); err == nil || !strings.Contains(err.Error(), "changed since it was verified") {
		t.Errorf("got %v, want a refusal", err)
	}
}

func TestTheSealedCopyCannotBeWritten(t *testing.T) {
	path, sum := program(t, t.TempDir(), "kern", honest, 0o755)
	b, err := pinned.Verify(context.Background(), kind("amd64"), path, sum)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if _, err := b.Sealed.WriteAt([]byte("x"), 0); err == nil {
		t.Error("the sealed copy took a write")
	}
	if err := b.Sealed.Truncate(0); err == nil {
		t.Error("the sealed copy let itself be cut")
	}
}

func TestABuildAcceptedByItsSumIsOnRecord(t *testing.T) {
	path, sum := program(t, t.TempDir(), "kern", honest, 0o755)
	e, err := Open(context.Background(), Options{Getenv: env(map[string]string{"KERN_BIN": path}), SHA256: strings.ToUpper(sum), Arch: "amd64"})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	i := e.Info()
	if i.Digest != sum || i.Version != "v0.0.0-test" || !strings.Contains(i.Note, sum) || !strings.Contains(i.Note, "--kern-sha256") {
		t.Errorf("info %+v does not say what was accepted", i)
	}
	if len(i.Unobserved) == 0 {
		t.Error("info hides what kern cannot show")
	}
}
