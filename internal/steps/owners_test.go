package steps

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
)

func TestEntriesOfOthersAreTold(t *testing.T) {
	need.Root(t)
	dir := filepath.Join(t.TempDir(), "ws")
	for _, name := range []string{"", "a", "b", "c", "d"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, id := range map[string]int{"": 1001, "a": 1001, "b": 0, "c": 0, "d": 5} {
		if err := os.Lchown(filepath.Join(dir, name), id, id); err != nil {
			t.Fatal(err)
		}
	}
	want := `steps cannot change 3 of 4 entries right in the workspace, which belong to others ("b" to 0:0) than its folder (1001:1001): chown -R 1001:1001 ` + dir
	if got := ofOthers(dir, owner{uid: 1001, gid: 1001}); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	for _, name := range []string{"b", "c", "d"} {
		if err := os.Lchown(filepath.Join(dir, name), 1001, 1001); err != nil {
			t.Fatal(err)
		}
	}
	if got := ofOthers(dir, owner{uid: 1001, gid: 1001}); got != "" {
		t.Error(got)
	}
}
