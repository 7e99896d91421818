// Package boxinit is the first process of every box, whichever engine built
// it, and the words it exchanges with us.
//
// The first process starts the step, reads its true wait status and reports
// it: the only report of a step's end that the step cannot write itself. Code
// in the box can neither signal it (the kernel drops signals to a process 1
// that has no handler for them), nor look into it (it is not dumpable), nor
// outlive it (the kernel ends a process namespace with its process 1).
//
// The conversation, over one stream socket, frames of JSON with descriptors
// attached (see wire.go):
//
//	we    Prepare{ProxyPort}
//	init  Ready{}              + the listening socket of the proxy, if asked for
//	we    Start{argv, ...}     + stdin, stdout, stderr of the step, and more if it has more
//	init  Filtered{}           + the seccomp listener, if a filter was given
//	init  Started{} or Failed{}
//	init  Exited{status, full}
//
// When our end of the socket closes, for whatever reason, the first process
// exits and the box is gone: a box never outlives the program that watches it.
//
// The proxy's listening socket is made inside the box's network namespace and
// handed out, so connections from the box are accepted by our own process.
// There is no relay in the box to kill, to bypass or to copy bytes through.
//
// # Early
//
// The first process is this same program, started once more, and every box waits
// for that. So the packages that are one (entry here, and build of engine native)
// are one in their init functions. Go sets up packages in the order of their paths,
// each as soon as what it imports is ready (that is in the language's
// specification), so by then most of the program's packages are not set up yet,
// among them the clients of registries and of GitHub, whose tables and expressions
// cost as much as the start of a Go program. No box waits for those.
//
// This package must therefore import little, and nothing that comes late: not net,
// net/netip, regexp or runtime/debug. A test of the command holds it to that.
package boxinit
