package egress

import (
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
)

// explain says what became of an attempt, for a person who reads the answer in
// a client's output.
func explain(a attempt) string {
	var b strings.Builder
	where := net.JoinHostPort(a.host, strconv.Itoa(a.port))
	fmt.Fprintf(&b, "untrusted-steps: %s %s (%s): %s\n", where, a.verdict, a.reason, Meaning(a.reason))
	if a.verdict == Denied {
		if line := hint(a.host, a.port, a.reason); line != "" {
			fmt.Fprintf(&b, "to allow it, add this line to egressAllow of the step:\n  - %s\n", line)
		}
	}
	return b.String()
}

// answerText is a short answer of our own, after which the connection closes.
// The phrase is text of ours: some clients show nothing else.
func answerText(code int, phrase, body string, withBody bool) string {
	length := len(body)
	if !withBody {
		body = ""
	}
	return fmt.Sprintf("HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		code, phrase, length, body)
}

// write sends a short text of our own; a client that does not take it in time
// does without.
func (c *conn) write(s string) error {
	c.nc.SetWriteDeadline(c.p.Now().Add(writeTimeout))
	_, err := io.WriteString(c.nc, s)
	return err
}

// refuse answers and ends the connection.
func (c *conn) refuse(code int, isHead bool, body, phrase string) {
	if c.write(answerText(code, phrase, body, !isHead)) == nil {
		c.linger()
	}
}

// linger lets the client read our last words: closing over unread bytes makes
// the kernel send a reset, which throws away what is under way to the client.
func (c *conn) linger() {
	closeWrite(c.nc)
	c.each = 0
	c.readBy(lingerTimeout)
	io.CopyN(io.Discard, c.nc, maxLinger)
}

func closeWrite(nc net.Conn) {
	if h, ok := nc.(interface{ CloseWrite() error }); ok {
		h.CloseWrite()
		return
	}
	nc.Close()
}
