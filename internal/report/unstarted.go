package report

import (
	"fmt"
	"io"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// maxUnstarted is how many problems of a steps file a summary shows.
const maxUnstarted = 50

// WriteUnstarted writes the job summary of a run that was never begun, since the
// steps file, a flag or an input is wrong. Problems quote what others wrote.
func WriteUnstarted(w io.Writer, verdict string, problems []string) error {
	text := "## untrusted-steps: " + mark(verdict) + "\n\n"
	switch verdict {
	case steps.VerdictRefused:
		text += "Nothing ran, and there is no report: this host cannot do what is asked.\n\n"
	default:
		text += "Nothing ran, and there is no report: the steps file, a flag or an input is wrong.\n\n"
	}
	var all []string
	for _, p := range problems[:min(len(problems), maxUnstarted)] {
		all = append(all, lines(p)...)
	}
	text += block(all)
	if n := len(problems) - maxUnstarted; n > 0 {
		text += fmt.Sprintf("\nand %d more, which the log has\n", n)
	}
	if _, err := io.WriteString(w, text); err != nil {
		return fmt.Errorf("write the summary: %w", err)
	}
	return nil
}
