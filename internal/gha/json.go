package gha

import (
	"unicode/utf16"
	"unicode/utf8"
)

// InertJSON appends JSON to dst with what may act outside of JSON written as \u
// escapes, which change no value: the runner's opening, and characters that
// nobody can see. All of them can stand only inside a string. Line ends stay.
func InertJSON(dst, json []byte) []byte {
	hashes, done := 0, 0
	for i := 0; i < len(json); {
		r, n := rune(json[i]), 1
		if r >= utf8.RuneSelf {
			r, n = utf8.DecodeRune(json[i:])
		}
		if (r == '[' && hashes >= 2) || (r != '\n' && (r < ' ' || r > '~') && unseen(r)) {
			dst = append(dst, json[done:i]...)
			dst = appendEscape(dst, r)
			done = i + n
		}
		if r == '#' {
			hashes++
		} else if r < utf8.RuneSelf { // anything wider may not count for a runner
			hashes = 0
		}
		i += n
	}
	return append(dst, json[done:]...)
}

func appendEscape(dst []byte, r rune) []byte {
	units := []rune{r}
	if first, second := utf16.EncodeRune(r); first != utf8.RuneError {
		units = []rune{first, second}
	}
	for _, u := range units {
		dst = append(dst, '\\', 'u', hexDigits[u>>12&15], hexDigits[u>>8&15], hexDigits[u>>4&15], hexDigits[u&15])
	}
	return dst
}
