package main

import (
	"fmt"

	"github.com/untrusted-steps/untrusted-steps/internal/seccomp"
)

// seccomp prints what a container's filter has to be for boxes to be made in it.
func (a *app) seccomp(args []string) int {
	if _, code, ok := a.parse("seccomp", args); !ok {
		return code
	}
	text, err := seccomp.Container()
	if err != nil {
		fmt.Fprintf(a.stderr, "untrusted-steps: %v\n", err)
		return exitNoVerdict
	}
	return a.answer(text)
}
