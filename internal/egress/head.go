package egress

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// head is a request head that can be read in one way only. Everything that two
// programs are known to read differently (a bare line feed, a folded line, a
// space before the colon, two lengths) is an error instead: the server behind
// us must not find a second request where we saw one.
type head struct {
	method string
	target string
	minor  int // HTTP/1.minor
	fields []field

	host    string // of the Host field
	hasHost bool
	length  int64 // of the body, 0 without one
	chunked bool
	close   bool // the client wants the connection closed
	expect  bool // the client waits for 100 Continue
	upgrade bool
}

type field struct{ name, value string }

var (
	errHeadTooLong = errors.New("the request head is longer than 16 KiB")
	errBareLF      = errors.New("a line does not end in CR LF")
	errNotHTTP     = errors.New("this is not HTTP")
)

// readHead reads up to and including the empty line that ends a head. started
// is called after the first byte.
func readHead(br *bufio.Reader, started func()) ([]byte, error) {
	first, err := br.Peek(1)
	if err != nil {
		return nil, err
	}
	started()
	// SOCKS and TLS wait for an answer before they would send a line end.
	if !tokenByte(first[0]) {
		return nil, errNotHTTP
	}
	raw := make([]byte, 0, 512)
	for {
		c, err := br.ReadByte()
		if err != nil {
			return raw, err
		}
		if len(raw) == maxHead {
			return raw, errHeadTooLong
		}
		cr := len(raw) > 0 && raw[len(raw)-1] == '\r'
		raw = append(raw, c)
		if (c == '\n') != cr {
			return raw, errBareLF
		}
		if bytes.HasSuffix(raw, []byte("\r\n\r\n")) {
			return raw, nil
		}
	}
}

// parseHead reads a complete head. On an error the method and target are set as
// far as the request line was sound, for the record.
func parseHead(raw []byte) (head, error) {
	var h head
	text, ok := strings.CutSuffix(string(raw), "\r\n\r\n")
	if !ok || len(raw) > maxHead {
		return h, errBareLF
	}
	lines := strings.Split(text, "\r\n")
	for _, line := range lines {
		if strings.ContainsAny(line, "\r\n\x00") {
			return h, errBareLF
		}
	}
	if err := h.requestLine(lines[0]); err != nil {
		return h, err
	}
	if len(lines)-1 > maxFields {
		return h, fmt.Errorf("the request has more than %d header fields", maxFields)
	}
	for _, line := range lines[1:] {
		f, err := parseField(line)
		if err != nil {
			return h, err
		}
		h.fields = append(h.fields, f)
	}
	return h, h.interpret()
}

func (h *head) requestLine(line string) error {
	method, rest, ok1 := strings.Cut(line, " ")
	target, version, ok2 := strings.Cut(rest, " ")
	if !ok1 || !ok2 || method == "" || target == "" {
		return errors.New("the request line is not METHOD TARGET VERSION")
	}
	for i := range len(method) {
		if !tokenByte(method[i]) {
			return errors.New("the method is not a token")
		}
	}
	for i := range len(target) {
		if target[i] <= ' ' || target[i] == 0x7f {
			return errors.New("the request target has a control character in it")
		}
	}
	switch version {
	case "HTTP/1.1":
		h.minor = 1
	case "HTTP/1.0":
	default:
		return errors.New("the version is neither HTTP/1.1 nor HTTP/1.0")
	}
	h.method, h.target = method, target
	return nil
}

func parseField(line string) (field, error) {
	name, value, ok := strings.Cut(line, ":")
	if !ok || name == "" {
		return field{}, errors.New("a header field has no name")
	}
	for i := range len(name) {
		if !tokenByte(name[i]) { // a space before the colon and a folded line end here
			return field{}, errors.New("a header field's name is not a token")
		}
	}
	value = strings.Trim(value, " \t")
	for i := range len(value) {
		if c := value[i]; c < ' ' && c != '\t' || c == 0x7f {
			return field{}, errors.New("a header field has a control character in it")
		}
	}
	return field{name, value}, nil
}

// interpret works out the fields that decide about host, framing and
// connection.
func (h *head) interpret() error {
	hasLength, hasCoding := false, false
	for _, f := range h.fields {
		switch lowerASCII(f.name) {
		case "host":
			if h.hasHost {
				return errors.New("the request has two Host fields")
			}
			h.host, h.hasHost = f.value, true
		case "content-length":
			if hasLength {
				return errors.New("the request has two Content-Length fields")
			}
			hasLength = true
			if f.value == "" || len(f.value) > 18 || strings.Trim(f.value, "0123456789") != "" {
				return errors.New("the Content-Length field is not a number")
			}
			n, err := strconv.ParseInt(f.value, 10, 64)
			if err != nil {
				return errors.New("the Content-Length field is not a number")
			}
			h.length = n
		case "transfer-encoding":
			if hasCoding || lowerASCII(f.value) != "chunked" || h.minor == 0 {
				return errors.New("the Transfer-Encoding field is not the one word chunked")
			}
			hasCoding, h.chunked = true, true
		case "connection", "proxy-connection":
			for _, o := range listItems(f.value) {
				h.close = h.close || o == "close"
			}
		case "expect":
			if lowerASCII(f.value) != "100-continue" {
				return errors.New("the Expect field is not 100-continue")
			}
			h.expect = h.minor == 1
		case "upgrade":
			h.upgrade = true
		}
	}
	if hasLength && hasCoding {
		return errors.New("the request has both Content-Length and Transfer-Encoding")
	}
	if h.method == "CONNECT" {
		if h.chunked || h.length > 0 {
			return errors.New("a CONNECT request has a body")
		}
	} else if h.minor == 1 && !h.hasHost {
		return errors.New("the request has no Host field")
	}
	return nil
}

// hopByHop are fields about one connection, not about the request. Host and the
// framing are among them because we write our own.
var hopByHop = []string{
	"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade",
	"http2-settings", "expect", "host", "content-length",
}

// endToEnd gives the fields that travel on: not the hop-by-hop ones, not those
// the client names as such, nothing meant for a proxy.
func (h *head) endToEnd() []field {
	var named []string
	for _, f := range h.fields {
		if n := lowerASCII(f.name); n == "connection" || n == "proxy-connection" {
			named = append(named, listItems(f.value)...)
		}
	}
	var out []field
	for _, f := range h.fields {
		n := lowerASCII(f.name)
		if has(hopByHop, n) || has(named, n) || strings.HasPrefix(n, "proxy-") {
			continue
		}
		out = append(out, f)
	}
	return out
}

func has(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// listItems splits a comma-separated field, in lower case.
func listItems(value string) []string {
	var items []string
	for item := range strings.SplitSeq(value, ",") {
		if item = lowerASCII(strings.Trim(item, " \t")); item != "" {
			items = append(items, item)
		}
	}
	return items
}

func tokenByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}
