package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/egress"
	"github.com/untrusted-steps/untrusted-steps/internal/report/html"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/policy"
)

const (
	// maxTop is how many things a line at the top of a summary names.
	maxTop = 10
	// maxTopItem is how much of one of them is shown.
	maxTopItem = 200
)

// top says of the whole run what a reviewer reads a summary for: who was talked
// to, who was refused, and what to look at. It stands above all else, unfolded,
// and is short however many steps and requests there are: what is not named is
// counted, and each step has its own list further down.
func top(r *steps.Result) string {
	out := ""
	for _, t := range tops(r) {
		out += topLine(t.Word, t.Items)
	}
	if out == "" {
		return ""
	}
	return out + "\n"
}

// tops are these lines for any form of the report. One that would be empty is
// not there.
func tops(r *steps.Result) []html.Top {
	return slices.DeleteFunc([]html.Top{
		{Word: "Talked to", Items: talkedTo(r)},
		{Word: "Refused", Items: asked(r, "denied")},
		{Word: "Asked for, and not reached or broken off", Items: asked(r, "failed")},
		{Word: "Look first", Items: lookFirst(r)},
	}, func(t html.Top) bool { return len(t.Items) == 0 })
}

// topLine is a line of Markdown with a line of its own on the page.
func topLine(word string, items []string) string {
	var shown []string
	for _, item := range items[:min(len(items), maxTop)] {
		shown = append(shown, inlineUpTo(item, maxTopItem))
	}
	more := ""
	if n := len(items) - len(shown); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return "- " + word + ": " + strings.Join(shown, ", ") + more + "\n"
}

// talkedTo are the hosts that requests went to, with how many did. A step on the
// host's own network is named: nothing recorded what it asked for.
func talkedTo(r *steps.Result) []string {
	count := map[string]uint64{}
	watched := map[string]bool{}
	var order, unseen []string
	began := false
	for i := range r.Steps {
		s := &r.Steps[i]
		began = began || ran(s)
		if s.Network == "host" && ran(s) {
			unseen = append(unseen, "whatever "+clip(s.ID, maxID)+" asked for (network: true, not recorded)")
		}
		for _, e := range s.Egress {
			if e.Verdict != egress.Allowed {
				continue
			}
			at := place(e)
			if _, ok := count[at]; !ok {
				order = append(order, at)
			}
			count[at] += e.Count
			watched[at] = watched[at] || e.Reason == egress.ReasonAudit
		}
	}
	slices.SortStableFunc(order, func(a, b string) int { return strings.Compare(a, b) })
	out := unseen
	for _, at := range order {
		item := fmt.Sprintf("%s (%d)", at, count[at])
		if watched[at] {
			item = fmt.Sprintf("%s (%d, no rule: audit)", at, count[at])
		}
		out = append(out, item)
	}
	if len(out) == 0 && began {
		return []string{"nobody"}
	}
	return out
}

// asked are the destinations of requests with a verdict, and why.
func asked(r *steps.Result, verdict string) []string {
	var out []string
	seen := map[string]bool{}
	for i := range r.Steps {
		for _, e := range r.Steps[i].Egress {
			if e.Verdict != verdict {
				continue
			}
			why := e.Reason
			if e.Expected {
				why += ", as expected"
			}
			item := fmt.Sprintf("%s (%s)", place(e), why)
			if !seen[item] {
				seen[item] = true
				out = append(out, item)
			}
		}
	}
	slices.Sort(out)
	return out
}

// place is a host with its port, where that is not the one of the web.
func place(e steps.EgressRecord) string {
	host := clip(e.Host, maxTopItem/2)
	if e.Port == 443 || e.Port == 0 {
		return host
	}
	return fmt.Sprintf("%s:%d", host, e.Port)
}

// lookFirst are the changes that a reviewer must see before all others: first
// those that are in the workspace, then those that are not.
func lookFirst(r *steps.Result) []string {
	var in, dropped []string
	seen := map[string]bool{}
	for i := range r.Steps {
		s := &r.Steps[i]
		kept := s.Workspace == "committed" || s.Workspace == "kept"
		changes, inPackages := changeWords(s), packages(s)
		for _, path := range s.First {
			why := cmp.Or(inPackages[path], policy.Why(path))
			switch word := changes[path]; {
			case why == "" && word == "":
				why = "its step below says how it changed"
			case why == "":
				why = word
			case word == "deleted":
				why = "deleted: " + why
			}
			item := clip(path, maxTopItem/2) + " (" + why
			if !kept {
				item += "; not in the workspace"
			}
			item += ")"
			switch {
			case seen[item]:
				continue
			case kept:
				in = append(in, item)
			default:
				dropped = append(dropped, item)
			}
			seen[item] = true
		}
	}
	return append(in, dropped...)
}

// changeWords say what was done to the paths that a reviewer must see.
func changeWords(s *steps.StepResult) map[string]string {
	if len(s.First) == 0 {
		return nil
	}
	out := make(map[string]string, len(s.First))
	for _, path := range s.First {
		out[path] = ""
	}
	for i := range s.Files {
		path := rawPath(&s.Files[i])
		if _, ok := out[path]; ok {
			out[path] = clip(s.Files[i].Change, maxTopItem/4)
		}
	}
	return out
}

// ruled says in brackets which rule let a request through, or why it was not.
// In an audit there may be no rule.
func ruled(e steps.EgressRecord) string {
	switch {
	case e.Verdict != egress.Allowed && e.Reason != "":
		return " (" + e.Reason + ")"
	case e.Verdict != egress.Allowed:
		return ""
	case e.Rule != "" && e.Reason != "":
		return " (rule " + e.Rule + "; " + e.Reason + ")"
	case e.Rule != "":
		return " (rule " + e.Rule + ")"
	case e.Reason != "":
		return " (no rule; " + e.Reason + ")"
	}
	return ""
}
