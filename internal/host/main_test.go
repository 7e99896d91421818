package host

import (
	"os"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
)

// TestMain makes this binary what it was started to be.
func TestMain(m *testing.M) {
	switch {
	case IsTry(os.Args):
		Try(os.Args)
	case len(os.Args) == 4 && os.Args[1] == stageArg:
		stage(os.Args[2], os.Args[3])
	case len(os.Args) == 4 && os.Args[1] == accountArg && os.Args[2] == "":
		accountServe()
	case len(os.Args) == 4 && os.Args[1] == accountArg:
		accountMain(os.Args[2])
	}
	boxtest.Become(os.Args)
	code := m.Run()
	boxtest.RemoveStatic()
	os.Exit(code)
}
