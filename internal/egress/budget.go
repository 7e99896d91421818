package egress

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
)

// budget is what a step may still move.
type budget struct {
	moved atomic.Int64
	once  sync.Once
	ctx   context.Context // ends when the budget has
	end   context.CancelFunc
}

func (b *budget) init() {
	b.once.Do(func() { b.ctx, b.end = context.WithCancel(context.Background()) })
}

var errSpent = errors.New("the step has moved all the bytes it may")

// spend counts bytes that have moved. Its error means that there may be no more;
// by then every connection is being cut. What goes over is at most what each
// connection had in its hands.
func (p *Proxy) spend(n int) error {
	if n > 0 && p.budget.moved.Add(int64(n)) > p.limit() {
		p.budget.init()
		p.budget.end()
	}
	if p.spent() {
		return errSpent
	}
	return nil
}

func (p *Proxy) spent() bool { return p.budget.moved.Load() > p.limit() }

func (p *Proxy) limit() int64 { return or(p.MaxBytes, maxBytes) }

// whenSpent has f called when the budget ends; stop takes it back.
func (p *Proxy) whenSpent(f func()) (stop func() bool) {
	p.budget.init()
	return context.AfterFunc(p.budget.ctx, f)
}
