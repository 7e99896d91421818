package registry

import (
	"fmt"
	"strconv"
	"strings"
)

// toml gives the texts of a TOML file by dotted key, for the tables that say
// where crates come from. Everything else in the file is stepped over; a form of
// those tables that is not known here is an error and no guess.
func toml(text string) (map[string]string, error) {
	out := map[string]string{}
	var table []string
	within := "" // the end of a value that goes on over lines
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if within != "" {
			if strings.Contains(line, within) {
				within = ""
			}
			continue
		}
		if line == "" || line[0] == '#' {
			continue
		}
		if line[0] == '[' {
			head, _, ok := strings.Cut(strings.Trim(line, "["), "]")
			if table = tomlKey(head); !ok || table == nil {
				return nil, fmt.Errorf("line %d is a table that is not read here", n)
			}
			continue
		}
		at := tomlEquals(line)
		key := tomlKey(line[:max(at, 0)])
		if at < 0 || key == nil {
			return nil, fmt.Errorf("line %d is not read here", n)
		}
		full := append(append([]string{}, table...), key...)
		value := strings.TrimSpace(line[at+1:])
		if err := tomlValue(out, full, value); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		within = tomlGoesOn(value)
	}
	return out, nil
}

// tomlValue notes a text, or those of an inline table.
func tomlValue(out map[string]string, key []string, value string) error {
	if key[0] != "source" && key[0] != "registries" {
		return nil
	}
	if s, rest, ok := tomlText(value); ok {
		if rest = strings.TrimSpace(rest); rest != "" && rest[0] != '#' {
			return fmt.Errorf("there is more behind the text of %s", strings.Join(key, "."))
		}
		out[strings.Join(key, ".")] = s
		return nil
	}
	inner, ok := strings.CutPrefix(value, "{")
	if !ok {
		return nil // a number, a list: not ours
	}
	for {
		inner = strings.TrimLeft(inner, " \t,")
		if strings.HasPrefix(inner, "}") {
			return nil
		}
		at := tomlEquals(inner)
		if at < 0 {
			return fmt.Errorf("the table of %s is not read here", strings.Join(key, "."))
		}
		k := tomlKey(inner[:at])
		s, rest, ok := tomlText(strings.TrimSpace(inner[at+1:]))
		if !ok || k == nil {
			return fmt.Errorf("the table of %s is not read here", strings.Join(key, "."))
		}
		out[strings.Join(append(append([]string{}, key...), k...), ".")] = s
		inner = rest
	}
}

// tomlText reads a text in quotes.
func tomlText(s string) (text, rest string, ok bool) {
	switch {
	case strings.HasPrefix(s, `"""`), strings.HasPrefix(s, "'''"):
		return "", s, false
	case strings.HasPrefix(s, "'"):
		text, rest, ok = strings.Cut(s[1:], "'")
		return text, rest, ok
	case strings.HasPrefix(s, `"`):
		q, err := strconv.QuotedPrefix(s)
		if err != nil {
			return "", s, false
		}
		text, err = strconv.Unquote(q)
		return text, s[len(q):], err == nil
	}
	return "", s, false
}

// tomlKey reads a dotted key; nil if it is none.
func tomlKey(s string) []string {
	var parts []string
	for {
		s = strings.TrimSpace(s)
		part, rest := "", ""
		if t, r, ok := tomlText(s); ok {
			part, rest = t, strings.TrimSpace(r)
		} else {
			i := strings.IndexFunc(s, func(c rune) bool {
				return !(c == '-' || c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z')
			})
			if i < 0 {
				i = len(s)
			}
			part, rest = s[:i], strings.TrimSpace(s[i:])
			if part == "" {
				return nil
			}
		}
		parts = append(parts, part)
		if rest == "" {
			return parts
		}
		var ok bool
		if s, ok = strings.CutPrefix(rest, "."); !ok {
			return nil
		}
	}
}

// tomlEquals finds the = behind a key, which may have quotes.
func tomlEquals(s string) int {
	quote := rune(0)
	for i, c := range s {
		switch {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case c == '=':
			return i
		}
	}
	return -1
}

// tomlGoesOn gives what ends a value that does not end on its line.
func tomlGoesOn(value string) string {
	for _, q := range []string{`"""`, "'''"} {
		if strings.HasPrefix(value, q) && !strings.Contains(value[3:], q) {
			return q
		}
	}
	if strings.HasPrefix(value, "[") && strings.Count(value, "[") > strings.Count(value, "]") {
		return "]"
	}
	return ""
}
