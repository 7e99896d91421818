package gha

import (
	"errors"
	"io"
	"sync"
	"time"
)

const (
	// lastPatience is how long, from Abandon on, a reader has to take what was
	// already on its way to it.
	lastPatience = time.Second
	// abandonedWrite is how long one write may take after that. A reader that is
	// there takes microseconds.
	abandonedWrite = 50 * time.Millisecond
)

// ErrNotRead is the error of a write that was left out, since nobody reads.
var ErrNotRead = errors.New("nobody reads it")

// Outlet writes to somebody who may stop reading without going away, such as a
// pipe into a program that hangs. Until Abandon a write waits for its reader, so
// that a log is whole and a step cannot run ahead of it. After it no write holds
// anything up: a run that was told to stop stops, whoever reads.
type Outlet struct {
	w         io.Writer
	abandoned chan struct{} // closed when the patience is over
	once      sync.Once

	mu    sync.Mutex
	stuck <-chan error // the end of a write that was not waited for
}

// NewOutlet writes to w.
func NewOutlet(w io.Writer) *Outlet { return &Outlet{w: w, abandoned: make(chan struct{})} }

// Abandon says that from now on nobody is waited for. It does not wait itself.
func (o *Outlet) Abandon() {
	o.once.Do(func() { time.AfterFunc(lastPatience, func() { close(o.abandoned) }) })
}

// Write writes p, or leaves it out with ErrNotRead while an earlier write still
// has no reader.
func (o *Outlet) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stuck != nil {
		select {
		case <-o.stuck:
			o.stuck = nil
		default:
			return 0, ErrNotRead
		}
	}
	ended := make(chan error, 1)
	p = append([]byte(nil), p...) // the write may outlive this call
	go func() {
		_, err := o.w.Write(p)
		ended <- err
	}()
	select {
	case err := <-ended:
		return written(p, err)
	case <-o.abandoned:
	}
	t := time.NewTimer(abandonedWrite)
	defer t.Stop()
	select {
	case err := <-ended:
		return written(p, err)
	case <-t.C:
		// On its way: if a reader comes back, it gets this first.
		o.stuck = ended
		return len(p), nil
	}
}

func written(p []byte, err error) (int, error) {
	if err != nil {
		return 0, err
	}
	return len(p), nil
}
