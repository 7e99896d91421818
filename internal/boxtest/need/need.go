// Package need is the one way in which a test of this module is skipped: for a
// named thing that the host lacks, and with the reason. BOX_REQUIRE names what
// must not be lacking; there the same test fails, so that nothing goes untested
// unseen.
//
// It owns the names and the decision. It refuses a name that nobody knows: a
// misspelt need could never be required. How a thing is tried is not its
// business: boxtest has a probe for most, and a test that has just tried a thing
// itself knows best. It imports nothing of ours, so that the packages on which
// boxtest is built can state their needs too.
//
//	err := unix.Mount("tmpfs", dir, "tmpfs", 0, "")
//	need.Met(t, "mounts", err)
package need

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// Require is the variable that names the needs, separated by commas, without
// which tests fail instead of being skipped. CI sets it.
const Require = "BOX_REQUIRE"

// Names is every reason there is to skip a test.
func Names() []string {
	return []string{
		"root", "normal user", "userns", "overlay", "seccomp", "idmap", "limits", "cpu", "kern", "runsc", "static",
		"python3", "curl", "git", "node", "npm", "pip", "loop", "tmpfs", "setid", "devices", "address", "ipv6", "sudo",
		// Tried by the tests that need them.
		"act",                 // the program that runs workflows
		"servers",             // sshd, PostgreSQL and Redis
		"chromium",            // the browser that reads report.html
		"pty",                 // terminals can be made
		"bash", "zsh", "fish", // shells that complete our command lines
		"runc",         // what Docker makes containers with
		"docker",       // dockerd, of which a test starts one of its own
		"registries",   // package registries that answer
		"qemu",         // qemu-user, which runs programs of the other processors
		"cargo", "mvn", // clients of registries
		"mounts",       // root can mount a tmpfs and an overlay
		"change times", // a file system whose change times can be relied on
		"blocks",       // one that gives 4 GiB to a file without writing them
	}
}

// Met skips the test if something it needs is missing. It fails the test
// instead if BOX_REQUIRE names the need, or nobody knows it.
func Met(t testing.TB, name string, missing error) {
	t.Helper()
	switch {
	case !slices.Contains(Names(), name):
		t.Fatalf("no need is called %q", name)
	case missing == nil:
	case slices.Contains(strings.Split(os.Getenv(Require), ","), name):
		t.Fatalf("%s requires %s, which this host lacks: %v", Require, name, missing)
	default:
		t.Skipf("needs %s: %v", name, missing)
	}
}

// Root is met where the tests run as root.
func Root(t testing.TB) {
	t.Helper()
	Met(t, "root", root())
}

func root() error {
	if uid := os.Geteuid(); uid != 0 {
		return fmt.Errorf("we are user %d", uid)
	}
	return nil
}
