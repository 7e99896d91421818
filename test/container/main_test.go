package container_test

import (
	"context"
	"flag"
	"os"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/gvisor"
)

// program is the program under test, built once, where any user can run it.
var program string

func TestMain(m *testing.M) {
	boxtest.Become(os.Args)
	boxtest.FindBy("runsc", func() (string, error) {
		return gvisor.Find(context.Background(), gvisor.Options{Getenv: os.Getenv})
	})
	flag.Parse()
	os.Exit(boxtest.CommandMain(m, &program))
}
