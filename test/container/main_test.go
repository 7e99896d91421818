package container_test

import (
	"flag"
	"os"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
)

// program is the program under test, built once, where any user can run it.
var program string

func TestMain(m *testing.M) {
	boxtest.Become(os.Args)
	flag.Parse()
	os.Exit(boxtest.CommandMain(m, &program))
}
