package boxtest

import (
	"os"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/probe"
	"github.com/untrusted-steps/untrusted-steps/internal/idmap"
)

// IsChild says whether this test binary was started by the suite to be
// something else. It must be asked before anything else in TestMain, beside the
// engine's own question.
func IsChild(args []string) bool {
	return probe.IsProbe(args) || isNeed(args) || len(args) == 2 && args[1] == idmap.HoldArg
}

// Child is that something else. It does not return.
func Child(args []string) {
	switch {
	case probe.IsProbe(args):
		probe.Main(args)
	case isNeed(args):
		tryNeed(args[3])
	default:
		idmap.Hold()
	}
	os.Exit(0)
}
