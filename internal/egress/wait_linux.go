package egress

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// waitReadable waits until a read would not block, without a buffer to read
// into. It looks at the first byte and leaves it there, because with an
// edge-triggered poller only a call that would block may wait.
func waitReadable(raw syscall.RawConn) error {
	if raw == nil {
		return nil
	}
	return raw.Read(func(fd uintptr) bool {
		var b [1]byte
		for {
			_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			// Any other error, and the end, is for the read that follows.
			return !errors.Is(err, unix.EAGAIN)
		}
	})
}
