// Package seccomp owns the system call filter of a box: what a step may ask the
// kernel for, how a forbidden call is noticed, and the end of whoever made it.
//
// There are three answers. A call that Docker's default profile allows a
// container without capabilities goes through. A call that only leads out of a
// box (the 24 of [EscapeCalls], clone with a namespace flag, any call of
// another architecture) is stopped and reported to the host, which writes it
// down and kills the caller; that the caller is a grandchild, or that its
// parent exits 0, changes nothing. Every other call does not exist (ENOSYS).
//
// The package refuses to guess: a profile it does not fully understand is an
// error of [Compile], never a wider filter. It never lets a reported call
// continue, so it reads no argument from a step's memory.
//
//	program, err := seccomp.Compile(runtime.GOARCH, seccomp.Options{Kernel: release})
//
//	// In the box, on a locked thread with no_new_privs set:
//	listener, err := seccomp.Install(program.Raw())
//
//	// On the host, with the listener received over a socket:
//	w, err := seccomp.NewWatcher(listener, seccomp.WatchOptions{})
//	defer w.Close()
//	// ... the step's own process has ended:
//	w.Drain()
//	escapes, more := w.Escapes()
//
// A call is counted even if a signal or its caller's death takes it back before
// the host has heard of it; there is only no name to it then. The kernel keeps
// that count as long as one process lives under the filter, so Drain comes
// before the box's first process, which carries the filter, is killed.
//
// What it does not see: a step may put a filter of its own on top. A stricter
// answer of that filter wins, so a call refused there never gets as far as
// ours and is not reported; it has not been made either.
package seccomp
