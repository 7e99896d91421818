package rootfs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func hostWith(env map[string]string, homes ...string) Host {
	return Host{Getenv: func(n string) string { return env[n] }, Homes: homes}
}

func TestToolchain(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"opt/tool/bin", "home/me/.cargo/bin", "top"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(dir, "home/me/.cargo/bin"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	// The test's own folder is below /tmp, where nothing is shown; so is the
	// rule that keeps it away.
	if got := toolchain(filepath.Join(dir, "opt/tool/bin"), nil); strings.HasPrefix(dir, "/tmp") && got != "" {
		t.Errorf("a folder below /tmp is shown: %q", got)
	}
	tests := []struct {
		name, dir string
		homes     []string
		want      string
	}{
		{"a relative entry shows nothing", "bin", nil, ""},
		{"an entry that is not there shows nothing", "/nonexistent/bin", nil, ""},
		{"/usr is shown already", "/usr/bin", nil, ""},
		{"a folder of the system is never a toolchain", "/etc", nil, ""},
		{"a folder that holds a home is never one", "/usr/local/bin", []string{"/usr/local/home"}, ""},
		{"root's home is never one", "/root", nil, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := toolchain(tt.dir, tt.homes); got != tt.want {
				t.Errorf("toolchain(%q) = %q, want %q", tt.dir, got, tt.want)
			}
		})
	}
}

func TestHostViewShowsByNameOnly(t *testing.T) {
	v := HostView(hostWith(map[string]string{"PATH": "/root/bin:/usr/bin:.:/home/x/bin"}, "/root"))
	for _, b := range v.Binds {
		for _, no := range []string{"/home", "/root", "/run", "/var", "/proc", "/sys", "/dev", "/boot", "/tmp"} {
			if under(b, no) {
				t.Errorf("%s is shown", b)
			}
		}
		if b == "/etc" || b == "/etc/ssl" || strings.Contains(b, "private") || strings.Contains(b, "shadow") {
			t.Errorf("%s is shown", b)
		}
	}
	if !slices.Contains(v.Binds, "/usr") {
		t.Error("the control fails: /usr is not shown")
	}
	for _, p := range v.Path {
		if !filepath.IsAbs(p) || under(p, "/root") || under(p, "/home") {
			t.Errorf("PATH has %q", p)
		}
	}
}

func TestExtraCertificatesComeWithoutKeys(t *testing.T) {
	const cert = "-----BEGIN CERTIFICATE-----\nAQID\n-----END CERTIFICATE-----\n"
	file := filepath.Join(t.TempDir(), "bundle.pem")
	if err := os.WriteFile(file, []byte("words\n-----BEGIN PRIVATE KEY-----\nBAUG\n-----END PRIVATE KEY-----\n"+cert), 0o600); err != nil {
		t.Fatal(err)
	}
	v := HostView(hostWith(map[string]string{"SSL_CERT_FILE": file}))
	if v.CABundle != ExtraCA || v.Files[ExtraCA] != cert {
		t.Errorf("the bundle is %q with %q, want only the certificate", v.CABundle, v.Files[ExtraCA])
	}
	if v := HostView(hostWith(map[string]string{"SSL_CERT_FILE": "/dev/zero"})); v.CABundle == ExtraCA {
		t.Error("a device was read as a bundle")
	}
}

func TestHostsOfOneBoxAreNotAnothers(t *testing.T) {
	v := HostView(hostWith(nil))
	a := v.For("box-a").WithHosts([]string{"127.64.0.1 db.example.org"})
	b := v.For("box-b")
	if strings.Contains(b.Files["/etc/hosts"], "box-a") || strings.Contains(b.Files["/etc/hosts"], "db.example.org") {
		t.Errorf("one box's hosts file has another's lines:\n%s", b.Files["/etc/hosts"])
	}
	if !strings.Contains(a.Files["/etc/hosts"], "box-a") || !strings.Contains(a.Files["/etc/hosts"], "db.example.org") {
		t.Errorf("lines are missing:\n%s", a.Files["/etc/hosts"])
	}
}
