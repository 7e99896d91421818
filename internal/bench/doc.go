// Package bench measures what a box costs beside what others take for the same:
// how long one takes from nothing to nothing, and what the parts of ours that
// judge a step add to the engine that builds its box.
//
// It has no code of its own, only benchmarks, and one test that holds them to
// their claim: that the box which bubblewrap is asked for is the box that engine
// native builds. What they measured stands in docs/performance.md.
//
// A machine that others use as well is never quiet. So every iteration runs
// each contender once, in changing order, and what is reported is medians and
// the median of the ratios within an iteration:
//
//	go test -run '^$' -bench BoxStart -benchtime 300x ./internal/bench
package bench
