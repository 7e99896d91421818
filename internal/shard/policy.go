package shard

import (
	"cmp"
	"fmt"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// policy holds all runs to one ceiling. A shard that was held to none, or to one
// that allows more, may have run what no other shard would: the plan says what the
// steps ask for, and not whether they were allowed to. want nil is what the most
// shards were held to that were held to any; where none was, there is nothing to
// hold them to.
func (m *merging) policy(want *steps.PolicyRef) {
	taken := m.taken()
	count := map[string]int{}
	for _, n := range taken {
		ref := m.parts[n].Result.Policy
		if ref == nil {
			continue
		}
		count[ref.SHA256]++
	}
	sum := ""
	if want != nil {
		sum = want.SHA256
	} else {
		for s, n := range count {
			if cmp.Or(cmp.Compare(n, count[sum]), cmp.Compare(s, sum)) > 0 {
				sum = s
			}
		}
	}
	m.r.Policy = want
	var others []string
	for _, n := range taken {
		r := m.parts[n].Result
		shard := fmt.Sprintf("shard %d of %d", r.Shard.Index, m.of)
		switch ref := r.Policy; {
		case ref == nil && sum == "":
		case ref == nil:
			others = append(others, fmt.Sprintf("%s ran without a policy, and not under the one whose sum is %.12s", shard, sum))
		case ref.SHA256 != sum:
			others = append(others, fmt.Sprintf("%s ran under another policy: its sum is %.12s and not %.12s", shard, ref.SHA256, sum))
		case m.r.Policy == nil:
			m.r.Policy = ref
		case want == nil && m.r.Policy.Path != ref.Path: // by its place on each machine
			m.r.Policy = &steps.PolicyRef{SHA256: sum}
		}
	}
	m.some(others)
}
