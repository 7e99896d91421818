package limits

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lookWithout is how often the counter is read where the kernel does not
	// tell, or peaks have to be sampled.
	lookWithout = 20 * time.Millisecond
	// lookWith is how often it is read all the same.
	lookWith = 250 * time.Millisecond
	// lookSoon and soonRounds: cgroup1 tells before it kills and counts.
	lookSoon   = time.Millisecond
	soonRounds = 200
)

// OOM gives a channel that is closed once the OOM killer has acted in the
// group. It never is if ctx ends or the group is removed first: the last word
// is Stats. The caller ends the box then; on cgroup1 the kernel kills one
// process and lets the others go on.
func (g *Group) OOM(ctx context.Context) <-chan struct{} {
	acted := make(chan struct{})
	if g.m == nil {
		return acted
	}
	go g.watch(ctx, acted)
	return acted
}

func (g *Group) watch(ctx context.Context, acted chan<- struct{}) {
	every := lookWithout
	var told chan struct{}
	// Without a notification, for whatever reason, the counter is read more often.
	if f, err := g.notifier(); err == nil {
		told = make(chan struct{}, 1)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for b := make([]byte, 4096); ; {
				if _, err := f.Read(b); err != nil {
					return
				}
				select {
				case told <- struct{}{}:
				default:
				}
			}
		}()
		defer func() {
			_ = f.Close() // ends the read
			<-done
		}()
		if !g.m.noPeak {
			every = lookWith
		}
	}
	soon := 0
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-told:
			if !g.m.v2 {
				soon = soonRounds
			}
		case <-timer.C:
		}
		n, err := g.oomKills()
		if err != nil {
			return
		}
		if n > 0 {
			close(acted)
			return
		}
		g.Sample()
		if soon > 0 {
			soon--
			timer.Reset(lookSoon)
		} else {
			timer.Reset(every)
		}
	}
}

// notifier is a descriptor that becomes readable when something happened to
// the group's memory.
func (g *Group) notifier() (*os.File, error) {
	if _, real := g.m.k.(hostKernel); !real {
		return nil, os.ErrInvalid
	}
	if g.m.v2 {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		if err != nil {
			return nil, err
		}
		if _, err := unix.InotifyAddWatch(fd, g.file("memory", "memory.events"), unix.IN_MODIFY); err != nil {
			_ = unix.Close(fd)
			return nil, err
		}
		return os.NewFile(uintptr(fd), "inotify"), nil
	}
	control, err := os.Open(g.file("memory", "memory.oom_control"))
	if err != nil {
		return nil, err
	}
	defer control.Close() // needed only until it is registered
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	if err := g.m.k.write(g.file("memory", "cgroup.event_control"), fmt.Sprintf("%d %d", fd, control.Fd())); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "eventfd"), nil
}
