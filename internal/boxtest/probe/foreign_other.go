//go:build !amd64

package probe

import "fmt"

// Foreign names calls in other conventions than this architecture's own: a
// 64-bit program has no way to make any here.
func Foreign() []string { return nil }

func foreign(name string) error { return fmt.Errorf("no escape %q", name) }
