package egress

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLedgerCountsByDestinationAndOutcome(t *testing.T) {
	var l Ledger
	denied := attempt{host: "evil.test", port: 443, protocol: ProtocolConnect, verdict: Denied, reason: ReasonNoRule}
	allowed := attempt{host: "good.test", port: 443, protocol: ProtocolHTTPS, verdict: Allowed, rule: "good.test"}
	failed := allowed
	failed.verdict, failed.reason = Failed, ReasonUpstream
	l.add(denied)
	l.add(allowed).moved(10, 20)
	l.add(denied)
	l.add(allowed).moved(1, 2)
	l.add(allowed).becomes(failed).moved(0, 5)
	want := []Record{
		{Host: "evil.test", Port: 443, Protocol: "connect", Verdict: "denied", Reason: "no_rule", Count: 2},
		{Host: "good.test", Port: 443, Protocol: "https", Verdict: "allowed", Rule: "good.test", Count: 2, BytesIn: 11, BytesOut: 22},
		{Host: "good.test", Port: 443, Protocol: "https", Verdict: "failed", Reason: "upstream", Rule: "good.test", Count: 1, BytesOut: 5},
	}
	if diff := cmp.Diff(want, l.Records()); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	got, err := json.Marshal(want[0])
	if err != nil {
		t.Fatal(err)
	}
	if s := `{"host":"evil.test","port":443,"protocol":"connect","verdict":"denied","reason":"no_rule","rule":"","count":2,"bytesIn":0,"bytesOut":0}`; string(got) != s {
		t.Errorf("JSON of a record:\n got %s\nwant %s", got, s)
	}
}

func TestLedgerNeverShowsAnAttemptThatBecameAnother(t *testing.T) {
	var l Ledger
	a := attempt{host: "good.test", verdict: Allowed}
	b := attempt{host: "good.test", verdict: Failed}
	l.add(a).becomes(b)
	if got := l.Records(); len(got) != 1 || got[0].Verdict != Failed {
		t.Errorf("records: %+v", got)
	}
}

// Attack 133: a flood of names neither grows the ledger without bound, nor is
// one of it lost, nor does it push out what was allowed.
func TestLedgerHoldsAFlood(t *testing.T) {
	var l Ledger
	const each, workers = 5000, 4
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				l.add(attempt{host: fmt.Sprintf("%d-%d.evil.test", w, i), port: 443, verdict: Denied, reason: ReasonNoRule})
			}
		})
	}
	wg.Wait()
	l.add(attempt{host: "good.test", port: 443, verdict: Allowed, rule: "good.test"})
	recs := l.Records()
	var count uint64
	others := find(recs, Others)
	for _, r := range recs {
		if r.Verdict == Denied {
			count += r.Count
		}
	}
	if count != each*workers {
		t.Errorf("%d denials counted, %d made", count, each*workers)
	}
	if len(recs) != maxDistinct+2 {
		t.Errorf("%d records, want %d", len(recs), maxDistinct+2)
	}
	if others["denied:no_rule"] != each*workers-maxDistinct {
		t.Errorf("others: %v", others)
	}
	wantOnly(t, recs, "good.test", map[string]uint64{"allowed": 1})
}
