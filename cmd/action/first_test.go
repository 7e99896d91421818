package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	first "github.com/untrusted-steps/untrusted-steps/internal/boxinit/entry"
	"github.com/untrusted-steps/untrusted-steps/internal/idmap"
	"github.com/untrusted-steps/untrusted-steps/internal/native/build"
)

// A box's first process is this program, and every box waits for it to start. It
// must be what it is before the packages are set up that it needs nothing of: one
// import too many in package boxinit, and it comes after all of them, without
// anything else that would show it.
func TestAFirstProcessIsNoneTooLate(t *testing.T) {
	setUp := func(args ...string) []string {
		t.Helper()
		cmd := exec.Command("/proc/self/exe", args...)
		cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
		out, _ := cmd.CombinedOutput() // there is no box around it, and it says so
		var list []string
		for line := range strings.Lines(string(out)) {
			if f := strings.Fields(line); len(f) > 2 && f[0] == "init" && strings.HasPrefix(f[2], "@") {
				list = append(list, f[1])
			}
		}
		return list
	}
	late := []string{"regexp", "net", "net/http", "crypto/tls", "gopkg.in/yaml%2ev3", "github.com/opencontainers/go-digest", "github.com/google/go-github/v62/github"}
	all := setUp("-test.run=^$")
	for _, p := range late {
		if !slices.Contains(all, p) {
			t.Errorf("%s is not in this program, or its set up is not told: what follows shows nothing", p)
		}
	}
	for what, args := range map[string][]string{
		"engine native's": {build.Marker},
		"engine kern's":   {first.Marker, t.TempDir() + "/none"},
		"a namespace's":   {idmap.HoldArg},
	} {
		list := setUp(args...)
		if len(list) == 0 || !slices.Contains(list, "os") {
			t.Errorf("%s: nothing is told of its set up (%q)", what, list)
		}
		for _, p := range late {
			if slices.Contains(list, p) {
				t.Errorf("%s first process waits for %s to be set up", what, p)
			}
		}
	}
}
