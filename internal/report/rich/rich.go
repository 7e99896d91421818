// Package rich says how a result of a cell is shown where nothing of it may act:
// as a table of texts, as text, or as an image that a browser draws.
//
// A result is what a step chose. Its HTML is never handed on: of a table in it the
// texts of its cells are taken, and everything else of it is source text at most.
package rich

import (
	"html"
	"strconv"
	"strings"
)

// Kind is how a result is shown.
type Kind int

const (
	// None: there is nothing to show but that it is there.
	None Kind = iota
	// Text is shown as it is, in a block of text.
	Text
	// Grid is a table of texts.
	Grid
	// Image can be drawn.
	Image
)

// Shown is one result in the form that says most.
type Shown struct {
	Kind Kind
	MIME string
	Text string // of Text; of Image, what the report has in its place
	Table
}

// Table are the texts of a table's cells.
type Table struct {
	Rows [][]string
	Head int // how many of the rows are a head: none or one
	// MoreRows and MoreColumns count what is not here.
	MoreRows, MoreColumns int
}

// Bounds of a table.
const (
	maxRows    = 60
	maxColumns = 20
	maxText    = 2 << 10 // of one cell
	maxSource  = 1 << 20
)

// images, and texts in the order in which one is taken before another.
var (
	images = []string{"image/png", "image/jpeg", "image/svg+xml"}
	texts  = []string{"text/markdown", "text/plain", "text/latex", "application/json", "text/html"}
)

// Show picks the form of a result that is shown. isFile says for which types the
// path of a file stands in place of the value.
func Show(forms map[string]string, isFile func(mime string) bool) Shown {
	for _, mime := range images {
		if v, ok := forms[mime]; ok {
			return Shown{Kind: Image, MIME: mime, Text: v}
		}
	}
	if v, ok := forms["text/html"]; ok && !isFile("text/html") {
		if t, ok := TableOf(v); ok {
			return Shown{Kind: Grid, MIME: "text/html", Table: t}
		}
	}
	for _, mime := range texts {
		if v, ok := forms[mime]; ok && !isFile(mime) {
			return Shown{Kind: Text, MIME: mime, Text: v}
		}
	}
	first := ""
	for mime := range forms {
		if first == "" || mime < first {
			first = mime
		}
	}
	return Shown{MIME: first}
}

// TableOf reads the first table of a piece of HTML.
func TableOf(source string) (t Table, ok bool) {
	if len(source) > maxSource || !strings.Contains(strings.ToLower(source), "<table") {
		return t, false
	}
	b := tableReader{t: &t}
	for rest := source; rest != ""; {
		text, tag, more := cut(rest)
		rest = more
		if text != "" && b.inCell {
			b.text(html.UnescapeString(text))
		}
		switch name, attributes := named(tag); {
		case tag == "":
		case tag[0] == '/':
			if b.close(name) {
				return t, len(t.Rows) > 0
			}
		case name == "style" || name == "script":
			// What stands in one is no markup.
			_, rest = before(rest, "</"+name)
		default:
			b.open(name, spans(attributes))
		}
	}
	b.endRow()
	return t, len(t.Rows) > 0
}

// Reading is what somebody reads of a piece of HTML or of a drawing, whose source may
// spell it in any number of ways: with what stands in each tag taken away and nothing
// in its place, and with a blank there.
func Reading(source string) (joined, spaced string) {
	var a, b strings.Builder
	for rest := source; rest != ""; {
		text, tag, more := cut(rest)
		rest = more
		text = html.UnescapeString(text)
		a.WriteString(text)
		b.WriteString(text)
		if tag == "" {
			continue
		}
		b.WriteByte(' ')
		if name, _ := named(tag); tag[0] != '/' && (name == "style" || name == "script") {
			_, rest = before(rest, "</"+name)
		}
	}
	return a.String(), strings.Join(strings.Fields(b.String()), " ")
}

// cut takes the text up to the next tag, and that tag, off a piece of HTML. This is
// no parser of pages: whatever it takes for text is shown as text.
func cut(s string) (text, tag, rest string) {
	text, s = before(s, "<")
	switch {
	case s == "":
		return text, "", ""
	case strings.HasPrefix(s, "<!--"):
		_, rest = before(s[4:], "-->")
		return text, "", strings.TrimPrefix(rest, "-->")
	case len(s) < 2 || s[1] != '/' && s[1] != '!' && !letter(s[1]):
		return text + "<", "", s[1:]
	}
	quote := byte(0)
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case c == '>':
			return text, s[1:i], s[i+1:]
		}
	}
	return text, "", ""
}

// before splits a text where another one begins in it, whatever its case.
func before(s, what string) (first, rest string) {
	for i := 0; i+len(what) <= len(s); i++ {
		if s[i] == what[0] && strings.EqualFold(s[i:i+len(what)], what) {
			return s[:i], s[i:]
		}
	}
	return s, ""
}

func letter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

// named is the name of a tag, and what follows that.
func named(tag string) (name, attributes string) {
	tag = strings.TrimPrefix(tag, "/")
	i := strings.IndexAny(tag, " \t\r\n\f/")
	if i < 0 {
		i = len(tag)
	}
	return strings.ToLower(tag[:i]), tag[i:]
}

// spans are the two attributes that shape a table.
func spans(attributes string) (span [2]int) {
	for i, name := range []string{"colspan", "rowspan"} {
		span[i] = 1
		_, rest := before(attributes, name)
		if rest == "" {
			continue
		}
		digits := strings.TrimLeft(rest[len(name):], " =\"'")
		k := 0
		for k < len(digits) && k < 6 && digits[k] >= '0' && digits[k] <= '9' {
			k++
		}
		if n, err := strconv.Atoi(digits[:k]); err == nil && n > 1 {
			span[i] = n
		}
	}
	return span
}

// tableReader puts the cells of a table where they belong.
type tableReader struct {
	t       *Table
	depth   int // of tables
	row     []string
	heads   int // cells of the row that are heads
	cells   int
	inRow   bool
	inCell  bool
	span    [2]int
	cell    strings.Builder
	hang    [maxColumns]int // for how many rows more a cell of an earlier row takes the column
	columns int             // that the row would have
}

func (b *tableReader) open(name string, span [2]int) {
	switch {
	case name == "table":
		b.depth++
	case b.depth != 1:
	case name == "tr":
		b.endRow()
		b.inRow = true
	case name == "td" || name == "th":
		b.endCell()
		b.inRow, b.inCell, b.span = true, true, span
		b.cells++
		if name == "th" {
			b.heads++
		}
	case name == "br" && b.inCell:
		b.text(" ")
	}
}

// close says whether the table is over.
func (b *tableReader) close(name string) bool {
	switch {
	case name == "table" && b.depth > 0:
		if b.depth--; b.depth == 0 {
			b.endRow()
			return true
		}
	case b.depth != 1:
	case name == "td" || name == "th":
		b.endCell()
	case name == "tr":
		b.endRow()
	}
	return false
}

func (b *tableReader) text(s string) {
	if b.cell.Len() < maxText {
		b.cell.WriteString(s[:min(len(s), maxText)])
	}
}

// put adds a text to the row, after the columns that cells of earlier rows take.
func (b *tableReader) put(text string, rows int) {
	for len(b.row) < maxColumns && b.hang[len(b.row)] > 0 {
		b.hang[len(b.row)]--
		b.row = append(b.row, "")
		b.columns++
	}
	b.columns++
	if len(b.row) < maxColumns {
		b.hang[len(b.row)] = min(rows-1, 2*maxRows)
		b.row = append(b.row, text)
	}
}

func (b *tableReader) endCell() {
	if !b.inCell {
		return
	}
	text := strings.Join(strings.Fields(strings.ToValidUTF8(b.cell.String(), "\uFFFD")), " ")
	b.put(text, b.span[1])
	for i := 1; i < min(b.span[0], maxColumns); i++ {
		b.put("", b.span[1])
	}
	b.cell.Reset()
	b.inCell = false
}

func (b *tableReader) endRow() {
	b.endCell()
	if !b.inRow || b.cells == 0 {
		b.inRow = false
		return
	}
	for i := len(b.row); i < maxColumns && b.hang[i] > 0; i++ {
		b.hang[i]--
		b.row = append(b.row, "")
		b.columns++
	}
	b.t.MoreColumns = max(b.t.MoreColumns, b.columns-len(b.row))
	switch {
	case len(b.t.Rows) >= maxRows:
		b.t.MoreRows++
	default:
		if len(b.t.Rows) == 0 && b.heads == b.cells {
			b.t.Head = 1
		}
		b.t.Rows = append(b.t.Rows, b.row)
	}
	b.row, b.heads, b.cells, b.columns, b.inRow = nil, 0, 0, 0, false
}
