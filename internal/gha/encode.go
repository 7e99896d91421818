package gha

import (
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	// MinEncoded is the shortest encoded text that is masked. Six characters of
	// base64 hardly come about by chance; fewer do.
	MinEncoded = 6
	// maxEncoded is the longest value that is looked for in its encodings: each
	// of them takes memory of many times its length, and a fifth of a second goes
	// into ten kilobytes. A key of a cloud's account fits. Lines of a longer
	// value are still looked for, each on its own.
	maxEncoded = 4 << 10
)

// encodings calls add with the spellings in which a program would most likely
// print a value: base64, hex, percent, JSON, HTML, and backwards. It does not give the
// value itself, nor what is shorter than MinEncoded.
//
// Whoever wants to get a value past this can: by another cipher, or one letter
// per line. It is against the accident, and the program that logs its headers.
func encodings(value string, add func(string)) {
	if len(value) < MinSecret || len(value) > maxEncoded {
		return
	}
	give := func(s string) {
		if len(s) >= MinEncoded && s != value {
			add(s)
		}
	}
	eachBase64(value, "+/", give)
	eachBase64(value, "-_", give)
	low := hex.EncodeToString([]byte(value))
	for _, s := range []string{low, strings.ToUpper(low)} {
		give(s)
		wrapped(s, 60, give) // as xxd does
	}
	eachPercent(value, give)
	eachJSON(value, give)
	eachHTML(value, give)
	back := []byte(value)
	slices.Reverse(back)
	give(string(back))
	if runes := []rune(value); len(runes) != len(value) && utf8.ValidString(value) {
		slices.Reverse(runes)
		give(string(runes))
	}
}

const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

// eachBase64 gives what is the same in the base64 of every text with the value
// in it. Three bytes make four characters, so there are three ways to begin. The
// first and the last character may have bits of a neighbour: the first is left
// as it is, and every possible last one is given.
func eachBase64(value, signs string, give func(string)) {
	alphabet := letters + signs
	enc := base64.NewEncoding(alphabet).WithPadding(base64.NoPadding)
	for before, skip := range []int{0, 2, 3} {
		text := enc.EncodeToString(append(make([]byte, before, before+len(value)), value...))
		rest := (before + len(value)) % 3
		inner := text[skip:]
		if rest != 0 {
			inner = inner[:len(inner)-1]
			last := strings.IndexByte(alphabet, text[len(text)-1])
			for bits := range 1 << (6 - 2*rest) { // of the byte that follows
				give(inner + alphabet[last|bits:][:1])
			}
			give(text[skip:] + "=="[rest-1:])
		}
		give(inner)
		if before == 0 {
			wrapped(inner, 76, give) // as base64 and MIME do
			wrapped(inner, 64, give) // as openssl and PEM do
		}
	}
}

// wrapped gives each line of an encoding that is longer than one.
func wrapped(text string, width int, give func(string)) {
	if len(text) <= width {
		return
	}
	for line := range slices.Chunk([]byte(text), width) {
		give(string(line))
	}
}

// plainInURLs are the signs that one or another encoder leaves in a URL.
var plainInURLs = []string{
	"-_.~",                 // RFC 3986, curl, jq, Go's queries
	"-_.~/",                // Python
	"-_.~!*'()",            // JavaScript, of a component
	"-_.~!*'();/?:@&=+$,#", // JavaScript, of a URL
	"-_.~$&+=:@",           // Go's paths
	"-_.*",                 // forms of browsers
	"-_.",                  // PHP
}

func eachPercent(value string, give func(string)) {
	for _, digits := range []string{"0123456789ABCDEF", "0123456789abcdef"} {
		for _, plain := range plainInURLs {
			for _, space := range []string{"%20", "+"} {
				give(percent(value, digits, space, func(c byte) bool {
					return c < 0x80 && strings.IndexByte(letters+plain, c) >= 0
				}))
			}
		}
		give(percent(value, digits, "%20", func(byte) bool { return false }))
	}
}

func percent(value, digits, space string, plain func(byte) bool) string {
	var b strings.Builder
	for i := range len(value) {
		switch c := value[i]; {
		case plain(c):
			b.WriteByte(c)
		case c == ' ':
			b.WriteString(space)
		default:
			b.Write([]byte{'%', digits[c>>4], digits[c&15]})
		}
	}
	return b.String()
}

// eachJSON gives the strings that encoders of JSON make: with all but ASCII
// escaped (Python, PHP), signs of HTML (Go), or slashes (PHP).
func eachJSON(value string, give func(string)) {
	for way := range 16 {
		give(escapeJSON(value, way&1 != 0, way&2 != 0, way&4 != 0, way&8 != 0))
	}
}

func escapeJSON(value string, ascii, html, slash, upper bool) string {
	digits := "0123456789abcdef"
	if upper {
		digits = "0123456789ABCDEF"
	}
	var b strings.Builder
	unit := func(u uint16) {
		b.WriteString(`\u`)
		for shift := 12; shift >= 0; shift -= 4 {
			b.WriteByte(digits[u>>shift&15])
		}
	}
	for i, n := 0, 0; i < len(value); i += n {
		var r rune
		r, n = utf8.DecodeRuneInString(value[i:])
		short := strings.IndexRune("\b\f\n\r\t\"\\", r)
		switch {
		case r == utf8.RuneError && n == 1:
			b.WriteByte(value[i])
		case short >= 0:
			b.WriteString(`\` + `bfnrt"\`[short:short+1])
		case slash && r == '/':
			b.WriteString(`\/`)
		case html && strings.ContainsRune("<>&\u2028\u2029", r), r < ' ', ascii && r >= 0x7f && r < 0x10000:
			unit(uint16(r))
		case ascii && r >= 0x10000:
			hi, lo := utf16.EncodeRune(r)
			unit(uint16(hi))
			unit(uint16(lo))
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// eachHTML gives the texts that encoders of HTML and XML make. Some leave quotes or
// what closes a tag, and each has its own way to write a quote.
func eachHTML(value string, give func(string)) {
	for _, greater := range []string{"&gt;", ">"} {
		for _, quote := range []string{`"`, "&quot;", "&#34;", "&#x22;"} {
			for _, apostrophe := range []string{"'", "&#39;", "&#x27;", "&apos;", "&#039;"} {
				give(strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", greater, `"`, quote, "'", apostrophe).Replace(value))
			}
		}
	}
}
