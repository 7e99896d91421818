package patch

import (
	"bytes"
	"fmt"

	"github.com/rogpeppe/go-internal/diff"
)

// Beyond these a text is written as a literal: its lines are compared in memory,
// and nobody reads that many.
const (
	maxTextBytes = 16 << 20
	maxTextLines = 200_000
	// maxAllLines are compared for one patch, at five microseconds each: a step
	// may change many files of maxTextLines.
	maxAllLines = 4_000_000
)

// inLines says whether a content goes into hunks.
func inLines(content []byte) bool {
	return len(content) <= maxTextBytes && bytes.Count(content, []byte{'\n'}) <= maxTextLines && isText(content)
}

// lines is how many lines are compared to write hunks: none where all of a file
// is new, or gone.
func lines(before, after []byte) int {
	if len(before) == 0 || len(after) == 0 {
		return 0
	}
	return bytes.Count(before, []byte{'\n'}) + bytes.Count(after, []byte{'\n'})
}

// hunks are the unified hunks between two texts, without the lines that name
// files: those would be the library's, and git's are of another form.
func hunks(before, after []byte) []byte {
	switch {
	case len(before) == 0 && len(after) == 0:
		return nil
	case len(before) == 0:
		return whole("-0,0 +1,%d", '+', after)
	case len(after) == 0:
		return whole("-1,%d +0,0", '-', before)
	}
	d := diff.Diff("a", before, "b", after)
	for range 3 {
		_, d, _ = bytes.Cut(d, []byte{'\n'})
	}
	return d
}

// whole is the one hunk of a file that is new, or gone.
func whole(form string, sign byte, content []byte) []byte {
	n := bytes.Count(content, []byte{'\n'})
	full := content[len(content)-1] == '\n'
	if !full {
		n++
	}
	out := fmt.Appendf(make([]byte, 0, len(content)+n+80), "@@ "+form+" @@\n", n)
	for line := range bytes.Lines(content) {
		out = append(append(out, sign), line...)
	}
	if !full {
		out = append(out, "\n\\ No newline at end of file\n"...)
	}
	return out
}

// maskLines masks the content of every line of the hunks and says whether there
// was anything to mask. The lines stay as many as the hunk's header says.
func maskLines(hunks []byte, mask func([]byte) []byte) ([]byte, bool) {
	out := make([]byte, 0, len(hunks))
	found := false
	for line := range bytes.Lines(hunks) {
		if line[0] == '@' || line[0] == '\\' {
			out = append(out, line...)
			continue
		}
		text := line[1 : len(line)-1]
		masked := mask(bytes.Clone(text))
		if !bytes.Equal(masked, text) {
			found = true
			masked = bytes.ReplaceAll(masked, []byte{'\n'}, []byte{' '})
		}
		out = append(append(append(out, line[0]), masked...), '\n')
	}
	return out, found
}
