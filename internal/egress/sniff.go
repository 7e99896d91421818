package egress

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
)

// sniffer tells a protocol from the first bytes of both sides. It is a guess,
// for a person to read; nothing is decided by it.
type sniffer struct {
	mu             sync.Mutex
	client, server []byte
	word           string
	hello          hello
	helloErr       error
	full           [2]bool
}

// sniffBytes of each side are enough for every protocol but TLS, of which the
// whole ClientHello is wanted.
const sniffBytes = 64

const (
	fromClient = 0
	fromServer = 1
)

// see takes what came from one side; more says whether it wants the next bytes
// of that side, too.
func (s *sniffer) see(side int, b []byte) (more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.full[side] || s.word != "" {
		return false
	}
	if side == fromServer {
		s.server = append(s.server, b[:min(len(b), sniffBytes-len(s.server))]...)
		s.full[side] = len(s.server) == sniffBytes
	} else {
		s.client = append(s.client, b[:min(len(b), maxPeek-len(s.client))]...)
		s.full[side] = s.sawClient()
	}
	if s.full[fromClient] && s.full[fromServer] {
		s.word = s.guess()
	}
	return !s.full[side] && s.word == ""
}

// sawClient says whether enough of the client has been seen.
func (s *sniffer) sawClient() bool {
	if s.client[0] != recordHandshake || len(s.client) > 1 && s.client[1] != 3 {
		return len(s.client) >= sniffBytes
	}
	_, msg, err := readHello(bytes.NewReader(s.client))
	if err != nil && !errors.Is(err, errNotTLS) && len(s.client) < maxPeek {
		return false
	}
	s.helloErr = err
	if err == nil {
		s.hello, s.helloErr = parseHello(msg)
	}
	s.word = "tls"
	s.client, s.server = nil, nil
	return true
}

// verdict is what the connection looked like, empty if nobody said a word, and
// the ClientHello if it was TLS.
func (s *sniffer) verdict() (string, hello, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.word == "" && len(s.client)+len(s.server) > 0 {
		s.word = s.guess()
	}
	err := s.helloErr
	if s.word == "tls" && s.hello.serverName == "" && err == nil {
		err = io.ErrUnexpectedEOF // a hello that never came to its end
	}
	return s.word, s.hello, err
}

func (s *sniffer) guess() string {
	c, srv := s.client, s.server
	switch {
	case bytes.HasPrefix(c, []byte("SSH-")), bytes.HasPrefix(srv, []byte("SSH-")):
		return "ssh"
	case len(c) > 2 && c[0] == recordHandshake && c[1] == 3:
		return "tls"
	case isPostgres(c):
		return "postgres"
	case isMySQL(srv):
		return "mysql"
	case isHTTP(c):
		return "http"
	case isSMTP(c, srv):
		return "smtp"
	case isRedis(c, srv):
		return "redis"
	}
	return "unknown"
}

var httpStarts = []string{"GET ", "HEAD ", "POST ", "PUT ", "DELETE ", "OPTIONS ", "PATCH ", "TRACE ", "CONNECT ", "PRI * HTTP/2"}

func isHTTP(client []byte) bool {
	return slices.ContainsFunc(httpStarts, func(s string) bool { return bytes.HasPrefix(client, []byte(s)) })
}

// isPostgres knows the first message of a client: its length, then a protocol
// version or the code of a request for encryption or cancellation.
func isPostgres(client []byte) bool {
	if len(client) < 8 {
		return false
	}
	length, code := binary.BigEndian.Uint32(client), binary.BigEndian.Uint32(client[4:])
	switch code {
	case 80877103, 80877104:
		return length == 8
	case 80877102:
		return length >= 16 && length <= 512
	}
	return code>>16 == 3 && length >= 8 && length <= 10000
}

// isMySQL knows a server's greeting: packet 0, protocol 10, a version in digits.
func isMySQL(server []byte) bool {
	return len(server) > 5 && server[3] == 0 && server[4] == 10 && server[1] < 2 && server[2] == 0 &&
		'0' <= server[5] && server[5] <= '9'
}

func isSMTP(client, server []byte) bool {
	hi := strings.ToUpper(string(client[:min(len(client), 5)]))
	if hi == "EHLO " || hi == "HELO " || hi == "LHLO " {
		return true
	}
	return bytes.HasPrefix(server, []byte("220")) && strings.Contains(strings.ToUpper(string(server)), "SMTP")
}

// isRedis knows a command as an array of strings, or the answer to one typed by
// hand.
func isRedis(client, server []byte) bool {
	if rest, ok := bytes.CutPrefix(client, []byte("*")); ok {
		n, rest, _ := bytes.Cut(rest, []byte("\r\n"))
		return len(n) > 0 && len(bytes.Trim(n, "0123456789")) == 0 && (len(rest) == 0 || rest[0] == '$')
	}
	for _, s := range []string{"+PONG\r\n", "-NOAUTH ", "-ERR unknown command"} {
		if bytes.HasPrefix(server, []byte(s)) {
			return true
		}
	}
	return false
}
