package registry

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tree makes files, and folders above them.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// npmScript is a client that somebody put where one could be looked for.
const npmScript = "#!/bin/sh\necho https://evil.example/\n"

func TestTheUntrustedSideIsNeverRead(t *testing.T) {
	dir := tree(t, map[string]string{
		"home/.npmrc":              "registry=https://mine.example/",
		"ws/.npmrc":                "registry=https://evil.example/",
		"ws/node_modules/.bin/npm": npmScript,
		"ws/home/.npmrc":           "registry=https://evil.example/",
		"cwd/.npmrc":               "registry=https://evil.example/",
		"linked/x":                 "",
		"bare/x":                   "",
	})
	if err := os.Symlink("../ws/.npmrc", filepath.Join(dir, "linked/.npmrc")); err != nil {
		t.Fatal(err)
	}
	at := func(s string) string { return filepath.Join(dir, s) }
	for name, c := range map[string]struct {
		env  []string
		cwd  string
		want string // a rule, or words of the error
		ok   bool
	}{
		"the control: the user's own file":             {[]string{"HOME=" + at("home")}, at("cwd"), "mine.example:443", true},
		"also where the current folder holds the home": {[]string{"HOME=" + at("home")}, dir, "mine.example:443", true},
		"a file of the workspace, by a variable":       {[]string{"HOME=" + at("home"), "NPM_CONFIG_USERCONFIG=" + at("ws/.npmrc")}, at("cwd"), "lies in the workspace or the current folder", false},
		"one of the current folder":                    {[]string{"HOME=" + at("home"), "NPM_CONFIG_USERCONFIG=" + at("cwd/.npmrc")}, at("cwd"), "lies in the workspace or the current folder", false},
		"a link to one":                                {[]string{"HOME=" + at("linked")}, at("cwd"), "lies in the workspace or the current folder", false},
		"a home in the workspace":                      {[]string{"HOME=" + at("ws/home")}, at("cwd"), "lies in the workspace or the current folder", false},
		"a program of the workspace":                   {[]string{"HOME=" + at("bare"), "PATH=" + at("ws/node_modules/.bin") + ":node_modules/.bin:"}, at("ws"), "npm is not installed, or only where a project could have put it", false},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := NewReader(c.env, at("ws"), c.cwd).Preset("npm")
			got := strings.Join(p.Rules, " ")
			if !c.ok {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Fatalf("got %s, %v, want %q", got, err, c.want)
				}
				return
			}
			if err != nil || got != c.want {
				t.Errorf("got %s, %v, want %s", got, err, c.want)
			}
		})
	}
}

func TestAClientRunsInTheRootWithFewVariables(t *testing.T) {
	dir := tree(t, map[string]string{
		"bin/npm":     "#!/bin/sh\n[ \"$(pwd)\" = / ] && [ -z \"$TOKEN\" ] && [ \"$*\" = \"config get registry --global --userconfig=/dev/null\" ] && echo https://asked.example/\n",
		"home/x":      "",
		"slow/npm":    "#!/bin/sh\nwhile :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done\n",
		"silent/npm":  "#!/bin/sh\n",
		"failing/npm": "#!/bin/sh\nexit 3\n",
	})
	path := func(bin string) []string {
		return []string{"HOME=" + filepath.Join(dir, "home"), "TOKEN=secret", "PATH=" + filepath.Join(dir, bin) + ":" + os.Getenv("PATH")}
	}
	read := func(bin, preset string) (string, error) {
		p, err := NewReader(path(bin), filepath.Join(dir, "ws"), "/").Preset(preset)
		return strings.Join(p.Rules, " "), err
	}
	if got, err := read("bin", "npm"); err != nil || got != "asked.example:443" {
		t.Errorf("npm: %s, %v", got, err)
	}
	for bin, want := range map[string]string{"slow": "could not be asked", "failing": "exit status 3", "silent": "nothing says"} {
		if got, err := read(bin, "npm"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a client that is %s: %s, %v, want %q", bin, got, err, want)
		}
	}
}

// The proxy that lets nothing through hears whom a client would call.
func TestWhomAClientWouldCallIsHeardAndNotLetThrough(t *testing.T) {
	dir := tree(t, map[string]string{
		"bin/cargo": "#!/bin/bash\n[ -d \"$CARGO_HOME\" ] && [ -z \"$(ls -A \"$CARGO_HOME\")\" ] && [ \"$(pwd)\" = / ] || exit 1\n" +
			"p=${CARGO_HTTP_PROXY##*:}\nexec 3<>/dev/tcp/127.0.0.1/$p\nu=${CARGO_HTTP_PROXY#http://}; auth=$(printf %s \"${u%@*}\" | base64 -w0)\nprintf 'CONNECT crates.example:443 HTTP/1.1\\r\\nProxy-Authorization: Basic %s\\r\\n\\r\\n' \"$auth\" >&3\nread -r line <&3\ncase $line in *403*) exit 1;; esac\nexec sleep 60\n",
		"mute/cargo": "#!/bin/sh\n",
		// Somebody else of this machine, who does not know the word.
		"other/cargo": "#!/bin/bash\nexec 3<>/dev/tcp/127.0.0.1/${CARGO_HTTP_PROXY##*:}\nprintf 'CONNECT evil.example:443 HTTP/1.1\\r\\nProxy-Authorization: Basic Y2xpZW50OnA=\\r\\n\\r\\n' >&3\nread -r line <&3\n",
		"home/x":      "",
	})
	for bin, want := range map[string]string{"bin": "crates.example:443", "mute": "", "other": ""} {
		env := []string{"HOME=" + filepath.Join(dir, "home"), "PATH=" + filepath.Join(dir, bin) + ":/usr/bin:/bin"}
		p, err := NewReader(env, filepath.Join(dir, "ws"), "/").Preset("cargo")
		if got := strings.Join(p.Rules, " "); got != want || (want == "") == (err == nil) {
			t.Errorf("%s: %s, %v", bin, got, err)
		}
	}
}

func TestFilesThatAreNoneAreRefused(t *testing.T) {
	dir := tree(t, map[string]string{"home/x": "", "large/.npmrc": strings.Repeat("#", maxFile+1)})
	if err := os.MkdirAll(filepath.Join(dir, "folder/.npmrc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for home, want := range map[string]string{"folder": "is no file", "large": "is larger than"} {
		_, err := NewReader([]string{"HOME=" + filepath.Join(dir, home)}, filepath.Join(dir, "ws"), "/").Preset("npm")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", home, err, want)
		}
	}
}
