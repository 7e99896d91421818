package kern

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
)

// TestLiveHostileImageIsNotFollowed: kern walks an image by names before it has
// entered it. What it would follow out of the image, or wait for, is refused at
// once, and nothing was made on the host.
func TestLiveHostileImageIsNotFollowed(t *testing.T) {
	e := live(t)
	for name, c := range map[string]struct {
		at    string
		fifo  bool
		tmpfs string
	}{
		"/sys is a link, in which a folder would be made":     {at: "sys"},
		"/sys/devices is a link":                              {at: "sys/devices"},
		"/sys/fs is a link":                                   {at: "sys/fs"},
		"/dev is a link":                                      {at: "dev"},
		"/proc is a link":                                     {at: "proc"},
		"/etc is a link":                                      {at: "etc"},
		"/etc/hostname is a FIFO, for which kern would wait":  {at: "etc/hostname", fifo: true},
		"/etc/hosts is a FIFO":                                {at: "etc/hosts", fifo: true},
		"a tmpfs has a link in its path":                      {at: "a", tmpfs: "/a/made/deep"},
		"a tmpfs is to be where a link is":                    {at: "a", tmpfs: "/a"},
		"a tmpfs is to be where there is a FIFO on the way":   {at: "a", fifo: true, tmpfs: "/a/x"},
		"a mount's place is a FIFO (the file is of the host)": {at: "m", fifo: true},
	} {
		t.Run(name, func(t *testing.T) {
			victim := t.TempDir()
			s := liveSpec(t, "true")
			s.Root = box.Root{Kind: box.RootDir, Dir: t.TempDir()}
			place := filepath.Join(s.Root.Dir, c.at)
			err := os.MkdirAll(filepath.Dir(place), 0o755)
			if err == nil && c.fifo {
				err = unix.Mkfifo(place, 0o666)
			} else if err == nil {
				err = os.Symlink(victim, place)
			}
			if err != nil {
				t.Fatal(err)
			}
			if c.tmpfs != "" {
				s.Tmpfs = append(s.Tmpfs, box.Tmpfs{Target: c.tmpfs, Bytes: 1 << 20})
			}
			if c.at == "m" {
				file := filepath.Join(t.TempDir(), "f")
				if err := os.WriteFile(file, nil, 0o644); err != nil {
					t.Fatal(err)
				}
				s.Mounts = []box.Mount{{Source: file, Target: "/m", ReadOnly: true}}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			b, err := e.Start(ctx, s, uncapped{})
			if err == nil {
				b.Close()
				t.Fatal("the box was built")
			}
			var se *box.StartupError
			if !errors.As(err, &se) || !strings.Contains(se.Why, "/"+strings.Split(c.at, "/")[0]) {
				t.Errorf("got %v, want a StartupError that names /%s", err, c.at)
			}
			if left, err := os.ReadDir(victim); err != nil || len(left) > 0 {
				t.Errorf("on the host there is %v (%v)", left, err)
			}
		})
	}

	t.Run("links that many images have are no obstacle", func(t *testing.T) {
		s := probeSpec(t, "show=/etc/hosts")
		s.Root = box.Root{Kind: box.RootDir, Dir: t.TempDir()}
		s.Hosts = []string{"192.0.2.9 ours"}
		if err := os.Mkdir(filepath.Join(s.Root.Dir, "etc"), 0o755); err != nil {
			t.Fatal(err)
		}
		for name, to := range map[string]string{"etc/hosts": "../run/hosts", "etc/resolv.conf": "/run/systemd/resolve/stub-resolv.conf", "etc/hostname": "/nowhere", "bin": "usr/bin"} {
			if err := os.Symlink(to, filepath.Join(s.Root.Dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		out, ws := runLive(t, e, s)
		if ws.ExitStatus() != 0 {
			t.Errorf("status %v", ws)
		}
		wantOut(t, out, "192.0.2.9 ours")
	})
}
