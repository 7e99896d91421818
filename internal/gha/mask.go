package gha

import (
	"encoding/binary"
	"io"
	"strings"
	"sync"
)

// Masked stands where a secret's value stood.
const Masked = "***"

// MinSecret is the shortest text that is masked. Taking out shorter ones, such
// as the value 1, would ruin every line and protect nothing.
const MinSecret = 4

// Masker finds the values of secrets in text, and their usual encodings. It is
// safe for concurrent use, and nil masks nothing.
//
// It is an automaton over all of them at once: its state is how much of which
// one the last bytes could be the beginning of, which is exactly what a stream
// must hold back. Its time hardly depends on their number: most bytes are
// passed over by their next four, with which nothing begins.
//
// What it knows is in encodings; it does not find a value that is encrypted, or
// printed with one letter per line. Whoever runs untrusted code with a secret
// has given it away.
type Masker struct {
	nodes   []maskNode
	root    [256]int32
	heads   [headBits / 64]uint64 // hashes of the first MinSecret bytes
	longest int
}

type maskNode struct {
	fail    int32
	depth   int32 // bytes from the root
	found   int32 // length of the longest value that ends here, or 0
	child   int32 // some value goes on from here
	sibling int32
	b       byte // by which it is reached
}

// headBits is so many that of the heads of fifty secrets with all encodings few
// are hit by chance, and so few that they stay in the first cache.
const headBits = 1 << 16

func head(p []byte) uint32 {
	return binary.LittleEndian.Uint32(p) * 0x9e3779b1 >> 16
}

// NewMasker looks for the values given, and for each line of a value of several
// lines, since output seldom keeps line ends as they were; and for the encodings
// of each.
func NewMasker(values ...string) *Masker {
	m := &Masker{nodes: make([]maskNode, 1)}
	known := map[string]bool{}
	each := func(v string) {
		if !known[v] {
			known[v] = true
			m.add(v)
			encodings(v, m.add)
		}
	}
	for _, v := range values {
		each(v)
		if lines := strings.FieldsFunc(v, func(r rune) bool { return r == '\n' || r == '\r' }); len(lines) > 1 || strings.TrimSpace(v) != v {
			for _, line := range lines {
				each(line)
				each(strings.TrimSpace(line))
			}
		}
	}
	m.link()
	return m
}

func (m *Masker) add(value string) {
	if len(value) < MinSecret {
		return
	}
	h := head([]byte(value[:MinSecret]))
	m.heads[h/64] |= 1 << (h % 64)
	m.longest = max(m.longest, len(value))
	at := m.root[value[0]]
	if at == 0 {
		at = m.node(1, value[0])
		m.root[value[0]] = at
	}
	for i := 1; i < len(value); i++ {
		next := m.below(at, value[i])
		if next == 0 {
			next = m.node(int32(i+1), value[i])
			m.nodes[next].sibling = m.nodes[at].child
			m.nodes[at].child = next
		}
		at = next
	}
	m.nodes[at].found = int32(len(value))
}

func (m *Masker) node(depth int32, b byte) int32 {
	m.nodes = append(m.nodes, maskNode{depth: depth, b: b})
	return int32(len(m.nodes) - 1)
}

// below is where b leads from a node that is not the root, or 0.
func (m *Masker) below(at int32, b byte) int32 {
	to := m.nodes[at].child
	for to != 0 && m.nodes[to].b != b {
		to = m.nodes[to].sibling
	}
	return to
}

// link sets each node's fail: the longest other beginning that the same bytes
// end with. Nodes are visited by depth, as fail leads to a lesser one.
func (m *Masker) link() {
	queue := make([]int32, 0, len(m.nodes))
	for _, at := range m.root {
		if at != 0 {
			queue = append(queue, at)
		}
	}
	for i := 0; i < len(queue); i++ {
		at := queue[i]
		for to := m.nodes[at].child; to != 0; to = m.nodes[to].sibling {
			n := &m.nodes[to]
			n.fail = m.next(m.nodes[at].fail, n.b)
			n.found = max(n.found, m.nodes[n.fail].found)
			queue = append(queue, to)
		}
	}
}

func (m *Masker) next(at int32, b byte) int32 {
	for at != 0 {
		if to := m.below(at, b); to != 0 {
			return to
		}
		at = m.nodes[at].fail
	}
	return m.root[b]
}

// Mask replaces every value in a text that is complete.
func (m *Masker) Mask(text string) string {
	if m == nil || len(m.nodes) == 1 {
		return text
	}
	s := masking{m: m}
	return string(s.end(s.push(make([]byte, 0, len(text)), []byte(text))))
}

// masking is a masker's place in one stream.
type masking struct {
	m    *Masker
	at   int32
	held []byte // the bytes that may still turn out to be part of a value
	hide []bool // which of them already are
	mark bool   // the last thing given out was Masked
}

// push takes in bytes and appends to dst what is settled.
func (s *masking) push(dst, p []byte) []byte {
	if s.m == nil || len(s.m.nodes) == 1 {
		return append(dst, p...)
	}
	for i := 0; i < len(p); {
		if s.at == 0 && len(s.held) == 0 {
			j := s.m.pass(p, i)
			if j > i {
				dst, s.mark, i = append(dst, p[i:j]...), false, j
				continue
			}
		}
		s.held, s.hide = append(s.held, p[i]), append(s.hide, false)
		s.at = s.m.next(s.at, p[i])
		i++
		n := s.m.nodes[s.at]
		for k := len(s.hide) - int(n.found); k < len(s.hide); k++ {
			s.hide[k] = true
		}
		if n.child == 0 && s.at != 0 { // nothing longer can come
			s.at = n.fail
		}
		dst = s.give(dst, len(s.held)-int(s.m.nodes[s.at].depth))
	}
	return dst
}

// pass is the first place from i on where a value could begin.
func (m *Masker) pass(p []byte, i int) int {
	for ; i+MinSecret <= len(p); i++ {
		if h := head(p[i:]); m.heads[h/64]&(1<<(h%64)) != 0 {
			return i
		}
	}
	for i < len(p) && m.root[p[i]] == 0 {
		i++
	}
	return i
}

// end appends to dst what was held back: no more bytes will come.
func (s *masking) end(dst []byte) []byte {
	dst = s.give(dst, len(s.held))
	s.at, s.mark = 0, false
	return dst
}

func (s *masking) give(dst []byte, n int) []byte {
	for k := range n {
		switch {
		case !s.hide[k]:
			dst, s.mark = append(dst, s.held[k]), false
		case !s.mark: // values that touch or overlap become one mark
			dst, s.mark = append(dst, Masked...), true
		}
	}
	s.held, s.hide = s.held[n:], s.hide[n:]
	if len(s.held) == 0 {
		s.held, s.hide = s.held[:0:0], s.hide[:0:0]
	}
	return dst
}

// MaskWriter masks a stream on its way to a file. A value is found wherever the
// writes happen to be cut; less than the longest value is held back for that,
// and only while the last bytes could be the beginning of one.
type MaskWriter struct {
	w io.Writer

	mu  sync.Mutex // whoever copies the stream may be left behind by Close
	s   masking
	buf []byte
	err error // the first of the writer below
}

// NewMaskWriter writes to w what m lets through. It is for one stream.
func NewMaskWriter(w io.Writer, m *Masker) *MaskWriter {
	return &MaskWriter{w: w, s: masking{m: m}}
}

// Write masks p. It reports all of p as written unless the writer below fails.
// After it failed once nothing more is written: a file with a hole in it would
// read like the whole.
func (w *MaskWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf = w.s.push(w.buf[:0], p)
	if err := w.write(); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Close writes what was held back and returns the first error of all writes:
// whoever copied the stream may not have looked. The writer below stays open.
func (w *MaskWriter) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf = w.s.end(w.buf[:0])
	return w.write()
}

// write writes buf; mu is held.
func (w *MaskWriter) write() error {
	if w.err == nil && len(w.buf) > 0 {
		_, w.err = w.w.Write(w.buf)
	}
	return w.err
}

// Longest is the length of the longest value or encoding, 0 if there is none: how
// many bytes past a cut must be seen to know that none lies across it.
func (m *Masker) Longest() int {
	if m == nil {
		return 0
	}
	return m.longest
}
