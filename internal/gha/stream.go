package gha

import (
	"bytes"
	"io"
	"time"
	"unicode/utf8"
)

const (
	// maxLine is how many bytes of a step's line are printed behind one gutter.
	maxLine = 8 << 10
	// partialAfter is how long the beginning of a line waits for its end.
	partialAfter = 200 * time.Millisecond
)

// StepLog is the two streams of one step.
type StepLog struct{ out, err *stream }

// Stdout takes the step's standard output.
func (s *StepLog) Stdout() io.Writer { return s.out }

// Stderr takes the step's standard error.
func (s *StepLog) Stderr() io.Writer { return s.err }

// End prints what is left of both streams. Writing after it is an error.
func (s *StepLog) End() {
	l := s.out.log
	l.mu.Lock()
	defer l.mu.Unlock()
	s.out.end()
	s.err.end()
	l.flush()
}

// stream cuts one stream of a step into lines. The log's mu guards all of it.
type stream struct {
	log    *Log
	gutter string
	mask   masking
	buf    []byte
	line   []byte // not printed yet
	cr     bool   // the last byte was a carriage return that ended a line
	rest   bool   // the line's beginning has been printed
	timer  *time.Timer
	closed bool
}

func newStream(l *Log, gutter string) *stream {
	return &stream{log: l, gutter: gutter, mask: masking{m: l.opts.Masker}}
}

// Write never blocks on anything but the log itself and never reports the log's
// own trouble: Close does.
func (s *stream) Write(p []byte) (int, error) {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	if s.closed {
		return 0, io.ErrClosedPipe
	}
	s.buf = s.mask.push(s.buf[:0], p)
	s.split(s.buf)
	s.log.flush()
	if len(s.line) > 0 {
		s.arm()
	}
	return len(p), nil
}

// split ends a line wherever the runner does: at LF, CR and CRLF.
func (s *stream) split(b []byte) {
	for len(b) > 0 {
		if s.cr {
			s.cr = false
			if b[0] == '\n' {
				b = b[1:]
				continue
			}
		}
		i := bytes.IndexAny(b, "\r\n")
		if i < 0 {
			s.add(b)
			return
		}
		s.add(b[:i])
		if len(s.line) > 0 || !s.rest {
			s.print(len(s.line))
		}
		s.rest, s.cr = false, b[i] == '\r'
		b = b[i+1:]
	}
}

// add lengthens the line and prints it in pieces once it is too long.
func (s *stream) add(b []byte) {
	for len(s.line)+len(b) > maxLine {
		n := maxLine - len(s.line)
		s.line, b = append(s.line, b[:n]...), b[n:]
		s.print(wholeRunes(s.line))
		s.rest = true
	}
	s.line = append(s.line, b...)
}

// print prints the first n bytes of the line.
func (s *stream) print(n int) {
	gutter := s.gutter
	if s.rest {
		gutter += "+"
	}
	s.log.untrusted(gutter, string(s.line[:n]))
	s.line = append(s.line[:0], s.line[n:]...)
}

// arm sees to it that a question without a line end is shown before its answer.
func (s *stream) arm() {
	if s.timer != nil {
		s.timer.Reset(partialAfter)
		return
	}
	s.timer = time.AfterFunc(partialAfter, func() {
		s.log.mu.Lock()
		defer s.log.mu.Unlock()
		if n := wholeRunes(s.line); n > 0 && !s.closed {
			s.print(n)
			s.rest = true
			s.log.flush()
		}
	})
}

// end prints the rest; no more will come. It may be called twice.
func (s *stream) end() {
	if s.closed {
		return
	}
	s.closed = true
	delete(s.log.streams, s)
	if s.timer != nil {
		s.timer.Stop()
	}
	s.split(s.mask.end(nil))
	if len(s.line) > 0 {
		s.print(len(s.line))
	}
}

// wholeRunes is the length of b without a character whose last bytes are still
// to come. Bytes that can become none count as whole.
func wholeRunes(b []byte) int {
	for back := 1; back < utf8.UTFMax && back <= len(b); back++ {
		if i := len(b) - back; utf8.RuneStart(b[i]) {
			if !utf8.FullRune(b[i:]) {
				return i
			}
			break
		}
	}
	return len(b)
}
