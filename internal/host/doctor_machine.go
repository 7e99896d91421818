package host

import (
	"context"
	"errors"
	"strings"
	"syscall"
)

// Machine is what the checks ask of a host. Each field is a question of its own,
// so that a test can answer for any kind of host. Here gives this one.
type Machine struct {
	UID int // effective
	// Root: the machine's own root, whose boxes run as another id. Root of a user
	// namespace is an ordinary user.
	Root   bool
	Getenv func(string) string
	// Account is the name of the account that UID is of; "" if it has none. The
	// environment may name another, or nobody, as services and cron do.
	Account func() string
	// Read gives a small file.
	Read func(path string) (string, error)
	// Exists says whether a path is there.
	Exists func(path string) bool
	// Dial says whether somebody answers on a UNIX socket.
	Dial func(socket string) error
	// Try does a thing in a process of its own.
	Try func(ctx context.Context, t Trial) Answer
	// Folder does in a folder what is done in folders of steps.
	Folder func(ctx context.Context, dir string) Folder
	// Limits makes a capped control group: where, and of which kind.
	Limits func(ctx context.Context) (kind string, where []string, err error)
	// Manager finds the folder of a user manager that answers, and says whether
	// the environment names it.
	Manager func() (dir string, named bool)
	// Adds says whether --host-setup auto would add all that a run lacks.
	Adds func(ctx context.Context) bool
	// Sudo has sudo run a program that does nothing, without a password.
	Sudo func(ctx context.Context) error
}

// Trial is a thing to do in a process of its own.
type Trial struct {
	What string
	Dir  string // for those that need a folder
}

// The trials.
const (
	tryMade    = "made"    // start in a user namespace; do nothing there
	tryInside  = "inside"  // in all namespaces of a box, do what building one takes
	tryOwnMap  = "own-map" // map one's ids oneself, from inside
	tryOverlay = "overlay" // mount a workspace, its layers in Dir, and write to it
	tryIDMap   = "id-map"  // show files of Dir under another id
	tryFilter  = "filter"  // install a filter that reports to a listener
	tryMemory  = "memory"  // start a program that lies in memory
	tryLimits  = "limits"  // make a capped control group
	tryWhole   = "whole"   // inside, from a program that was started for that
)

// Answer is what a trial came to.
type Answer struct {
	// Start is why the process could not be started as asked for; nothing was
	// done then.
	Start error `json:"-"`
	// Done is each thing that was tried, in order.
	Done []Op `json:"done,omitempty"`
	// Label is what AppArmor calls the process, or this one where that could not be
	// started; empty where it says nothing.
	Label string `json:"label,omitempty"`
}

// Op is one thing that was tried.
type Op struct {
	What  string        `json:"what"`
	Errno syscall.Errno `json:"errno,omitempty"`
	Words string        `json:"words,omitempty"` // where no error number says it; empty if it worked and Errno is 0
}

// failed says whether it did not work.
func (o Op) failed() bool { return o.Errno != 0 || o.Words != "" }

// why is what went wrong.
func (o Op) why() string {
	if o.Words != "" {
		return o.Words
	}
	return o.Errno.Error()
}

// worked says whether everything did. An answer without anything done is none.
func (a Answer) worked() bool {
	return a.Start == nil && len(a.Done) > 0 && a.first() == nil
}

// first is the first thing that failed.
func (a Answer) first() *Op {
	for i := range a.Done {
		if a.Done[i].failed() {
			return &a.Done[i]
		}
	}
	return nil
}

// denied says whether what failed was forbidden. The ids of a namespace are mapped
// by whoever starts a process in it, so that can be the start.
func (a Answer) denied() bool {
	if errors.Is(a.Start, syscall.EPERM) || errors.Is(a.Start, syscall.EACCES) {
		return true
	}
	op := a.first()
	return op != nil && (op.Errno == syscall.EPERM || op.Errno == syscall.EACCES)
}

// confined says whether AppArmor has a profile on the process.
func (a Answer) confined() bool { return a.Label != "" && a.Label != "unconfined" }

// why says what failed, in words.
func (a Answer) why() string {
	switch op := a.first(); {
	case a.Start != nil:
		return a.Start.Error()
	case op != nil:
		return op.What + ": " + op.why()
	case len(a.Done) == 0:
		return "nothing was tried"
	}
	return ""
}

// Folder is what was seen to work in a folder. A nil error is what worked.
type Folder struct {
	Type      string // of the file system
	Write     error  // make a folder and a file in it
	Rename    error  // put a file in another's place
	Attribute error  // set a user attribute
	Exec      error  // start a program that lies in it
	Way       error  // keep others from what root has in it
	NoExec    bool   // it is mounted so that nothing in it can be
	FreeBytes uint64
	FreeFiles uint64 // ^0 where the file system does not count them
}

// line reads a file of one line; empty if it cannot be read.
func (x *examination) line(path string) string {
	text, err := x.m.Read(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(text)
}

// field finds the value of a line "name:	value" of a file.
func (x *examination) field(path, name string) string {
	text, err := x.m.Read(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
