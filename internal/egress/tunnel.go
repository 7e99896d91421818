package egress

import (
	"context"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// tunnelResult is what went through a tunnel.
type tunnelResult struct {
	in, out uint64 // from the server, to the server
	// noAnswer: the server ended it without a byte, before the client did.
	noAnswer bool
	spent    bool // cut, because the step has moved all it may
}

// outcome is what an attempt came to, out before it had a tunnel.
func (t tunnelResult) outcome(out outcome) outcome {
	switch {
	case t.spent:
		return outcome{Denied, ReasonMaxBytes, out.rule}
	case t.noAnswer:
		return outcome{Failed, ReasonUpstream, out.rule}
	}
	return out
}

// tunnel carries bytes both ways, beginning with first to the server, until
// both sides have finished, one breaks, nothing moves for the idle time, the
// step has moved all it may or ctx ends. It does not close the connections at a
// clean end. seen is shown how each side begins; it may be nil.
func (p *Proxy) tunnel(ctx context.Context, client, up net.Conn, first []byte, seen *sniffer) tunnelResult {
	idle := or(p.IdleTimeout, idleTimeout)
	var last atomic.Int64 // when a byte moved
	last.Store(p.Now().UnixNano())
	var clientEnded, noAnswer, spent atomic.Bool
	stop := p.whenSpent(func() {
		spent.Store(true)
		client.Close()
		up.Close()
	})

	n := 0
	if len(first) > 0 {
		if seen != nil {
			seen.see(fromClient, first)
		}
		up.SetWriteDeadline(p.Now().Add(idle))
		var err error
		n, err = up.Write(first)
		if e := p.spend(n); e != nil || err != nil {
			stop()
			return tunnelResult{out: uint64(n), noAnswer: e == nil && ctx.Err() == nil, spent: e != nil}
		}
	}

	inward := &flow{p: p, dst: client, src: up, idle: idle, last: &last, seen: seen, side: fromServer}
	outward := &flow{p: p, dst: up, src: client, idle: idle, last: &last, seen: seen, side: fromClient}
	done := make(chan struct{})
	go func() {
		defer close(done)
		end := inward.carry()
		if inward.moved == 0 && end != endWrite && end != endIdle && end != endSpent && !clientEnded.Load() && ctx.Err() == nil {
			noAnswer.Store(true)
		}
		finish(end, client, up)
	}()
	end := outward.carry()
	clientEnded.Store(true)
	finish(end, up, client)
	<-done
	if !stop() {
		// The step's bytes ran out while this was open. It counts as cut also if
		// it was about to end: who could tell.
		spent.Store(true)
	}
	return tunnelResult{in: inward.moved, out: outward.moved + uint64(n), noAnswer: noAnswer.Load() && !spent.Load(), spent: spent.Load()}
}

// finish passes a clean end on as one, and lets anything else end both
// directions.
func finish(e end, dst, src net.Conn) {
	if e == endClean {
		closeWrite(dst)
		return
	}
	dst.Close()
	src.Close()
}

// end is how one direction came to its end.
type end int

const (
	endBroken end = iota // reading broke
	endClean             // the sender has finished
	endWrite             // the receiver took no more
	endIdle
	endSpent
)

// flow is one direction of a tunnel.
type flow struct {
	p        *Proxy
	dst, src net.Conn
	idle     time.Duration
	last     *atomic.Int64 // when a byte moved, in either direction
	moved    uint64

	seen *sniffer // nil once it has seen enough
	side int
	fast bool // the last burst was long: the next one will be
}

// carry copies one direction. While nothing comes it holds no buffer and no
// pipe: a thousand silent tunnels cost a thousand pairs of sockets and little
// else.
func (f *flow) carry() end {
	raw := rawConn(f.src)
	for {
		f.src.SetReadDeadline(time.Unix(0, f.last.Load()).Add(f.idle))
		err := waitReadable(raw)
		if err == nil {
			err = f.burst()
		}
		switch {
		case err == nil:
		case err == errReceiver:
			return endWrite
		case err == errSpent:
			return endSpent
		case isEnd(err):
			return endClean
		case isTimeout(err):
			if f.p.Now().UnixNano()-f.last.Load() >= int64(f.idle) {
				return endIdle
			}
			// The other direction was busy; one-way traffic is no idle tunnel.
		default:
			return endBroken
		}
	}
}

// burst copies what is there: short ones through a buffer, long ones inside the
// kernel.
func (f *flow) burst() error {
	if f.fast && f.seen == nil {
		before := f.moved
		done, err := f.splice()
		f.fast = f.moved-before >= copyBuffer
		if done {
			return err
		}
	}
	buf := f.p.buffer()
	defer f.p.bufs.Put(buf)
	for {
		n, err := f.src.Read(*buf)
		if n > 0 {
			if f.seen != nil && !f.seen.see(f.side, (*buf)[:n]) {
				f.seen = nil
			}
			now := f.p.Now()
			f.last.Store(now.UnixNano())
			f.dst.SetWriteDeadline(now.Add(f.idle))
			w, werr := f.dst.Write((*buf)[:n])
			if err := f.count(w); err != nil {
				return err
			}
			if werr != nil {
				return errReceiver
			}
		}
		if err != nil || n < len(*buf) {
			return err
		}
		if f.seen == nil {
			f.fast = true
			return nil // there is more, and it goes the fast way
		}
	}
}

// count counts bytes that have moved.
func (f *flow) count(n int) error {
	f.moved += uint64(n)
	return f.p.spend(n)
}

func (p *Proxy) buffer() *[]byte {
	if b, ok := p.bufs.Get().(*[]byte); ok {
		return b
	}
	b := make([]byte, copyBuffer)
	return &b
}

type receiverError struct{}

func (receiverError) Error() string { return "the receiver takes no more" }

var errReceiver error = receiverError{}

// rawConn gives access to the descriptor of a connection that has one.
func rawConn(nc net.Conn) syscall.RawConn {
	if sc, ok := nc.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			return raw
		}
	}
	return nil
}
