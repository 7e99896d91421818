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
		Verdict: verdictLine(r), Warnings: limitations(r), Top: tops(r), Protected: steers, Meaning: egress.Meaning, Files: files,
		Words: func(s *steps.StepResult) html.Words {
			return html.Words{
				Outcome: outcome(s), Note: note(s), Reason: reason(s), Time: elapsed(s),
				Memory: memory(s), Requests: requests(s), Files: filesChanged(s), Tries: tries(s), Notes: notes(s),
			}
		},
	})
}

// steers says whether a change decides what later runs or reviews do, or gives
// its file somebody's rights.
func steers(f *steps.FileChange) bool { return armed(f) || policy.Why(rawPath(f)) != "" }
