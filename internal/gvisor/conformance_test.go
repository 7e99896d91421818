package gvisor

import (
	"context"
	"os"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/rootfs"
)

// Every fact holds with a pinned runsc, except for those in the published table.
func TestConformance(t *testing.T) {
	boxtest.Need(t, "runsc", "static")
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
	// What differs for a normal user is how files and mounts come into a box, and
	// that is soon seen; a box takes a third of a second and more to start.
	boxtest.Run(t, e, boxtest.Options{User: []string{"host", "life", "files", "workspace", "overlay", "egress"}})
}
