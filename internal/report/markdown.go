package report

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
)

const (
	// maxCell is how much of one untrusted text stands in a table.
	maxCell = 200
	// maxSentence is how much of one in a sentence of ours.
	maxSentence = 1000
	// maxTextLine is how much of one line stands in a block.
	maxTextLine = 500
)

// inline makes an untrusted text inert inside a line of Markdown, a table's cell
// included. Two layers: every sign that Markdown could act on is written as a
// number, so it reaches the page as a letter; and the whole is code, where
// GitHub makes no links of @names, #numbers, addresses, commit sums or :emoji:.
func inline(text string) string { return inlineUpTo(text, maxCell) }

func inlineUpTo(text string, n int) string {
	text = strings.ReplaceAll(clip(gha.Inert(text), n), "\t", " ")
	if text == "" {
		return ""
	}
	var b strings.Builder
	b.WriteString("<code>")
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c >= utf8.RuneSelf, alphanumeric(c), strings.IndexByte("-,/();", c) >= 0:
			b.WriteByte(c)
		case c == ' ' && i > 0 && i < len(text)-1:
			b.WriteByte(c)
		case c == '.' && !(i >= 3 && strings.EqualFold(text[i-3:i], "www")):
			b.WriteByte(c)
		case c == '_' && between(text, i, alphanumeric, alphanumeric):
			b.WriteByte(c)
		case c == ':' && between(text, i, alphanumeric, digitOrSpace): // a port, a sentence
			b.WriteByte(c)
		case c == '@':
			// Cut in two as well: mail addresses are found in the finished text.
			b.WriteString("&#64;<wbr>")
		default:
			fmt.Fprintf(&b, "&#%d;", c)
		}
	}
	b.WriteString("</code>")
	return b.String()
}

func alphanumeric(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || digit(c)
}

func digit(c byte) bool { return c >= '0' && c <= '9' }

func digitOrSpace(c byte) bool { return digit(c) || c == ' ' }

func between(s string, i int, before, after func(byte) bool) bool {
	return i > 0 && i < len(s)-1 && before(s[i-1]) && after(s[i+1])
}

// block shows untrusted lines as they are. The fence is longer than any run of
// its own sign in them, and each line stands behind a gutter: nothing in them
// can end the block, and nothing looks like a line of ours.
func block(lines []string) string {
	var b strings.Builder
	longest := 0
	for _, line := range lines {
		line = clip(gha.Inert(line), maxTextLine)
		longest = max(longest, longestRun(line, '`'))
		b.WriteString(strings.TrimRight("| "+line, " "))
		b.WriteByte('\n')
	}
	fence := strings.Repeat("`", max(3, longest+1))
	return fence + "text\n" + b.String() + fence + "\n"
}

func longestRun(s string, c byte) int {
	longest, n := 0, 0
	for i := range len(s) {
		if s[i] == c {
			n++
			longest = max(longest, n)
		} else {
			n = 0
		}
	}
	return longest
}

// clip shortens text between two characters and says by how much.
func clip(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return fmt.Sprintf("%s ... (%d bytes more)", text[:n], len(text)-n)
}

// lines cuts untrusted text into lines at every end a runner knows.
func lines(text string) []string {
	text = strings.ReplaceAll(text, "\r\n", "\n")
	text = strings.ReplaceAll(text, "\r", "\n")
	text = strings.TrimRight(text, "\n")
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}
