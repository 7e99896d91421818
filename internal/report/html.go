package report

import (
	"io"
	"io/fs"

	"github.com/untrusted-steps/untrusted-steps/internal/egress"
	"github.com/untrusted-steps/untrusted-steps/internal/report/html"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/policy"
)

// WriteHTML writes the page for a browser. files is the report folder, from which
// logs and diffs are shown; nil writes a page without them, which says so.
func WriteHTML(w io.Writer, r *steps.Result, files fs.FS) error {
	return html.Write(w, r, html.Options{
		Verdict: verdictLine(r), Engines: engines(r), Warnings: limitations(r), Top: tops(r), Look: look, Meaning: egress.Meaning, Files: files,
		Words: func(s *steps.StepResult) html.Words {
			return html.Words{
				Outcome: outcome(s), Note: note(s), Reason: reason(s), Time: elapsed(s),
				Memory: memory(s), Requests: requests(s), Files: filesChanged(s), Tries: tries(s), Notes: notes(s),
				Boundary: boundary(s),
			}
		},
	})
}

// look says in a word or two what a change is that comes before others, whatever
// the step's policy said of it; empty: nothing of the kind.
func look(f *steps.FileChange) string {
	switch {
	case armed(f):
		return "set-id bits"
	case policy.Protected(rawPath(f)):
		return "protected"
	}
	return ""
}
