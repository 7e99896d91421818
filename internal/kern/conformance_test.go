package kern

import (
	"context"
	"os"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/rootfs"
)

// Every fact holds with the real kern, except for those in the published table.
func TestConformance(t *testing.T) {
	boxtest.Need(t, "kern")
	e, err := Open(context.Background(), Options{
		Getenv: os.Getenv,
		View: func(hostname string, network bool) rootfs.View {
			return rootfs.HostView(rootfs.Host{Getenv: os.Getenv, Network: network, Homes: []string{"/root", "/home"}}).For(hostname)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	boxtest.Run(t, e, boxtest.Options{})
}
