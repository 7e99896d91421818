// Package entry makes a program a box's first process for an engine that can give
// it nothing but the name of a socket, or the socket itself. See package boxinit for what that process
// does.
package entry

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxinit"
)

// Marker is the argument that makes this program a box's first process. What
// follows it is the path of the control socket.
const Marker = "untrusted-steps-box-init"

// InheritedMarker is the one argument of a first process that has its sockets.
const InheritedMarker = "untrusted-steps-box-init-inherited"

// A program that links this package becomes a first process when it is started as
// one, and that here, not in main: see package boxinit.
func init() {
	switch {
	case isChild(os.Args):
		Main(os.Args)
	case isInherited(os.Args):
		boxinit.ServeInherited()
	}
}

func isInherited(args []string) bool { return len(args) == 2 && args[1] == InheritedMarker }

func isChild(args []string) bool { return len(args) == 3 && args[1] == Marker }

// Main connects to the control socket named in the arguments and serves the
// box. It does not return.
func Main(args []string) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: args[2]})
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "untrusted-steps: box init: connect to %s: %v\n", args[2], err)
		os.Exit(1)
	}
	boxinit.Serve(fd)
}
