package kern

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/rootfs"
)

func TestMountPointsAreLookedForInWhatHoldsThem(t *testing.T) {
	image := source{Path: "/img", Target: "/", ReadOnly: true, Dir: true, Named: "image"}
	ws := source{Path: "/ws", Target: box.WorkspaceTarget, Dir: true}
	outer := source{Path: "/outer", Target: "/m", ReadOnly: true, Dir: true, Named: "mounts"}
	inner := source{Path: "/inner", Target: "/m/sub", Named: "mounts"}
	usr := source{Path: "/usr", Target: "/usr", ReadOnly: true, Dir: true}
	key := func(p mountPoint) string {
		s := p.Key + " " + p.In.Path + " " + p.Rel
		if p.Dir {
			s += "/"
		}
		if p.Missing {
			s += " or missing"
		}
		return s
	}
	for name, c := range map[string]struct {
		spec box.Spec
		list []source
		want []string
	}{
		"image host: only what lies in a folder of the host": {
			spec: box.Spec{Tmpfs: []box.Tmpfs{{Target: "/tmp"}, {Target: box.HomeTarget}, {Target: "/usr/share"}, {Target: "/workspace/cache"}}},
			list: []source{usr, ws, outer, inner},
			want: []string{"mounts /outer sub", "tmpfs /usr share/", "tmpfs /ws cache/"},
		},
		"a folder as root: all that is touched in it": {
			spec: box.Spec{Root: box.Root{Kind: box.RootDir, Dir: "/img"}, Tmpfs: []box.Tmpfs{{Target: "/tmp"}, {Target: "/m/sub/deep"}}},
			list: []source{image, ws, outer, inner},
			want: []string{
				"image /img proc/ or missing", "image /img sys/ or missing", "image /img sys/devices/ or missing", "image /img sys/fs/ or missing",
				"image /img sys/fs/cgroup/ or missing", "image /img dev/ or missing", "image /img etc/ or missing", "image /img step/ or missing",
				"image /img etc/hosts or missing", "image /img etc/hostname or missing", "image /img etc/resolv.conf or missing",
				"image /img etc/untrusted-steps-ca.crt or missing", "image /img workspace/ or missing", "mounts /img m/ or missing", "mounts /outer sub",
				"tmpfs /img tmp/ or missing", "tmpfs /inner deep/",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, p := range mountPoints(c.spec, c.list) {
				got = append(got, key(p))
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestJudge(t *testing.T) {
	dir, err := os.MkdirTemp("", "k") // short: a socket goes there
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	outside := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	l, err := net.Listen("unix", at("socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := errors.Join(
		os.MkdirAll(at("folder/sub"), 0o755), os.WriteFile(at("file"), nil, 0o000), unix.Mkfifo(at("fifo"), 0o666),
		os.Symlink(outside, at("away")), os.Symlink("folder", at("inside")), os.Symlink("none", at("dangling")), os.Symlink("..", at("up")),
	); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		rel     string
		dir     bool
		missing bool
		want    string // part of the message; empty: nothing is wrong
	}{
		"a folder for a folder":                  {rel: "folder/sub", dir: true},
		"a file for a file":                      {rel: "file"},
		"a link where a file is wanted":          {rel: "dangling"},
		"nothing, where it can be made":          {rel: "none/deep", dir: true, missing: true},
		"nothing, where it cannot":               {rel: "none", dir: true, want: "/none does not exist"},
		"a file for a folder":                    {rel: "file", dir: true, want: "/file is a file"},
		"a folder for a file":                    {rel: "folder", want: "/folder is a folder"},
		"a FIFO":                                 {rel: "fifo", want: "/fifo is a FIFO"},
		"a FIFO for a folder":                    {rel: "fifo", dir: true, want: "/fifo is a FIFO"},
		"a socket":                               {rel: "socket", want: "/socket is a socket"},
		"a link for a folder, even to one":       {rel: "inside", dir: true, want: "/inside is a link"},
		"a link in the path, even to a folder":   {rel: "inside/sub", dir: true, missing: true, want: "/inside/sub has a link in its path"},
		"a link that leads out, in the path":     {rel: "away/x", dir: true, missing: true, want: "link in its path"},
		"a link upwards, in the path":            {rel: "up/x", missing: true, want: "link in its path"},
		"a file in the path":                     {rel: "file/x", missing: true, want: "something else than a folder"},
		"a path that would leave the folder":     {rel: "../x", missing: true, want: "cannot be looked at"},
		"an absolute path, which would leave it": {rel: "/etc", dir: true, missing: true, want: "cannot be looked at"},
	} {
		t.Run(name, func(t *testing.T) {
			err := judge([]mountPoint{{Key: "image", In: source{Path: dir}, Rel: c.rel, Target: "/" + c.rel, Dir: c.dir, Missing: c.missing}})
			if c.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var se *box.StartupError
			if !errors.As(err, &se) || !strings.Contains(se.Why, c.want) || !strings.HasPrefix(se.Why, "image: ") || !strings.Contains(se.Why, dir) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	t.Run("a folder that has become a link is not looked into", func(t *testing.T) {
		if err := judge([]mountPoint{{Key: "mounts", In: source{Path: at("inside"), Named: "mounts"}, Rel: "sub", Target: "/m/sub", Dir: true}}); err == nil {
			t.Error("it was")
		}
	})
}

func TestClash(t *testing.T) {
	view := rootfs.View{Files: map[string]string{"/etc/passwd": "p"}, Links: map[string]string{"/bin": "usr/bin"}}
	host := []source{{Path: "/usr", Target: "/usr", Dir: true}, {Path: "/etc/ld.so.cache", Target: "/etc/ld.so.cache"}, {Path: "/ws", Target: box.WorkspaceTarget, Dir: true}}
	for name, c := range map[string]struct {
		target string
		dir    bool
		want   string
	}{
		"a file over a file that is made up": {target: "/etc/passwd"},
		"a folder over the host's":           {target: "/usr", dir: true},
		"a folder in the host's":             {target: "/usr/lib", dir: true},
		"a new place":                        {target: "/data/x", dir: true},
		"a folder over a made-up file":       {target: "/etc/passwd", dir: true, want: "/etc/passwd is a file"},
		"a folder over the host's file":      {target: "/etc/ld.so.cache", dir: true, want: "is a file"},
		"a file over the host's folder":      {target: "/usr", want: "/usr is a folder"},
		"a file over the workspace":          {target: box.WorkspaceTarget, want: "is a folder"},
		"a place below a made-up file":       {target: "/etc/passwd/x", dir: true, want: "since /etc/passwd is a file"},
		"a place below the host's file":      {target: "/etc/ld.so.cache/x", want: "is a file"},
		"a place below a link":               {target: "/bin/x", want: "link in its path"},
	} {
		t.Run(name, func(t *testing.T) {
			list := append(append([]source{}, host...), source{Path: "/src", Target: c.target, Dir: c.dir, Named: "mounts"})
			err := clash(box.Spec{}, view, list)
			var se *box.StartupError
			if c.want == "" && err != nil || c.want != "" && (!errors.As(err, &se) || !strings.Contains(se.Why, c.want) || !strings.Contains(se.Why, c.target)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if c.dir {
				if err := clash(box.Spec{Tmpfs: []box.Tmpfs{{Target: c.target}}}, view, host); (err != nil) != (c.want != "") {
					t.Errorf("a tmpfs there: %v", err)
				}
			}
		})
	}
}
