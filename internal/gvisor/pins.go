package gvisor

import (
	"errors"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/pinned"
)

// Release is the version of gVisor that this program is built and tested with: a
// commit, as its Go module has no others.
const Release = "v0.0.0-20260905035102-160fafc42237"

// buildGo is the Go that the pinned sums are of. Another one makes another file.
const buildGo = "go1.26.8"

// sums are the SHA-256 of runsc as Build makes it, by GOARCH. Nobody publishes one
// for this version, so they were taken of builds in different folders, with
// different caches, which came out the same: whoever doubts them can do that again.
var sums = map[string]string{
	"amd64": "cde8e5133ddc56ad2065e954624be3bbd9bd4f9b2f6be3298df49e835a930366",
	"arm64": "2c69faac2b100c3b0580971a701c51148fc1e30a3d31c71f3d4a659407ea2608",
}

// maxBinary is well above runsc's 83 MB.
const maxBinary = 256 << 20

// kind is runsc as it is looked for on a machine.
func kind(arch string) pinned.Kind {
	return pinned.Kind{
		Name: "runsc", Env: "RUNSC_BIN", Flag: "--runsc-sha256", Get: "untrusted-steps runsc build",
		Release: Release, Sum: sums[arch], MaxBytes: maxBinary,
		Version: func(line string) (string, error) {
			v, ok := strings.CutPrefix(line, "runsc version ")
			if !ok {
				return "", errors.New("it is not runsc")
			}
			return strings.TrimSpace(v), nil
		},
	}
}
