package box

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/idmap"
)

// pump copies one stream of the step to its writer, and goes on reading what
// is over the bound so that the step is not stopped by it.
type pump struct {
	name string
	read *os.File
	into func() *Stream
	done chan struct{}
	// turns are asked for by whoever wants what comes from now on elsewhere.
	turns chan turn

	mu sync.Mutex // of a write to the sink, and of which one it is
	to sink
	// n are the bytes that came since the last turn, of which max are kept. Who
	// gives up on a write that does not end still reads them.
	n, max atomic.Int64
}

// sink is where a stream goes, and how much of it.
type sink struct {
	w       io.Writer
	max     int64 // more is truncated
	through int64 // and so much is handed on all the same
}

// turn is another sink for a stream, and is answered when all that was written
// before has gone to the old one.
type turn struct {
	to   sink
	done chan Stream
}

// pump makes the pipe of one stream and returns the end for the box.
func (r *runner) pump(name string, w io.Writer, into func() *Stream) (*os.File, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	if idmap.Needed() {
		// The box may open /dev/stdout again, which asks for the pipe's owner.
		if err := write.Chown(idmap.Box.UID, idmap.Box.GID); err != nil {
			read.Close()
			write.Close()
			return nil, err
		}
	}
	if r.built.Apart != nil {
		// Its kernel judges by its own ids, none of which owns what is outside.
		if err := write.Chmod(0o666); err != nil {
			read.Close()
			write.Close()
			return nil, err
		}
	}
	p := &pump{name: name, read: read, into: into, done: make(chan struct{}), turns: make(chan turn, 1),
		to: sink{w: w, through: r.job.MaxOutput + r.job.Slack}}
	p.max.Store(r.job.MaxOutput)
	go p.copy()
	r.pumps = append(r.pumps, p)
	return write, nil
}

func (p *pump) copy() {
	defer close(p.done)
	buf := make([]byte, 64<<10)
	for {
		n, err := p.read.Read(buf)
		p.take(buf[:n])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			_ = p.read.SetReadDeadline(time.Time{})
			t := <-p.turns
			if err = p.rest(buf); err == nil {
				t.done <- p.switchTo(t.to)
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *pump) take(b []byte) {
	if len(b) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// A write that fails is the writer's to remember and tell.
	if keep := min(int64(len(b)), max(0, p.to.through-p.n.Load())); keep > 0 {
		_, _ = p.to.w.Write(b[:keep])
	}
	p.n.Add(int64(len(b)))
}

// rest takes what is in the pipe at this moment, and nothing that comes later: a
// process that writes without end must not keep us.
func (p *pump) rest(buf []byte) error {
	conn, err := p.read.SyscallConn()
	if err != nil {
		return err
	}
	waiting := 0
	if cerr := conn.Control(func(fd uintptr) { waiting, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }); cerr != nil || err != nil {
		return errors.Join(cerr, err)
	}
	for waiting > 0 {
		n, err := p.read.Read(buf[:min(waiting, len(buf))])
		p.take(buf[:n])
		if waiting -= n; err != nil {
			return err
		}
	}
	return nil
}

// switchTo changes the sink and says what became of what went to the old one.
func (p *pump) switchTo(to sink) Stream {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.sofar()
	p.to = to
	p.n.Store(0)
	p.max.Store(to.max)
	return was
}

func (p *pump) sofar() Stream {
	n := p.n.Load()
	return Stream{Bytes: n, Truncated: n > p.max.Load()}
}

// turn makes the stream go elsewhere from now on, and gives what went to where it
// went so far. ok is false where the stream has ended or nobody takes it.
func (p *pump) turn(ctx context.Context, to sink) (was Stream, ok bool) {
	t := turn{to, make(chan Stream, 1)}
	// A box may close its end while it lives, and nobody takes a turn from then on:
	// there is room for one that is left behind, and for no other.
	select {
	case <-p.done:
		return p.switchTo(to), true
	default:
	}
	select {
	case p.turns <- t:
	case <-p.done:
		return p.switchTo(to), true
	case <-ctx.Done():
		return was, false
	}
	_ = p.read.SetReadDeadline(time.Now())
	select {
	case was = <-t.done:
		return was, true
	case <-p.done:
		select {
		case was = <-t.done: // it took the turn, and the stream ended right then
			return was, true
		default:
			return p.switchTo(to), true
		}
	case <-ctx.Done():
		return was, false
	}
}

// finish waits for the end of a stream and says whether it was reached. Every
// writer is dead by now, so what holds a pump is whoever reads our own output.
// It is left behind then: a verdict does not wait for a reader.
func (p *pump) finish(ctx context.Context) bool {
	whole := true
	select {
	case <-p.done:
	case <-ctx.Done():
		whole = false
	}
	p.read.Close()
	*p.into() = p.sofar()
	return whole
}
