// Package gvisor builds boxes that have a kernel of their own: gVisor, which is a
// program, runsc, that implements the system calls of Linux itself and may make few
// of the host's.
//
// What judges a step does not come from it: control group, clock, egress, workspace
// and verdict are the same as with every engine, and the box's first process is
// ours (internal/boxinit). Two things differ by nature. A socket of the box's is no
// socket of the host's, so the first process carries connections out one by one.
// And processes in the box are threads and address spaces of runsc's here, so the
// first process counts them in a control group of the box's own kernel, while the
// host's control group bounds all of runsc: its memory, its processor time, and, a
// few times over, its threads.
//
//	Start (parent)             launcher (in new namespaces, as process 1)
//	  clone, id maps             wait for the order
//	  join control group
//	  order, mounts  --------->  the stage: root of the box, runsc's own folders
//	                             become runsc, which starts its kernel and its
//	                             file server beside it
//	                             the box's first process: hello on the way socket
//	  prepare, start --------->  boxinit: relay, filter, the step
//
// What it refuses: a runsc whose SHA-256 is not the pinned one (or the one the
// caller admitted), before it runs it even once; a key that it has no way to
// express; and to run runsc with more than one unprivileged id of the host. The
// stage holds nothing but what the box is made of and what runsc needs.
package gvisor
