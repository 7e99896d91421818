// Package lazy makes package-level values when they are first used. This
// program is also the first process of every box, where few are: what is made
// at start-up is paid for by every step.
//
//	var shape = lazy.Regexp(`^[a-z]+$`)
//	...
//	shape().MatchString(s)
package lazy

import (
	"regexp"
	"sync"
)

// Regexp compiles a constant pattern at its first use. A pattern that does not
// compile panics there, so every one needs a test that uses it.
func Regexp(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}
