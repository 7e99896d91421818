package egress

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"
)

// line is one attempt as written to the log. Host, SNI, method and path are
// text from the box.
type line struct {
	Step       string `json:"step"`
	Setup      bool   `json:"setup,omitempty"`
	First      string `json:"first"`
	Last       string `json:"last"`
	Protocol   string `json:"protocol"`
	Host       string `json:"host"`
	Port       int    `json:"port"`
	Address    string `json:"address"`
	SNI        string `json:"sni"`
	Method     string `json:"method"`
	Path       string `json:"path"` // without its query, where secrets are
	BytesIn    uint64 `json:"bytesIn"`
	BytesOut   uint64 `json:"bytesOut"`
	DurationMs int64  `json:"durationMs"`
	Verdict    string `json:"verdict"`
	Rule       string `json:"rule"`
	Reason     string `json:"reason"`
	Private    bool   `json:"private"`
}

// omitted is the last line of a log that had no room for all.
type omitted struct {
	Step    string `json:"step"`
	Omitted uint64 `json:"omitted"`
}

// trace is what the log says of an attempt beyond what attempts are counted by.
type trace struct {
	began                      time.Time
	address, sni, method, path string
	private                    bool
}

// sink gathers whole lines and writes them in one piece.
type sink struct {
	mu      sync.Mutex
	buf     []byte
	written int64
	lost    uint64 // to a writer that broke
	omitted uint64 // for want of room
	err     error
}

func (s *sink) add(w io.Writer, l any) {
	text, err := json.Marshal(l)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && s.err == nil {
		s.err = fmt.Errorf("egress: bug: encode a line of the request log: %w", err)
	}
	if err != nil || s.err != nil {
		s.lost++
		return
	}
	if s.written+int64(len(s.buf)+len(text)) >= maxLog {
		s.omitted++
		return
	}
	s.buf = append(append(s.buf, text...), '\n')
	if len(s.buf) >= logBuffer {
		s.flush(w)
	}
}

// flush writes what was gathered; its caller holds mu.
func (s *sink) flush(w io.Writer) {
	if len(s.buf) == 0 || s.err != nil {
		return
	}
	n, err := w.Write(s.buf)
	if err == nil && n < len(s.buf) {
		err = io.ErrShortWrite
	}
	if err != nil {
		s.err = fmt.Errorf("write the request log: %w", err)
		for _, c := range s.buf[min(max(n, 0), len(s.buf)):] {
			if c == '\n' {
				s.lost++
			}
		}
	}
	s.written += int64(n)
	s.buf = s.buf[:0]
}

// Flush writes to Log what is still in memory. Drain and the ends of Serve and
// ServeForward do so too.
func (l *Ledger) Flush() error {
	if l.Log == nil {
		return nil
	}
	l.sink.mu.Lock()
	defer l.sink.mu.Unlock()
	if n := l.sink.omitted; n > 0 {
		if text, err := json.Marshal(omitted{l.step(), n}); err == nil {
			l.sink.buf = append(append(l.sink.buf, text...), '\n')
			l.sink.omitted = 0
		}
	}
	l.sink.flush(l.Log)
	return l.sink.failure()
}

// Err says why the log is not complete; nil if every attempt that ended was
// written or waits for Flush. The counts of Records are complete all the same.
func (l *Ledger) Err() error {
	l.sink.mu.Lock()
	defer l.sink.mu.Unlock()
	return l.sink.failure()
}

func (s *sink) failure() error {
	if s.err == nil {
		return nil
	}
	return fmt.Errorf("%w (%d lines lost)", s.err, s.lost)
}

// log writes the line of an attempt that has ended.
func (l *Ledger) log(a attempt, t trace, in, out uint64, now time.Time) {
	if l.Log == nil {
		return
	}
	l.sink.add(l.Log, line{
		Step: l.step(), Setup: l.Setup, First: stamp(t.began), Last: stamp(now),
		Protocol: a.protocol, Host: a.host, Port: a.port, Address: t.address, SNI: shown(t.sni),
		Method: shown(t.method), Path: shown(t.path), BytesIn: in, BytesOut: out,
		DurationMs: max(now.Sub(t.began).Milliseconds(), 0),
		Verdict:    a.verdict, Rule: a.rule, Reason: a.reason, Private: t.private,
	})
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
