package steps

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
)

// Boxes are made in the folder for temporary files: a step that has it can put
// another script in the place of the next step's.
func TestNoStepHasTheFolderThatBoxesAreMadeIn(t *testing.T) {
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	temp := filepath.Join(top, "a", "temp")
	ws := filepath.Join(temp, "us-sandbox-7", "place", "workspace")
	err = errors.Join(
		os.MkdirAll(filepath.Join(ws, "data"), 0o755), os.MkdirAll(filepath.Join(temp, "us-kern-123", "step"), 0o755),
		os.MkdirAll(filepath.Join(temp, "mine"), 0o755), os.Symlink(temp, filepath.Join(top, "link")), os.Symlink("..", filepath.Join(temp, "mine", "up")),
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", filepath.Join(top, "link"))
	opt := Options{Workspace: ws}
	g := NewGuard(opt)
	r := &Runner{Workspace: ws, Guard: g}
	for path, want := range map[string]string{
		temp: "is the folder for temporary files", top + "/link": "is the folder for temporary files", temp + "/mine/up": "leads to " + temp,
		top + "/a": "holds " + temp, top: "holds ", "/tmp": "is the folder for temporary files", "/tmp/": "is the folder for temporary files",
		temp + "/us-kern-123": "of this program", temp + "/us-kern-123/step": "of this program", temp + "/us-kern-9/missing": "of this program",
		"/tmp/us-probe-1": "of this program", "/dev/shm/us-kern-1/step": "of this program", temp + "/us-sandbox-7/out": "of this program",

		temp + "/mine": "", temp + "/us-kern-files": "", temp + "/missing": "", ws + "/data": "", "/tmp/mine": "", "/dev/shm/mine": "", top + "/us-kern-1": "",
	} {
		for _, mode := range []string{"ro", "rw"} {
			if mode == "rw" && strings.HasPrefix(path, ws) {
				continue // refused for itself
			}
			_, err := Load("steps.yml", []byte("steps:\n- run: x\n  mounts:\n    "+path+": [/in, "+mode+"]\n"), opt)
			switch {
			case want == "" && err != nil:
				t.Errorf("%s %s is refused: %v", path, mode, err)
			case want != "" && (err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "steps.yml:4:5: ") || !strings.Contains(err.Error(), "mount a folder of your own")):
				t.Errorf("%s %s: got %v, want %q", path, mode, err, want)
			}
		}
		if _, err := Load("steps.yml", []byte("steps: [{run: x, image: 'rootfs:"+path+"'}]"), opt); (err == nil) != (want == "") {
			t.Errorf("rootfs:%s: %v", path, err)
		}
		why := r.recheck(t.Context(), PlanStep{Mounts: []box.Mount{{Source: path, Target: "/in"}}})
		if (why == "") != (want == "") || !strings.Contains(why, want) {
			t.Errorf("just before the box is built, %s: got %q, want %q", path, why, want)
		}
	}
	// A bind mount elsewhere of that folder is that folder still.
	info, err := os.Stat(temp)
	if err != nil {
		t.Fatal(err)
	}
	opt.Stat = func(p string) (os.FileInfo, error) {
		if p == "/mnt" {
			return info, nil
		}
		return os.Stat(p)
	}
	if _, why := NewGuard(opt).Mount("/mnt"); why != whyTemp {
		t.Errorf("a bind mount of it: %q", why)
	}
}
