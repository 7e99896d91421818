package native

import (
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
)

// Every fact holds, and nothing is hidden from this engine.
func TestConformance(t *testing.T) {
	e := testEngine()
	defer e.Close()
	boxtest.Run(t, e, boxtest.Options{})
}
