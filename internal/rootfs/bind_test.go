package rootfs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// An engine opens what it shows without following a link, so where one leads is
// found out when the host is read, before any step can have made it.
func TestABindThatIsALinkKnowsWhereItLed(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"real/in", "shown"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for at, to := range map[string]string{"link": "real", "deep": "link/in", "near": "shown", "far": "real/in", "nowhere": "gone"} {
		if err := os.Symlink(to, filepath.Join(dir, at)); err != nil {
			t.Fatal(err)
		}
	}
	v := View{Links: map[string]string{}}
	for _, p := range []string{"shown", "near", "far", "link", "deep", "link/in", "nowhere", "absent"} {
		v.bind(filepath.Join(dir, p))
	}
	want := View{
		Binds: []string{dir + "/shown", dir + "/far", dir + "/link", dir + "/link/in"},
		Links: map[string]string{dir + "/near": "shown", dir + "/deep": "link/in"},
		Real:  map[string]string{dir + "/link": dir + "/real", dir + "/far": dir + "/real/in", dir + "/link/in": dir + "/real/in"},
	}
	if diff := cmp.Diff(want, v); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
