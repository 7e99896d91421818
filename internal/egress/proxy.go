package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Proxy is the way out of one step's box. Fields are set before Serve and not
// changed after. Policy's zero value lets nothing through; the functions have to
// be there.
type Proxy struct {
	Policy Policy
	Ledger *Ledger

	// Resolve looks up a canonical name, once per request.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// Dial connects to an address that was judged; addr is never a name.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// HostAddrs lists this machine's own addresses, refused even where they
	// are public.
	HostAddrs func() ([]netip.Addr, error)
	Now       func() time.Time

	// Bounds; 0 is the built-in one, there is no way to have none.
	HeadTimeout    time.Duration // for a request head
	HelloTimeout   time.Duration // for a ClientHello
	ResolveTimeout time.Duration
	DialTimeout    time.Duration // for all addresses of a name
	IdleTimeout    time.Duration // for a tunnel or body without a byte
	MaxConns       int
	// MaxBytes is how much the step may move, both directions of all its
	// connections together. Past it they are cut, and new ones refused.
	MaxBytes int64

	budget  budget
	pipes   pipes
	active  atomic.Int64
	pending pending
	bufs    sync.Pool

	mu        sync.Mutex
	draining  bool
	serving   map[*serving]bool
	own       []netip.Addr // as listed at ownListed
	ownListed time.Time
}

// NewProxy gives a proxy that uses this machine's resolver and network.
func NewProxy(policy Policy, ledger *Ledger) *Proxy {
	return &Proxy{
		Policy: policy, Ledger: ledger,
		Resolve: SystemResolve, Dial: SystemDial, HostAddrs: SystemHostAddrs, Now: time.Now,
	}
}

// serving is one listener being served.
type serving struct {
	drain chan struct{} // closed by Drain: empty the accept queue, then stop
	swept chan struct{} // closed once the queue is empty or the listener gone
}

// Serve accepts and serves connections until ctx ends, and then returns nil with
// all of them closed and recorded. It closes the listener. An error means the
// box has lost its way out before its time; connections are closed then too, so
// that a box without a judge is a box without a network.
func (p *Proxy) Serve(ctx context.Context, ln net.Listener) error {
	return p.serve(ctx, ln, service{each: (*conn).serve, turnAway: (*conn).overload, protocol: ProtocolHTTP})
}

// service is what a listener is for.
type service struct {
	each     func(*conn, context.Context)
	turnAway func(*conn) // tells a client that there are too many
	protocol string      // of what is turned away
}

func (p *Proxy) serve(ctx context.Context, ln net.Listener, what service) error {
	defer ln.Close()
	if p.Ledger == nil || p.Resolve == nil || p.Dial == nil || p.HostAddrs == nil || p.Now == nil {
		return errors.New("egress: bug: proxy lacks a ledger or a function")
	}
	s := p.enter()
	defer p.leave(s)
	defer p.Ledger.Flush() // its error stays for Ledger.Err
	inner, cancel := context.WithCancelCause(ctx)
	var conns sync.WaitGroup
	defer conns.Wait()
	defer cancel(nil)
	closed := make(chan struct{})
	stop := context.AfterFunc(inner, func() {
		ln.Close()
		close(closed)
	})
	defer func() {
		if !stop() {
			<-closed // who comes after Serve must not find it half closed
		}
	}()

	err := p.acceptAll(inner, ln, s, func(nc net.Conn) {
		p.admit(inner, cancel, &conns, nc, what)
	})
	close(s.swept)
	if err == nil {
		<-inner.Done() // the queue is empty and nobody is left to ask: tunnels go on
	}
	switch cause := context.Cause(inner); {
	case ctx.Err() != nil:
		return nil
	case cause != nil:
		return cause
	}
	return fmt.Errorf("egress: accept in the box: %w", err)
}

// acceptAll hands connections on until the listener breaks or, after Drain, its
// queue is empty.
func (p *Proxy) acceptAll(ctx context.Context, ln net.Listener, s *serving, handle func(net.Conn)) error {
	timed, canTime := ln.(interface{ SetDeadline(time.Time) error })
	woken := make(chan struct{})
	go func() {
		defer close(woken)
		select {
		case <-s.drain:
			if canTime {
				timed.SetDeadline(p.Now())
			} else {
				ln.Close()
			}
		case <-ctx.Done():
		case <-s.swept:
		}
	}()
	for {
		drained := isClosed(s.drain)
		if drained {
			<-woken // its deadline must not cut ours short
			if canTime {
				timed.SetDeadline(p.Now().Add(sweepTime))
			}
		}
		nc, err := ln.Accept()
		if err == nil {
			handle(nc)
			continue
		}
		timeout := false
		if ne, ok := errors.AsType[net.Error](err); ok {
			timeout = ne.Timeout()
		}
		switch {
		case drained && (timeout || !canTime):
			return nil
		case timeout && isClosed(s.drain):
			// Drain woke us; the queue is emptied next.
		case outOfRoom(err):
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
			}
		default:
			return err
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// outOfRoom is what passes by itself: a client that left while it was in the
// queue, or no descriptors or memory at the moment.
func outOfRoom(err error) bool {
	for _, e := range []error{syscall.ECONNABORTED, syscall.EINTR, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// admit starts a connection, or turns it away where the step has too many.
func (p *Proxy) admit(ctx context.Context, broken context.CancelCauseFunc, conns *sync.WaitGroup, nc net.Conn, what service) {
	c := newConn(p, nc)
	if p.active.Add(1) > int64(or(p.MaxConns, maxConns)) {
		p.active.Add(-1)
		c.began()
		c.record(reached{outcome: outcome{verdict: Failed, reason: ReasonOverload}}, "", 0, what.protocol)
		what.turnAway(c)
		nc.Close()
		return
	}
	c.undecided(true)
	conns.Go(func() {
		defer p.active.Add(-1)
		defer c.undecided(false)
		defer nc.Close()
		stop := context.AfterFunc(ctx, func() { nc.Close() })
		defer stop()
		defer func() {
			// A request that makes us panic ends this step's network, not the
			// run of all the others.
			if r := recover(); r != nil {
				broken(fmt.Errorf("egress: bug while serving a request: %v", r))
			}
		}()
		what.each(c, ctx)
	})
}

// Drain waits until every request that the box sent is judged and recorded, also
// those that lie unread in an accept queue. It is called once nothing of the box
// is alive, and before the context of Serve ends; Serve then takes no more
// connections. An error means that ctx ended first: what is still unjudged then
// had to wait for a name server, and gets recorded as cancelled.
func (p *Proxy) Drain(ctx context.Context) error {
	p.mu.Lock()
	var all []*serving
	for s := range p.serving {
		all = append(all, s)
		if !p.draining {
			close(s.drain)
		}
	}
	p.draining = true
	p.mu.Unlock()
	for _, s := range all {
		select {
		case <-s.swept:
		case <-ctx.Done():
			return fmt.Errorf("egress: empty the accept queue: %w", ctx.Err())
		}
	}
	if err := p.pending.wait(ctx); err != nil {
		return fmt.Errorf("egress: wait for the last decisions: %w", err)
	}
	if err := p.Ledger.Flush(); err != nil {
		return fmt.Errorf("egress: %w", err)
	}
	return nil
}

func (p *Proxy) enter() *serving {
	s := &serving{drain: make(chan struct{}), swept: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.serving == nil {
		p.serving = map[*serving]bool{}
	}
	p.serving[s] = true
	if p.draining {
		close(s.drain)
	}
	return s
}

func (p *Proxy) leave(s *serving) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.serving, s)
	if len(p.serving) == 0 {
		p.pipes.close()
	}
}

// or gives the bound that holds: a field left at zero never means "no bound".
func or[T time.Duration | int | int64](field, builtin T) T {
	if field > 0 {
		return field
	}
	return builtin
}
