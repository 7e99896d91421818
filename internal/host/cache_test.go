package host

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func whole() (list []Proof) {
	for _, c := range controls {
		list = append(list, Proof{Control: c, OK: true, How: "seen", Ms: 1.5})
	}
	return list
}

func here(t *testing.T) Config {
	t.Helper()
	cfg, err := Config{Engine: "native", Version: "1", Groups: []string{"/a"}}.Here(self(t))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestAProofIsRememberedForItsConfiguration(t *testing.T) {
	cache := Cache{Dir: filepath.Join(t.TempDir(), "state", "proofs")}
	cfg := here(t)
	if got := cache.Load(cfg); got != nil {
		t.Errorf("remembered before it was saved: %v", got)
	}
	if err := cache.Save(cfg, whole()); err != nil {
		t.Fatal(err)
	}
	if got := cache.Load(cfg); !cmp.Equal(got, whole()) {
		t.Errorf("loaded %v", got)
	}
	for name, change := range map[string]func(*Config){
		"boot":    func(c *Config) { c.BootID += "x" },
		"kernel":  func(c *Config) { c.Kernel += "x" },
		"program": func(c *Config) { c.Program.Changed += "x" },
		"engine":  func(c *Config) { c.Engine = "kern" },
		"version": func(c *Config) { c.Version = "2" },
		"digest":  func(c *Config) { c.Digest = "x" },
		"uid":     func(c *Config) { c.UID++ },
		"gid":     func(c *Config) { c.GID++ },
		"groups":  func(c *Config) { c.Groups = nil },
		"spaces":  func(c *Config) { c.Spaces = append([]string{"x"}, c.Spaces[1:]...) },
		"temp":    func(c *Config) { c.Temp = "/other" },
		"ways":    func(c *Config) { c.Ways = append(c.Ways, "RUNSC_PLATFORM=kvm") },
		"kind":    func(c *Config) { c.OwnKernel = true },
		"view":    func(c *Config) { c.View = []string{"/usr"} },
		"limits":  func(c *Config) { c.Limits = append([]string{"Seccomp: 2"}, c.Limits[1:]...) },
		"knobs":   func(c *Config) { c.Knobs = append([]string{"1"}, c.Knobs[1:]...) },
	} {
		other := cfg
		change(&other)
		if cache.Load(other) != nil {
			t.Errorf("believed for another %s", name)
		}
	}
}

func TestAProofCanBeForgottenAlone(t *testing.T) {
	cache := Cache{Dir: filepath.Join(t.TempDir(), "state", "proofs")}
	cfg := here(t)
	if err := cache.Forget(cfg); err != nil {
		t.Errorf("where nothing is remembered: %v", err)
	}
	other := cfg
	other.Engine = "kern"
	for _, c := range []Config{cfg, other} {
		if err := cache.Save(c, whole()); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // it may be gone already
		if err := cache.Forget(cfg); err != nil {
			t.Error(err)
		}
	}
	if cache.Load(cfg) != nil || cache.Load(other) == nil {
		t.Errorf("remembered are %v and %v, want only the second", cache.Load(cfg), cache.Load(other))
	}
}

func TestOnlyAWholeProofOfOursIsBelieved(t *testing.T) {
	cfg := here(t)
	key, err := cfg.key()
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(t *testing.T, dir, file string){
		"one that others may write":  func(t *testing.T, _, file string) { must(t, os.Chmod(file, 0o666)) },
		"in a folder open to others": func(t *testing.T, dir, _ string) { must(t, os.Chmod(dir, 0o777)) },
		"somebody else's":            func(t *testing.T, _, file string) { chown(t, file) },
		"somebody else's folder":     func(t *testing.T, dir, _ string) { chown(t, dir) },
		"text":                       func(t *testing.T, _, file string) { must(t, os.WriteFile(file, []byte("yes"), 0o600)) },
		"a link": func(t *testing.T, dir, file string) {
			must(t, os.Rename(file, dir+"/../elsewhere"))
			must(t, os.Symlink(dir+"/../elsewhere", file))
		},
		"a folder that is a link": func(t *testing.T, dir, _ string) {
			must(t, os.Rename(dir, dir+"2"))
			must(t, os.Symlink(dir+"2", dir))
		},
		"nothing of a proof": func(t *testing.T, _, file string) { rewrite(t, file, cfg, nil) },
		"part of a proof":    func(t *testing.T, _, file string) { rewrite(t, file, cfg, whole()[1:]) },
		"a proof of a miss": func(t *testing.T, _, file string) {
			list := whole()
			list[2].OK = false
			rewrite(t, file, cfg, list)
		},
		"of another configuration": func(t *testing.T, dir, file string) {
			other := cfg
			other.Engine = "kern"
			must(t, Cache{Dir: dir}.Save(other, whole()))
			k, err := other.key()
			must(t, err)
			must(t, os.Rename(filepath.Join(dir, k+".json"), file))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "proofs")
			cache := Cache{Dir: dir}
			must(t, cache.Save(cfg, whole()))
			if cache.Load(cfg) == nil {
				t.Fatal("control: it is not believed as it was saved")
			}
			spoil(t, dir, filepath.Join(dir, key+".json"))
			if got := cache.Load(cfg); got != nil {
				t.Errorf("believed: %v", got)
			}
		})
	}
}

// TestNobodyElseIsOnTheWay: a folder above that others may write is one in which
// they can put their own in the place of ours.
func TestNobodyElseIsOnTheWay(t *testing.T) {
	cfg := here(t)
	for name, spoil := range map[string]func(t *testing.T, above string){
		"others may write": func(t *testing.T, above string) { must(t, os.Chmod(above, 0o777)) },
		"its group may":    func(t *testing.T, above string) { must(t, os.Chmod(above, 0o775)) },
		"it is somebody's": func(t *testing.T, above string) { chown(t, above) },
		"a link by somebody": func(t *testing.T, above string) {
			// A folder like /tmp, in which another user has put a link.
			must(t, os.Rename(above, above+"2"))
			must(t, os.Symlink(above+"2", above))
			must(t, os.Chmod(filepath.Dir(above), 0o777))
		},
	} {
		t.Run(name, func(t *testing.T) {
			above := filepath.Join(t.TempDir(), "x", "above")
			cache := Cache{Dir: filepath.Join(above, "untrusted-steps", "proofs")}
			must(t, cache.Save(cfg, whole()))
			if cache.Load(cfg) == nil {
				t.Fatal("control: it is not believed as it was saved")
			}
			spoil(t, above)
			if cache.Load(cfg) != nil {
				t.Error("believed")
			}
			if err := cache.Save(cfg, whole()); err == nil {
				t.Error("written")
			}
		})
	}
	// A link of ours on the way is followed, and one of somebody else's is not, even
	// if all that it leads to is ours.
	far := filepath.Join(t.TempDir(), "far")
	must(t, os.Mkdir(far, 0o755))
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(far, link))
	linked := Cache{Dir: filepath.Join(link, "state", "proofs")}
	must(t, linked.Save(cfg, whole()))
	if linked.Load(cfg) == nil {
		t.Error("a link of ours was not followed")
	}
	if os.Geteuid() == 0 {
		must(t, os.Lchown(link, 61_234, 61_234))
		if linked.Load(cfg) != nil || linked.Save(cfg, whole()) == nil {
			t.Error("somebody else's link was followed")
		}
	}
	// In a folder like /tmp each has what is its own.
	temp := filepath.Join(t.TempDir(), "temp")
	must(t, os.Mkdir(temp, 0o777))
	must(t, os.Chmod(temp, 0o777|os.ModeSticky))
	cache := Cache{Dir: filepath.Join(temp, "home", "proofs")}
	must(t, cache.Save(cfg, whole()))
	if cache.Load(cfg) == nil {
		t.Error("not believed in a folder of our own in one like /tmp")
	}
}

// TestOnlyProofsAreForgotten: whatever else is in the folder stays.
func TestOnlyProofsAreForgotten(t *testing.T) {
	cfg, cache := here(t), Cache{Dir: filepath.Join(t.TempDir(), "proofs")}
	must(t, cache.Save(cfg, whole()))
	old := time.Now().Add(-time.Hour)
	for _, name := range []string{"config.json", "package.json", ".proof-old", ".proof-new", strings.Repeat("z", 64) + ".json"} {
		must(t, os.WriteFile(filepath.Join(cache.Dir, name), []byte("{}"), 0o600))
	}
	must(t, os.Chtimes(filepath.Join(cache.Dir, ".proof-old"), old, old))
	must(t, cache.Save(cfg, whole()))
	for name, want := range map[string]bool{
		"config.json": true, "package.json": true, ".proof-old": false, ".proof-new": true, strings.Repeat("z", 64) + ".json": true,
	} {
		if _, err := os.Stat(filepath.Join(cache.Dir, name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func rewrite(t *testing.T, file string, cfg Config, list []Proof) {
	t.Helper()
	text, err := json.Marshal(remembered{cfg, list})
	must(t, err)
	must(t, os.WriteFile(file, text, 0o600))
}

func chown(t *testing.T, path string) {
	t.Helper()
	if os.Geteuid() != 0 {
		// A normal user gives nothing away: then the file is one that others may write.
		must(t, os.Chmod(path, 0o777))
		return
	}
	must(t, os.Chown(path, 61_234, 61_234))
}

func TestAMissIsNotRemembered(t *testing.T) {
	cfg, cache := here(t), Cache{Dir: filepath.Join(t.TempDir(), "proofs")}
	for name, change := range map[string]func([]Proof) []Proof{
		"not seen":       func(l []Proof) []Proof { l[3].OK = false; return l },
		"left out":       func(l []Proof) []Proof { return l[1:] },
		"told twice":     func(l []Proof) []Proof { l[1] = l[0]; return l },
		"nothing at all": func([]Proof) []Proof { return nil },
	} {
		if err := cache.Save(cfg, change(whole())); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if cache.Load(cfg) != nil {
			t.Errorf("remembered: %s", name)
		}
	}
}

func TestProofsOfOtherBootsAreForgotten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "proofs")
	cache, old, now := Cache{Dir: dir}, here(t), here(t)
	old.BootID = "before"
	must(t, cache.Save(old, whole()))
	must(t, cache.Save(now, whole()))
	for i := range 3 * maxRemembered {
		now.UID = i
		must(t, cache.Save(now, whole()))
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > maxRemembered {
		t.Errorf("%d files are left (%v)", len(left), err)
	}
	if cache.Load(old) != nil {
		t.Error("a proof of another boot is still there")
	}
	if cache.Load(now) == nil {
		t.Error("the last one is not")
	}
}
