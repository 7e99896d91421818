package box

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxinit"
)

// machine is a folder with programs and other things in it, by their paths in it.
func machine(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{
		"me/.nvm/bin/nodex": 0o755, "me/.local/bin/tool": 0o755, "me/.local/share/venv/bin/python9": 0o755, "me/my tools/bin/odd": 0o755,
		"me/.nvm/bin/plain": 0o644, "work/bin/nodex": 0o755, "work/bin/mine": 0o755, "cache/bin/cached": 0o755, "held/bin/held": 0o755, "me/secret/key": 0o700,
	} {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	for at, to := range map[string]string{"me/.local/bin/python9": "../share/venv/bin/python9", "work/bin/leak": dir + "/me/secret/key", "me/.nvm/bin/loop": "loop", "elsewhere": "work/bin"} {
		if err := os.Symlink(to, filepath.Join(dir, at)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(dir+"/me/.nvm/bin/folder", 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestWhereTheCallerHasWhatTheBoxLacks(t *testing.T) {
	dir := machine(t)
	path := strings.ReplaceAll("relative::D/work/bin:D/elsewhere:D/none:D/me/.nvm/bin:D/me/.local/bin:D/cache/bin:D/held/bin:D/me/my tools/bin", "D", dir)
	for _, tc := range []struct{ sentence, name, want string }{
		{"a tool of the caller's gets the line that shows it", "nodex", "it is at D/me/.nvm/bin/nodex on this machine: to show it, write mounts: {D/me/.nvm: [D/me/.nvm, ro]} and env: {PATH: D/me/.nvm/bin:/usr/bin:/bin}"},
		{"a link gets the folder of what it leads to as well, and never all of .local", "python9", "it is at D/me/.local/bin/python9 on this machine: to show it, write mounts: {D/me/.local/bin: [D/me/.local/bin, ro], D/me/.local/share/venv: [D/me/.local/share/venv, ro]} and env: {PATH: D/me/.local/bin:/usr/bin:/bin}"},
		{"a path that YAML would read otherwise is quoted", "odd", `it is at "D/me/my tools/bin/odd" on this machine: to show it, write mounts: {"D/me/my tools": ["D/me/my tools", ro]} and env: {PATH: "D/me/my tools/bin:/usr/bin:/bin"}`},
		{"a tool that a mount shows already only needs PATH", "held", "it is at D/held/bin/held on this machine, which the box shows: write env: {PATH: D/held/bin:/usr/bin:/bin}"},
		{"a name that is nowhere gets no hint", "nowhere", ""},
		{"a file that is no program gets none", "plain", ""},
		{"a folder gets none", "folder", ""},
		{"a link in a circle gets none", "loop", ""},
		{"a program that lies in the workspace gets none, by whatever path", "mine", ""},
		{"a link in the workspace to somebody's file gets none", "leak", ""},
		{"a program in a mount that a step writes gets none", "cached", ""},
		{"a path is not looked up", "../../me/secret/key", ""},
		{"nor an absolute one", dir + "/me/.nvm/bin/nodex", ""},
		{"nor the folder itself", ".", ""},
		{"nor the one above", "..", ""},
		{"nor nothing", "", ""},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			s := Spec{Workspace: dir + "/work", Env: []string{"A=b", "PATH=/usr/bin:/bin"}, Mounts: []Mount{{Source: dir + "/cache"}, {Source: dir + "/me/.nvm", Target: "/nvm", ReadOnly: true}, {Source: dir + "/held", Target: dir + "/held", ReadOnly: true}}}
			got, want := onHost(s, tc.name, path), strings.ReplaceAll(tc.want, "D/", dir+"/")
			if got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			s.Root = Root{Kind: RootDir, Dir: "/x"}
			if got := onHost(s, tc.name, path); got != "" {
				t.Errorf("in an image of its own: %s", got)
			}
		})
	}
}

func TestTheFolderOfATool(t *testing.T) {
	for program, want := range map[string]string{
		"/home/me/.nvm/versions/node/v20/bin/node": "/home/me/.nvm/versions/node/v20",
		"/root/.pyenv/shims/python3":               "/root/.pyenv",
		"/home/me/bin/x":                           "/home/me/bin",
		"/root/bin/x":                              "/root/bin",
		"/snap/bin/x":                              "/snap/bin",
		"/home/me/.local/bin/x":                    "/home/me/.local/bin",
		"/home/me/x":                               "/home/me/x",
		"/root/x":                                  "/root/x",
		"/opt/tool/x":                              "/opt/tool",
	} {
		if got := toolFolder(program); got != want {
			t.Errorf("%s: %s, want %s", program, got, want)
		}
	}
}

func TestWhatEveryBoxShows(t *testing.T) {
	for p, want := range map[string]bool{"/usr": true, "/usr/lib/x": true, "/bin": true, "/lib64/x": true, "/opt/x": false, "/home/me": false, "/usr2/x": false} {
		if got := shown(Spec{}, p); got != want {
			t.Errorf("%s: %v", p, got)
		}
	}
}

func TestWhatCouldNotBeRun(t *testing.T) {
	host, image := Spec{}, Spec{Root: Root{Kind: RootDir, Dir: "/srv/alpine"}}
	for _, tc := range []struct {
		spec Spec
		f    boxinit.Failed
		want string
	}{
		{host, boxinit.Failed{Op: "exec", Name: "x", Errno: int(unix.ENOENT)}, `"x" is not in the box (image: host)`},
		{image, boxinit.Failed{Op: "exec", Name: "x", Errno: int(unix.ENOENT)}, `"x" is not in the box (image: rootfs /srv/alpine)`},
		{host, boxinit.Failed{Op: "interpreter", Name: "./x.sh", Errno: int(unix.ENOENT)}, `"./x.sh" is there, but the interpreter its first line names, or its loader, is not (image: host)`},
		{host, boxinit.Failed{Op: "exec", Name: "x", Errno: int(unix.EACCES)}, `"x" cannot be executed in the box (image: host): a program needs chmod +x, and a script a first line such as #!/bin/sh as well`},
		{host, boxinit.Failed{Op: "exec", Name: "x", Errno: int(unix.ENOEXEC), Why: "exec format error"}, `"x" is no program that this machine can start (image: host): a script needs a first line such as #!/bin/sh`},
	} {
		if got := execMessage(tc.spec, &tc.f); got != tc.want {
			t.Errorf("got  %s\nwant %s", got, tc.want)
		}
	}
}

func TestAHintAboutWhatAShellDidNotFind(t *testing.T) {
	dir := machine(t)
	s := Spec{Workspace: dir + "/work"}
	path := dir + "/work/bin:" + dir + "/me/.nvm/bin"
	if got, want := NotFound(s, "nodex", path), `the step's shell did not find "nodex"; it is at `+dir+`/me/.nvm/bin/nodex on this machine: to show it, write mounts: `; !strings.HasPrefix(got, want) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for _, name := range []string{"nowhere", "mine", "leak", "", "-x", "a b", "../nodex", "nodex\n"} {
		if got := NotFound(s, name, path); got != "" {
			t.Errorf("%q: %s", name, got)
		}
	}
}
