// Package steps is the flow of a run, in the order of its files: file.go reads
// the steps file with the place of every value, check.go says all that is wrong
// with it, fill.go makes a plan in which every default has its value, run.go
// runs the plan, result.go is what happened.
//
// It refuses whatever it does not know: an unknown key, a number written in a way
// that readers disagree about, a mount of something no box may see. It never runs part of a file. It knows
// no engine.
//
//	plan, err := steps.Load("steps.yml", src, steps.Options{Workspace: dir, Home: home, ParseRule: parse})
//	if err != nil {
//		fmt.Fprintln(os.Stderr, err) // steps.yml:3:11: pids is a text ("many"; allowed: ...)
//	}
package steps
