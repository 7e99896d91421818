package cell

import (
	"context"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
)

// Interpreter is a box with a Python in it that is given cells. It is for one
// caller at a time.
type Interpreter struct {
	live *box.Live
	wire *Wire
}

// Start builds the box of a job and boots an interpreter in it; what the job says of
// a script and a command is not used. Where that does not come to an end there is
// none, and the outcome says why. Nothing of a cell has run.
func Start(ctx context.Context, j box.Job) (*Interpreter, box.Outcome) {
	w, err := OpenWire()
	if err != nil {
		var out box.Outcome
		out.Evidence.Lost, out.Cause = err.Error(), err
		return nil, out
	}
	j.Spec.Script, j.Spec.Argv, j.Files = Script(), Argv(), w.Files()
	live, out := box.Open(ctx, j)
	if live == nil {
		w.Close()
		return nil, out
	}
	return &Interpreter{live, w}, out
}

// Booted is closed when the interpreter says that it waits for a cell. One that
// never says so may be given a cell all the same: its deadline is the bound.
func (i *Interpreter) Booted() <-chan struct{} { return i.wire.Hello() }

// Gone says whether the interpreter has ended by itself, at this moment.
func (i *Interpreter) Gone() bool { return i.live.Gone() }

// Run runs a cell. Of the piece, Begin and Done are not used. alive says that the
// interpreter can be given another one; else nothing of its box is left. What the
// cell showed is untrusted, and bounded.
func (i *Interpreter) Run(ctx context.Context, c Cell, p box.Piece) (out box.Outcome, got Results, alive bool) {
	p.Begin, p.Done = func() error { return i.wire.Send(c) }, i.wire.Ends()
	if c.Last { // ends with the process, whatever an earlier one has left says of it
		p.Done = nil
	}
	out, alive = i.live.Run(ctx, p)
	if alive {
		return out, i.wire.Take(), true
	}
	return out, i.wire.Close(), false
}

// Close ends the box, if it is there still. The outcome says whether all of it is
// gone.
func (i *Interpreter) Close() box.Outcome {
	out := i.live.Close()
	i.wire.Close()
	return out
}
