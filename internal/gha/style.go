package gha

import "strings"

// Style says what a stretch of a line means. On a terminal it becomes a colour,
// everywhere else nothing.
type Style uint8

const (
	Plain Style = iota
	Good        // it passed
	Bad         // it failed
	Doubt       // it did neither, or did it with an excuse; a warning
	Alarm       // there is no verdict at all: refused, lost
	Faint       // what is there to be looked up and not to be read
)

// codes are the only escape sequences that this program writes, but for the one
// that erases the line of progress. All of them are colours, which move nothing.
var codes = [...]string{Good: "\x1b[32m", Bad: "\x1b[31m", Doubt: "\x1b[33m", Alarm: "\x1b[1;31m", Faint: "\x1b[2m"}

const endStyle = "\x1b[0m"

// Span is a stretch of a line in one style. Its text may quote untrusted text.
type Span struct {
	Text  string
	Style Style
}

// Line is one line of ours. Colour comes from its styles and never from a text:
// an escape sequence in one is shown and not acted on.
type Line []Span

// Words is a line without any style.
func Words(text string) Line { return Line{{Text: text}} }

// String is the line without colour, as it is in a file.
func (l Line) String() string {
	if len(l) == 1 {
		return l[0].Text
	}
	var b strings.Builder
	for _, s := range l {
		b.WriteString(s.Text)
	}
	return b.String()
}

// Shown is the line made inert, in colour or not.
func (l Line) Shown(colour bool) string {
	text := Inert(l.String())
	if colour {
		return l.styled(text)
	}
	return text
}

// styled is the line in colour, if text, which is what became of it, is all of it
// as it was. Otherwise it is text: where the spans are in that is not known, and
// what is odd enough to be changed should not look like a word of ours. Nor has a
// line with hashes a colour: ##, the beginning of a code and whatever ignores the
// escape character between them make the opening of a runner command.
func (l Line) styled(text string) string {
	if text != l.String() || strings.Count(text, "#") > 1 {
		return text
	}
	return l.paint()
}

// paint adds the colours.
func (l Line) paint() string {
	var b strings.Builder
	for _, s := range l {
		if s.Style == Plain || int(s.Style) >= len(codes) || s.Text == "" {
			b.WriteString(s.Text)
			continue
		}
		b.WriteString(codes[s.Style])
		b.WriteString(s.Text)
		b.WriteString(endStyle)
	}
	return b.String()
}

// cut is the beginning of a line of ASCII that fits in so many cells.
func (l Line) cut(cells int) Line {
	var out Line
	for _, s := range l {
		s.Text = s.Text[:min(len(s.Text), cells)]
		cells -= len(s.Text)
		out = append(out, s)
	}
	return out
}

// WantsColour says whether colour is wanted by whoever set these variables, and
// what their terminal can show: https://no-color.org, and TERM. One that says
// nothing of itself gets none.
func WantsColour(getenv func(string) string) bool {
	return getenv("NO_COLOR") == "" && TakesEscapes(getenv)
}

// TakesEscapes says whether a terminal acts on escape sequences.
func TakesEscapes(getenv func(string) string) bool {
	t := getenv("TERM")
	return t != "" && t != "dumb"
}
