// Package session finds out what this host can do for a plan, and makes it ready:
// control groups, the workspace, images, and an engine whose boxes were seen to
// hold their promises here before the first step.
//
// A session says no as a refusal with a cause and what to type. It never takes
// something weaker than what was asked for.
package session
