package report

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/policy"
)

// minFolder is how many changes of a folder become one line, where there are
// more than are listed one by one.
const minFolder = 5

// files lists what a step changed, each part in at most n lines: what a reviewer
// must see before all else, then deletions and changes of kind, then the rest,
// folder by folder where there is much. A step that wants one change overlooked
// makes ten thousand others.
func files(s *steps.StepResult, n int) string {
	out := ""
	if all := len(s.First); all > 0 {
		out += "Look at these changes first\n\n" + rest(firstLines(s, n), all)
	}
	total := max(s.FilesTotal, len(s.Files))
	if total == 0 && wrote(s) {
		return out + "Changes are not listed (" + became(s.Workspace) + ")\n\n"
	}
	if total == 0 {
		return out
	}
	gone, others, left := otherLines(s, n)
	out += "Changed files, " + fmt.Sprint(total) + " in all (" + became(s.Workspace) + ")\n\n"
	if len(gone)+len(others) > 0 {
		out += block(append(gone, others...)) + "\n"
	}
	// What is not even in the result is left out as well.
	if left += total - len(s.Files); left > 0 {
		out += fmt.Sprintf("and %d more\n\n", left)
	}
	return out
}

// firstLines are at most n of the changes that a reviewer must see, marked, with
// why.
func firstLines(s *steps.StepResult, n int) []string {
	want := s.First[:min(len(s.First), n)]
	inPackages := packages(s)
	found := make(map[string]*steps.FileChange, len(want))
	for _, path := range want {
		found[path] = nil
	}
	for i := range s.Files {
		path := rawPath(&s.Files[i])
		if _, ok := found[path]; ok {
			found[path] = &s.Files[i]
		}
	}
	var out []string
	for _, path := range want {
		line := "! " + path
		if f := found[path]; f != nil {
			line = "! " + fileLine(f)
		}
		if why := cmp.Or(inPackages[path], policy.Why(path)); why != "" {
			line += ": " + why
		}
		out = append(out, line)
	}
	return out
}

// packages says of each folder of installed packages that a reviewer must see how
// much was done in it: one line in place of thousands.
func packages(s *steps.StepResult) map[string]string {
	in := map[string]map[string]int{}
	for _, path := range s.First {
		if strings.HasSuffix(path, "/") {
			in[path] = map[string]int{}
		}
	}
	if len(in) == 0 {
		return nil
	}
	for i := range s.Files {
		folder, _ := policy.Installed(rawPath(&s.Files[i]))
		if n := in[folder]; n != nil {
			n[s.Files[i].Change]++
		}
	}
	out := make(map[string]string, len(in))
	for path, n := range in {
		out[path] = strings.Join(append([]string{policy.Why(path)}, changeCounts(n)...), ", ")
	}
	return out
}

// changeCounts are words for how many changes of each kind there were.
func changeCounts(n map[string]int) []string {
	words := make([]string, 0, len(n))
	for word, n := range n {
		words = append(words, fmt.Sprintf("%d %s", n, word))
	}
	slices.Sort(words)
	return words[:min(len(words), 5)] // no run has more
}

// otherLines are at most n lines of what was deleted or replaced, n of the rest,
// and how many changes are in no line.
func otherLines(s *steps.StepResult, n int) (gone, others []string, left int) {
	first := make(map[string]bool, len(s.First))
	for _, path := range s.First {
		first[path] = true
	}
	var plain []*steps.FileChange
	for i := range s.Files {
		f := &s.Files[i]
		switch {
		case first[rawPath(f)]: // told already
		case !severe(f):
			plain = append(plain, f)
		case len(gone) < n:
			gone = append(gone, fileLine(f))
		default:
			left++
		}
	}
	lines, of := rolledUp(plain, n)
	for i, line := range lines {
		if i < n {
			others = append(others, line)
		} else {
			left += of[i]
		}
	}
	return gone, others, left
}

// severe says whether a change is never part of a sum: it takes something away,
// puts something else in its place, or gives its file somebody's rights.
func severe(f *steps.FileChange) bool {
	return f.Change == "deleted" || f.Change == "retyped" || armed(f)
}

// armed says whether a change has set-id bits.
func armed(f *steps.FileChange) bool { return len(f.Mode) == 4 && f.Mode[0] != '0' && f.Mode[0] != '1' }

// rolledUp gives a line for each change, or, where that would be more than n,
// one for a top folder with many of them. of is how many changes a line stands
// for.
func rolledUp(list []*steps.FileChange, n int) (lines []string, of []int) {
	folders := map[string][]*steps.FileChange{}
	if len(list) > n {
		for _, f := range list {
			if top, ok := topFolder(f); ok {
				folders[top] = append(folders[top], f)
			}
		}
	}
	told := map[string]bool{}
	for _, f := range list {
		top, ok := topFolder(f)
		switch in := folders[top]; {
		case !ok || len(in) < minFolder:
			lines, of = append(lines, fileLine(f)), append(of, 1)
		case !told[top]:
			told[top] = true
			lines, of = append(lines, sum(top, in)), append(of, len(in))
		}
	}
	return lines, of
}

// topFolder is the first name of a path that has more of them, and that of a
// folder itself.
func topFolder(f *steps.FileChange) (string, bool) {
	top, _, below := strings.Cut(rawPath(f), "/")
	return top, below || f.Type == "dir"
}

// sum is one line about many changes in a folder.
func sum(top string, in []*steps.FileChange) string {
	n := map[string]int{}
	renamed := 0
	for _, f := range in {
		n[f.Change]++
		if f.From != "" {
			renamed++
		}
	}
	words := changeCounts(n)
	if renamed > 0 {
		words = append(words, fmt.Sprintf("%d with the content of a deleted file", renamed))
	}
	return fmt.Sprintf("%s/: %d changes, %s", top, len(in), strings.Join(words, ", "))
}

// rawPath is the exact path, as policy names it.
func rawPath(f *steps.FileChange) string {
	if f.PathBytes != "" {
		if b, err := base64.StdEncoding.DecodeString(f.PathBytes); err == nil {
			return string(b)
		}
	}
	return f.Path
}

func fileLine(f *steps.FileChange) string {
	// The exact bytes: two names that differ in what is not UTF-8 look different.
	out := fmt.Sprintf("%-8s %-7s %s", f.Change, f.Type, rawPath(f))
	if f.Target != "" {
		out += " -> " + f.Target
	}
	if f.Change == "deleted" {
		return out
	}
	if f.Type == "file" {
		out += fmt.Sprintf(" (%d bytes)", f.Size)
	}
	if f.Mode != "" && (f.Change == "mode" || armed(f)) {
		out += " mode " + f.Mode
	}
	if f.From != "" {
		out += ", renamed from " + f.From
	}
	if f.Unreadable {
		out += ", not readable"
	}
	return out
}
