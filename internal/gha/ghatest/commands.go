// Package ghatest reads a log as GitHub's runner does. Tests of everything that
// writes to a log hold it up against this reader: what it finds, a runner would
// act on.
//
// It shares no rule with package gha, whose promises it is there to doubt, and
// the program does not have it in it.
//
//	if c := ghatest.Commands(log); len(c) > 0 {
//		t.Errorf("a runner would act on %+v", c)
//	}
package ghatest

import (
	"encoding/binary"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Command is something a runner would take for a command to itself.
type Command struct {
	Line  int    // counted from 1, as the runner counts
	Form  string // "::" or "##["
	Name  string // lower case
	Props map[string]string
	Data  string
}

// Commands reads a stream as GitHub's runner does and lists what it would act
// on. It errs towards seeing too much: any name counts, whether or not a runner
// knows it, and each line is read a second time without the characters that
// comparing by the rules of a language may skip.
//
//   - The first bytes choose the encoding, if they are a byte order mark.
//   - A line ends at LF, CR or CRLF.
//   - "::name key=value,key=value::data" counts at the start of a line, after
//     any white space that Unicode knows.
//   - "##[name key=value;key=value]data" counts anywhere in a line.
func Commands(stream []byte) []Command {
	var found []Command
	text := decode(stream)
	text = strings.ReplaceAll(text, "\r\n", "\n")
	text = strings.ReplaceAll(text, "\r", "\n")
	n := 0
	for line := range strings.SplitSeq(text, "\n") {
		n++
		c, ok := readCommand(line)
		if !ok {
			c, ok = readCommand(strings.Map(weightless, line))
		}
		if ok {
			c.Line = n
			found = append(found, c)
		}
	}
	return found
}

func readCommand(line string) (Command, bool) {
	if c, ok := readColons(line); ok {
		return c, true
	}
	return readHashes(line)
}

func readColons(line string) (Command, bool) {
	rest, ok := strings.CutPrefix(strings.TrimLeftFunc(line, unicode.IsSpace), "::")
	if !ok {
		return Command{}, false
	}
	head, data, ok := strings.Cut(rest, "::")
	if !ok {
		return Command{}, false
	}
	return newCommand("::", head, ",", data, strings.NewReplacer("%0D", "\r", "%0A", "\n", "%3A", ":", "%2C", ",", "%25", "%"))
}

func readHashes(line string) (Command, bool) {
	_, rest, ok := strings.Cut(line, "##[")
	if !ok {
		return Command{}, false
	}
	head, data, ok := strings.Cut(rest, "]")
	if !ok {
		return Command{}, false
	}
	return newCommand("##[", head, ";", data, strings.NewReplacer("%0D", "\r", "%0A", "\n", "%3B", ";", "%5D", "]", "%25", "%"))
}

func newCommand(form, head, separator, data string, unescape *strings.Replacer) (Command, bool) {
	name, list, _ := strings.Cut(head, " ")
	if name == "" {
		return Command{}, false
	}
	c := Command{Form: form, Name: strings.ToLower(name), Data: unescape.Replace(data)}
	for pair := range strings.SplitSeq(list, separator) {
		if k, v, ok := strings.Cut(strings.TrimSpace(pair), "="); ok {
			if c.Props == nil {
				c.Props = map[string]string{}
			}
			c.Props[k] = unescape.Replace(v)
		}
	}
	return c, true
}

// weightless drops what a comparison by the rules of a language may skip.
func weightless(r rune) rune {
	switch {
	case r == '\t':
		return r
	case unicode.In(r, unicode.Cc, unicode.Cf, unicode.Mn, unicode.Me, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point):
		return -1
	}
	return r
}

// decode finds the encoding in the first bytes, as a runner's reader does.
func decode(b []byte) string {
	starts := func(mark string) bool { return strings.HasPrefix(string(b[:min(len(b), len(mark))]), mark) }
	switch {
	case starts("\xff\xfe\x00\x00"):
		return decode32(b[4:], binary.LittleEndian)
	case starts("\x00\x00\xfe\xff"):
		return decode32(b[4:], binary.BigEndian)
	case starts("\xff\xfe"):
		return decode16(b[2:], binary.LittleEndian)
	case starts("\xfe\xff"):
		return decode16(b[2:], binary.BigEndian)
	case starts("\xef\xbb\xbf"):
		b = b[3:]
	}
	return strings.ToValidUTF8(string(b), string(utf8.RuneError))
}

func decode16(b []byte, order binary.ByteOrder) string {
	units := make([]uint16, 0, len(b)/2)
	for ; len(b) >= 2; b = b[2:] {
		units = append(units, order.Uint16(b))
	}
	return string(utf16.Decode(units))
}

func decode32(b []byte, order binary.ByteOrder) string {
	var s strings.Builder
	for ; len(b) >= 4; b = b[4:] {
		s.WriteRune(rune(min(order.Uint32(b), unicode.MaxRune+1)))
	}
	return s.String()
}
