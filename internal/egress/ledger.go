package egress

import (
	"io"
	"sync"
	"time"
)

// Record is one destination a step asked for, with one outcome. Host is text
// from the box, except in a record of others.
type Record struct {
	Host     string `json:"host"`
	Port     int    `json:"port"`
	Protocol string `json:"protocol"`
	Verdict  string `json:"verdict"`
	Reason   string `json:"reason"`
	// Rule is the rule that covers the host: the one that let the request
	// through, or the one that was not enough. Hint has the one to write.
	Rule     string `json:"rule"`
	Count    uint64 `json:"count"`
	BytesIn  uint64 `json:"bytesIn"`  // from the server
	BytesOut uint64 `json:"bytesOut"` // to the server
}

// Hint is the rule that would allow a denied destination; empty where no rule
// would.
func (r Record) Hint() string {
	if r.Verdict != Denied {
		return ""
	}
	return hint(r.Host, r.Port, r.Reason)
}

// Others is the host of records that count what no longer had room of its own.
const Others = "(others)"

// Ledger counts attempts by destination and outcome. It forgets none: past
// 4096 destinations of one verdict, further ones share a record for their
// reason. Each verdict has room of its own, so that a flood of denials cannot
// push what was allowed out of sight. The zero value is ready and is safe for
// concurrent use.
type Ledger struct {
	// Step and Log are set before use; Name changes Step later. To Log goes one line of JSON for every
	// attempt, once it has ended, in whole lines; Flush writes the last ones.
	Step string
	Log  io.Writer
	// Setup: the box is that of the step's setup.
	Setup bool

	sink     sink
	mu       sync.Mutex
	index    map[attempt]int
	records  []Record
	distinct map[string]int // by verdict
}

// attempt is what one attempt came to, and what attempts are counted by.
type attempt struct {
	host     string
	port     int
	protocol string
	verdict  string
	reason   string
	rule     string
}

// Name says whose attempts those are that end from now on.
func (l *Ledger) Name(step string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Step = step
}

func (l *Ledger) step() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Step
}

// add counts one attempt and returns a handle for what becomes known later.
func (l *Ledger) add(a attempt) *entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := l.slot(a)
	l.records[i].Count++
	return &entry{l, i, a}
}

func (l *Ledger) slot(a attempt) int {
	if i, ok := l.index[a]; ok {
		return i
	}
	if l.index == nil {
		l.index, l.distinct = map[attempt]int{}, map[string]int{}
	}
	if l.distinct[a.verdict] >= maxDistinct {
		// Protocols and reasons are words of ours: there are few.
		a = attempt{host: Others, protocol: a.protocol, verdict: a.verdict, reason: a.reason}
		if i, ok := l.index[a]; ok {
			return i
		}
	} else {
		l.distinct[a.verdict]++
	}
	l.records = append(l.records, Record{
		Host: a.host, Port: a.port, Protocol: a.protocol,
		Verdict: a.verdict, Reason: a.reason, Rule: a.rule,
	})
	l.index[a] = len(l.records) - 1
	return len(l.records) - 1
}

// Records gives what was counted so far, in order of first appearance.
func (l *Ledger) Records() []Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]Record, 0, len(l.records))
	for _, r := range l.records {
		if r.Count > 0 {
			out = append(out, r)
		}
	}
	return out
}

// entry is one counted attempt.
type entry struct {
	ledger *Ledger
	i      int
	a      attempt
}

// moved adds bytes to the attempt's record.
func (e *entry) moved(in, out uint64) {
	e.ledger.mu.Lock()
	defer e.ledger.mu.Unlock()
	e.ledger.records[e.i].BytesIn += in
	e.ledger.records[e.i].BytesOut += out
}

// becomes counts the attempt under another outcome instead.
func (e *entry) becomes(a attempt) *entry {
	e.ledger.mu.Lock()
	defer e.ledger.mu.Unlock()
	e.ledger.records[e.i].Count--
	i := e.ledger.slot(a)
	e.ledger.records[i].Count++
	return &entry{e.ledger, i, a}
}

// ended is the last that is heard of the attempt.
func (e *entry) ended(t trace, in, out uint64, now time.Time) {
	if in != 0 || out != 0 {
		e.moved(in, out)
	}
	e.ledger.log(e.a, t, in, out, now)
}
