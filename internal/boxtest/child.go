package boxtest

import (
	"os"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/probe"
)

// Become makes this test binary what the suite, or a box of either engine,
// started it to be, and does not return then. TestMain calls it before anything
// else, beside the questions of the engine's own package.
func Become(args []string) {
	switch {
	case probe.IsProbe(args):
		probe.Main(args)
	case isNeed(args):
		tryNeed(args[3])
	default:
		return
	}
	os.Exit(0)
}
