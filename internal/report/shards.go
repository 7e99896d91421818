package report

import (
	"fmt"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// maxProblems is how many of the sentences about what a merge lacks are shown.
const maxProblems = 20

// problemList is what the reports of shards lack, in words.
func problemList(r *steps.Result) []string {
	if r.Merged == nil {
		return nil
	}
	out := r.Merged.Problems
	if n := len(out) - maxProblems; n > 0 {
		out = append(out[:maxProblems:maxProblems], fmt.Sprintf("and %d more of these; all of them are in report.json", n))
	}
	return out
}

// problems is the same for the one sentence of the verdict.
func problems(r *steps.Result) []string {
	if r.Merged == nil || len(r.Merged.Problems) == 0 {
		return nil
	}
	first := clip(strings.Join(lines(r.Merged.Problems[0]), " "), maxTextLine)
	if n := len(r.Merged.Problems) - 1; n > 0 {
		first += " (and " + count(n, "more problem", "more problems") + " with the shards)"
	}
	return []string{first}
}

func inShards(r *steps.Result) string {
	if r.Merged == nil {
		return ""
	}
	return " in " + count(len(r.Merged.Shards), "shard", "shards")
}

// refusedShards says which shards ran nothing.
func refusedShards(r *steps.Result) string {
	var list []string
	for _, s := range r.Merged.Shards {
		if s.Verdict == steps.VerdictRefused {
			list = append(list, fmt.Sprint(s.Index))
		}
	}
	if len(list) == 0 {
		return "some shard ran nothing"
	}
	return fmt.Sprintf("%s of %s ran nothing: %s", fmt.Sprint(len(list)), count(r.Merged.Of, "shard", "shards"), some(list))
}

// shards lists the runs that a report was made of, and what is wrong with them.
func (p *page) shards(r *steps.Result) {
	if r.Merged == nil {
		return
	}
	if l := problemList(r); len(l) > 0 {
		p.add("**What the reports of the shards lack**\n\n" + block(l) + "\n")
	}
	var l []string
	for _, s := range r.Merged.Shards {
		where := strings.TrimSpace(s.Host.OS + " " + s.Host.Kernel + " " + s.Host.Arch)
		l = append(l, fmt.Sprintf("%3d of %d  %-10s %s in %s, %s", s.Index, r.Merged.Of, verdictWord(s.Verdict), count(s.Steps, "step", "steps"), took(s.DurationMs), where))
	}
	if len(l) > 0 && !p.add("**Shards**\n\n"+block(l)+"\n") {
		p.left = append(p.left, "the list of shards")
	}
}
