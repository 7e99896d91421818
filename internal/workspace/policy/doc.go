// Package policy judges what a step did to the workspace: which changes are
// committed, which are not, and which are violations.
//
// It owns the globs of allowChanges, the paths that a wildcard never permits
// (what git and the forge obey), what git refreshes by itself, symlinks that
// leave the workspace, set-id bits, and what a reviewer sees first. It is pure:
// it opens nothing, and what it has to know of the two trees it asks Env.
//
// It refuses whatever it is not sure of: a change whose word, type, mode or
// target it cannot read, a link it cannot follow to its end, and a nested
// repository of which it cannot tell whether the step found it there.
//
//	p, err := policy.Compile([]string{"out/**", ".github/workflows/ci.yml"})
//	v := p.Judge(changes, policy.Env{Before: before, After: after, Tools: []string{"/usr", "/lib"}})
//	if len(v.Violations) == 0 {
//		// v.Commit is what the workspace gets; v.Dropped and v.Special never are
//	}
package policy
