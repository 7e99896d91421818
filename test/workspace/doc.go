// Package workspace holds the built program to what it says of the workspace: a
// step leaves there what the same commands leave outside a box, the report lists
// exactly that, and a run that is killed leaves one state or the next.
//
// It has no code of its own, only tests. They know the program by its command
// line, its report and the folder it works in, and run with either engine, as
// root and as a normal user. The tree beside it, which the same script changed
// outside any box, is read by internal/workspace: a full list of both sides, by
// other code than the one that reads a step's layer.
//
// Random scripts come from fixed seeds; -seeds N tries so many, and -seed N one
// of them alone:
//
//	go test -run SameScript ./test/workspace -seeds 500
package workspace
