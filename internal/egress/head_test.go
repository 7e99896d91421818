package egress

import (
	"bufio"
	"bytes"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func readAndParse(raw string) (head, error) {
	b, err := readHead(bufio.NewReader(strings.NewReader(raw)), func() {})
	if err != nil {
		return head{}, err
	}
	return parseHead(b)
}

// Attacks 35, 36, 37 and 47: what can be read in two ways is not read at all.
func TestHeadIsRefused(t *testing.T) {
	const line = "GET http://good.test/ HTTP/1.1\r\n"
	const host = "Host: good.test\r\n"
	for name, raw := range map[string]string{
		"for a bare line feed":               "GET http://good.test/ HTTP/1.1\nHost: good.test\n\n",
		"for a bare line feed in the fields": line + "Host: good.test\nX: y\r\n\r\n",
		"for a bare line feed at the end":    line + host + "\n",
		"for a lone carriage return":         line + "Host: good.test\rX: y\r\n\r\n",
		"for CR CR LF":                       line + "Host: good.test\r\r\n\r\n",
		"for a folded line":                  line + host + "X: a\r\n b\r\n\r\n",
		"for a folded line with a tab":       line + host + "X: a\r\n\tb\r\n\r\n",
		"for a folded Host":                  line + "Host:\r\n good.test\r\n\r\n",
		"for a space before the colon":       line + "Host : good.test\r\n\r\n",
		"for a tab before the colon":         line + "Host\t: good.test\r\n\r\n",
		"for an empty field name":            line + host + ": x\r\n\r\n",
		"for a field without a colon":        line + host + "X\r\n\r\n",
		"for a NUL":                          line + host + "X: a\x00b\r\n\r\n",
		"for a control character in a value": line + host + "X: a\x01b\r\n\r\n",
		"for two Host fields":                line + host + host + "\r\n",
		"for two Host fields that differ":    line + host + "hOST: evil.test\r\n\r\n",
		"for no Host field in HTTP/1.1":      line + "X: y\r\n\r\n",
		"for two lengths":                    line + host + "Content-Length: 1\r\nContent-Length: 1\r\n\r\n",
		"for a list of lengths":              line + host + "Content-Length: 1, 1\r\n\r\n",
		"for a negative length":              line + host + "Content-Length: -1\r\n\r\n",
		"for a signed length":                line + host + "Content-Length: +1\r\n\r\n",
		"for a hexadecimal length":           line + host + "Content-Length: 0x1\r\n\r\n",
		"for an empty length":                line + host + "Content-Length:\r\n\r\n",
		"for a length out of range":          line + host + "Content-Length: 99999999999999999999\r\n\r\n",
		"for length and coding":              line + host + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
		"for coding and length":              line + host + "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
		"for two codings":                    line + host + "Transfer-Encoding: gzip, chunked\r\n\r\n",
		"for the coding twice":               line + host + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
		"for another coding":                 line + host + "Transfer-Encoding: identity\r\n\r\n",
		"for a vertical tab in the coding":   line + host + "Transfer-Encoding: \x0bchunked\r\n\r\n",
		"for a coding in HTTP/1.0":           "GET http://good.test/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
		"for a body of CONNECT":              "CONNECT good.test:443 HTTP/1.1\r\nContent-Length: 5\r\n\r\n",
		"for an expectation we cannot meet":  line + host + "Expect: something\r\n\r\n",
		"for HTTP/2":                         "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"for HTTP/0.9":                       "GET http://good.test/\r\n\r\n",
		"for a lower-case version":           "GET http://good.test/ http/1.1\r\nHost: good.test\r\n\r\n",
		"for two spaces":                     "GET  http://good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n",
		"for a tab in the target":            "CONNECT good.test:443\t HTTP/1.1\r\n\r\n",
		"for words after the version":        "GET http://good.test/ HTTP/1.1 x\r\nHost: good.test\r\n\r\n",
		"for an empty line first":            "\r\n" + line + host + "\r\n",
		"for a space first":                  " " + line + host + "\r\n",
		"for SOCKS 5":                        "\x05\x01\x00",
		"for SOCKS 4":                        "\x04\x01\x01\xbb\x00\x00\x00\x01\x00good.test\x00",
		"for TLS":                            "\x16\x03\x01\x00\x05hello",
		"for a head over 16 KiB":             line + host + "X: " + strings.Repeat("a", maxHead) + "\r\n\r\n",
		"for too many fields":                line + host + strings.Repeat("X: y\r\n", maxFields) + "\r\n",
		"for a method that is no token":      "GE(T http://good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			if h, err := readAndParse(raw); err == nil {
				t.Errorf("%q was read as %+v", raw, h)
			}
		})
	}
}

func TestHeadIsRead(t *testing.T) {
	h, err := readAndParse("POST http://good.test/x HTTP/1.1\r\nHost: good.test\r\nContent-Length: 5\r\n" +
		"Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nProxy-Authorization: Basic eDp5\r\nProxy-Connection: close\r\n" +
		"TE: trailers\r\nTrailer: X\r\nKeep-Alive: 5\r\nAccept:\t*/* \r\nX-Empty:\r\nCookie: a=b; c=\xff\r\nExpect: 100-Continue\r\n\r\n")
	if err != nil {
		t.Fatal(err)
	}
	if h.method != "POST" || h.target != "http://good.test/x" || h.host != "good.test" || h.length != 5 || h.chunked || !h.close || !h.expect {
		t.Errorf("read as %+v", h)
	}
	// Attack 40: nothing about the connection, and nothing it names, goes on.
	want := []field{{"Accept", "*/*"}, {"X-Empty", ""}, {"Cookie", "a=b; c=\xff"}}
	if diff := cmp.Diff(want, h.endToEnd(), cmp.AllowUnexported(field{})); diff != "" {
		t.Errorf("end-to-end fields (-want +got):\n%s", diff)
	}
}

func TestTarget(t *testing.T) {
	for name, c := range map[string]struct {
		method, in string
		want       target
		bad        bool
	}{
		"a URL":                           {"GET", "http://good.test/a?b=c", target{"good.test", 80, "/a?b=c"}, false},
		"a URL with a port":               {"GET", "HTTP://good.test:8080/", target{"good.test", 8080, "/"}, false},
		"a URL without a path":            {"GET", "http://good.test", target{"good.test", 80, "/"}, false},
		"a URL with a query only":         {"GET", "http://good.test?x", target{"good.test", 80, "/?x"}, false},
		"OPTIONS of a server":             {"OPTIONS", "http://good.test", target{"good.test", 80, "*"}, false},
		"a URL with an IPv6 literal":      {"GET", "http://[::1]:80/", target{"[::1]", 80, "/"}, false},
		"a path with an @":                {"GET", "http://good.test/@evil.test", target{"good.test", 80, "/@evil.test"}, false},
		"no URL":                          {"GET", "/path", target{}, true},
		"a path with a URL in it":         {"GET", "/http://good.test/", target{}, true},
		"an asterisk":                     {"OPTIONS", "*", target{}, true},
		"https in plain":                  {"GET", "https://good.test/", target{"good.test", 80, ""}, true},
		"ftp (47)":                        {"GET", "ftp://good.test/", target{"good.test", 80, ""}, true},
		"gopher (47)":                     {"GET", "gopher://good.test/", target{"good.test", 80, ""}, true},
		"a user name":                     {"GET", "http://good.test@evil.test/", target{"good.test@evil.test", 80, ""}, true},
		"a backslash":                     {"GET", `http://good.test\@evil.test/`, target{"good.test", 80, ""}, true},
		"a fragment":                      {"GET", "http://good.test/#x", target{"good.test", 80, ""}, true},
		"no host":                         {"GET", "http:///x", target{}, true},
		"an empty port":                   {"GET", "http://good.test:/", target{"good.test", 0, ""}, true},
		"raw bytes in the path":           {"GET", "http://good.test/\xc3\xbc", target{"good.test", 80, ""}, true},
		"CONNECT":                         {"CONNECT", "good.test:443", target{"good.test", 443, ""}, false},
		"CONNECT to an IPv6 literal":      {"CONNECT", "[::1]:443", target{"[::1]", 443, ""}, false},
		"CONNECT without a port (29)":     {"CONNECT", "good.test", target{"good.test", 0, ""}, true},
		"CONNECT with an empty port (29)": {"CONNECT", "good.test:", target{"good.test", 0, ""}, true},
		"CONNECT to port 0 (29)":          {"CONNECT", "good.test:0", target{"good.test", 0, ""}, true},
		"CONNECT to port 65536 (29)":      {"CONNECT", "good.test:65536", target{"good.test", 65536, ""}, true},
		"CONNECT to a signed port (29)":   {"CONNECT", "good.test:+443", target{"good.test", 0, ""}, true},
		"CONNECT to two ports (29)":       {"CONNECT", "good.test:443:443", target{"good.test:443", 443, ""}, false}, // refused as a literal
		"CONNECT to a path":               {"CONNECT", "good.test:443/x", target{"good.test:443/x", 0, ""}, true},
		"CONNECT to a user":               {"CONNECT", "good.test@evil.test:443", target{"good.test@evil.test:443", 0, ""}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var got target
			var err error
			if c.method == "CONNECT" {
				got, err = connectTarget(c.in)
			} else {
				got, err = absoluteTarget(c.method, c.in)
			}
			if (err != nil) != c.bad {
				t.Errorf("%s: error %v, want one: %v", c.in, err, c.bad)
			}
			if got.host != c.want.host || err == nil && got != c.want {
				t.Errorf("%s: got %+v, want %+v", c.in, got, c.want)
			}
		})
	}
}

func TestChunkedBody(t *testing.T) {
	for name, c := range map[string]struct{ in, want, rest string }{
		"one chunk":    {"5\r\nhello\r\n0\r\n\r\nNEXT", "hello", "NEXT"},
		"two chunks":   {"1\r\na\r\n00A\r\n0123456789\r\n0\r\n\r\n", "a0123456789", ""},
		"no chunk":     {"0\r\n\r\nNEXT", "", "NEXT"},
		"CR LF inside": {"2\r\n\r\n\r\n0\r\n\r\n", "\r\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			br := bufio.NewReader(strings.NewReader(c.in))
			var out bytes.Buffer
			w := bufio.NewWriter(&out)
			if err := copyFlush(w, w, &chunkReader{br: br, whole: new(atomic.Bool)}, make([]byte, 7)); err != nil {
				t.Fatal(err)
			}
			rest := make([]byte, 10)
			n, _ := br.Read(rest)
			if out.String() != c.want || string(rest[:n]) != c.rest {
				t.Errorf("body %q and then %q, want %q and %q", out.String(), rest[:n], c.want, c.rest)
			}
		})
	}
	// Attack 37.
	for name, in := range map[string]string{
		"an extension":                "5;x=y\r\nhello\r\n0\r\n\r\n",
		"an extension on the last":    "0;x\r\n\r\n",
		"a trailer":                   "0\r\nX: y\r\n\r\n",
		"a bare line feed":            "5\nhello\r\n0\r\n\r\n",
		"a bare line feed after data": "5\r\nhello\n0\r\n\r\n",
		"a lone carriage return":      "5\r\rhello",
		"data longer than said":       "4\r\nhello\r\n0\r\n\r\n",
		"a sign":                      "+5\r\nhello\r\n0\r\n\r\n",
		"a prefix":                    "0x5\r\nhello\r\n0\r\n\r\n",
		"a space":                     "5 \r\nhello\r\n0\r\n\r\n",
		"no size":                     "\r\nhello\r\n0\r\n\r\n",
		"a size out of range":         "fffffffffffffffff\r\n",
		"a size nobody sends":         "fffffffffffffff\r\n",
	} {
		t.Run("refuses "+name, func(t *testing.T) {
			var out bytes.Buffer
			w := bufio.NewWriter(&out)
			err := copyFlush(w, w, &chunkReader{br: bufio.NewReader(strings.NewReader(in)), whole: new(atomic.Bool)}, make([]byte, 64))
			if err != errBadBody {
				t.Errorf("%q: got %v and %q, want errBadBody", in, err, out.String())
			}
		})
	}
}

// FuzzRequestHead: what we accept, Go's own reader reads as the same request
// with the same framing.
func FuzzRequestHead(f *testing.F) {
	for _, s := range []string{
		"CONNECT good.test:443 HTTP/1.1\r\nHost: good.test:443\r\n\r\n",
		"GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n",
		"POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\nContent-Length: 3\r\n\r\nabc",
		"POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
		"GET http://good.test/ HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
		"GET http://good.test/ HTTP/1.1\nHost: good.test\n\n",
		"\x05\x01\x00",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		raw, err := readHead(bufio.NewReader(bytes.NewReader(data)), func() {})
		if err != nil {
			return
		}
		if len(raw) > maxHead || !bytes.HasPrefix(data, raw) {
			t.Fatalf("read %d bytes that are not the beginning", len(raw))
		}
		h, err := parseHead(raw)
		if err != nil {
			return
		}
		if h.method == "CONNECT" {
			connectTarget(h.target)
		} else {
			absoluteTarget(h.method, h.target)
		}
		for _, fd := range h.endToEnd() {
			if strings.ContainsAny(fd.name+fd.value, "\r\n\x00") || strings.EqualFold(fd.name, "host") {
				t.Fatalf("field %+v would travel", fd)
			}
		}
		req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(raw)))
		if err != nil {
			return // stricter than us about URLs
		}
		if req.Method != h.method {
			t.Fatalf("method %q, net/http says %q", h.method, req.Method)
		}
		want := h.length
		if h.chunked {
			want = -1
		}
		if req.ContentLength != want || h.chunked != slices.Contains(req.TransferEncoding, "chunked") {
			t.Fatalf("length %d chunked %v, net/http says %d %v", h.length, h.chunked, req.ContentLength, req.TransferEncoding)
		}
	})
}
