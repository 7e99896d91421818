package boxinit

import (
	"errors"

	"golang.org/x/sys/unix"
)

// boundFiles bounds every file that the step makes; 0: no bound. The step
// inherits it at its birth and cannot raise it: the hard limit goes down with
// the soft one, and CAP_SYS_RESOURCE over the box's own user namespace does not
// raise a hard limit. There is no moment between the step's fork and its first
// instruction at which we could set it for the step alone, so the first process
// carries it too: it writes to sockets only, which have no size. It is set when
// nothing is left to do but to start the step, so nothing of ours meets it.
func boundFiles(bytes int64) error {
	switch {
	case bytes == 0:
		return nil
	case bytes < 0:
		return errors.New("less than no bytes")
	}
	n := uint64(bytes)
	// A bound that we have from outside and that is lower stays: it cannot be
	// raised, and asking for more would fail.
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		return err
	}
	n = min(n, old.Max)
	return unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: n, Max: n})
}
