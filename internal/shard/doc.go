// Package shard makes one result of those of shards: runs of the parts of one
// plan, each on a machine of its own.
//
// It owns what holds for several runs together: that all are of the same plan and
// held to the same policy, that each part is there once, what the verdict of all is. Splitting a plan is
// package steps's, and reading and copying files package report's.
//
// Reports come as files from other machines, and whoever can put a file among
// them writes what he likes. Check refuses what no run of ours would have
// written; a report that says something else than the others is left out and
// closes the gate. That a report tells the truth nobody can see from it: give
// Merge the plan of a steps file that is trusted, so that no step can be lacking,
// and keep an eye on how the runs themselves ended.
//
//	for _, p := range parts {
//		if err := shard.Check(p.Result); err != nil {
//			return fmt.Errorf("%s: %w", p.Name, err)
//		}
//	}
//	result, taken := shard.Merge(parts, nil, nil, tool)
package shard
