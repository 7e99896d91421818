// Package sandbox runs code that nobody has read yet, each call in a fresh box,
// and says what came of it: how it ended, whom it talked to, which files it
// changed.
//
// It is the untrusted-steps command as a library, and shares all of its code: the
// same boxes, limits, proxy, verdicts and rules of the steps file. A field of
// Options has the default of the key of the same name there.
//
//	box, err := sandbox.New(ctx, sandbox.Options{EgressAllow: []string{"api.example.com"}})
//	if err != nil { ... }      // *Refusal: this host cannot; *BadOptions: nobody should
//	defer box.Close()
//	r, err := box.RunCode(ctx, sandbox.Python, "print(sum(range(100)))")
//	if err != nil { ... }      // no verdict: not the code's doing
//	fmt.Println(r.Stdout, r.Success, r.Fault)
//
// # Three outcomes
//
// An exit code is the code's own, and no error. A Fault is what the sandbox saw
// or did: the deadline, the kernel's OOM killer, a forbidden system call, a request
// no rule allows. An error means that there is no verdict: the box could not be
// watched, or the call was cancelled.
//
// # What lasts
//
// Calls share the workspace and nothing else: no process and no file outside it
// outlives its call. What a call wrote is there for the next one if it ended
// without a fault and with exit code 0; KeepOnFailure keeps the rest too. While another
// call runs it is kept apart; that it could not be brought to the host later is told as
// ErrNotKept.
//
// # The program itself
//
// A box's first process is the program that links this package, started once more:
// it becomes one before main and before its other packages are set up. That is done
// by the arguments untrusted-steps-native-box and untrusted-steps-box-init, which
// nobody else should give it. With engine kern the program must be a static binary
// (CGO_ENABLED=0), since it runs in the box's own root; native takes any.
//
// It needs Linux and what the command needs; docs/hosts.md says what that is.
package sandbox
