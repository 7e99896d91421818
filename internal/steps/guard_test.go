package steps

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestGuard(t *testing.T) {
	g := NewGuard(testOptions(t))
	for _, tc := range []struct {
		path string
		why  string // empty: allowed
	}{
		{"/", "system"}, {"/etc", "system"}, {"/root", "system"}, {"/boot", "system"}, {"/proc", "system"}, {"/sys", "system"}, {"/dev", "system"},
		{"/run", "system"}, {"/var/run", "system"}, {"//etc/", "system"}, {"/etc/../etc", "system"},
		{"/proc/1/root", "system"}, {"/sys/fs/cgroup", "system"}, {"/dev/sda", "system"}, {"/dev/shm", "system"},
		{"/run/docker.sock", "sockets"}, {"/var/run/docker.sock", "sockets"}, {"/srv/x/docker.sock", "socket"},
		{"/run/containerd/containerd.sock", "sockets"}, {"/run/podman", "sockets"}, {"/run/user/1000/bus", "sockets"},
		{"/home/me", "home folder"}, {"/home", "holds /home/me"},
		{"/home/me/.ssh", ".ssh"}, {"/srv/.aws/x", ".aws"}, {"/x/.gnupg", ".gnupg"}, {"/x/.kube/config", ".kube"}, {"/x/.docker", ".docker"},
		{"/x/.azure", ".azure"}, {"/x/.password-store", ".password-store"}, {"/x/.netrc", ".netrc"}, {"/x/.git-credentials", ".git-credentials"},
		{"/x/.pypirc", ".pypirc"}, {"/x/.npmrc", ".npmrc"}, {"/x/.config/gcloud/y", "gcloud"}, {"/x/.config/gh", "gh"},
		{"/home/me/.cache/kern", "kern keeps"}, {"/cache/kern/images", "kern keeps"}, {"/cache", "holds /cache/kern"},
		{"/cache/untrusted-steps", "has fetched"}, {"/cache/untrusted-steps/images/roots", "has fetched"}, {"/home/me/.cache/untrusted-steps/kern", "has fetched"},
		{"/home/me/.config/kern", "kern keeps"}, {"/home/me/.local/share/kern/v", "kern keeps"}, {"/tmp/kern-1000/x", "kern keeps"},
		{"/home/me/.local/state/untrusted-steps", "until it is committed"}, {"/home/me/.local/state/untrusted-steps/x/run-1", "until it is committed"},
		{"/home/me/.local/state", "holds /home/me/.local/state/untrusted-steps"}, {"/state/untrusted-steps/x", "until it is committed"}, {"/state", "holds /state/untrusted-steps"},
		{"/srv/.project.untrusted-steps", "until it is committed"}, {"/srv/.project.untrusted-steps/run-1/2-x/upper", "until it is committed"},
		{"data", "absolute"}, {"", "empty"}, {"/a\x00b", "NUL"}, {"/" + strings.Repeat("a", 5000), "longer"},

		{"/etc/ssl", ""}, {"/root/project", ""}, {"/home/me/work", ""}, {"/home/you", ""}, {"/home/me/.cargo", ""}, {"/home/me/.m2", ""},
		{"/home/me/.cache/pip", ""}, {"/dev/shm/x", ""}, {"/tmp", ""}, {"/tmp/kern-files", ""}, {"/usr/local/go", ""}, {"/home/me/kern", ""},
		{"/x/config/gh", ""}, {"/x/ssh", ""}, {"/srv/untrusted-steps", ""}, {"/srv/my.untrusted-steps", ""}, {"/home/me/.local/state/other", ""},
	} {
		real, why := g.Source(tc.path)
		switch {
		case tc.why == "" && why != "":
			t.Errorf("%q is refused: %s", tc.path, why)
		case tc.why == "" && real != tc.path:
			t.Errorf("%q became %q", tc.path, real)
		case tc.why != "" && !strings.Contains(why, tc.why):
			t.Errorf("%q: got %q, want %q", tc.path, why, tc.why)
		}
	}
}

// Who names the home by mistake is told so, also where it is root's.
func TestRootsHomeIsCalledAHome(t *testing.T) {
	opt := testOptions(t)
	for home, want := range map[string]string{"/root": "is the home folder", "/home/me": "is a folder of the system", "/": "is a folder of the system"} {
		opt.Home = home
		if _, why := NewGuard(opt).Source("/root"); why != want {
			t.Errorf("HOME=%s: /root %q, want %q", home, why, want)
		}
	}
	if _, why := NewGuard(opt).Source("/"); why != "is a folder of the system" {
		t.Errorf("HOME=/: / %q", why)
	}
}

// The machine's own programs are shown to steps and never worked on.
func TestWhatCanBeTheWorkspace(t *testing.T) {
	opt := testOptions(t)
	opt.EvalSymlinks = func(p string) (string, error) { return p, nil }
	g := NewGuard(opt)
	for path, want := range map[string]string{
		"/usr": whySystem, "/usr/lib/python3": whySystem, "/etc/nginx": whySystem, "/var": whySystem, "/opt": whySystem,
		"/usr/src/app": "", "/var/lib/jenkins/ws": "", "/opt/project": "", "/etcetera": "", "/srv/project": "",
	} {
		if _, why := g.Workspace(path); why != want {
			t.Errorf("%s: %q, want %q", path, why, want)
		}
	}
	if _, why := g.Source("/usr"); why != "" {
		t.Errorf("/usr cannot be shown: %s", why)
	}
}

// On real files: what counts is where a path leads, not what it is called.
func TestGuardFollowsLinks(t *testing.T) {
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	home := filepath.Join(top, "home")
	for _, dir := range []string{"home/.ssh", "home/data", "srv"} {
		if err := os.MkdirAll(filepath.Join(top, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{
		"srv/plain": "../home/data", "srv/keys": "../home/.ssh", "srv/home": "../home", "srv/etc": "/etc", "srv/loop": "loop",
		"srv/up": "..", "srv/self": "/proc/self/root",
	} {
		if err := os.Symlink(to, filepath.Join(top, link)); err != nil {
			t.Fatal(err)
		}
	}
	g := NewGuard(Options{Home: home})
	for _, tc := range []struct{ sentence, path, want, why string }{
		{"a link to a plain folder is that folder", "srv/plain", "home/data", ""},
		{"a missing path stays as it is", "srv/nothing/x", "srv/nothing/x", ""},
		{"a link to keys", "srv/keys", "", ".ssh"},
		{"a link to the home folder", "srv/home", "", "home folder"},
		{"a link to a folder above the home folder", "srv/up", "", "holds"},
		{"a link to a folder of the system", "srv/etc", "", "system"},
		{"a link through the process to the whole host", "srv/self", "", "system"},
		{"what is missing behind a link to keys", "srv/keys/id_new", "", ".ssh"},
		{"a link to itself", "srv/loop", "", "cannot be looked at"},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			real, why := g.Source(filepath.Join(top, tc.path))
			if tc.why != "" {
				if !strings.Contains(why, tc.why) {
					t.Errorf("got %q, %q; want it refused: %s", real, why, tc.why)
				}
				return
			}
			if why != "" || real != filepath.Join(top, tc.want) {
				t.Errorf("got %q, %q; want %q", real, why, tc.want)
			}
		})
	}
}

func TestGuardSeesTheSameFolderUnderAnotherName(t *testing.T) {
	home := t.TempDir()
	info, err := os.Stat(home)
	if err != nil {
		t.Fatal(err)
	}
	opt := testOptions(t)
	opt.Home = home
	// What a bind mount of the home folder at /mnt looks like.
	opt.Stat = func(p string) (os.FileInfo, error) {
		if p == home || p == "/mnt" {
			return info, nil
		}
		return nil, os.ErrNotExist
	}
	if _, why := NewGuard(opt).Source("/mnt"); why != whyHome {
		t.Errorf("got %q", why)
	}
}

func TestMountTargets(t *testing.T) {
	for _, tc := range []struct {
		target                 string
		mount, tmpfs, overRoot bool // as a mount, as a tmpfs, as a mount over an image of its own
	}{
		{"/", false, false, false}, {"rel", false, false, false}, {"/a/../proc", false, false, false},
		{"/proc", false, false, false}, {"/proc/sys", false, false, false}, {"//proc", false, false, false}, {"/procs", true, true, true},
		{"/sys", false, false, false}, {"/sys/fs", false, false, false},
		{"/dev", false, false, false}, {"/dev/x", false, false, false}, {"/dev/shm", false, true, false}, {"/dev/shm/x", false, false, false}, {"/devs", true, true, true},
		{"/workspace", false, false, false}, {"/workspace/", false, false, false}, {"/workspace/vendor", true, true, true},
		{"/step", false, false, false}, {"/step/home", false, true, false}, {"/step/home/x", false, false, false}, {"/step/x", false, false, false}, {"/steps", true, true, true},
		{"/etc", false, false, true}, {"/etc/", false, false, true}, {"/etc/passwd", true, true, true}, {"/etcetera", true, true, true},
		{"/usr", false, false, true}, {"/usr/local", true, true, true}, {"/bin", false, false, true}, {"/sbin", false, false, true}, {"/bin/x", true, true, true},
		{"/lib", false, false, true}, {"/lib64", false, false, true}, {"/libx32", false, false, true}, {"/lib/x", true, true, true},
		{"/opt/tool", true, true, true}, {"/tmp", true, true, true}, {"/tmp/x", true, true, true},
	} {
		for what, ok := range map[string]bool{
			"mounts: {/a: '" + tc.target + "'}": tc.mount, "mounts: {/a: ['" + tc.target + "', ro]}": tc.mount, "tmpfs: ['" + tc.target + "']": tc.tmpfs, "tmpfs: {'" + tc.target + "': 1m}": tc.tmpfs,
			"image: 'rootfs:/srv/x', mounts: {/a: '" + tc.target + "'}": tc.overRoot,
		} {
			if _, err := Load("steps.yml", []byte("steps: [{run: x, "+what+"}]"), testOptions(t)); (err == nil) != ok {
				t.Errorf("%s: allowed is %v, got %v", what, ok, err)
			}
		}
	}
}
