package html

import (
	"bytes"
	"fmt"
	stdhtml "html"
	"strconv"
	"unicode/utf8"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
)

// m is markup, which only we write: a test holds every m to a literal. Anything
// else that is put on the page is text.
//
// html/template would do the same for one and a half megabytes more of program,
// which every box starts as well.
type m string

// put writes markup as it is, and text so that it can be nothing but text: in an
// element, or between the double quotes of an attribute that is no address, style
// or handler, of which the page has none.
func put(b *bytes.Buffer, parts ...any) {
	for _, x := range parts {
		switch x := x.(type) {
		case m:
			b.WriteString(string(x))
		case done:
			b.Write(x)
		case string:
			b.WriteString(stdhtml.EscapeString(gha.Inert(x)))
		case int:
			b.WriteString(strconv.Itoa(x))
		case float64:
			b.WriteString(strconv.FormatFloat(x, 'f', 1, 64))
		}
	}
}

// done is what put has written before.
type done []byte

// made is put into a buffer of its own.
func made(parts ...any) done {
	var b bytes.Buffer
	put(&b, parts...)
	return b.Bytes()
}

// room is how many bytes of a part of the page are left.
type room int

// take says whether n bytes fit, and takes them.
func (r *room) take(n int) bool {
	if n > int(*r) {
		return false
	}
	*r -= room(n)
	return true
}

// How much of one untrusted text is shown.
const (
	maxName = 120
	maxPath = 400
	maxText = 600
	maxLine = 2000
)

// show is an untrusted text as it is carried in the data: visible, valid, and of
// its first n bytes with the count of the rest. It is cut first: megabytes in one
// name must not cost their time.
func show(text string, n int) string { return gha.Inert(clip(text, n)) }

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

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
