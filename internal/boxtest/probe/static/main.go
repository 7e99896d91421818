// Command static is the probe as a program of its own, for test binaries that
// need the host's loader and so cannot run in every root file system.
package main

import (
	"os"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/probe"
)

func main() {
	if !probe.IsProbe(os.Args) {
		os.Exit(2)
	}
	probe.Main(os.Args)
}
