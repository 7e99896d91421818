// Package host is about what this host can enforce.
//
// Prove shows, before the first step of a run, that every control it relies on
// works here, with the engine and in the control groups that steps will have: it
// builds two boxes like theirs, tries in them what no step may do, and looks at
// what came of it. What the boxes say is judged together with evidence from
// outside of them: counters of the kernel, the ledger of the proxy, listeners on
// the host that nobody must have called. A control that was not seen to work is a
// reason to run nothing. Unknown means no: an attempt that only got no answer in
// time proves nothing.
//
// Examine finds out what keeps boxes from being built here, and which command
// mends it. Each check does the thing that a box will need, in a process of its
// own where it takes one: a namespace that was made says nothing about what may be
// done in it, and a setting says less. Settings are read for one purpose only, to
// find the words for what was seen to fail. Whether steps can run here is never
// concluded from checks: a full box has to have run.
//
// Plan says what is to be added for one run, so that nobody needs to mend it by
// hand, and Preparer carries it out and takes it away again. It never runs a step,
// an engine or itself as root.
//
//	r := host.Examine(ctx, host.Here(os.Getenv), host.Options{Workspace: dir, Engines: engines})
//	r.WriteText(os.Stdout)
package host
