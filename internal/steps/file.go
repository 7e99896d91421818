package steps

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

const (
	// MaxFile bounds a steps file. The parser's own work grows with it.
	MaxFile = 4 << 20
	// maxDepth bounds nesting; the deepest key that exists needs six levels.
	maxDepth = 16
)

// kind is what a value in the file is, before anybody asked for a type.
type kind int

const (
	textKind kind = iota
	intKind
	floatKind
	boolKind
	nullKind
	listKind
	mapKind
)

// String names a kind the way an error message needs it.
func (k kind) String() string {
	switch k {
	case textKind:
		return "a text"
	case intKind, floatKind:
		return "a number"
	case boolKind:
		return "true or false"
	case nullKind:
		return "nothing"
	case listKind:
		return "a list"
	}
	return "a map"
}

// pos is a place in the file; both numbers count from 1.
type pos struct{ line, col int }

// value is a value of the file as written. This type, and not the parser's, is
// what the rest of the package sees: the parser can be changed in this file.
type value struct {
	pos
	kind  kind
	text  string // scalars: the text, without quotes
	plain bool   // scalars: not quoted
	items []value
	pairs []pair
}

type pair struct{ key, val value }

// shown is how an error repeats the value.
func (v value) shown() string {
	switch v.kind {
	case listKind:
		return "[...]"
	case mapKind:
		return "{...}"
	case nullKind:
		if v.text == "" {
			return "null"
		}
	}
	if v.text == "" {
		return `""`
	}
	return v.text
}

// parse reads one YAML document. It refuses all of YAML that lets two readers
// see two different files: a second document, duplicate keys, tags, anchors,
// aliases, merge keys, tabs between tokens, characters that are invisible.
func parse(name string, src []byte) (root value, errs Errors) {
	return parseAs(form{stepsKind, "version, defaults, steps", []string{"write what steps share under defaults"}}, name, src)
}

const stepsKind = "a steps file"

// StepsAt is where a file says what its steps are, if it does and can be read.
func StepsAt(name string, src []byte) (line, column int, ok bool) {
	root, _ := parse(name, src)
	for _, p := range root.pairs {
		if p.key.text == "steps" {
			return p.key.line, p.key.col, true
		}
	}
	return 0, 0, false
}

// form is what a file is meant to be, for what errors say of it.
type form struct {
	kind, holds string
	share       []string // what to do instead of repeating a value by reference
}

func parseAs(is form, name string, src []byte) (root value, errs Errors) {
	at := func(p pos, what, text, allowed string, hints ...string) {
		errs = append(errs, &FileError{File: name, Line: p.line, Column: p.col, What: what, Text: text, Allowed: allowed, Hints: hints})
	}
	if len(src) > MaxFile {
		at(pos{1, 1}, fmt.Sprintf("the file is larger than %d bytes", MaxFile), fmt.Sprintf("%d bytes", len(src)), "4 MiB at most",
			"keep long scripts in files of the workspace and run those")
		return value{}, errs
	}
	src = bytes.TrimPrefix(src, []byte("\xef\xbb\xbf"))
	if e := badCharacter(name, src); e != nil {
		return value{}, Errors{e}
	}
	lines := splitLines(src)

	doc, second, err := decode(bytes.NewReader(src))
	switch {
	case errors.Is(err, io.EOF):
		at(pos{1, 1}, "the file holds nothing", "", is.holds)
		return value{}, errs
	case err != nil:
		e := syntaxError(name, src, lines, err)
		if hint := unexpanded(e.Text); hint != nil && is.kind == stepsKind {
			e.Hints = []string{hint[0] + passItByEnv} // quotes would only hide it
		}
		return value{}, Errors{e}
	}
	c := converter{at: at, lines: lines, is: is}
	root = c.value(doc, 0)
	if second != nil {
		p := pos{max(second.Line, 1), max(second.Column, 1)}
		at(p, "a second document begins here", "---", "one document in a file")
	}
	return root, errs
}

// decode runs the parser. An archived parser reading a file from anywhere must
// not take the program down with it, so a panic in it is a file we refuse.
func decode(r io.Reader) (doc, second *yaml.Node, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("yaml: line 1: the parser gave up: %v", r)
		}
	}()
	dec := yaml.NewDecoder(r)
	doc, second = new(yaml.Node), new(yaml.Node)
	if err := dec.Decode(doc); err != nil {
		return nil, nil, err
	}
	switch err := dec.Decode(second); {
	case errors.Is(err, io.EOF):
		return doc, nil, nil
	case err != nil:
		return nil, nil, err
	}
	return doc, second, nil
}

// converter turns the parser's tree into ours, refusing on the way.
type converter struct {
	at    func(p pos, what, text, allowed string, hints ...string)
	lines []string
	last  cursor
	is    form
}

func (c *converter) value(n *yaml.Node, depth int) value {
	if n.Kind == yaml.DocumentNode {
		if len(n.Content) != 1 {
			return value{pos: pos{1, 1}, kind: nullKind, plain: true}
		}
		return c.value(n.Content[0], depth)
	}
	v := value{pos: pos{max(n.Line, 1), max(n.Column, 1)}, kind: nullKind, plain: true}
	if depth > maxDepth {
		c.at(v.pos, fmt.Sprintf("nested more than %d levels deep", maxDepth), "", "")
		return v
	}
	tab, first := c.around(v.pos)
	switch {
	case tab:
		c.at(v.pos, "a tab before this value", n.Value, "spaces")
	case n.Kind == yaml.AliasNode:
		c.at(v.pos, "aliases are not part of "+c.is.kind, "*"+n.Value, "the value itself", c.is.share...)
		return v
	case n.Anchor != "":
		c.at(v.pos, "anchors are not part of "+c.is.kind, "&"+n.Anchor, "the value itself", c.is.share...)
	case n.Style&yaml.TaggedStyle != 0 || first == '!':
		c.at(v.pos, "tags are not part of "+c.is.kind, n.Tag, "a plain value, or one in quotes")
	}

	switch n.Kind {
	case yaml.SequenceNode:
		v.kind = listKind
		for _, item := range n.Content {
			v.items = append(v.items, c.value(item, depth+1))
		}
	case yaml.MappingNode:
		v.kind = mapKind
		c.pairs(&v, n, depth)
	case yaml.ScalarNode:
		v.text = n.Value
		v.plain = n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) == 0
		v.kind = textKind
		if v.plain {
			v.kind = scalarKind(n)
		}
	}
	return v
}

func (c *converter) pairs(v *value, n *yaml.Node, depth int) {
	seen := make(map[string]pos, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, val := c.value(n.Content[i], depth+1), n.Content[i+1]
		switch {
		case n.Content[i].Kind != yaml.ScalarNode:
			c.at(k.pos, "a key must be a text", k.shown(), "")
			c.value(val, depth+1)
			continue
		case n.Content[i].Tag == "!!merge":
			c.at(k.pos, "merge keys are not part of "+c.is.kind, k.text, "the keys themselves", c.is.share...)
			c.value(val, depth+1)
			continue
		}
		if first, ok := seen[k.text]; ok {
			// Two readers may keep two different ones, so neither is kept.
			c.at(k.pos, "key "+quoted(k.text)+" is there twice", "", "each key once",
				fmt.Sprintf("the first one is on line %d", first.line))
			c.value(val, depth+1)
			continue
		}
		seen[k.text] = k.pos
		v.pairs = append(v.pairs, pair{k, c.value(val, depth+1)})
	}
}

// cursor is a character of a line. Values come in the order of the file, so the
// next one is looked for from the last one on: a line can be as long as a file.
type cursor struct {
	pos
	byte int
	tab  bool // there is a tab before it on the line
}

// around says whether a tab stands before a place on its line, and which
// character stands there.
func (c *converter) around(p pos) (tab bool, first rune) {
	if p.line > len(c.lines) {
		return false, 0
	}
	if p.line != c.last.line || p.col < c.last.col {
		c.last = cursor{pos: pos{p.line, 1}}
	}
	line := c.lines[p.line-1]
	for c.last.byte < len(line) {
		r, size := utf8.DecodeRuneInString(line[c.last.byte:])
		if c.last.col == p.col {
			return c.last.tab, r
		}
		c.last.tab = c.last.tab || r == '\t'
		c.last.byte += size
		c.last.col++
	}
	return c.last.tab, 0
}

// scalarKind is what a scalar without quotes is. Words such as yes and off are
// texts: only true and false are boolean, and only decimal numbers are numbers.
func scalarKind(n *yaml.Node) kind {
	switch n.ShortTag() {
	case "!!null":
		return nullKind
	case "!!bool":
		return boolKind
	case "!!int":
		return intKind
	case "!!float":
		return floatKind
	}
	return textKind
}

// badCharacter finds what a person cannot see in an editor, and what editors
// and the parser count as different lines.
func badCharacter(name string, src []byte) *FileError {
	p := pos{1, 1}
	for i := 0; i < len(src); {
		r, size := utf8.DecodeRune(src[i:])
		what := ""
		switch {
		case r == utf8.RuneError && size == 1:
			what = "not UTF-8"
		case r == '\n':
			p.line, p.col = p.line+1, 0
		case r == '\r':
			if i+1 >= len(src) || src[i+1] != '\n' {
				what = "a carriage return without a line feed"
			}
		default:
			what = unseen(r)
		}
		if what != "" {
			return &FileError{File: name, Line: p.line, Column: p.col, What: what,
				Text: string(src[i : i+size]), Allowed: "visible characters, spaces, line feeds",
				Hints: []string{`inside double quotes it can be written as \x.. or \u....`}}
		}
		p.col++
		i += size
	}
	return nil
}

// unseen says what is wrong with a character that is no end of a line; "" if nothing
// is.
func unseen(r rune) string {
	switch {
	case r == '\t':
	case r < 0x20 || r >= 0x7f && r < 0xa0 || r == 0xfeff || r == 0xfffe || r == 0xffff:
		return "a control character"
	case r == 0x2028 || r == 0x2029:
		return "a line break that editors do not show"
	case r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069:
		// They make a reviewer see another order than the parser does.
		return "a character that changes the reading direction"
	}
	return ""
}

// Escaped is JSON as a steps file can hold it: what nobody would see in one is
// written out. In JSON it can stand in texts alone. All else that JSON may have in
// them is read as it is meant.
func Escaped(json []byte) []byte {
	out := make([]byte, 0, len(json))
	for i := 0; i < len(json); {
		r, size := utf8.DecodeRune(json[i:])
		if r != '\n' && r != '\r' && unseen(r) != "" {
			out = fmt.Appendf(out, `\u%04x`, r)
		} else {
			out = append(out, json[i:i+size]...)
		}
		i += size
	}
	return out
}

func splitLines(src []byte) []string {
	return strings.Split(strings.ReplaceAll(string(src), "\r\n", "\n"), "\n")
}
