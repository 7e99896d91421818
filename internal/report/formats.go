package report

import (
	"io"
	"io/fs"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// Format is one form of a report.
type Format struct {
	Name  string
	File  string // its name in the report folder; empty: not kept there
	Write func(io.Writer, *steps.Result) error
	// Within is Write with the report folder at hand, for a form that shows what
	// else is in it.
	Within func(io.Writer, *steps.Result, fs.FS) error
	// On is Write for a screen, for a form that a person reads on one.
	On func(io.Writer, *steps.Result, Screen) error
}

// Formats lists every form once. A new one is a row here and a file beside it.
var Formats = []Format{
	{Name: "json", File: "report.json", Write: WriteJSON},
	{Name: "summary", File: "summary.md", Write: func(w io.Writer, r *steps.Result) error {
		return WriteSummary(w, r, SummaryBudget)
	}},
	{Name: "table", Write: WriteTable, On: WriteTableOn},
	{Name: "junit", File: "junit.xml", Write: WriteJUnit},
	{Name: "sarif", File: "results.sarif", Write: WriteSARIF},
	{Name: "html", File: "report.html", Within: WriteHTML, Write: func(w io.Writer, r *steps.Result) error {
		return WriteHTML(w, r, nil)
	}},
}
