package steps

import (
	"bytes"
	"io"
	"strconv"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/lazy"
)

// syntaxError gives the parser's complaint a place. The parser tells a line
// only, and for many mistakes the line where the surrounding list or map began,
// one too low. So the file is read a second time byte by byte: how far the
// parser got is where it gave up.
func syntaxError(name string, src []byte, lines []string, err error) *FileError {
	line, what := 1, err.Error()
	if m := parserWords().FindStringSubmatch(err.Error()); m != nil {
		what = m[2]
		if n, convErr := strconv.Atoi(m[1]); convErr == nil {
			line = n
		}
		switch {
		case unclosed().MatchString(what):
			if m[1] != "" {
				line++
			}
		case strings.HasPrefix(what, "did not find expected ") && !scannerWords().MatchString(what):
			line = stoppedAt(src)
		}
	}
	line = min(max(line, 1), len(lines))
	// A tab as indentation is the usual reason, and the parser's words for it
	// help nobody.
	for _, l := range []int{line, line + 1, line - 1} {
		if l < 1 || l > len(lines) {
			continue
		}
		text := lines[l-1]
		indent := text[:len(text)-len(strings.TrimLeft(text, " \t"))]
		if i := strings.IndexByte(indent, '\t'); i >= 0 {
			return &FileError{File: name, Line: l, Column: i + 1, What: "a tab in the indentation", Text: text, Allowed: "spaces"}
		}
	}
	text := strings.TrimLeft(lines[line-1], " ")
	e := &FileError{File: name, Line: line, Column: len(lines[line-1]) - len(text) + 1,
		What: "not valid YAML: " + inertWords(what), Text: strings.TrimSpace(text)}
	switch {
	case strings.HasPrefix(what, "did not find expected key"), strings.HasPrefix(what, "did not find expected '-'"):
		e.Hints = []string{"compare the indentation of this line with that of the lines before it"}
	case strings.HasPrefix(what, "mapping values are not allowed"), strings.HasPrefix(what, "found character that cannot start"):
		e.Hints = []string{`put the text in quotes, or under "|" on lines of its own`}
	}
	return e
}

var (
	parserWords = lazy.Regexp(`^(?:yaml: )?(?:line ([0-9]+): )?((?s:.*))$`)
	// unclosed brackets are best shown where they open.
	unclosed = lazy.Regexp(`^did not find expected ',' or '[\]}]'`)
	// scannerWords end the complaints whose line is right already.
	scannerWords = lazy.Regexp(`(character|line break|URI|'!'|digits?( or '\.')?|number)$`)
)

// lookahead is how many bytes the parser reads past the one it looks at.
const lookahead = 4

// stoppedAt is the line at which the parser gives up.
func stoppedAt(src []byte) int {
	r := &byteReader{src: src}
	_, _, _ = decode(r)
	at := r.next - lookahead
	if r.next >= len(src) {
		at = len(bytes.TrimRight(src, " \n\r")) - 1
	}
	return 1 + bytes.Count(src[:max(at, 0)], []byte("\n"))
}

// byteReader hands out one byte at a time.
type byteReader struct {
	src  []byte
	next int
}

func (r *byteReader) Read(p []byte) (int, error) {
	if r.next >= len(r.src) {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), 1)], r.src[r.next:])
	r.next += n
	return n, nil
}
