package cell

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

// The words that go through the two descriptors are frames: a letter, four bytes
// of length, and so many bytes.
//
//	to the box     'c' a cell, 'l' the last one: two bytes of length, a name, code
//	from the box   'h' the interpreter has booted
//	               'r' a result: for each form two bytes of length, its MIME type,
//	                   four bytes of length, its value
//	               'e' the cell is over: one byte, its exit status
const (
	kindCell   = 'c'
	kindLast   = 'l'
	kindHello  = 'h'
	kindResult = 'r'
	kindEnd    = 'e'

	headBytes = 5
)

// Bounds of what is kept of a cell. Past them it is counted.
const (
	// MaxResults is how many results there are.
	MaxResults = 256
	// MaxBytes is how much they have together.
	MaxBytes = 32 << 20
	// MaxValue is how much one form of one may have.
	MaxValue = 16 << 20
	// maxForms is how many forms one result may have.
	maxForms = 16
	// maxFrame is what a result of that size takes.
	maxFrame = MaxValue + 1<<20
)

// encode is a cell as the runner reads it.
func encode(c Cell) ([]byte, error) {
	if len(c.Name) > math.MaxUint16 || len(c.Code) > math.MaxInt32-len(c.Name) {
		return nil, errors.New("the cell is too long")
	}
	kind := byte(kindCell)
	if c.Last {
		kind = kindLast
	}
	b := append(make([]byte, 0, headBytes+2+len(c.Name)+len(c.Code)), kind)
	b = binary.BigEndian.AppendUint32(b, uint32(2+len(c.Name)+len(c.Code)))
	b = binary.BigEndian.AppendUint16(b, uint16(len(c.Name)))
	return append(append(b, c.Name...), c.Code...), nil
}

// frame is one word of the runner, or of whoever wrote in its place.
type frame struct {
	kind byte
	body []byte
	// left: it was longer than anything may be, and its body is not here.
	left bool
}

// errBroken: what arrived is no frame, so nothing that follows is one either.
var errBroken = errors.New("what arrived is in no form that a result has")

// reader reads frames of whoever writes them.
type reader struct{ r *bufio.Reader }

func newReader(r io.Reader) *reader { return &reader{bufio.NewReaderSize(r, 64<<10)} }

// next is one frame. io.EOF is the end; any other error is as good as that.
func (r *reader) next() (frame, error) {
	var head [headBytes]byte
	if _, err := io.ReadFull(r.r, head[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return frame{}, errBroken
		}
		return frame{}, err
	}
	f := frame{kind: head[0]}
	n := binary.BigEndian.Uint32(head[1:])
	switch f.kind {
	case kindHello:
		if n != 0 {
			return f, errBroken
		}
	case kindEnd:
		if n != 1 {
			return f, errBroken
		}
	case kindResult:
		if n > maxFrame {
			// A length costs nothing to write: no memory is taken for it.
			f.left = true
			if _, err := io.CopyN(io.Discard, r.r, int64(n)); err != nil {
				return f, errBroken
			}
			return f, nil
		}
	default:
		return f, errBroken
	}
	// Grown with what arrives, not with what was promised.
	f.body = make([]byte, 0, min(int(n), 64<<10))
	for len(f.body) < int(n) {
		if len(f.body) == cap(f.body) {
			grown := make([]byte, len(f.body), min(int(n), 2*cap(f.body)))
			copy(grown, f.body)
			f.body = grown
		}
		k, err := r.r.Read(f.body[len(f.body):cap(f.body)])
		f.body = f.body[:len(f.body)+k]
		if err != nil && len(f.body) < int(n) {
			return f, errBroken
		}
	}
	return f, nil
}

// forms reads the body of a result.
func forms(body []byte) (Result, error) {
	var out Result
	for len(body) > 0 {
		if len(out) >= maxForms {
			return nil, fmt.Errorf("a result in more than %d forms", maxForms)
		}
		var mime, value []byte
		var ok bool
		if mime, body, ok = piece(body, 2); !ok {
			return nil, errBroken
		}
		if value, body, ok = piece(body, 4); !ok {
			return nil, errBroken
		}
		out = append(out, Value{MIME: string(mime), Data: value})
	}
	return out, nil
}

// piece cuts off bytes that stand behind their own length.
func piece(b []byte, size int) (part, rest []byte, ok bool) {
	if len(b) < size {
		return nil, nil, false
	}
	n := uint64(0)
	for _, c := range b[:size] {
		n = n<<8 | uint64(c)
	}
	b = b[size:]
	if uint64(len(b)) < n {
		return nil, nil, false
	}
	return b[:n:n], b[n:], true
}
