package kern

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/rootfs"
)

// files is a host that has exactly these: true for folders.
type files map[string]bool

func (f files) IsDir(path string, _ bool) (bool, error) {
	dir, ok := f[path]
	if !ok {
		return false, fs.ErrNotExist
	}
	return dir, nil
}

func TestSourcesAndLayout(t *testing.T) {
	host := files{"/usr": true, "/usr/local/go": true, "/opt/tool": true, "/etc/ld.so.cache": false, "/ws": true, "/data": true, "/img": true}
	view := rootfs.View{
		Binds: []string{"/usr", "/etc/ld.so.cache"}, Links: map[string]string{"/bin": "usr/bin"},
		Files: map[string]string{"/etc/passwd": "p", "/etc/hosts": "h"},
	}
	s := plainSpec()
	s.Workspace = "/ws"
	s.Toolchain = []string{"/opt/tool", "/usr/local/go"}
	s.Mounts = []box.Mount{{Source: "/data", Target: "/workspace/data", ReadOnly: true}}
	list, err := sources(s, view, host)
	if err != nil {
		t.Fatal(err)
	}
	var shown []string
	for _, src := range list {
		shown = append(shown, src.Target)
	}
	// /usr/local/go is shown with /usr.
	if d := cmp.Diff([]string{"/etc/ld.so.cache", "/opt/tool", "/usr", "/workspace", "/workspace/data"}, shown); d != "" {
		t.Error(d)
	}

	t.Run("on a stage kern sees only the stage", func(t *testing.T) {
		l := lay(s, view, list, "/", "/tmp/x/s", "/self", true)
		want := layout{
			Parts: parts{
				Dirs: []string{"r", "t/1", "t/2", "t/3", "t/4", "t/step",
					"r/proc", "r/sys", "r/dev", "r/tmp", "r/etc", "r/workspace", "r/step", "r/opt/tool", "r/usr"},
				Private: []string{"x", "h"},
				Empty:   []string{"t/0", "t/init", "r/etc/ld.so.cache"},
				Links:   map[string]string{"r/bin": "usr/bin"},
				Files:   map[string]string{"r/etc/passwd": "p", "r/etc/hosts": "h"},
			},
			Paths: Paths{
				Rootfs: "/r", Step: "/t/step", Init: "/t/init", Workspace: "/t/3",
				Binds: []box.Mount{
					{Source: "/t/0", Target: "/etc/ld.so.cache", ReadOnly: true},
					{Source: "/t/1", Target: "/opt/tool", ReadOnly: true},
					{Source: "/t/2", Target: "/usr", ReadOnly: true},
				},
				Mounts: []box.Mount{{Source: "/t/4", Target: "/workspace/data", ReadOnly: true}},
			},
			Trees: []tree{{At: "t/0"}, {At: "t/1"}, {At: "t/2"}, {At: "t/3"}, {At: "t/4"}, {At: "t/step"}, {At: "t/init"}},
		}
		if d := cmp.Diff(want, l); d != "" {
			t.Error(d)
		}
	})

	t.Run("without a stage kern sees the host's paths", func(t *testing.T) {
		l := lay(s, view, list, "/tmp/x", "/tmp/x/s", "/self", false)
		want := Paths{
			Rootfs: "/tmp/x/r", Step: "/tmp/x/s", Init: "/self", Workspace: "/ws",
			Binds: []box.Mount{
				{Source: "/etc/ld.so.cache", Target: "/etc/ld.so.cache", ReadOnly: true},
				{Source: "/opt/tool", Target: "/opt/tool", ReadOnly: true},
				{Source: "/usr", Target: "/usr", ReadOnly: true},
			},
			Mounts: []box.Mount{{Source: "/data", Target: "/workspace/data", ReadOnly: true}},
		}
		if d := cmp.Diff(want, l.Paths); d != "" {
			t.Error(d)
		}
		if l.Trees != nil {
			t.Errorf("trees %v without a stage", l.Trees)
		}
		dir := t.TempDir()
		if err := l.Parts.make(dir, func(string) error { return nil }); err != nil {
			t.Fatal(err)
		}
		if to, err := os.Readlink(filepath.Join(dir, "r/bin")); to != "usr/bin" {
			t.Errorf("link %q, %v", to, err)
		}
		if st, err := os.Stat(filepath.Join(dir, "x")); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("the runtime folder: %v, %v", st, err)
		}
	})

	t.Run("an image brings its own root and only the network's files go over it", func(t *testing.T) {
		s := s
		s.Root, s.Toolchain = box.Root{Kind: box.RootDir, Dir: "/img"}, nil
		list, err := sources(s, view, host)
		if err != nil {
			t.Fatal(err)
		}
		l := lay(s, view, list, "/tmp/x", "/tmp/x/s", "/self", false)
		if l.Paths.Rootfs != "/img" || len(l.Parts.Links) > 0 {
			t.Errorf("layout %+v is not the image's", l)
		}
		if d := cmp.Diff([]box.Mount{{Source: "/tmp/x/f/hosts", Target: "/etc/hosts", ReadOnly: true}}, l.Paths.Binds); d != "" {
			t.Error(d)
		}
		if staged := lay(s, view, list, "/", "/s", "/self", true); staged.Paths.Rootfs != "/r" || staged.Trees[0] != (tree{At: "r"}) {
			t.Errorf("staged layout %+v", staged)
		}
	})

	t.Run("what a step puts over something made up takes its place, and outer goes before inner", func(t *testing.T) {
		s := s
		s.Mounts = []box.Mount{{Source: "/etc/ld.so.cache", Target: "/etc/passwd"}, {Source: "/data", Target: "/m/inner"}, {Source: "/data", Target: "/m"}}
		s.Tmpfs = append(slices.Clone(s.Tmpfs), box.Tmpfs{Target: "/bin", Bytes: 1})
		list, err := sources(s, view, host)
		if err != nil {
			t.Fatal(err)
		}
		if err := clash(s, view, list); err != nil {
			t.Fatal(err)
		}
		l := lay(s, view, list, "/tmp/x", "/tmp/x/s", "/self", false)
		dir := t.TempDir()
		if err := l.Parts.make(dir, func(string) error { return nil }); err != nil {
			t.Fatal(err)
		}
		if st, err := os.Lstat(filepath.Join(dir, "r/bin")); err != nil || !st.IsDir() {
			t.Errorf("/bin is no folder to mount on: %v", err)
		}
		if st, err := os.Lstat(filepath.Join(dir, "r/etc/passwd")); err != nil || !st.Mode().IsRegular() {
			t.Errorf("/etc/passwd is no file to mount on: %v", err)
		}
		var order []string
		for _, m := range l.Paths.Mounts {
			order = append(order, m.Target)
		}
		if d := cmp.Diff([]string{"/m", "/etc/passwd", "/m/inner"}, order); d != "" {
			t.Error(d)
		}
	})

	t.Run("what the step names and is not there is the step's doing", func(t *testing.T) {
		for _, change := range []func(*box.Spec){
			func(s *box.Spec) { s.Mounts = []box.Mount{{Source: "/no", Target: "/x"}} },
			func(s *box.Spec) { s.Root = box.Root{Kind: box.RootDir, Dir: "/no"} },
			func(s *box.Spec) { s.Root = box.Root{Kind: box.RootDir, Dir: "/etc/ld.so.cache"} },
		} {
			s := s
			change(&s)
			_, err := sources(s, view, host)
			var se *box.StartupError
			if !errors.As(err, &se) {
				t.Errorf("got %v, want a StartupError", err)
			}
		}
	})

	t.Run("a workspace that is not there is no step's doing", func(t *testing.T) {
		s := s
		s.Workspace = "/no"
		_, err := sources(s, view, host)
		var se *box.StartupError
		if err == nil || errors.As(err, &se) {
			t.Errorf("got %v, want an error of ours", err)
		}
	})
}
