// Package cell runs cells: pieces of Python whose rich results are taken out of
// the box beside stdout, stderr and the exit status, which stay the cell's own.
//
// In the box a runner of ours (runner.py, a read-only file) reads cells from one
// descriptor and writes what comes of them to another. Whoever runs in the box
// can do that too: it may write garbage, too much or nothing. So everything that
// arrives is bounded in number and bytes, checked to be what it says it is, and
// no verdict is made of it. What a cell ends with is a number that its code
// chooses, as an exit code is.
//
//	w, err := cell.OpenWire()
//	job.Spec.Script, job.Spec.Argv, job.Files = cell.Script(), cell.Argv(), w.Files()
//	w.Send(cell.Cell{Name: "a", Code: "1 + 1", Last: true})
//	out := box.Run(ctx, job)
//	got := w.Close()
package cell

import (
	_ "embed" // for the runner

	"github.com/untrusted-steps/untrusted-steps/internal/box"
)

//go:embed runner.py
var runner string

// scriptName is the runner's file in a box.
const scriptName = "cell.py"

// Script is the runner, as a box is given it.
func Script() *box.Script { return &box.Script{Name: scriptName, Text: runner} }

// Argv starts the runner.
func Argv() []string { return []string{"python3", box.StepDir + "/" + scriptName} }

// Cell is one piece of Python.
type Cell struct {
	// Name is what tracebacks call it.
	Name string
	Code string
	// Last: the interpreter ends with it, and its exit status is that of the cell.
	Last bool
}
