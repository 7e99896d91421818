package box

import (
	"context"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/boxinit"
)

// script is an engine without boxes: a first process that says what it is told
// to, over a real control socket.
type script struct {
	t      *testing.T
	status uint32 // what is said of the step's end
	before func() // called before it is said
}

func (*script) Info() Info       { return Info{Name: "script"} }
func (*script) Check(Spec) error { return nil }

func (s *script) Start(context.Context, Spec, Placement) (*Built, error) {
	ours, theirs, err := boxinit.Pair()
	if err != nil {
		return nil, err
	}
	ended, killed := make(chan ProcessEnd, 1), make(chan struct{})
	go func() {
		defer close(ended)
		defer theirs.Close()
		fd := int(theirs.Fd())
		for _, answer := range []boxinit.Message{{Ready: &boxinit.Ready{}}, {Started: &boxinit.Started{Pid: 2}}} {
			_, fds, err := boxinit.Receive(fd)
			closeFDs(fds)
			if err == nil {
				err = boxinit.Send(fd, answer)
			}
			if err != nil {
				s.t.Error(err)
				return
			}
		}
		s.before()
		if err := boxinit.Send(fd, boxinit.Message{Exited: &boxinit.Exited{Status: s.status}}); err != nil {
			s.t.Error(err)
		}
		<-killed
		ended <- ProcessEnd{Signal: int(syscall.SIGKILL)}
	}()
	return &Built{
		Control: ours, InitPID: os.Getpid(), Ended: ended,
		Kill: sync.OnceFunc(func() { close(killed) }), Close: ours.Close,
	}, nil
}
