package report

import (
	"io"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// Format is one form of a report.
type Format struct {
	Name  string
	File  string // its name in the report folder; empty: not kept there
	Write func(io.Writer, *steps.Result) error
}

// Formats lists every form once. A new one is a row here and a file beside it.
var Formats = []Format{
	{"json", "report.json", WriteJSON},
	{"summary", "summary.md", func(w io.Writer, r *steps.Result) error {
		return WriteSummary(w, r, SummaryBudget)
	}},
	{"table", "", func(w io.Writer, r *steps.Result) error { return WriteTable(w, r, 0) }},
	{"junit", "junit.xml", WriteJUnit},
	{"sarif", "results.sarif", WriteSARIF},
}
