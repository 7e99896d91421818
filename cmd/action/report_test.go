package main

import (
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/report"
)

// TestReportFolderIsDocumented: the README's table has every file that a run
// writes, and both documents every form there is.
func TestReportFolderIsDocumented(t *testing.T) {
	readme, doc := document(t, "README.md"), document(t, "docs/report.md")
	want := []string{report.RequestsFile, report.PatchFile, "steps/ID/stdout.log", "steps/ID/stderr.log", "steps/ID/changes.patch", "steps/ID/results/", "steps/ID/try-N/"}
	for _, f := range report.Formats {
		if f.File != "" {
			want = append(want, f.File)
		}
		for name, text := range map[string]string{"README.md": readme, "docs/report.md": doc} {
			line := text[strings.Index(text, "untrusted-steps report "):]
			line, _, _ = strings.Cut(line, ".\n")
			if !strings.Contains(line, "`"+f.Name+"`") {
				t.Errorf("%s does not name the form %s", name, f.Name)
			}
		}
	}
	rest := readme[strings.Index(readme, "## The report folder"):]
	same(t, "files of a report and of the README", want, column(t, rest, "in the folder"))
}
