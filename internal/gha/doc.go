// Package gha is everything that meets GitHub Actions: the log, which the
// runner reads as a stream of commands; the inputs and outputs of the action;
// annotations; and the file of the job summary. It works the same outside
// Actions, where the log is read by a person.
//
// It owns one rule: no byte that a step chose reaches a place where a runner, a
// terminal or a browser would act on it. Inert makes one line harmless, Log is
// the only writer of the log, Masker takes out the values of secrets, and Outlet
// keeps a reader that stopped reading from holding up a cancel. Package ghatest
// reads a log as the runner would, to prove the first three.
//
// It refuses to guess: an output that does not fit on one line, a summary that
// GitHub would throw away and a command file that is a link are errors. It knows
// nothing of steps, boxes or verdicts.
//
//	log := gha.NewLog(os.Stdout, gha.LogOptions{Banner: "untrusted-steps 1.0", Masker: m})
//	s := log.Step("step-1")
//	cmd.Stdout, cmd.Stderr = s.Stdout(), s.Stderr()
//	...
//	s.End()
//	err := log.Close()
package gha
