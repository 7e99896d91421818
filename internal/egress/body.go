package egress

import (
	"bufio"
	"errors"
	"io"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync/atomic"
)

// errBadBody: a request body does not end where its head said, or cannot be
// read in one way only.
var errBadBody = errors.New("the request body is not framed as its head says")

// errCutBody: the client went away, or fell silent, in the middle of a body.
var errCutBody = errors.New("the request body was broken off")

// maxChunk bounds one chunk of a body; a longer one is an error of framing.
const maxChunk = 1 << 40

// sendBody copies the body of h to the server, in framing of our own. Its error
// is errBadBody or errCutBody where the client is to blame. It sets whole once it
// has read the body to its end, before the server can know that end.
func sendBody(dst *bufio.Writer, br *bufio.Reader, h head, buf []byte, whole *atomic.Bool) error {
	switch {
	case h.chunked:
		w := httputil.NewChunkedWriter(dst)
		if err := copyFlush(w, dst, &chunkReader{br: br, whole: whole}, buf); err != nil {
			return err
		}
		if err := w.Close(); err != nil {
			return err
		}
		if _, err := dst.WriteString("\r\n"); err != nil {
			return err
		}
	case h.length > 0:
		src := &lengthReader{br: br, left: h.length, whole: whole}
		if err := copyFlush(dst, dst, src, buf); err != nil {
			return err
		}
	}
	return dst.Flush()
}

// copyFlush copies and sends on at once what has arrived, because one side may
// wait for it before it says more. It returns nil at the end of src.
func copyFlush(dst io.Writer, flush *bufio.Writer, src io.Reader, buf []byte) error {
	for {
		n, err := src.Read(buf)
		if n > 0 {
			if _, werr := dst.Write(buf[:n]); werr != nil {
				return werr
			}
			if werr := flush.Flush(); werr != nil {
				return werr
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// lengthReader reads a body of known length.
type lengthReader struct {
	br    *bufio.Reader
	left  int64
	whole *atomic.Bool
}

func (l *lengthReader) Read(b []byte) (int, error) {
	if l.left == 0 {
		return 0, io.EOF
	}
	n, err := l.br.Read(b[:min(int64(len(b)), l.left)])
	l.left -= int64(n)
	if l.left == 0 {
		l.whole.Store(true)
		return n, nil
	}
	if err != nil {
		err = errCutBody
	}
	return n, err
}

// chunkReader reads a chunked body without extensions and without trailers:
// nobody needs them in a request, and servers disagree about where they end.
type chunkReader struct {
	br   *bufio.Reader
	left int64 // of the current chunk
	some bool  // a chunk was read before
	done bool

	whole *atomic.Bool
}

func (c *chunkReader) Read(b []byte) (int, error) {
	if c.done {
		return 0, io.EOF
	}
	if c.left == 0 {
		if err := c.next(); err != nil {
			return 0, err
		}
		if c.done {
			return 0, io.EOF
		}
	}
	n, err := c.br.Read(b[:min(int64(len(b)), c.left)])
	c.left -= int64(n)
	if err != nil {
		err = errCutBody
	}
	return n, err
}

// next reads the line with a chunk's size, and what ends the chunk before.
func (c *chunkReader) next() error {
	if c.some {
		if err := c.emptyLine(); err != nil {
			return err
		}
	}
	c.some = true
	line, err := c.line()
	if err != nil {
		return err
	}
	if line == "" || strings.Trim(line, "0123456789abcdefABCDEF") != "" {
		return errBadBody
	}
	n, err := strconv.ParseInt(line, 16, 64)
	if err != nil || n > maxChunk {
		return errBadBody
	}
	c.left = n
	if n == 0 {
		if err := c.emptyLine(); err != nil {
			return err
		}
		c.done = true
		c.whole.Store(true)
	}
	return nil
}

func (c *chunkReader) emptyLine() error {
	line, err := c.line()
	if err == nil && line != "" {
		err = errBadBody
	}
	return err
}

// line reads a line of at most 16 characters that ends in CR LF.
func (c *chunkReader) line() (string, error) {
	var line []byte
	for {
		b, err := c.br.ReadByte()
		if err != nil {
			return "", errCutBody
		}
		switch {
		case b == '\n':
			if len(line) == 0 || line[len(line)-1] != '\r' {
				return "", errBadBody
			}
			return string(line[:len(line)-1]), nil
		case len(line) > 16 || len(line) > 0 && line[len(line)-1] == '\r':
			return "", errBadBody
		}
		line = append(line, b)
	}
}
