package patch

import "strings"

// refusal says why no patch may touch a path, "" if it may. It is stricter than
// git apply on this system: a patch travels to others.
func refusal(path string, link bool) string {
	switch {
	case path == "":
		return "an empty path"
	case path[0] == '/':
		return "an absolute path"
	case strings.IndexByte(path, 0) >= 0:
		return "a path with a NUL"
	}
	for name := range strings.SplitSeq(path, "/") {
		switch name {
		case "":
			return "a path with an empty part"
		case ".", "..":
			return "a path with the part " + name
		}
		// Windows takes both slashes, and git looks behind them everywhere.
		for part := range strings.SplitSeq(name, `\`) {
			part = folded(part)
			if part == ".git" || part == "git~1" {
				return "a path into git's own folder"
			}
			if link && isModules(part) {
				return "a link in the place of .gitmodules"
			}
		}
	}
	return ""
}

// folded is a name as the file systems of Windows and macOS may find it: without
// a stream's name and what they cut off the end, without the characters that
// they do not see, and in small letters.
func folded(name string) string {
	name = strings.Map(func(r rune) rune {
		switch {
		case r >= 0x200c && r <= 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x206a && r <= 0x206f, r == 0xfeff:
			return -1
		}
		return r
	}, name)
	name, _, _ = strings.Cut(name, ":")
	return strings.ToLower(strings.TrimRight(name, ". "))
}

// isModules knows .gitmodules by its short names too: gitmod~1 to ~4, and after
// those the hash gi7eba, cut to leave room for the number.
func isModules(name string) bool {
	if name == ".gitmodules" {
		return true
	}
	head, number, ok := strings.Cut(name, "~")
	if !ok || number == "" || strings.Trim(number, "0123456789") != "" {
		return false
	}
	return head == "gitmod" || head != "" && strings.HasPrefix("gi7eba", head)
}

// Quoted is a path with git's prefix as git writes it: plain if every byte is
// visible ASCII, else in quotes with escapes. git apply loses its way in a plain
// header in which a space is followed by a slash, so that is quoted too.
func Quoted(prefix, path string) string {
	path = prefix + path
	if !strings.ContainsFunc(path, special) && !strings.Contains(path, " /") {
		return path
	}
	return quote(path)
}

func special(r rune) bool { return r < ' ' || r == '"' || r == '\\' || r >= 0x7f }

// quote is a C string. Nothing in it can end a line, or be taken for a command
// by a terminal.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(s) {
		c := s[i]
		if k := strings.IndexByte("\a\b\t\n\v\f\r\"\\", c); k >= 0 {
			b.WriteByte('\\')
			b.WriteByte(`abtnvfr"\`[k])
		} else if c < ' ' || c >= 0x7f {
			b.WriteByte('\\')
			b.WriteByte('0' + c>>6)
			b.WriteByte('0' + c>>3&7)
			b.WriteByte('0' + c&7)
		} else {
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}
