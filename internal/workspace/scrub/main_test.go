package scrub_test

import (
	"os"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
)

// TestMain: the probes of boxtest.Need are this program again.
func TestMain(m *testing.M) {
	boxtest.Become(os.Args)
	os.Exit(m.Run())
}
