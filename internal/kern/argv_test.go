package kern

import (
	"flag"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
)

var update = flag.Bool("update", false, "write the golden files anew")

func plainSpec() box.Spec {
	return box.Spec{
		ID: "unit_tests", Argv: []string{"sh", "-e", "/step/script.sh"}, Workdir: "/workspace",
		Tmpfs:    []box.Tmpfs{{Target: "/tmp", Bytes: 64 << 20}, {Target: box.HomeTarget, Bytes: 32 << 20}},
		ShmBytes: 64 << 20, CapDrop: []string{"ALL"},
		MemoryBytes: 512 << 20, Pids: 256, TimeoutS: 30,
	}
}

func plainPaths() Paths {
	return Paths{
		Name: "us-0123456789ab", Rootfs: "/r", Step: "/t/step", Init: "/t/init", Workspace: "/t/1",
		Binds: []box.Mount{{Source: "/t/0", Target: "/usr"}},
	}
}

func TestArgv(t *testing.T) {
	for name, change := range map[string]func(*box.Spec, *Paths){
		"default":                   func(*box.Spec, *Paths) {},
		"caps-in-force":             func(_ *box.Spec, p *Paths) { p.CapsInForce = true },
		"no-caps-asked-for":         func(s *box.Spec, p *Paths) { s.MemoryBytes, s.Pids, p.CapsInForce = 0, 0, true },
		"fractional-cpus-timeout":   func(s *box.Spec, _ *Paths) { s.CPUs, s.TimeoutS = 1.5, 0.25 },
		"host-network":              func(s *box.Spec, _ *Paths) { s.Network = box.NetworkHost },
		"allowlist-is-no-network":   func(s *box.Spec, _ *Paths) { s.Network = box.NetworkAllowlist },
		"untrusted-profile":         func(s *box.Spec, _ *Paths) { s.Profile = "untrusted" },
		"some-capabilities-dropped": func(s *box.Spec, _ *Paths) { s.CapDrop = []string{"cap_net_raw", "SYS_CHROOT"} },
		"protected-apparmor-profiles": func(s *box.Spec, p *Paths) {
			s.AppArmor, s.KernProfiles = "ci-box", []string{"vcpu:heavy", "vdisk:scratch"}
			p.Protect, p.Config = []string{".deps"}, "/kern.toml"
		},
		"nothing-dropped": func(s *box.Spec, _ *Paths) { s.CapDrop = nil },
		"low-ports-and-addresses": func(s *box.Spec, _ *Paths) {
			s.Network = box.NetworkAllowlist
			s.Listen = []netip.AddrPort{netip.MustParseAddrPort("127.64.0.1:5432"), netip.MustParseAddrPort("10.1.2.3:22"), netip.MustParseAddrPort("127.0.0.1:80")}
			s.Addrs = []netip.Addr{netip.MustParseAddr("10.1.2.3")}
		},
		"high-ports-only": func(s *box.Spec, _ *Paths) {
			s.Network, s.Listen = box.NetworkAllowlist, []netip.AddrPort{netip.MustParseAddrPort("127.64.0.1:1024")}
		},
		"paths-that-need-quoting": func(_ *box.Spec, p *Paths) {
			p.Workspace = `/work/a:b,c"d e`
			p.Mounts = []box.Mount{{Source: "/data/x,y", Target: "/data:z", ReadOnly: true}, {Source: "/rw", Target: "/rw"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, p := plainSpec(), plainPaths()
			change(&s, &p)
			got, err := Argv(s, p)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", "argv", name+".txt")
			text := strings.Join(got, "\n") + "\n"
			if *update {
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), text); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestArgvRefusesWhatKernCannotExpress(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*box.Spec, *Paths)
		want   string
	}{
		"no command":                   {func(s *box.Spec, _ *Paths) { s.Argv = nil }, "command"},
		"a deadline that is no number": {func(s *box.Spec, _ *Paths) { s.TimeoutS = math.NaN() }, "timeoutS"},
		"no deadline":                  {func(s *box.Spec, _ *Paths) { s.TimeoutS = 0 }, "timeoutS"},
		"one process":                  {func(s *box.Spec, _ *Paths) { s.Pids = 1 }, "pids"},
		"a profile nobody knows":       {func(s *box.Spec, _ *Paths) { s.Profile = "trusted" }, "securityProfile"},
		"a writable mount at /etc, where kern writes": {func(s *box.Spec, _ *Paths) { s.Mounts = []box.Mount{{Source: "/a", Target: "/etc"}} }, "mount it read-only"},
		"a writable mount at /etc/hosts":              {func(s *box.Spec, _ *Paths) { s.Mounts = []box.Mount{{Source: "/a", Target: "/etc/hosts"}} }, "mount it read-only"},
		"a tmpfs in a mount that another step may write": {func(s *box.Spec, _ *Paths) {
			s.Mounts = []box.Mount{{Source: "/a", Target: "/m"}}
			s.Tmpfs = []box.Tmpfs{{Target: "/m/x", Bytes: 1}}
		}, "tmpfs: /m/x lies in the mount at /m"},
		"an address that cannot be added": {func(s *box.Spec, _ *Paths) { s.Addrs = []netip.Addr{netip.MustParseAddr("2001:db8::1")} }, "egressAllow"},
		"an address for the host's own loopback": {func(s *box.Spec, _ *Paths) {
			s.Network, s.Addrs = box.NetworkHost, []netip.Addr{netip.MustParseAddr("10.1.2.3")}
		}, "egressAllow"},
		"a capability that is a flag":              {func(s *box.Spec, _ *Paths) { s.CapDrop = []string{"--privileged"} }, "capDrop"},
		"a network nobody knows":                   {func(s *box.Spec, _ *Paths) { s.Network = 7 }, "network"},
		"a tmpfs without size":                     {func(s *box.Spec, _ *Paths) { s.Tmpfs = []box.Tmpfs{{Target: "/x"}} }, "tmpfs"},
		"a tmpfs with a colon":                     {func(s *box.Spec, _ *Paths) { s.Tmpfs = []box.Tmpfs{{Target: "/x:y", Bytes: 1}} }, "tmpfs"},
		"a tmpfs over the root":                    {func(s *box.Spec, _ *Paths) { s.Tmpfs = []box.Tmpfs{{Target: "/", Bytes: 1}} }, "tmpfs"},
		"a mount that a tmpfs would hide":          {func(s *box.Spec, _ *Paths) { s.Mounts = []box.Mount{{Source: "/a", Target: "/tmp/a"}} }, "hidden by the tmpfs"},
		"a mount over the first process":           {func(s *box.Spec, _ *Paths) { s.Mounts = []box.Mount{{Source: "/a", Target: box.InitTarget}} }, "mounts"},
		"a mount over /proc":                       {func(s *box.Spec, _ *Paths) { s.Mounts = []box.Mount{{Source: "/a", Target: "/proc/sys"}} }, "mounts"},
		"a mount target with dots":                 {func(s *box.Spec, _ *Paths) { s.Mounts = []box.Mount{{Source: "/a", Target: "/x/../proc"}} }, "mounts"},
		"a source that would be a named volume":    {func(_ *box.Spec, p *Paths) { p.Mounts = []box.Mount{{Source: "volume", Target: "/x"}} }, "mounts"},
		"a source with a newline":                  {func(_ *box.Spec, p *Paths) { p.Mounts = []box.Mount{{Source: "/a\nb", Target: "/x"}} }, "mounts"},
		"the host's root as the box's":             {func(_ *box.Spec, p *Paths) { p.Rootfs = "/" }, "image"},
		"rootfs:/ as the box's root":               {func(s *box.Spec, _ *Paths) { s.Root = box.Root{Kind: box.RootDir, Dir: "/"} }, "image"},
		"a root that overlay options cannot carry": {func(_ *box.Spec, p *Paths) { p.Rootfs = "/a:b" }, "image"},
		"a relative root":                          {func(s *box.Spec, _ *Paths) { s.Root = box.Root{Kind: box.RootDir, Dir: "x"} }, "image"},
		"a root of a kind nobody knows":            {func(s *box.Spec, _ *Paths) { s.Root.Kind = 9 }, "image"},
		"a box name that is a flag":                {func(_ *box.Spec, p *Paths) { p.Name = "--net" }, "box name"},
		"a profile that is a flag":                 {func(s *box.Spec, _ *Paths) { s.KernProfiles = []string{"--privileged"} }, "profiles"},
		"an AppArmor profile that is a flag":       {func(s *box.Spec, _ *Paths) { s.AppArmor = "--privileged" }, "apparmor"},
		"no workspace":                             {func(_ *box.Spec, p *Paths) { p.Workspace = "" }, "workspace"},
	} {
		t.Run(name, func(t *testing.T) {
			s, p := plainSpec(), plainPaths()
			c.change(&s, &p)
			if got, err := Argv(s, p); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %q, %v; want an error that names %q", got, err, c.want)
			}
		})
	}
}

func TestCheckJudgesOnlyWhatIsFilledIn(t *testing.T) {
	e := &Engine{}
	if err := e.Check(box.Spec{CapDrop: []string{"ALL"}, Profile: "untrusted"}); err != nil {
		t.Error(err)
	}
	if err := e.Check(box.Spec{CapDrop: []string{"FLY"}}); err == nil || !strings.Contains(err.Error(), "capDrop") {
		t.Errorf("got %v, want an error that names capDrop", err)
	}
}

func TestKernAlwaysEndsInOurFirstProcess(t *testing.T) {
	s := plainSpec()
	s.Argv = []string{"evil", "--", "x"}
	got, err := Argv(s, plainPaths())
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(strings.Join(got, " "), "evil") {
		t.Error("the step's command is in kern's arguments")
	}
}

func TestHostname(t *testing.T) {
	for id, want := range map[string]string{
		"build": "build", "unit_tests": "unit-tests", "a.b-c": "a.b-c", "_x_": "x", "___": "box", "": "box",
		strings.Repeat("a", 64): strings.Repeat("a", 63), "x-" + strings.Repeat("_", 62): "x",
	} {
		if got := hostname(id); got != want {
			t.Errorf("hostname(%q) = %q, want %q", id, got, want)
		}
	}
}
