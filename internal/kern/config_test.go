package kern

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
)

const profiles = `# [[vcpu]] name = "commented"
[kern]
name = "not-a-profile"
[[cpu]]
name = "a-cpu"
[[vcpu]]
name = "heavy"   # the big one
cpus = 4.0
[[vcpu]]
cpus = 1
name = 'lean'
[[disk]]
id = "data"
path = "/var/disks"
[[vdisk]]
name = "scratch"
backend = "ram"
size = "8m"
[[vdisk]]
name = "folder"
size = "8m"
backend = "data"
[[vdisk]]
name = "lasting"
backend = "ram"
persistent = true
[[vdisk]]
name = "twice"
backend = "ram"
[[vdisk]]
name = "twice"
backend = "data"
[[vdisk]]
name = "none"
[[vgpio]]
name = "leds"
backend = "host"
pins = [17]
`

func TestProfilesThatABoxCanHave(t *testing.T) {
	const missing = "kern's configuration has no "
	for profile, want := range map[string]string{
		"vcpu:heavy": "", "vcpu:lean": "", "vdisk:scratch": "",
		"vcpu:scratch": missing, "vdisk:heavy": missing, "vcpu:a-cpu": missing, "vcpu:not-a-profile": missing, "vcpu:commented": missing, "vcpu:": missing,
		"vgpio:leds":    "vgpio:leds: no box is shown a device of the host",
		"vgpio:heavy":   "vgpio:heavy: no box is shown a device of the host", // also one that is not there
		"vdisk:folder":  `vdisk:folder: its backend is "data"`,
		"vdisk:twice":   `vdisk:twice: its backend is "data"`,
		"vdisk:none":    `vdisk:none: its backend is ""`,
		"vdisk:lasting": "vdisk:lasting: it is to be persistent",
	} {
		if err := profileIn(profiles, profile); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", profile, err, want)
		}
	}
}

// The control builds boxes past the check: a disk in a folder is memory, and of the
// host's devices kern itself refuses the worst.
func TestLiveProfiles(t *testing.T) {
	boxtest.Need(t, "kern")
	home, disks := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(home, "kern"), 0o755); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`[[disk]]
id = "data"
path = %q
[[vdisk]]
name = "scratch"
backend = "ram"
size = "8m"
[[vdisk]]
name = "folder"
backend = "data"
size = "8m"
[[vgpio]]
name = "leds"
backend = "host"
extra = ["/dev/full", "/dev/hwrng", "/dev/kvm", "/dev/loop-control"]
`, disks)
	if err := os.WriteFile(filepath.Join(home, "kern", "kern.toml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	e := live(t)
	before := e.opts.Getenv
	e.opts.Getenv = func(name string) string {
		if name == "XDG_CONFIG_HOME" {
			return home
		}
		return before(name)
	}
	const look = "ls /dev | tr '\\n' ' '; echo; for d in /vdisk/*; do grep \" $d \" /proc/self/mountinfo; df -k $d; done; true"
	for profile, want := range map[string]string{"vdisk:scratch": " 8192 ", "vdisk:folder": "- tmpfs ", "vgpio:leds": "full"} {
		t.Run(profile, func(t *testing.T) {
			s := liveSpec(t, "sh", "-c", look)
			s.KernProfiles = []string{profile}
			if err := e.Check(s); (err == nil) != (profile == "vdisk:scratch") {
				t.Errorf("the check says %v", err)
			}
			b, err := e.build(t.Context(), s, uncapped{})
			out, _ := talk(t, b, err).run(s)
			wantOut(t, out, want)
			none := []string{"kvm", "loop-control", "ext4"}
			if os.Geteuid() == 0 { // a user's kern sees the host's devices in a box without an overlay
				none = append(none, "hwrng")
			}
			for _, none := range none {
				if strings.Contains(out, none) {
					t.Errorf("kern gives it: %s", out)
				}
			}
		})
	}
	if list, err := os.ReadDir(disks); err != nil || len(list) != 0 {
		t.Errorf("kern has put %v there (%v)", list, err)
	}
}

// The current folder is the workspace: what lies there is nobody's configuration.
func TestConfigIsNoneOfWhereverWeStand(t *testing.T) {
	here := t.TempDir()
	t.Chdir(here)
	for _, at := range []string{".config/kern", "x/.config/kern", "x/kern"} {
		if err := errors.Join(os.MkdirAll(at, 0o755), os.WriteFile(filepath.Join(at, configName), []byte("[[vcpu]]\nname = \"theirs\"\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for _, vars := range []map[string]string{nil, {"HOME": "x"}, {"HOME": "."}, {"XDG_CONFIG_HOME": "x"}} {
		e := &Engine{opts: Options{Getenv: env(vars)}}
		if text, err := e.config(); err == nil || !strings.Contains(err.Error(), "absolute path") {
			t.Errorf("%v: read %q, %v", vars, text, err)
		}
	}
	// Control: a name that is absolute is read.
	e := &Engine{opts: Options{Getenv: env(map[string]string{"XDG_CONFIG_HOME": "x", "HOME": here})}}
	if text, err := e.config(); err != nil || text == "" {
		t.Errorf("%q, %v", text, err)
	}
}
