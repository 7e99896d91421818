package steps

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

const (
	notExpanded    = "expressions are not expanded in a steps file"
	passItByEnv    = "; pass the value by passEnv"
	expressionOpen = "${{"
)

// unexpanded is the hint for a text that is wrong and has an expression in it, whose
// braces alone can be what is wrong.
func unexpanded(text string) []string {
	if !strings.Contains(text, expressionOpen) {
		return nil
	}
	return []string{notExpanded}
}

// expressions warns of what a workflow would expand and a steps file does not: a
// script that says ${{ matrix.v }} runs with these very characters. Text that
// stands in a workflow has been expanded before it came here, and so whoever chose
// the value has written part of the script: it is no way out to recommend.
func (c *checker) expressions(src []byte) {
	const begin, end = expressionOpen, "}}"
	n := 0
	for line := range bytes.Lines(src) {
		n++
		at := bytes.Index(line, []byte(begin))
		if at < 0 || bytes.HasPrefix(bytes.TrimSpace(line), []byte("#")) {
			continue
		}
		text := bytes.TrimSpace(line[at:])
		if i := bytes.Index(text, []byte(end)); i >= 0 {
			text = text[:i+len(end)]
		}
		shown := []rune(string(text))
		if len(shown) > maxQuoted {
			shown = shown[:maxQuoted]
		}
		c.warn(value{pos: pos{n, utf8.RuneCount(line[:at]) + 1}}, string(shown),
			notExpanded+passItByEnv)
	}
}
