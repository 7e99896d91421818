package scrub

import (
	"errors"
	"fmt"
	"strings"
)

// What an item of a git configuration is.
const (
	itemHeader = iota
	itemEntry
	itemComment
)

// item is one thing in a git configuration, with the bytes it takes there, so
// that what is not changed can be written back as it was.
type item struct {
	kind     int
	from, to int // without the end of the line

	// Of a header and of the entries below it. git takes the first dot of
	// [a.b "c"] for the end of the section, and only what is in quotes keeps
	// its case.
	section, sub string
	quoted       string // what stood in quotes; headers only
	quotedFrom   int    // of the opening quote; 0 if there is none
	quotedTo     int    // behind the closing one

	// Of an entry.
	key       string // lower case
	value     string // as git would give it
	hasValue  bool
	valueFrom int // from the first byte behind "=" that is no space
	valueTo   int // behind the last byte of the value, before spaces and comment
	comment   int // where a comment behind the value begins; to if there is none
}

var errSyntax = errors.New("not a git configuration")

// gitParser reads a configuration by the rules of git itself. Where git would
// give up, it gives up too: then nobody knows what the file means.
type gitParser struct {
	b    []byte
	i    int
	line int
}

// peek is the byte at the place, with CR LF as one line end and the end of the
// file as another; width is how many bytes that takes.
func (p *gitParser) peek() (c byte, width int) {
	if p.i >= len(p.b) {
		return '\n', 0
	}
	if p.b[p.i] == '\r' && p.i+1 < len(p.b) && p.b[p.i+1] == '\n' {
		return '\n', 2
	}
	return p.b[p.i], 1
}

func (p *gitParser) next() byte {
	c, width := p.peek()
	if c == '\n' {
		p.line++
	}
	p.i += width
	return c
}

func (p *gitParser) wrong(what string) error {
	return fmt.Errorf("%w: line %d: %s", errSyntax, p.line+1, what)
}

func parseGitConfig(b []byte) ([]item, error) {
	p := &gitParser{b: b}
	if strings.HasPrefix(string(b[:min(3, len(b))]), "\xef\xbb\xbf") {
		p.i = 3
	}
	var items []item
	var header item
	for p.i < len(p.b) {
		c, _ := p.peek()
		switch {
		case c == '\n' || isSpace(c):
			p.next()
		case c == 0:
			// To git a string ends there, to us it would not.
			return nil, p.wrong("a NUL byte")
		case c == '#' || c == ';':
			it := item{kind: itemComment, from: p.i}
			for {
				if c, _ := p.peek(); c == '\n' {
					break
				}
				p.i++
			}
			it.to = p.i
			items = append(items, it)
		case c == '[':
			it, err := p.header()
			if err != nil {
				return nil, err
			}
			header = it
			items = append(items, it)
		case isAlpha(c):
			it, err := p.entry()
			if err != nil {
				return nil, err
			}
			it.section, it.sub = header.section, header.sub
			items = append(items, it)
		default:
			return nil, p.wrong("neither a section, a key nor a comment")
		}
	}
	return items, nil
}

// header reads [section], [section.sub] or [section "sub"].
func (p *gitParser) header() (item, error) {
	it := item{kind: itemHeader, from: p.i}
	p.next()
	var base strings.Builder
	for {
		c := p.next()
		switch {
		case c == ']':
			it.to = p.i
			it.section, it.sub, _ = strings.Cut(base.String(), ".")
			return it, nil
		case isSpace(c) || c == '\n':
			return p.subsection(it, c, base.String())
		case isAlpha(c) || isDigit(c) || c == '-' || c == '.':
			base.WriteByte(lower(c))
		default:
			return it, p.wrong("a section's name")
		}
	}
}

func (p *gitParser) subsection(it item, c byte, base string) (item, error) {
	for {
		if c == '\n' {
			return it, p.wrong("a section's name that does not end")
		}
		if !isSpace(c) {
			break
		}
		it.quotedFrom = p.i
		c = p.next()
	}
	if c != '"' {
		return it, p.wrong("a section's name")
	}
	var sub strings.Builder
	for {
		c := p.next()
		if c == '"' {
			break
		}
		if c == '\\' {
			c = p.next()
		}
		if c == '\n' || c == 0 {
			return it, p.wrong("a section's name that does not end")
		}
		sub.WriteByte(c)
	}
	it.quotedTo = p.i
	if p.next() != ']' {
		return it, p.wrong("a section's name that does not end")
	}
	it.to, it.quoted = p.i, sub.String()
	var inner string
	var dotted bool
	it.section, inner, dotted = strings.Cut(base, ".")
	it.sub = it.quoted
	if dotted {
		it.sub = inner + "." + it.quoted
	}
	return it, nil
}

// entry reads "key", "key = value" or "key = value ; comment".
func (p *gitParser) entry() (item, error) {
	it := item{kind: itemEntry, from: p.i}
	var key strings.Builder
	for {
		c, _ := p.peek()
		if !isAlpha(c) && !isDigit(c) && c != '-' {
			break
		}
		key.WriteByte(lower(c))
		p.next()
	}
	it.key = key.String()
	end := p.i
	for {
		c, _ := p.peek()
		switch c {
		case ' ', '\t':
			p.next()
			continue
		case '\n':
			it.to, it.comment = end, end
			return it, nil
		case '=':
			p.next()
			it.hasValue = true
			return p.value(it)
		}
		return it, p.wrong("a key with neither value nor end")
	}
}

func (p *gitParser) value(it item) (item, error) {
	var value strings.Builder
	quote, begun, kept := false, false, 0
	it.valueFrom, it.valueTo = p.i, p.i
	for {
		at := p.i
		c, _ := p.peek()
		if c == '\n' {
			if quote {
				return it, p.wrong("a quote that does not end")
			}
			break
		}
		if c == 0 {
			return it, p.wrong("a NUL byte")
		}
		p.next()
		if !quote && isSpace(c) {
			if begun {
				value.WriteByte(c)
			} else {
				it.valueFrom, it.valueTo = p.i, p.i
			}
			continue
		}
		if !quote && (c == ';' || c == '#') {
			it.comment = at
			for {
				if c, _ := p.peek(); c == '\n' {
					break
				}
				p.i++
			}
			break
		}
		begun = true
		switch c {
		case '"':
			quote = !quote
			kept = max(kept, value.Len())
			it.valueTo = p.i
			continue
		case '\\':
			switch c = p.next(); c {
			case '\n':
				// The value goes on in the next line.
				it.valueTo = p.i
				continue
			case 'n':
				c = '\n'
			case 't':
				c = '\t'
			case 'b':
				c = '\b'
			case '\\', '"':
			default:
				return it, p.wrong("an escape that git does not know")
			}
		}
		value.WriteByte(c)
		kept, it.valueTo = value.Len(), p.i
	}
	it.to = p.i
	if it.comment == 0 {
		it.comment = it.to
	}
	// Spaces before the end, or before a comment, are no part of a value.
	it.value = value.String()[:kept]
	return it, nil
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }
func isAlpha(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }
func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func lower(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		return c | 0x20
	}
	return c
}

// quoteGit writes a value, or a subsection, so that git reads it back.
func quoteGit(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(s) {
		switch c := s[i]; c {
		case '"', '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case '\n':
			b.WriteString(`\n`)
		case '\t':
			b.WriteString(`\t`)
		case '\b':
			b.WriteString(`\b`)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}
