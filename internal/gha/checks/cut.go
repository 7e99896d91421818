package checks

import "unicode/utf8"

// cut shortens a text to at most n bytes, which is what the API counts, between
// two characters.
func cut(text string, n int) string {
	const more = " ..."
	if len(text) <= n {
		return text
	}
	n = max(n-len(more), 0)
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + more
}
