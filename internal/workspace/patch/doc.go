// Package patch writes what a step changed as a patch that git apply takes, in
// a repository or outside of one.
//
// It owns the format: git's extended diff, with text as unified hunks, anything
// else as a binary literal, a symlink as a file that holds its target, and a
// change of type or a rename as a deletion and a creation.
//
// It refuses to write a path that git apply could take out of the tree or into
// .git, to follow anything, to cut a file short, and to leave something out in
// silence: what a patch cannot carry (permission bits other than git's, empty
// folders, FIFOs, sockets, devices, what cannot be read, what is too large) is in
// the Summary and in comment lines ahead of the first diff, which git skips.
// It starts no program: a repository that a step wrote has configuration and
// hooks of the step's choosing.
//
//	sum, err := patch.Write(ctx, file, delta.Changes(), source, patch.Options{Mask: mask})
//	// git apply changes.patch
//
// # What git itself does not keep
//
// A folder that lost its last file is removed by git apply even where the step
// left it, and a file gets the permissions of whoever applies: git knows nothing
// but executable or not. A patch goes forward only: binary files have no way
// back in it, so git apply -R refuses them. Their names are SHA-1, so a
// repository that uses SHA-256 takes the rest of a patch and not them.
//
// git itself applies no patch that puts a folder in the place of a link that
// leads to itself: it looks below the link and stops.
package patch
