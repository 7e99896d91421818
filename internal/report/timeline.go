package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/report/span"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

const (
	// maxBars is how many steps a timeline shows. GitHub draws no chart of more
	// than 50 000 characters, and nobody looks at one that is ten screens long.
	maxBars = 50
	// maxTimeline is the longest run of which there is a timeline, in
	// milliseconds: a year, so times are ones that every browser has.
	maxTimeline = 366 * 24 * 60 * 60 * 1000
	// inSeconds is from when on the axis counts seconds.
	inSeconds = 10_000
)

// timeline is when each step ran, as a chart (a gantt of Mermaid's, which GitHub
// draws), where steps ran side by side; where they did not, the table has it all,
// and it is empty.
//
// A chart is a small program: words at the start of a line are its commands, and
// some signs end a name or begin a comment. So nothing is in it but our own words,
// numbers, and those ids that have the form of one. Behind a number, and without
// a colon, an id of that form is nothing but the name of its bar.
func timeline(r *steps.Result) string {
	list, total := span.Of(r)
	most := span.Most(list)
	if most < 2 || total > maxTimeline {
		return ""
	}
	shown := bars(r, list)
	words := []string{fmt.Sprintf("up to %d steps at a time", most)}
	if len(shown) < len(list) {
		words = append(words, fmt.Sprintf("%d of %d are shown, those that did not pass first, then the longest", len(shown), len(list)))
	}
	if n := len(r.Steps) - len(list); n > 0 {
		words = append(words, count(n, "step that did not run is", "steps that did not run are")+" not in it")
	}
	if slices.ContainsFunc(shown, func(x span.Span) bool { return !passed(&r.Steps[x.Step]) }) {
		words = append(words, "what did not pass is red")
	}
	return "**When the steps ran:** " + strings.Join(words, "; ") + ".\n\n```mermaid\n" + chart(r, shown, total) + "```\n\n"
}

func passed(s *steps.StepResult) bool { return s.Status == steps.StatusPassed }

// bars are the spans that a timeline shows: if not all, those of steps that did
// not pass, then the longest. Shards stand one below the other.
func bars(r *steps.Result, list []span.Span) []span.Span {
	bad := func(x span.Span) int {
		if passed(&r.Steps[x.Step]) {
			return 1
		}
		return 0
	}
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b span.Span) int {
		return cmp.Or(cmp.Compare(bad(a), bad(b)), cmp.Compare(b.End-b.Start, a.End-a.Start))
	})
	list = list[:min(len(list), maxBars)]
	slices.SortFunc(list, func(a, b span.Span) int {
		return cmp.Or(cmp.Compare(shardOf(r, a), shardOf(r, b)), span.ByStart(a, b), cmp.Compare(a.Step, b.Step))
	})
	return list
}

// shardOf is 0 where there are none.
func shardOf(r *steps.Result, x span.Span) int {
	if r.Merged == nil {
		return 0
	}
	return r.Steps[x.Step].Shard
}

// chart is the program of a chart. Times are milliseconds since the run began,
// and the axis counts them as such: hours and minutes would be those of the
// reader's time zone.
func chart(r *steps.Result, list []span.Span, total float64) string {
	axis := "%Q ms"
	if total >= inSeconds {
		axis = "%s s"
	}
	var b strings.Builder
	b.WriteString("gantt\n  accTitle: When the steps ran\n  dateFormat x\n  axisFormat " + axis + "\n  todayMarker off\n")
	shard := 0
	for _, x := range list {
		if n := shardOf(r, x); n != shard {
			shard = n
			fmt.Fprintf(&b, "  section shard %d\n", shard)
		}
		s := &r.Steps[x.Step]
		tag := ""
		if !passed(s) {
			tag = "crit, "
		}
		start := math.Round(x.Start)
		fmt.Fprintf(&b, "  %s :%s%.0f, %.0f\n", barName(s, x.Step), tag, start, max(math.Round(x.End), start+1))
	}
	return b.String()
}

// barName is the place of a step in the list and, where it is inert, its id, with
// how it ended if that was not well.
func barName(s *steps.StepResult, i int) string {
	name := fmt.Sprintf("step %d", i+1)
	if steps.IsID(s.ID) {
		name = fmt.Sprintf("%d %s", i+1, s.ID)
	}
	word := ""
	switch {
	case s.Excused:
		word = "excused"
	case s.Status == steps.StatusFailed, s.Status == steps.StatusCancelled:
		word = s.Status
	case !passed(s):
		word = "no verdict"
	case isFlaky(s):
		word = "flaky"
	}
	if word == "" {
		return name
	}
	return name + " (" + word + ")"
}
