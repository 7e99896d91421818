// Package native is the engine that needs nothing but a Linux kernel: it makes
// namespaces, a root file system of its own and a system call filter, and
// starts this same program again as the box's first process.
//
// It works as root and as a normal user. Run by root it does not make the
// box's root the host's root: inside and outside the box, root is an ordinary
// id that owns nothing, and an id-mapped mount makes the workspace belong to
// it. What cannot be built is an error; nothing is left out in silence.
//
//	Start (parent)            Child (in the new namespaces, as process 1)
//	  clone, id maps            wait for the setup message
//	  join control group
//	  setup message  ---------> mounts, pivot, masks, loopback, drop the host
//	  prepare, start ---------> boxinit: proxy socket, filter, the step
package native
