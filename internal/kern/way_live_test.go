package kern

import (
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxinit"
)

// TestLiveWaysOut: what a tcp:// rule needs of a box. The first process listens
// on low ports without any capability, on addresses that only the box has, and
// the box's hosts file leads there.
func TestLiveWaysOut(t *testing.T) {
	e := live(t)
	for _, image := range []string{"host", "rootfs"} {
		t.Run("image "+image, func(t *testing.T) {
			s := probeSpec(t, "connect=127.64.0.1:22", "connect=127.0.0.1:80", "connect=198.51.100.7:443", "connect=198.51.100.8:443", "connect=127.0.0.1:23", "show=/etc/hosts", "write=/etc/hosts")
			s.Network = box.NetworkAllowlist
			s.Listen = []netip.AddrPort{netip.MustParseAddrPort("127.64.0.1:22"), netip.MustParseAddrPort("127.0.0.1:80"), netip.MustParseAddrPort("198.51.100.7:443")}
			s.Addrs = []netip.Addr{netip.MustParseAddr("198.51.100.7")}
			s.Hosts = []string{"127.64.0.1 git.example"}
			if image == "rootfs" {
				s.Root = box.Root{Kind: box.RootDir, Dir: t.TempDir()}
				if err := os.Mkdir(filepath.Join(s.Root.Dir, "etc"), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(s.Root.Dir, "etc/hosts"), []byte("192.0.2.1 of-the-image\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			c := start(t, e, s)
			fds := c.prepare(boxinit.Prepare{ProxyPort: box.ProxyPort, Listen: box.Places(s.Listen), Addrs: box.Addresses(s.Addrs)})
			if len(fds) != 4 {
				t.Fatalf("%d sockets, want the proxy's and three", len(fds))
			}
			defer func() {
				for _, fd := range fds {
					unix.Close(fd)
				}
			}()
			out := c.launch(s)
			defer out.Close()
			text, _ := io.ReadAll(out)
			wantOut(t, string(text), "connect=127.64.0.1:22 -> <nil>", "connect=127.0.0.1:80 -> <nil>", "connect=198.51.100.7:443 -> <nil>",
				"connect=198.51.100.8:443 -> network is unreachable", "connect=127.0.0.1:23 -> connection refused",
				"127.64.0.1 git.example\n", "localhost", "write=/etc/hosts -> open /etc/hosts: read-only file system")
		})
	}
}
