package box

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// SignalName gives a signal's usual name, such as SIGKILL.
func SignalName(s syscall.Signal) string {
	if n := unix.SignalName(s); n != "" {
		return n
	}
	return fmt.Sprintf("signal %d", int(s))
}
