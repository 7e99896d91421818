package seccomp

import "fmt"

// A 64-bit arm program cannot make a 32-bit call.
func otherEscape(name string) error { return fmt.Errorf("no escape %q", name) }

var otherEscapes []struct{ name, reported string }
