package native

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/boxinit"
	"github.com/untrusted-steps/untrusted-steps/internal/stage"
)

func TestRestricted(t *testing.T) {
	inside := func(e syscall.Errno) error {
		return &boxinit.Failed{Op: "make private", Name: "/", Errno: int(e), Why: e.Error()}
	}
	for _, c := range []struct {
		name string
		err  error
		want bool
	}{
		{"no namespaces are allowed", startError(syscall.EPERM), true},
		{"their number is used up", fmt.Errorf("probe: %w", startError(syscall.ENOSPC)), true},
		{"AppArmor refuses the first mount", inside(syscall.EACCES), true},
		{"a container refuses to mount proc", fmt.Errorf("probe: %w", inside(syscall.EPERM)), true},
		{"a container's filter has no clone3", startError(syscall.ENOSYS), true},
		{"root of a container may make no mount", fmt.Errorf("open /x for the box: %w: %w", stage.ErrMounts, syscall.EPERM), true},
		{"ids cannot be mapped in a container's own layers", fmt.Errorf("open /x for the box: %w: map ids: %w", stage.ErrMounts, syscall.EINVAL), true},
		{"what is to be shown is gone", fmt.Errorf("open /x for the box: %w: %w", stage.ErrMounts, syscall.ENOENT), false},
		{"the box's memory is full", inside(syscall.ENOSPC), false},
		{"this program is gone", startError(syscall.ENOENT), false},
		{"a folder of ours cannot be read", fmt.Errorf("open /x for the box: %w", syscall.EACCES), false},
		{"anything else", errors.New("x"), false},
	} {
		if got := Restricted(c.err); got != c.want {
			t.Errorf("%s: %v is restricted: %v, want %v", c.name, c.err, got, c.want)
		}
	}
}
