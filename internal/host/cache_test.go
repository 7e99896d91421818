package host

import (
	"os"
	"path/filepath"
	"testing"

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

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
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
