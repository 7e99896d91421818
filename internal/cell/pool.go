package cell

import (
	"context"
	"sync"
	"time"
)

// Pool keeps things ready that take time to make and serve once, such as boxes with
// an interpreter that has booted and run nothing. All that are ready were made for
// one key, which has to say everything that shapes them: whoever takes for another
// one gets none, and from then on those are made.
//
// They are made behind, one at a time, and no sooner than somebody has asked. Its
// methods may be called at the same time.
type Pool[T any] struct {
	size int
	age  time.Duration
	end  func(T)
	now  func() time.Time

	mu     sync.Mutex
	work   *sync.WaitGroup // what goes on behind since the last Drop
	key    string
	make   func(context.Context) (T, error)
	ready  []ready[T]
	stop   context.CancelFunc // of whoever makes; nil if nobody does
	closed bool
}

type ready[T any] struct {
	thing T
	made  time.Time
}

// NewPool keeps size things ready, none longer than age. end takes one away.
func NewPool[T any](size int, age time.Duration, end func(T)) *Pool[T] {
	return &Pool[T]{size: size, age: age, end: end, now: time.Now, work: &sync.WaitGroup{}}
}

// Take gives one that is ready, for good. Where there is none for the key, ok is
// false and the caller makes its own. Either way others are made behind, by make.
func (p *Pool[T]) Take(key string, make func(context.Context) (T, error)) (thing T, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return thing, false
	}
	p.want(key, make)
	for len(p.ready) > 0 && !ok {
		r := p.ready[0]
		p.ready = p.ready[1:]
		if p.now().Sub(r.made) > p.age {
			p.away(p.work, r.thing)
			continue
		}
		thing, ok = r.thing, true
	}
	p.fill()
	return thing, ok
}

// Want has things made for a key that nobody has asked for yet.
func (p *Pool[T]) Want(key string, make func(context.Context) (T, error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.want(key, make)
		p.fill()
	}
}

// want makes the key the one that things are made for. p.mu is held.
func (p *Pool[T]) want(key string, make func(context.Context) (T, error)) {
	if key != p.key {
		p.drop()
	}
	p.key, p.make = key, make
}

// fill makes what is missing. p.mu is held.
func (p *Pool[T]) fill() {
	if p.stop != nil || p.closed || p.make == nil || len(p.ready) >= p.size {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.stop = cancel
	make, work := p.make, p.work
	work.Go(func() {
		thing, err := make(ctx)
		p.mu.Lock()
		defer p.mu.Unlock()
		if ctx.Err() == nil {
			p.stop = nil
		}
		stale := ctx.Err() != nil
		cancel()
		switch {
		case err != nil: // whoever takes makes its own, and is told why it cannot
			if !stale {
				return
			}
		case stale || p.closed:
			p.away(work, thing)
		default:
			p.ready = append(p.ready, ready[T]{thing, p.now()})
		}
		p.fill()
	})
}

// away ends a thing while others go on.
func (p *Pool[T]) away(work *sync.WaitGroup, thing T) { work.Go(func() { p.end(thing) }) }

// drop ends what is ready and what is being made. p.mu is held.
func (p *Pool[T]) drop() {
	if p.stop != nil {
		p.stop()
		p.stop = nil
	}
	for _, r := range p.ready {
		p.away(p.work, r.thing)
	}
	p.ready = nil
}

// Drop ends all that are ready, since what they were made of is no more, and waits
// for that. Others are made when somebody asks again.
func (p *Pool[T]) Drop() {
	p.mu.Lock()
	p.drop()
	p.make = nil
	work := p.work
	p.work = &sync.WaitGroup{}
	p.mu.Unlock()
	work.Wait()
}

// Ready is how many are.
func (p *Pool[T]) Ready() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.ready)
}

// Close ends all of them and makes no more.
func (p *Pool[T]) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.Drop()
}
