package gha

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxMarks is how many combining marks may sit on one character. More of them
// paint over the lines above and below, which are ours.
const maxMarks = 4

const hexDigits = "0123456789abcdef"

// Inert makes one untrusted line harmless to print: to a runner, a terminal and
// a reader's eye. The result is valid UTF-8 on a single line, has no control,
// format, zero-width or direction-changing character (each is written out, such
// as \x1b or \u202e), and nowhere contains the opening of a runner command.
// Colour codes vanish; every other escape sequence becomes visible text.
//
// What it does not do: stop a line from starting with "::". Whoever prints it
// puts something in front, or takes InertLine.
//
// The runner searches for its opening with rules of language, which skip
// characters they hold to be without weight. That is why such characters are
// written out and why the opening is broken with a plain space and not with one
// of them.
func Inert(line string) string {
	if plain(line) {
		return line
	}
	var b strings.Builder
	b.Grow(len(line) + 16)
	hashes, marks := 0, 0
	for i := 0; i < len(line); {
		// ASCII has no marks and no letters to look up: megabytes of NUL must
		// not cost the step its time.
		if c := line[i]; c < utf8.RuneSelf && c != '\x1b' {
			marks = 0
			switch {
			case c == '\n':
				b.WriteString(`\n`)
			case c == '\r':
				b.WriteString(`\r`)
			case c < ' ' && c != '\t', c == 0x7f:
				b.Write([]byte{'\\', 'x', hexDigits[c>>4], hexDigits[c&15]})
			case c == '[' && hashes >= 2:
				b.WriteString(" [")
			default:
				b.WriteByte(c)
			}
			if hashes++; c != '#' {
				hashes = 0
			}
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(line[i:])
		if r == '\x1b' {
			if skip := colourCode(line[i:]); skip > 0 {
				i += skip
				continue
			}
		}
		if r == '\ufe0f' || r == '\ufe0e' {
			// The choice between an emoji and a plain sign is no text. After
			// anything else the selector hides in a name, so it is shown.
			if prev, _ := utf8.DecodeLastRuneInString(b.String()); unicode.Is(unicode.So, prev) || unicode.Is(unicode.Sm, prev) {
				i += n
				continue
			}
		}
		if unicode.In(r, unicode.Mn, unicode.Me) {
			marks++
		} else {
			marks = 0
		}
		switch {
		case r == utf8.RuneError && n <= 1:
			fmt.Fprintf(&b, `\x%02x`, line[i])
		case unseen(r) || marks > maxMarks || (marks > 0 && b.Len() == 0):
			writeVisible(&b, r)
		default:
			b.WriteRune(r)
		}
		if marks == 0 { // a mark between them may not count for the runner
			hashes = 0
		}
		i += n
	}
	return b.String()
}

// InertLine is Inert for a line that has nothing in front of it: what would be a
// command gets a gutter.
func InertLine(line string) string {
	text := Inert(line)
	if isCommand(text) {
		return ownGutter + text
	}
	return text
}

// ownGutter stands before a line of ours that quotes something which would be a
// command.
const ownGutter = "| "

// isCommand says whether a runner would take a line for a command: it passes over
// blanks, and over what has no weight.
func isCommand(text string) bool {
	return strings.HasPrefix(strings.TrimSpace(strings.Map(weightless, text)), "::")
}

// InertASCII is Inert for places where width counts or only ASCII is safe, such
// as a table on a terminal: other letters are written out too.
func InertASCII(line string) string {
	line = Inert(line)
	if strings.IndexFunc(line, func(r rune) bool { return r >= utf8.RuneSelf || r == '\t' }) < 0 {
		return line
	}
	var b strings.Builder
	for _, r := range line {
		switch {
		case r == '\t':
			b.WriteString(`\t`)
		case r < utf8.RuneSelf:
			b.WriteRune(r)
		default:
			writeVisible(&b, r)
		}
	}
	return b.String()
}

// Unseen says whether Inert would write a character out: whether a reader could
// not see it, or it would move what stands around it.
func Unseen(r rune) bool { return unseen(r) }

func unseen(r rune) bool {
	switch r {
	case '\t', '\u00a0', '\u3000': // spaces with a width, common in honest text
		return false
	}
	if r < utf8.RuneSelf {
		return r < ' ' || r == 0x7f
	}
	return !unicode.IsPrint(r) ||
		unicode.Is(unicode.Variation_Selector, r) ||
		unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r)
}

func writeVisible(b *strings.Builder, r rune) {
	switch {
	case r < 0x80:
		fmt.Fprintf(b, `\x%02x`, r)
	case r <= 0xffff:
		fmt.Fprintf(b, `\u%04x`, r)
	default:
		fmt.Fprintf(b, `\U%08x`, r)
	}
}

// plain says whether a line needs no change at all, which most lines do not.
func plain(line string) bool {
	for i := 0; i < len(line); i++ {
		if c := line[i]; (c < ' ' && c != '\t') || c >= 0x7f {
			return false
		}
	}
	return !strings.Contains(line, "##[")
}

// maxColour is how long a colour code may be. One that sets both colours and all
// else is shorter; what is longer is shown.
const maxColour = 64

// colourCode is the length of the colour code that s starts with, or 0. Only
// colours: a code that moves the cursor or clears a line must be seen.
func colourCode(s string) int {
	for n := 1; n <= len(s); n++ {
		switch whole, may := vanishes(s[:n]); {
		case whole:
			return n
		case !may:
			return 0
		}
	}
	return 0
}

// vanishes says whether b is something that Inert takes away, or may become that
// with the bytes that follow: a colour code, or the choice of how an emoji looks,
// which Inert shows in other places. All of b but its last byte may become one.
func vanishes[T string | []byte](b T) (whole, may bool) {
	c := b[len(b)-1]
	switch {
	case len(b) == 1:
		return false, startsVanishing(c)
	case b[0] != '\x1b': // U+FE0E and U+FE0F
		return len(b) == 3 && (c == 0x8e || c == 0x8f), len(b) == 2 && c == 0xb8
	case len(b) == 2:
		return false, c == '['
	case c == 'm':
		return true, false
	}
	return false, len(b) < maxColour && (c == ';' || c == ':' || c >= '0' && c <= '9')
}

func startsVanishing(c byte) bool { return c == '\x1b' || c == 0xef }

// weightless drops what a comparison by the rules of a language may skip. It is
// for strings.Map.
func weightless(r rune) rune {
	switch {
	case r == '\t':
		return r
	case unicode.In(r, unicode.Cc, unicode.Cf, unicode.Mn, unicode.Me, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point):
		return -1
	}
	return r
}
