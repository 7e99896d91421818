package report

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// installed is a step that installed packages and changed three files besides, and
// one that changed what is protected and was dropped.
func installed() *steps.Result {
	in, bad := exited("install", steps.StatusPassed, 0), exited("bad", steps.StatusFailed, 1)
	in.Workspace, in.First = "committed", []string{"package-lock.json", "package.json", "scripts/Makefile", "node_modules/"}
	for i := range 60 {
		in.Files = append(in.Files, created(fmt.Sprintf("node_modules/p%02d/.github/FUNDING.yml", i), fmt.Sprintf("node_modules/p%02d/package.json", i))...)
	}
	in.Files = append(in.Files, steps.FileChange{Path: "node_modules/x", Change: "modified", Type: "file"},
		steps.FileChange{Path: "package-lock.json", Change: "deleted", Type: "file"}, steps.FileChange{Path: "package.json", Change: "modified", Type: "file"},
		steps.FileChange{Path: "scripts/Makefile", Change: "created", Type: "file"})
	in.FilesTotal = len(in.Files)
	bad.Workspace, bad.First = "discarded", []string{".github/workflows/ci.yml", "go.sum"}
	bad.Files = append(created("a", "bin/su", ".git/index", "go.sum", ".github/workflows/ci.yml"), steps.FileChange{Path: "gone", Change: "deleted", Type: "file"})
	bad.Files[1].Mode, bad.FilesTotal = "4755", len(bad.Files)
	return result(steps.VerdictFail, in, bad)
}

func TestInstalledPackagesDoNotHideWhatElseChanged(t *testing.T) {
	const words = "node_modules/ (installed packages, 1 modified, 120 created)"
	r := installed()
	text := strings.Join(asReadTop(top(r)), "\n")
	for _, want := range []string{"package-lock.json (deleted: says which packages are installed next time), package.json (", words} {
		if !strings.Contains(text, want) {
			t.Errorf("the top of the summary lacks %q:\n%s", want, text)
		}
	}
	list := strings.Join(firstLines(&r.Steps[0], 10), "\n")
	if want := "! node_modules/: installed packages, 1 modified, 120 created"; !strings.Contains(list, want) {
		t.Errorf("lacks %q:\n%s", want, list)
	}
	if n := strings.Count(list, "node_modules"); n != 1 {
		t.Errorf("installed packages are told %d times:\n%s", n, list)
	}
}

// TestThePageHasFilesInTheOrderOfTheSummary: without scripts, too, the first rows are
// what to look at first, and "protected" is what README calls so.
func TestThePageHasFilesInTheOrderOfTheSummary(t *testing.T) {
	page := render(t, Format{Name: "html", Write: Formats[len(Formats)-1].Write}, installed())
	_, part, _ := strings.Cut(page, `<section id="files"`)
	part, _, _ = strings.Cut(part, "</section>")
	row := regexp.MustCompile(`<tr><td>[^<]*</td><td>([^<]*)</td><td>([^<]*)</td><td>([^<]*)</td><td>`)
	var got []string
	for _, m := range row.FindAllStringSubmatch(part, -1) {
		got = append(got, strings.Join([]string{m[1], m[2], m[3]}, "|"))
	}
	want := []string{
		"deleted|look first|package-lock.json", "modified|look first|package.json", "created|look first|scripts/Makefile",
		"created|protected|.github/workflows/ci.yml", "created|look first|go.sum",
		"created|set-id bits|bin/su", "created|protected|.git/index", "deleted||gone", "created||node_modules/p00/.github/FUNDING.yml",
	}
	if diff := cmp.Diff(want, got[:min(len(got), len(want))]); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
