package kern

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/idmap"
)

func TestSweepTakesWhatAKilledRunLeftAndNothingElse(t *testing.T) {
	temp := shortDir(t)
	at := func(name string) string { return filepath.Join(temp, name) }
	mine := idmap.Ids{UID: os.Geteuid(), GID: os.Getegid()}
	script := &box.Script{Name: "script.sh", Text: "x"}
	alive, err := makeFolder(temp, mine, script)
	if err != nil {
		t.Fatal(err)
	}
	dead, err := makeFolder(temp, mine, script)
	if err != nil {
		t.Fatal(err)
	}
	dead.lock.Close() // as the kernel does when its program is killed
	young, err := makeFolder(temp, mine, script)
	if err != nil {
		t.Fatal(err)
	}
	young.lock.Close()
	victim := filepath.Join(t.TempDir(), "victim")
	must(0, os.Mkdir(victim, 0o700))
	must(0, os.Mkdir(at("other"), 0o700))
	must(0, os.Mkdir(at("us-kern-open"), 0o755))
	must(0, os.Symlink(victim, at("us-kern-link")))
	must(0, os.WriteFile(at("us-kern-file"), nil, 0o600))
	must(0, os.Mkdir(at("us-kern-theirs"), 0o700))
	want := []string{filepath.Base(alive.dir), filepath.Base(young.dir), "other", "us-kern-file", "us-kern-link", "us-kern-open"}
	if os.Geteuid() == 0 {
		must(0, os.Chown(at("us-kern-theirs"), 54321, 54321))
		want = append(want, "us-kern-theirs")
	}
	old := time.Now().Add(-time.Hour)
	for _, name := range []string{alive.dir, dead.dir, at("other"), at("us-kern-open"), at("us-kern-file"), at("us-kern-theirs"), victim} {
		must(0, os.Chtimes(name, old, old))
	}
	sweep(temp, time.Now())
	left := map[string]bool{}
	for _, e := range must(os.ReadDir(temp)) {
		left[e.Name()] = true
	}
	expected := map[string]bool{}
	for _, name := range want {
		expected[name] = true
	}
	if d := cmp.Diff(expected, left); d != "" {
		t.Error(d)
	}
	if _, err := os.Stat(victim); err != nil {
		t.Error(err)
	}
	if err := alive.remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(alive.dir); !os.IsNotExist(err) {
		t.Errorf("%v", err)
	}
}
