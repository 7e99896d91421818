// Package memfd seals programs that are copied to memory, so that nobody changes what
// is going to run.
package memfd

import (
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long a seal is tried for: whoever pins a page does so for moments.
const patience = 5 * time.Second

// Seal makes a file that was made with MFD_ALLOW_SEALING one that cannot change: not
// its content, not its length, and not that. The kernel answers EBUSY for as long as
// something holds a page of it: that which copied it, or its own housekeeping.
func Seal(fd uintptr) error {
	return tried(patience, func() error {
		_, err := unix.FcntlInt(fd, unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
		return err
	})
}

func tried(patience time.Duration, seal func() error) error {
	for until, wait := time.Now().Add(patience), time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		err := seal()
		if err != unix.EBUSY && err != unix.EINTR || time.Now().After(until) {
			return err
		}
		time.Sleep(wait)
	}
}
