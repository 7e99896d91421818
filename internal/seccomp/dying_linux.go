package seccomp

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// A process that SIGSYS should kill gets this long, for a handler may have
	// been set in the meantime, or the signal blocked, or the process stopped.
	killAfter = 50 * time.Millisecond
	// This many are given that time at once. One more dies of SIGKILL at once.
	maxDying = 64
)

// deathbed has the processes that were sent SIGSYS and kills those that live
// on. It has no goroutine while nobody is dying.
type deathbed struct {
	strike func(pidfd int, signal unix.Signal)

	mu    sync.Mutex
	list  []dying // the oldest first
	timer *time.Timer
	ended bool
}

type dying struct {
	pidfd int
	until time.Time
}

// take sends SIGSYS and keeps the pidfd. It answers false, and has done
// nothing, if there is no room.
func (d *deathbed) take(pidfd int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.list) >= maxDying {
		d.bury()
	}
	if d.ended || len(d.list) >= maxDying {
		return false
	}
	d.strike(pidfd, unix.SIGSYS)
	d.list = append(d.list, dying{pidfd, time.Now().Add(killAfter)})
	switch {
	case d.timer == nil:
		d.timer = time.AfterFunc(killAfter, d.ring)
	case len(d.list) == 1:
		d.timer.Reset(killAfter)
	}
	return true
}

// ring kills those whose time is up.
func (d *deathbed) ring() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.bury()
	for len(d.list) > 0 && !time.Now().Before(d.list[0].until) {
		d.kill(d.list[0])
		d.list = d.list[1:]
	}
	if len(d.list) > 0 {
		d.timer.Reset(time.Until(d.list[0].until))
	}
}

// bury forgets the dead.
func (d *deathbed) bury() {
	if len(d.list) == 0 {
		return
	}
	fds := make([]unix.PollFd, len(d.list))
	for i, v := range d.list {
		fds[i] = unix.PollFd{Fd: int32(v.pidfd), Events: unix.POLLIN}
	}
	if n, err := unix.Poll(fds, 0); err != nil || n == 0 {
		return // they are killed when their time is up, which is no harm to the dead
	}
	alive := make([]dying, 0, len(d.list))
	for i, v := range d.list {
		if fds[i].Revents == 0 {
			alive = append(alive, v)
			continue
		}
		unix.Close(v.pidfd)
	}
	d.list = alive
}

func (d *deathbed) kill(v dying) {
	d.strike(v.pidfd, unix.SIGKILL)
	unix.Close(v.pidfd)
}

// end kills whoever is left.
func (d *deathbed) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	if d.timer != nil {
		d.timer.Stop()
	}
	for _, v := range d.list {
		d.kill(v)
	}
	d.list = nil
}
