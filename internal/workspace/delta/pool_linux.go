package delta

import (
	"context"
	"sync"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// pool reads contents while the walk goes on. What waits in it holds open files,
// so it is short.
type pool struct {
	jobs chan func(*reader) error
	wg   sync.WaitGroup
	stop context.CancelCauseFunc
}

func newPool(ctx context.Context, workers int) (*pool, context.Context) {
	ctx, stop := context.WithCancelCause(ctx)
	p := &pool{jobs: make(chan func(*reader) error, 2*workers), stop: stop}
	c := &contents{ctx: ctx, seen: map[inode]*known{}}
	c.holes.Store(workspace.MaxHoleBytes)
	for range workers {
		p.wg.Go(func() {
			var r *reader // most steps leave nothing to read
			for job := range p.jobs {
				if r == nil {
					r = newReader(c)
				}
				// After the first error too: a job closes its files.
				if err := job(r); err != nil {
					stop(err)
				}
			}
		})
	}
	return p, ctx
}

func (p *pool) wait() {
	close(p.jobs)
	p.wg.Wait()
}
