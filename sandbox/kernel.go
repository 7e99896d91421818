package sandbox

import (
	"context"
	"io"
	"sync"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// Kernel is a Python interpreter that lives from one cell to the next, in one box.
// Each cell has its own output, results, deadline and faults. A fault ends the
// kernel, and so does code that ends its process; caps are on the box, not on each
// cell.
//
// What its cells write is one change, which is judged and kept or dropped by Close:
// one can leave a thread behind that writes while another one runs, so whose a
// change is nobody can say. Calls that are made meanwhile do not see it. Its methods
// may be called at the same time; cells run one after the other.
//
// What a cell leaves running goes on between cells, under the caps and with no
// deadline, until a fault or Close ends the kernel. What it does there is told of the
// next cell, and of Close where none runs any more.
type Kernel struct {
	s   *Sandbox
	id  string
	mu  sync.Mutex
	l   *steps.LiveKernel
	now *feeds // of the cell that runs
	ids []string
}

// KernelEnded is the error of a cell that did not run, since the kernel had ended.
type KernelEnded struct{ Reason string }

func (e *KernelEnded) Error() string { return "sandbox: " + e.Reason }

// Kernel makes a kernel. It is closed by its Close, or by that of the Sandbox.
func (s *Sandbox) Kernel(ctx context.Context) (*Kernel, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.active.Done()
	k := &Kernel{s: s, id: s.nextID()}
	p, err := s.plan(k.id, &Call{Code: "0", kernel: true})
	if err != nil {
		return nil, err
	}
	runner := s.on.Runner.Again()
	runner.Tee = func(string) (stdout, stderr io.Writer) { return k.now.stdout, k.now.stderr }
	if k.l, err = runner.OpenKernel(ctx, p.Steps[0]); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, &NoVerdict{err.Error()}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = k.l.Close(context.Background())
		return nil, ErrClosed
	}
	if s.kernels == nil {
		s.kernels = map[*Kernel]struct{}{}
	}
	s.kernels[k] = struct{}{}
	return k, nil
}

// RunCode runs a cell.
func (k *Kernel) RunCode(ctx context.Context, code string) (*Result, error) {
	return k.Do(ctx, Call{Code: code})
}

// Do runs a cell with a deadline or live output of its own. All else that shapes a
// box was decided when the kernel was made. The error is that of Sandbox.Do, or a
// *KernelEnded.
func (k *Kernel) Do(ctx context.Context, c Call) (*Result, error) {
	if c.Code == "" || c.Language != "" && c.Language != Python || c.Env != nil || c.Workdir != "" {
		return nil, &BadOptions{[]string{"a cell has Python code, and for itself a timeout and writers alone"}}
	}
	if err := k.s.begin(); err != nil {
		return nil, err
	}
	defer k.s.active.Done()
	k.mu.Lock()
	defer k.mu.Unlock()
	c.kernel = true
	id := k.s.nextID()
	p, err := k.s.plan(id, &c)
	if err != nil {
		return nil, err
	}
	k.now = newFeeds(c.Stdout, c.Stderr)
	sr := k.l.Run(ctx, p.Steps[0])
	k.now.end()
	if sr.Status == steps.StatusPassed || sr.Status == steps.StatusFailed {
		// Of those before it nothing is read any more. A kernel can have any number of
		// cells, and each can print as much as is kept.
		for _, old := range k.ids {
			k.s.forget(old)
		}
		k.ids = nil
	}
	k.ids = append(k.ids, id)
	if sr.Status == steps.StatusSkipped && ctx.Err() == nil {
		return nil, &KernelEnded{sr.Reason}
	}
	return k.s.result(ctx, sr)
}

// Close ends the kernel. Its result is that of the last cell that ran, with what was
// done since then, by which it may have failed now: a fault, requests. With it are the
// files that all cells changed, and whether that was kept; it is nil if none ran.
func (k *Kernel) Close(ctx context.Context) (*Result, error) {
	if err := k.s.enter(); err != nil {
		return nil, err
	}
	defer k.s.active.Done()
	return k.close(ctx)
}

func (k *Kernel) close(ctx context.Context) (*Result, error) {
	k.s.mu.Lock()
	delete(k.s.kernels, k)
	k.s.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	sr := k.l.Close(ctx)
	defer func() {
		for _, id := range k.ids {
			k.s.forget(id)
		}
		k.ids = nil
	}()
	if sr == nil {
		return nil, nil
	}
	return k.s.result(ctx, sr)
}
