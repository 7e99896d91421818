package main

import (
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
)

// TestHostSetup is what a run may add to its host. The account that may use sudo
// is made in a mount namespace.
func TestHostSetup(t *testing.T) {
	boxtest.Need(t, "root", "sudo")
	boxtest.Boxes(t)
	scripts(t, "testdata/hostsetup", "native")
}
