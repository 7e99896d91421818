package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// Format is one form of a report.
type Format struct {
	Name  string // as --format takes it
	File  string // its name in the report folder; empty: not kept there
	About string // a few words for --help
	Write func(io.Writer, *steps.Result) error
}

// Formats lists every form once. A new one is a row here and a file beside it.
var Formats = []Format{
	{"json", "report.json", "everything, for programs", WriteJSON},
	{"summary", "summary.md", "Markdown, as the job summary shows it", func(w io.Writer, r *steps.Result) error {
		return WriteSummary(w, r, SummaryBudget)
	}},
	{"table", "", "a table in plain text", func(w io.Writer, r *steps.Result) error {
		return WriteTable(w, r, 0, false)
	}},
}

// FormatFor finds a format by name.
func FormatFor(name string) (Format, error) {
	var names []string
	for _, f := range Formats {
		if f.Name == name {
			return f, nil
		}
		names = append(names, f.Name)
	}
	return Format{}, fmt.Errorf("no report format %q; there are %s", name, strings.Join(names, ", "))
}
