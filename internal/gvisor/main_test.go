package gvisor

import (
	"context"
	"os"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
)

func TestMain(m *testing.M) {
	boxtest.Become(os.Args)
	if dir := os.Getenv(buildVar); dir != "" {
		_, _ = Build(context.Background(), options(dir))
		os.Exit(1)
	}
	boxtest.FindBy("runsc", func() (string, error) { return Find(context.Background(), Options{Getenv: os.Getenv}) })
	os.Exit(m.Run())
}
