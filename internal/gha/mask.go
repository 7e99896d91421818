package gha

import (
	"context"
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
// A text is read both as its bytes are and as they will be seen: what Inert takes
// away, such as a colour, may stand inside of a value. So what is masked stays
// masked when somebody makes it inert who knows no secrets.
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

// Lasting is Mask for a text that is kept, and made inert later, as a whole or line
// by line, where the secrets are not known. Mask looks through what Inert takes
// away; this is also about what Inert writes out: a value may have the letters
// \x1b in it.
func (m *Masker) Lasting(text string) string {
	if text = m.Mask(text); m == nil || plain(text) {
		return text
	}
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = Inert(lines[i])
	}
	for _, shown := range []string{strings.Join(lines, "\n"), Inert(text)} {
		if masked := m.Mask(shown); masked != shown {
			return m.Lasting(masked)
		}
	}
	return text
}

// maxVanishing is how many bytes that vanish are kept inside of what may become a
// value. More are left out: a step that prints one letter and then colours only
// would make us hold all of it.
const maxVanishing = 4 << 10

type unmasked struct{}

// Unmasked marks what is done for ourselves alone: whoever reads a file to write it
// back would write Masked into it. What is got by it is shown to nobody.
func Unmasked(ctx context.Context) context.Context {
	return context.WithValue(ctx, unmasked{}, true)
}

// IsUnmasked says whether a context is so marked.
func IsUnmasked(ctx context.Context) bool { return ctx.Value(unmasked{}) != nil }

// masking is a masker's place in one stream. It has two states: that of the
// bytes, and that of the bytes without those that vanish.
type masking struct {
	m     *Masker
	at    int32
	shown int32
	code  int    // so many of the last bytes held may be the beginning of what vanishes; shown does not know them yet
	held  []byte // the bytes that may still turn out to be part of a value
	found []finding
	gone  int  // how many of those held vanish
	mark  bool // the last thing given out that does not vanish was Masked
}

// finding is what is known of a byte that is held.
type finding struct{ hide, vanish bool }

// push takes in bytes and appends to dst what is settled.
func (s *masking) push(dst, p []byte) []byte {
	if s.m == nil || len(s.m.nodes) == 1 {
		return append(dst, p...)
	}
	for i := 0; i < len(p); {
		if len(s.held) == 0 {
			j := s.m.pass(p, i)
			if j > i {
				dst, s.mark, i = append(dst, p[i:j]...), false, j
				continue
			}
		}
		s.take(p[i])
		i++
		dst = s.give(dst, s.settled())
	}
	return dst
}

// take holds one byte and finds what it ends.
func (s *masking) take(c byte) {
	s.held, s.found = append(s.held, c), append(s.found, finding{})
	last := len(s.held) - 1
	one := s.gone == 0 && s.at == s.shown // nothing vanished in between
	s.at = s.step(s.at, last, false)
	switch {
	case s.code > 0:
		switch whole, may := vanishes(s.held[last-s.code:]); {
		case whole:
			s.vanish(s.code + 1)
		case may:
			s.code++
		default:
			s.read(s.code + 1)
		}
	case startsVanishing(c):
		s.code = 1
	case one:
		s.shown = s.at
	default:
		s.shown = s.step(s.shown, last, true)
	}
}

// read lets shown know the last n bytes, which do not vanish. Only the last can be
// the beginning of something else that does.
func (s *masking) read(n int) {
	s.code = 0
	for k := len(s.held) - n; k < len(s.held); k++ {
		if k == len(s.held)-1 && n > 1 && startsVanishing(s.held[k]) {
			s.code = 1
			return
		}
		s.shown = s.step(s.shown, k, true)
	}
}

// vanish notes that the last n bytes do.
func (s *masking) vanish(n int) {
	s.code = 0
	if s.gone+n > maxVanishing {
		s.at = 0
		s.held, s.found = s.held[:len(s.held)-n], s.found[:len(s.found)-n]
		return
	}
	s.gone += n
	for k := range s.found[len(s.found)-n:] {
		s.found[len(s.found)-n+k].vanish = true
	}
}

// step is where the byte at k leads, with the bytes hidden of a value that ends
// there. through passes over what vanishes.
func (s *masking) step(at int32, k int, through bool) int32 {
	at = s.m.next(at, s.held[k])
	n := s.m.nodes[at]
	for left := n.found; left > 0; k-- {
		if through && s.found[k].vanish {
			continue
		}
		s.found[k].hide = true
		left--
	}
	if n.child == 0 && at != 0 { // nothing longer can come
		return n.fail
	}
	return at
}

// settled is how many of the first bytes held no value can begin at.
func (s *masking) settled() int {
	n := 0
	seen := len(s.held) - s.code - s.gone // bytes that shown knows
	for len(s.held)-n > int(s.m.nodes[s.at].depth) && len(s.held)-n > s.code {
		if !s.found[n].vanish {
			if seen <= int(s.m.nodes[s.shown].depth) {
				break
			}
			seen--
		}
		n++
	}
	return n
}

// pass is the first place from i on where a value could begin, or what vanishes.
func (m *Masker) pass(p []byte, i int) int {
	near := false // something that may vanish is among the first bytes a value would have
	for k := i; k < min(i+MinSecret-1, len(p)); k++ {
		near = near || startsVanishing(p[k])
	}
	for ; !near && i+MinSecret <= len(p); i++ {
		if h := head(p[i:]); m.heads[h/64]&(1<<(h%64)) != 0 {
			return i
		}
		if near = startsVanishing(p[i+MinSecret-1]); near {
			break
		}
	}
	for i < len(p) && m.root[p[i]] == 0 && !startsVanishing(p[i]) {
		i++
	}
	return i
}

// end appends to dst what was held back: no more bytes will come.
func (s *masking) end(dst []byte) []byte {
	if s.m != nil {
		s.read(s.code)
	}
	dst = s.give(dst, len(s.held))
	s.at, s.shown, s.code, s.mark = 0, 0, 0, false
	return dst
}

func (s *masking) give(dst []byte, n int) []byte {
	for k, f := range s.found[:n] {
		switch {
		case f.hide && !s.mark: // values that touch or overlap become one mark
			dst, s.mark = append(dst, Masked...), true
		case f.hide:
		default:
			dst, s.mark = append(dst, s.held[k]), s.mark && f.vanish
		}
		if f.vanish {
			s.gone--
		}
	}
	s.held, s.found = s.held[n:], s.found[n:]
	if len(s.held) == 0 {
		s.held, s.found = s.held[:0:0], s.found[:0:0]
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

// Longest is the length of the longest value or encoding, 0 if there is none.
func (m *Masker) Longest() int {
	if m == nil {
		return 0
	}
	return m.longest
}

// Slack is how many bytes past a cut must be seen to know that no value lies
// across it.
func (m *Masker) Slack() int {
	if m.Longest() == 0 {
		return 0
	}
	return m.longest + maxVanishing
}
