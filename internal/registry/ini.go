package registry

import (
	"slices"
	"strings"
)

// setting is one line of an INI file.
type setting struct{ section, key, value string }

// npmrc reads the dialect of npm: comments begin at ; or # also behind a value,
// and ${NAME} is a variable.
func npmrc(text string, env func(string) string) []setting {
	list := ini(text, "=", func(line string) string {
		if i := strings.IndexAny(line, ";#"); i >= 0 {
			line = line[:i]
		}
		return line
	})
	for i := range list {
		list[i].value = expandVars(unquote(list[i].value), env)
	}
	return slices.DeleteFunc(list, func(s setting) bool { return s.section != "" })
}

// pipConf reads the dialect of pip: key: value is good too, and a line that begins
// with a blank goes on with the value before it.
func pipConf(text string) []setting {
	list := ini(text, "=:", func(line string) string { return line })
	for i := range list {
		list[i].key = strings.ReplaceAll(strings.ToLower(list[i].key), "_", "-")
	}
	return list
}

func ini(text, between string, uncomment func(string) string) []setting {
	var list []setting
	section := ""
	for line := range strings.Lines(text) {
		indented := strings.HasPrefix(line, " ") || strings.HasPrefix(line, "\t")
		line = strings.TrimSpace(line)
		if line == "" || line[0] == ';' || line[0] == '#' {
			continue
		}
		if line[0] == '[' {
			section = strings.Trim(line, "[] ")
			continue
		}
		line = uncomment(line)
		// A continued value; npm has none, and there the second test holds.
		if indented && len(list) > 0 && !strings.Contains(beforeURL(line), "=") {
			list[len(list)-1].value += "\n" + line
			continue
		}
		at := strings.IndexAny(line, between)
		if at < 0 {
			continue
		}
		list = append(list, setting{section, strings.TrimSpace(line[:at]), strings.TrimSpace(line[at+1:])})
	}
	return list
}

// beforeURL is what stands before a URL, which may have = in it.
func beforeURL(line string) string {
	before, _, _ := strings.Cut(line, "://")
	return before
}

func unquote(s string) string {
	if len(s) >= 2 && (s[0] == '"' || s[0] == '\'') && s[len(s)-1] == s[0] {
		return s[1 : len(s)-1]
	}
	return s
}

// expandVars replaces ${NAME}. One that is not set stays as it stands, which no
// URL survives.
func expandVars(s string, env func(string) string) string {
	var out strings.Builder
	for {
		before, rest, ok := strings.Cut(s, "${")
		out.WriteString(before)
		if !ok {
			return out.String()
		}
		name, after, ok := strings.Cut(rest, "}")
		if !ok {
			return out.String() + "${" + rest
		}
		if v := env(strings.TrimSuffix(name, "?")); v != "" || strings.HasSuffix(name, "?") {
			out.WriteString(v)
		} else {
			out.WriteString("${" + name + "}")
		}
		s = after
	}
}
