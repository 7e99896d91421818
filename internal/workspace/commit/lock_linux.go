package commit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

const (
	lockName = "lock"
	// lockWait is how long another run may hold the store before we give up:
	// longer than any commit whose contents lie on the workspace's own disk.
	lockWait = 5 * time.Minute
	// lockPoll is how often it is asked whether it still does. There is no call
	// that waits for a lock and for a context.
	lockPoll = 5 * time.Millisecond
)

// errStale: the store was taken away between being opened and being locked.
var errStale = errors.New("the folder of transactions was removed meanwhile")

// hold locks a store against every other run. The kernel lets go of the lock
// when its holder dies, so nobody has to judge whether one is stale.
func (p *place) hold(ctx context.Context) error {
	if p.lock < 0 {
		fd, err := openAt(p.fd, lockName, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0o600)
		if err != nil {
			return fmt.Errorf("open the lock of %q: %w", p.path, err)
		}
		p.lock = fd
	}
	for end := time.Now().Add(lockWait); ; {
		err := again(func() error { return unix.Flock(p.lock, unix.LOCK_EX|unix.LOCK_NB) })
		if err == nil {
			break
		}
		if err != unix.EWOULDBLOCK {
			return fmt.Errorf("lock %q: %w", p.path, err)
		}
		if time.Now().After(end) {
			return fmt.Errorf("lock %q: another run of this workspace has been committing for %v; end it and start again", p.path, lockWait)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("lock %q: %w", p.path, ctx.Err())
		case <-time.After(lockPoll):
		}
	}
	// The last run to leave takes the lock file and the store away, and one
	// who waited then holds a lock that nobody else will ever see.
	st, err := statFD(p.lock)
	if err == nil && st.Nlink == 0 {
		err = errStale
	}
	if err != nil {
		p.release()
		return err
	}
	return nil
}

func (p *place) release() { _ = unix.Flock(p.lock, unix.LOCK_UN) }

// alive says whether the run of an open folder still has its lock. If it has
// not, the answer holds the lock, so that nobody else takes the run for dead at
// the same time; it ends when fd is closed.
func alive(run int) (fd int, living bool, err error) {
	fd, err = openAt(run, lockName, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err == unix.ENOENT {
		// Runs are made with the store held. It died before it had a lock.
		return -1, false, nil
	}
	if err != nil {
		return -1, false, err
	}
	err = again(func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	if err == nil {
		return fd, false, nil
	}
	unix.Close(fd)
	if err == unix.EWOULDBLOCK {
		return -1, true, nil
	}
	return -1, false, err
}
