package gha

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"slices"
	"strings"
	"testing"
)

func TestEncodingsOfAValueAreMasked(t *testing.T) { // attack 152
	const plain, strange = "hunter2-open-sesame", "p@ss /wörd+\"<a>\"\t~'*!(ÿ?🔑)="
	std, raw, web := base64.StdEncoding.EncodeToString, base64.RawStdEncoding.EncodeToString, base64.URLEncoding.EncodeToString
	long := strings.Repeat("0123456789-_", 20)
	goJSON := func(v string) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Trim(string(b), `"`)
	}
	for _, c := range []struct{ sentence, secret, in, want string }{
		{"base64", plain, std([]byte(plain)), "***"},
		{"base64 of a value and a line end", plain, std([]byte(plain + "\n")), "***o="}, // of the line end alone
		{"base64 without padding", plain, raw([]byte(plain)), "***"},
		{"base64 for URLs", strange, web([]byte(strange)), "***"},
		{"base64 for URLs without padding", strange, strings.TrimRight(web([]byte(strange)), "="), "***"},
		{"base64 with padding of one", "1234567890a", std([]byte("1234567890a")), "***"},
		{"base64 with padding of two", "1234567890", std([]byte("1234567890")), "***"},
		{"base64 without need of padding", "123456789012", std([]byte("123456789012")), "***"},
		{"base64 of the shortest value", "abcd", std([]byte("abcd")), "***"},
		{"base64 of HTTP's basic authentication", plain, std([]byte("user:" + plain)), "dXNlcjp***"}, // p is most of the colon
		{"base64 within a longer text, at one", plain, std([]byte("1" + plain + "12")), "MW***xMg=="},
		{"base64 that wraps at 76", long, "dG8\n" + wrap(std([]byte(long)), 76), "dG8\n***\n***\n***\n***\n***"},
		{"base64 that wraps at 64", long, wrap(std([]byte(long)), 64), "***\n***\n***\n***\n***"},
		{"hex", plain, hex.EncodeToString([]byte(plain)), "***"},
		{"hex in capitals", plain, strings.ToUpper(hex.EncodeToString([]byte(plain))), "***"},
		{"hex within hex", plain, "00" + hex.EncodeToString([]byte(plain)) + "ff", "00***ff"},
		{"hex that wraps as xxd does", long, wrap(hex.EncodeToString([]byte(long)), 60), strings.TrimSuffix(strings.Repeat("***\n", 8), "\n")},
		{"a URL's query", strange, url.QueryEscape(strange), "***"},
		{"a URL's path", strange, url.PathEscape(strange), "***"},
		{"a URL in small letters", strange, strings.ReplaceAll(lowerPercent(url.QueryEscape(strange)), "+", "%20"), "***"},
		{"JavaScript's encodeURIComponent", strange, "p%40ss%20%2Fw%C3%B6rd%2B%22%3Ca%3E%22%09~'*!(%C3%BF%3F%F0%9F%94%91)%3D", "***"},
		{"JavaScript's encodeURI", strange, "p@ss%20/w%C3%B6rd+%22%3Ca%3E%22%09~'*!(%C3%BF?%F0%9F%94%91)=", "***"},
		{"Python's quote", strange, "p%40ss%20/w%C3%B6rd%2B%22%3Ca%3E%22%09~%27%2A%21%28%C3%BF%3F%F0%9F%94%91%29%3D", "***"},
		{"a browser's form", strange, "p%40ss+%2Fw%C3%B6rd%2B%22%3Ca%3E%22%09%7E%27*%21%28%C3%BF%3F%F0%9F%94%91%29%3D", "***"},
		{"every byte in percent", "open", "%6f%70%65%6e", "***"},
		{"Go's JSON", strange, goJSON(strange), "***"},
		{"JavaScript's JSON", strange, `p@ss /wörd+\"<a>\"\t~'*!(ÿ?🔑)=`, "***"},
		{"Python's JSON", strange, `p@ss /w\u00f6rd+\"<a>\"\t~'*!(\u00ff?\ud83d\udd11)=`, "***"},
		{"PHP's JSON", strange, `p@ss \/w\u00f6rd+\"<a>\"\t~'*!(\u00ff?\ud83d\udd11)=`, "***"},
		{"JSON of a value of several lines", "first line\nsecond", `first line\nsecond`, "***"},
		{"a control character in JSON", "esc\x1b[31m", `esc\u001b[31m`, "***"},
		{"Go's HTML", strange, html.EscapeString(strange), "***"},
		{"Python's HTML", strange, "p@ss /wörd+&quot;&lt;a&gt;&quot;\t~&#x27;*!(ÿ?🔑)=", "***"},
		{"a data frame's HTML", strange, "p@ss /wörd+\"&lt;a&gt;\"\t~'*!(ÿ?🔑)=", "***"},
		{"PHP's HTML", strange, "p@ss /wörd+&quot;&lt;a&gt;&quot;\t~&#039;*!(ÿ?🔑)=", "***"},
		{"XML", strange, "p@ss /wörd+&quot;&lt;a&gt;&quot;\t~&apos;*!(ÿ?🔑)=", "***"},
		{"an ampersand in HTML", "a&b&c&d", "a&amp;b&amp;c&amp;d", "***"},
		{"reversed", plain, "emases-nepo-2retnuh", "***"},
		{"reversed by characters", "wörd-öffne", "enffö-dröw", "***"},
		{"base64 of a line of a value", "first line\nsecond line", std([]byte("second line")), "***"},
		{"base64 of a value of several lines", "first line\nsecond line", std([]byte("first line\nsecond line")), "***"},
		{"hex of bytes that are not UTF-8", "\xff\xfe\x00\x01", "fffe0001", "***"},

		{"not: encodings that are too short", "abcd", "dcba YWJj ZAb", "dcba YWJj ZAb"},
		{"not: those of a value that is too short", "abc", "YWJj 616263 cba", "YWJj 616263 cba"},
		{"not: other texts", plain, std([]byte("another text altogether")), std([]byte("another text altogether"))},
	} {
		got := NewMasker(c.secret).Mask(c.in)
		if got != c.want {
			t.Errorf("%s: Mask(%q) = %q, want %q", c.sentence, c.in, got, c.want)
		}
	}
}

func wrap(s string, width int) string {
	var lines []string
	for b := range slices.Chunk([]byte(s), width) {
		lines = append(lines, string(b))
	}
	return strings.Join(lines, "\n")
}

func lowerPercent(s string) string {
	b := []byte(s)
	for i := range b {
		if b[i] == '%' {
			copy(b[i+1:], bytes.ToLower(b[i+1:i+3]))
		}
	}
	return string(b)
}

// inside is the part of an encoding that is the secret's alone.
func inside(before int, secret, encoded string) string {
	return encoded[(8*before+5)/6 : 8*(before+len(secret))/6]
}

func TestAVeryLongValueIsMaskedAsItIs(t *testing.T) {
	long := strings.Repeat("0123456789", maxEncoded/10+1)
	m := NewMasker(long, "line one\n"+long)
	if m.Longest() != len(long)+len("line one\n") {
		t.Errorf("encodings of %d bytes are kept: %d", len(long), m.Longest())
	}
	if got := m.Mask(long + hex.EncodeToString([]byte("line one"))); got != Masked {
		t.Errorf("%.40q", got)
	}
}

// FuzzEncoded: whatever the secret and what stands around it, no encoding of it
// passes, however the stream is cut.
func FuzzEncoded(f *testing.F) {
	f.Add("hunter2", "user:", " ", uint8(3))
	f.Add("\x00\xff\x00\xff", "", "", uint8(1))
	f.Add("aaaaaaaaaaaa", "a", "aa", uint8(7))
	f.Add("two\nlines", "x", "=", uint8(2))
	f.Add("p@ss /wörd+\"🔑", "?q=", "&", uint8(5))
	f.Fuzz(func(t *testing.T, secret, before, after string, cut uint8) {
		if len(secret) < MinSecret || len(secret) > 200 || len(before)+len(after) > 400 {
			return
		}
		m := NewMasker(secret)
		check := func(what, in, hidden string) {
			var out bytes.Buffer
			w := NewMaskWriter(&out, m)
			for b := range slices.Chunk([]byte(in), int(cut)%16+1) {
				fmt.Fprintf(w, "%s", b)
			}
			w.Close()
			if whole := m.Mask(in); whole != out.String() {
				t.Errorf("%s: in pieces %q, whole %q", what, out.String(), whole)
			}
			// A mask has stars, and so may a secret.
			if len(hidden) >= MinEncoded && strings.Contains(strings.ReplaceAll(out.String(), Masked, "\x00mask\x00"), hidden) {
				t.Errorf("%s: %q of %q is left in %q", what, hidden, in, out.String())
			}
		}
		text := before + secret + after
		for _, e := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding, base64.RawStdEncoding, base64.RawURLEncoding} {
			in := e.EncodeToString([]byte(text))
			check("base64", in, inside(len(before), secret, in))
		}
		low := hex.EncodeToString([]byte(secret))
		check("hex", before+low+after, low)
		check("hex in capitals", before+strings.ToUpper(low)+after, strings.ToUpper(low))
		for _, s := range []string{url.QueryEscape(secret), url.PathEscape(secret), lowerPercent(url.QueryEscape(secret))} {
			check("percent", before+s+after, s)
		}
		if j, err := json.Marshal(secret); err == nil && !strings.ContainsRune(string(j), '\ufffd') && !strings.Contains(string(j), `\ufffd`) {
			s := string(j[1 : len(j)-1])
			check("JSON", before+s+after, s)
		}
		back := []byte(secret)
		slices.Reverse(back)
		check("reversed", before+string(back)+after, string(back))
	})
}
