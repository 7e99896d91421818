package box

import (
	"context"
	"os"

	"github.com/untrusted-steps/untrusted-steps/internal/boxinit"
)

// Info describes an engine for the report.
type Info struct {
	Name string // "native", "kern" or "gvisor"
	// Kernel is whose kernel the code in a box talks to.
	Kernel  Kernel
	Version string
	Digest  string // SHA-256 of a separate binary, hex; empty if there is none
	Note    string // said once per run: why this one, what was accepted
	// Unobserved names the fault types, each with what exactly, that this
	// engine gives nobody a way to see.
	Unobserved []string
}

// Kernel is whose kernel answers the system calls of a box. The zero value is the
// host's, which is the weaker boundary.
type Kernel int

const (
	// HostKernel: a bug in the host's kernel that the calls of a box can reach is
	// a way out of it.
	HostKernel Kernel = iota
	// OwnKernel: a program stands between, which implements the calls itself and
	// may make few of the host's.
	OwnKernel
)

// String is the word of plan, summary and report.
func (k Kernel) String() string {
	if k == OwnKernel {
		return "own"
	}
	return "host"
}

// Placement puts a box's first process into its control group, before it does
// anything. The zero value caps nothing.
type Placement interface {
	// CgroupFD is a cgroup v2 folder to be born in, or -1.
	CgroupFD() int
	// Born runs start, which starts one process, in such a way that it is born
	// in the group, where that can be done from outside it; start itself sees
	// to CgroupFD.
	Born(start func() error) error
	// Join moves a waiting process into the group, unless it was born there,
	// and reads it back. It does nothing where CgroupFD is not -1.
	Join(pid int) error
	// Spare raises the cap on processes by so many, for a box whose kernel is not
	// the host's and holds the step to the cap by itself.
	Spare(n int64) error
	// By is "cgroup2", "cgroup1" or "" where nothing is capped.
	By() string
}

// Engine builds boxes. It judges nothing.
type Engine interface {
	// Info describes the engine.
	Info() Info
	// Check says whether the engine can express the spec; the error names the
	// key it cannot. Nothing is started.
	Check(Spec) error
	// Start builds a box around the first process, which then waits on
	// Built.Control and has run nothing of the step. A StartupError is the
	// step's doing; any other error means no verdict.
	Start(context.Context, Spec, Placement) (*Built, error)
}

// Built is a box that is ready and waits.
type Built struct {
	// Control is our end of the stream the box's first process talks on. The
	// first process ends, and with it the box, when it closes.
	Control *os.File
	// InitPID is the first process as we see it, for looking it up; 0 means it
	// is read from Control's peer credentials.
	InitPID int
	// Filter is the system call filter the first process puts on the step, in
	// the kernel's encoding; nil where the engine filters by itself.
	Filter []byte
	// Guard is put on the step as well where the engine filters by itself: it
	// keeps the step from limiting the first process, which the engine's own
	// filter knows nothing of. It reports nothing.
	Guard []byte
	// Keep lists the capabilities, by number, that the step keeps over its own
	// user namespace.
	Keep []int
	// AppArmor is the profile that the first process has the step enter; empty where
	// there is none, or the engine sees to it.
	AppArmor string
	// Plain says that Guard is a whole filter, which answers a forbidden call with
	// an error and ends nobody: nothing is seen of such a call.
	Plain bool
	// Way is our end of a socket on which the first process asks for a connection
	// for each one that the box makes, where sockets cannot be handed out; nil
	// where they can.
	Way *os.File
	// Apart is for a box with a kernel of its own; nil else.
	Apart *boxinit.Apart
	// CgroupNS: the first process can make a control group namespace.
	CgroupNS bool
	// Ended reports how the process that we started died, once it did.
	Ended <-chan ProcessEnd
	// Kill ends the process we started; the box dies with it.
	Kill func()
	// Close frees all that was made for the box, once it is dead. It is safe
	// to call twice.
	Close func() error
	// Note is something to say about this box, such as stray words of the
	// engine. Untrusted text.
	Note func() string
}

// ProcessEnd is how a process we started ended.
type ProcessEnd struct {
	Signal int // 0 if it ended by itself
	Code   int
	Err    error
}

// StartupError is a box that cannot be built from what the step names: a
// missing image, workdir or mount source.
type StartupError struct{ Why string }

func (e *StartupError) Error() string { return e.Why }
