// Package pinned finds a program that somebody else built and believes it only if
// its SHA-256 is one that is pinned, or that the caller admitted. What is then run
// is a sealed copy in memory: the bytes that were hashed, whoever swaps the file
// afterwards.
//
// A program that is not admitted is never started, not even to ask what it is; and
// where the caller named one, no other one is taken in its place.
//
//	b, err := pinned.Find(ctx, kind, getenv, cached, accept)
//	cmd.Path = "/proc/self/fd/3"
//	cmd.ExtraFiles = []*os.File{b.Sealed}
package pinned
