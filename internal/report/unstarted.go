package report

import (
	"fmt"
	"io"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// maxUnstarted is how many problems of a steps file a summary shows.
const maxUnstarted = 50

// WriteUnstarted writes the summary of a run that was never begun, since the
// steps file, a flag or an input is wrong, in at most budget bytes. Problems quote
// what others wrote; those that have no room are counted.
func WriteUnstarted(w io.Writer, verdict string, problems []string, budget int) error {
	text := "## untrusted-steps: " + mark(verdict) + "\n\n"
	switch verdict {
	case steps.VerdictRefused:
		text += "Nothing ran, and there is no report: this host cannot do what is asked.\n\n"
	default:
		text += "Nothing ran, and there is no report: the steps file, a flag or an input is wrong.\n\n"
	}
	var all []string
	shown, room := 0, budget-reserve-len(text)
	for _, p := range problems[:min(len(problems), maxUnstarted)] {
		l := lines(p)
		if room -= len(block(l)); room < 0 { // with a fence of its own it is longer than it will be
			break
		}
		all = append(all, l...)
		shown++
	}
	if shown > 0 {
		text += block(all)
	}
	if n := len(problems) - shown; n > 0 {
		text += fmt.Sprintf("\nand %d more, which the log has\n", n)
	}
	if _, err := io.WriteString(w, text); err != nil {
		return fmt.Errorf("write the summary: %w", err)
	}
	return nil
}

// UnstartedHeadline says the same in one inert sentence, as Headline does of a run.
func UnstartedHeadline(verdict string, problems []string) string {
	text := verdictWord(verdict) + ": nothing ran"
	if n := len(problems); n > 1 { // first, since what follows may be cut
		text += fmt.Sprintf(", for %d problems", n)
	}
	if len(problems) > 0 {
		if first := lines(problems[0]); len(first) > 0 {
			text += ": " + first[0]
		}
	}
	return gha.Inert(clip(text, maxSentence))
}
