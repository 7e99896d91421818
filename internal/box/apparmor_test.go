package box

import (
	"errors"
	"io/fs"
	"strings"
	"syscall"
	"testing"
)

// Only what the kernel says of the profile itself refuses it beforehand.
func TestProfileThatIsNotLoaded(t *testing.T) {
	for _, c := range []struct {
		name string
		says error
		want string // in the refusal; empty: none
	}{
		{"it is loaded", nil, ""},
		{"it is not", syscall.ENOENT, "no profile x-y is loaded on this host; load it"},
		{"in the words of a file", &fs.PathError{Op: "write", Path: "current", Err: syscall.ENOENT}, "no profile x-y is loaded"},
		{"it may not be entered from here, which the start of the step says", syscall.EACCES, ""},
		{"an older kernel does not know the question", syscall.EINVAL, ""},
	} {
		asked := ""
		err := loaded("x-y", func(name string) error { asked = name; return c.says })
		if asked != "x-y" || (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: asked for %q, got %v, want %q", c.name, asked, err, c.want)
		}
	}
}

// A kernel that cannot be asked is no kernel without the profile.
func TestAskKernel(t *testing.T) {
	err := askKernel("untrusted-steps-no-such-profile")
	if on := AppArmor() == nil; errors.Is(err, syscall.ENOENT) != on {
		t.Errorf("AppArmor is on: %v, and asked for a profile that nobody loads: %v", on, err)
	}
	if err == nil {
		t.Error("a profile that nobody loads can be entered")
	}
}
