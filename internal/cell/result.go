package cell

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Value is one form of a result. Its bytes are untrusted, and are what MIME says
// as far as that can be told: text is UTF-8, JSON can be read, and an image of
// PNG or JPEG begins as one.
type Value struct {
	MIME string
	Data []byte
}

// Result is one value that a cell showed, in each form that it has.
type Result []Value

// Results are those of one cell.
type Results struct {
	List []Result
	// Notes are sentences of ours about what is not in the list, and why.
	Notes []string
}

// maxMIME is how long the name of a type may be.
const maxMIME = 100

// Textual says whether values of a type are text. Those of all others are bytes.
func Textual(mime string) bool {
	return strings.HasPrefix(mime, "text/") || mime == "application/json" || strings.HasSuffix(mime, "+json") ||
		strings.HasSuffix(mime, "+xml") || mime == "application/javascript"
}

// Image says whether a type is of images that a browser draws without running
// anything that is in them.
func Image(mime string) bool { return mime == "image/png" || mime == "image/jpeg" }

// magic is how files of a type begin.
var magic = []struct{ mime, begin string }{
	{"image/png", "\x89PNG\r\n\x1a\n"},
	{"image/jpeg", "\xff\xd8\xff"},
}

// check says why a value is not what it says it is.
func (v Value) check() error {
	if !IsMIME(v.MIME) {
		return errors.New("a result in a form that is no MIME type")
	}
	if len(v.Data) > MaxValue {
		return fmt.Errorf("%d bytes of %s", len(v.Data), v.MIME)
	}
	if Textual(v.MIME) && !utf8.Valid(v.Data) {
		return fmt.Errorf("a result said to be %s that is not UTF-8", v.MIME)
	}
	if (v.MIME == "application/json" || strings.HasSuffix(v.MIME, "+json")) && !json.Valid(v.Data) {
		return fmt.Errorf("a result said to be %s that is no JSON", v.MIME)
	}
	for _, m := range magic {
		if v.MIME == m.mime && !bytes.HasPrefix(v.Data, []byte(m.begin)) {
			return fmt.Errorf("a result said to be %s that does not begin as one", v.MIME)
		}
	}
	return nil
}

// IsMIME says whether a text is the name of a type, in small letters and without
// parameters. What is one acts nowhere: not in Markdown, not in a URL.
func IsMIME(s string) bool {
	kind, sub, ok := strings.Cut(s, "/")
	return ok && len(s) <= maxMIME && isToken(kind) && isToken(sub)
}

func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && (i == 0 || !strings.ContainsRune(".+-_", rune(c))) {
			return false
		}
	}
	return s != ""
}

// collection is what a cell has shown so far. Its zero value is ready.
type collection struct {
	list   []Result
	bytes  int
	more   int // results past the bounds
	bad    map[string]int
	said   []string // in order
	broken bool
}

// complain counts what is wrong, each sentence once. There are few: a type in one
// is a name, and past some of them they are counted as one.
func (c *collection) complain(err error) {
	what := err.Error()
	if c.bad == nil {
		c.bad = map[string]int{}
	}
	if _, ok := c.bad[what]; !ok {
		if len(c.said) >= 8 {
			what = "results that are not what they say they are"
		}
		if _, ok := c.bad[what]; !ok {
			c.said = append(c.said, what)
		}
	}
	c.bad[what]++
}

// add takes a frame with a result.
func (c *collection) add(f frame) {
	if f.left {
		c.complain(fmt.Errorf("a result of more than %d MiB", MaxValue>>20))
		return
	}
	all, err := forms(f.body)
	if err != nil {
		c.complain(err)
		return
	}
	var r Result
	size := 0
	seen := map[string]bool{}
	for _, v := range all {
		switch err := v.check(); {
		case err != nil:
			c.complain(err)
		case seen[v.MIME]:
			c.complain(errors.New("a form that the same result has twice"))
		default:
			seen[v.MIME] = true
			r = append(r, v)
			size += len(v.Data)
		}
	}
	switch {
	case len(r) == 0:
	case len(c.list) >= MaxResults || c.bytes+size > MaxBytes:
		c.more++
	default:
		c.list = append(c.list, r)
		c.bytes += size
	}
}

// results ends the collection.
func (c *collection) results() Results {
	out := Results{List: c.list}
	if c.more > 0 {
		out.Notes = append(out.Notes, fmt.Sprintf("%d more results are not kept: a cell has at most %d, of %d MiB together", c.more, MaxResults, MaxBytes>>20))
	}
	for _, what := range c.said {
		note := "not kept of what the cell showed: " + what
		if n := c.bad[what]; n > 1 {
			note += fmt.Sprintf(" (%d times)", n)
		}
		out.Notes = append(out.Notes, note)
	}
	if c.broken {
		out.Notes = append(out.Notes, "something else than results was written to where results are taken from; what came after it is not kept")
	}
	return out
}
