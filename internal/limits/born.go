package limits

import (
	"errors"
	"path"
	"runtime"
)

// Born runs start, which starts one process, so that the process is born in the
// group. On cgroup2 start itself sees to that, with CgroupFD.
//
// On cgroup1 a process can be moved from outside, but then the kernel waits
// until no thread anywhere can be starting another: 6 to 16 ms here for the
// first of the moves. A thread that moves itself, alone, waits for nobody (less
// than 0.1 ms for all of them), and what it starts is born where it is. So one
// thread goes into the group, starts the process, and comes back. Where it may
// not, the process is started outside, and Join moves it.
func (g *Group) Born(start func() error) error {
	if g.m == nil || g.m.v2 {
		return start()
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		entered := g.enter()
		err := start()
		// A thread that cannot come back ends with this goroutine, which keeps
		// it locked: the group must hold nothing of ours.
		if back := g.leave(entered); back == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// self0 is the calling thread, for a file of tasks.
const self0 = "0"

// enter moves the calling thread into the group and says where to. It goes
// everywhere or nowhere.
func (g *Group) enter() (entered []spot) {
	for _, at := range g.spots {
		if err := g.m.k.write(path.Join(at.dir, "tasks"), self0); err != nil {
			_ = g.leave(entered)
			return nil
		}
		entered = append(entered, at)
	}
	return entered
}

// leave moves the calling thread to where the group was made, which is our own.
func (g *Group) leave(entered []spot) error {
	var errs []error
	for _, at := range entered {
		errs = append(errs, g.m.k.write(path.Join(path.Dir(at.dir), "tasks"), self0))
	}
	return errors.Join(errs...)
}
