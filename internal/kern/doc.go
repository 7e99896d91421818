// Package kern builds boxes with the kern program: it finds the program, proves
// that it is the build it should be, installs it where it is missing, tells it
// what box to make, and ends it.
//
// kern owns namespaces, root, mounts, capabilities and the system call filter.
// Nothing that judges a step comes from it: the box's first process is ours
// (internal/boxinit), so kern's output holds kern's words alone, its exit code
// decides nothing, and the step's variables never pass through it.
//
// What it refuses: a program whose SHA-256 is not the pinned one (or the one
// the caller admitted), before it runs it even once; a key that kern has no
// way to express; and to fall back from a program that was named to another
// one. Run by root, it never starts kern as root, whose box would be the host's
// root: a launcher of ours builds a file system with nothing in it but what the
// box needs, gives up root, and becomes kern.
//
//	e, err := kern.Open(ctx, kern.Options{Getenv: os.Getenv})
//	if err := e.Check(spec); err != nil { ... }
//	built, err := e.Start(ctx, spec, group)
package kern
