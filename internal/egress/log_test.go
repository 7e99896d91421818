package egress

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// logLines reads a log; every line has to be whole.
func logLines(t testing.TB, b []byte) []line {
	t.Helper()
	if len(b) > 0 && b[len(b)-1] != '\n' {
		t.Errorf("the log ends in the middle of a line: %q", b[max(0, len(b)-80):])
	}
	var out []line
	for text := range strings.Lines(string(b)) {
		var l line
		d := json.NewDecoder(strings.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(&l); err != nil {
			t.Fatalf("line %q: %v", text, err)
		}
		first, err1 := time.Parse(time.RFC3339Nano, l.First)
		last, err2 := time.Parse(time.RFC3339Nano, l.Last)
		if err1 != nil || err2 != nil || last.Before(first) || time.Since(first) > time.Minute {
			t.Errorf("times of line %q: %v, %v", text, err1, err2)
		}
		out = append(out, l)
	}
	return out
}

func TestEveryAttemptIsALineOfTheLog(t *testing.T) {
	w := newWorld(t, "good.test", "tcp://db.test:5432", "dead.test")
	w.names["db.test"] = addrs("10.0.0.5")
	w.names["dead.test"] = addrs("192.0.2.99")
	w.proxy.Policy.Allow = append(w.proxy.Policy.Allow, entries(t, Entry{To: "tcp://db.test:5433", Private: true})...)
	var buf bytes.Buffer
	w.ledger.Step, w.ledger.Log = "build", &buf
	w.serveHTTP(goodAddr+":443", w.cert("good.test"), nil)
	w.serveHTTP(goodAddr+":80", nil, nil)
	w.serveRaw("10.0.0.5:5433", func(c net.Conn) { io.WriteString(c, "SSH-2.0-x\r\n"); io.Copy(io.Discard, c) })
	w.start()
	w.reached(t)
	w.ask("GET http://good.test/a/path?token=secret HTTP/1.1\r\nHost: good.test\r\nAuthorization: secret\r\nConnection: close\r\n\r\n")
	w.ask("CONNECT evil.test:443 HTTP/1.1\r\n\r\n")
	w.ask("CONNECT db.test:5432 HTTP/1.1\r\n\r\n")
	w.ask("CONNECT dead.test:443 HTTP/1.1\r\n\r\n")
	w.tunnelBytes("good.test:443", records(makeHello(sniExt("evil.test")), 1<<14))
	w.tunnelBytes("db.test:5433", []byte("hi"))
	w.ask("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	w.end()

	want := map[string]line{
		"tunnel":   {Protocol: "https", Host: "good.test", Port: 443, Address: goodAddr, SNI: "good.test", Method: "CONNECT", Verdict: "allowed", Rule: "good.test"},
		"plain":    {Protocol: "http", Host: "good.test", Port: 80, Address: goodAddr, Method: "GET", Path: "/a/path", Verdict: "allowed", Rule: "good.test"},
		"denied":   {Protocol: "connect", Host: "evil.test", Port: 443, Method: "CONNECT", Verdict: "denied", Reason: "no_rule"},
		"private":  {Protocol: "connect", Host: "db.test", Port: 5432, Method: "CONNECT", Verdict: "denied", Reason: "non_public", Rule: "tcp://db.test:5432"},
		"dead":     {Protocol: "connect", Host: "dead.test", Port: 443, Method: "CONNECT", Verdict: "failed", Reason: "dial", Rule: "dead.test"},
		"mismatch": {Protocol: "https", Host: "good.test", Port: 443, Address: goodAddr, SNI: "evil.test", Method: "CONNECT", Verdict: "denied", Reason: "sni_mismatch", Rule: "good.test"},
		"tcp": {Protocol: "tcp/ssh", Host: "db.test", Port: 5433, Address: "10.0.0.5", Method: "CONNECT", Verdict: "allowed", Reason: "private",
			Rule: "tcp://db.test:5433", BytesIn: 11, BytesOut: 2, Private: true},
		"no destination": {Protocol: "http", Method: "GET", Verdict: "failed", Reason: "bad_request"},
	}
	if strings.Contains(buf.String(), "secret") {
		t.Errorf("the log holds a secret: %s", &buf)
	}
	lines := logLines(t, buf.Bytes())
	if len(lines) != len(want) {
		t.Errorf("%d lines, want %d:\n%s", len(lines), len(want), &buf)
	}
	for name, l := range want {
		found := false
		for _, got := range lines {
			if l.BytesIn == 0 && got.Verdict == Allowed { // of TLS and HTTP; that there are some is enough
				if got.BytesIn == 0 || got.BytesOut == 0 {
					t.Errorf("no bytes in %+v", got)
				}
				got.BytesIn, got.BytesOut = 0, 0
			}
			l.Step, l.First, l.Last, l.DurationMs = "build", got.First, got.Last, got.DurationMs
			found = found || got == l
		}
		if !found {
			t.Errorf("%s: no line %+v in\n%s", name, l, &buf)
		}
	}
}

// slowDisk takes what it gets, and checks that it gets whole lines.
type slowDisk struct {
	t  testing.TB
	mu sync.Mutex
	n  int
}

func (d *slowDisk) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(p) == 0 || p[len(p)-1] != '\n' {
		d.t.Errorf("a write ends in the middle of a line")
	}
	d.n += bytes.Count(p, []byte("\n"))
	time.Sleep(100 * time.Microsecond)
	return len(p), nil
}

// None is lost at as many denials a second as can be made, from many sides.
func TestNoLineIsLostInAFlood(t *testing.T) {
	disk := &slowDisk{t: t}
	l := Ledger{Step: "s", Log: disk}
	const workers, each = 10, 1000
	var wg sync.WaitGroup
	began := time.Now()
	for k := range workers {
		wg.Go(func() {
			for i := range each {
				now := time.Now()
				l.add(outcome{Denied, ReasonNoRule, ""}.attempt(fmt.Sprintf("h%d-%d.evil.test", k, i), 443, ProtocolConnect)).ended(trace{began: now}, 0, 0, now)
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	if err := l.Flush(); err != nil {
		t.Fatal(err)
	}
	if disk.n != workers*each {
		t.Errorf("%d lines for %d denials", disk.n, workers*each)
	}
	t.Logf("%.0f denials/s", workers*each/took.Seconds()) // BenchmarkDenials measures it
}

func TestALogThatBreaksIsReportedAndTheCountsGoOn(t *testing.T) {
	boom := errors.New("no space left on device")
	for name, log := range map[string]io.Writer{
		"an error":    writerFunc(func(p []byte) (int, error) { return 3, boom }),
		"short write": writerFunc(func(p []byte) (int, error) { return len(p) - 1, nil }),
	} {
		w := newWorld(t, "good.test")
		w.ledger.Log = log
		w.serveHTTP(goodAddr+":443", w.cert("good.test"), nil)
		w.start()
		w.reached(t)
		w.ask("CONNECT evil.test:443 HTTP/1.1\r\n\r\n")
		if err := w.ledger.Err(); err != nil {
			t.Errorf("%s: before anything was written: %v", name, err)
		}
		ctx := t.Context()
		err := w.proxy.Drain(ctx)
		if err == nil || !strings.Contains(err.Error(), "write the request log: ") || w.ledger.Err() == nil {
			t.Errorf("%s: drain: %v, the ledger: %v", name, err, w.ledger.Err())
		}
		if name == "an error" && (!errors.Is(err, boom) || !strings.Contains(err.Error(), "2 lines lost")) {
			t.Errorf("%s: %v", name, err)
		}
		wantOnly(t, w.ledger.Records(), "evil.test", map[string]uint64{"denied:no_rule": 1})
		w.cancel()
		if err := <-w.served; err != nil {
			t.Error(err)
		}
		w.cancel = nil
	}
}

func TestALogWithoutEndSaysWhatItLeftOut(t *testing.T) {
	var got bytes.Buffer
	l := Ledger{Step: "s", Log: &got}
	l.sink.written = maxLog - 200 // as if it had
	now := time.Now()
	for range 5 {
		l.add(outcome{Denied, ReasonNoRule, ""}.attempt("evil.test", 443, ProtocolConnect)).ended(trace{began: now}, 0, 0, now)
	}
	if err := l.Flush(); err != nil {
		t.Fatal(err)
	}
	if want := `{"step":"s","omitted":5}` + "\n"; got.String() != want {
		t.Errorf("got %s, want %s", &got, want)
	}
	if r := l.Records(); len(r) != 1 || r[0].Count != 5 {
		t.Errorf("records %+v", r)
	}
}

// Attack 139 at its source: what the box wrote can be no second line.
func TestALineHoldsWhateverTheBoxWrote(t *testing.T) {
	var got bytes.Buffer
	l := Ledger{Log: &got}
	now := time.Now()
	evil := "a\"\n{\"verdict\":\"allowed\"}\r\u2028\x1b[2J\xff" + strings.Repeat("x", 5000)
	l.add(outcome{Denied, ReasonBadName, ""}.attempt(evil, 443, ProtocolConnect)).ended(trace{began: now, sni: evil, method: evil, path: evil}, 0, 0, now)
	l.Flush()
	if n := bytes.Count(got.Bytes(), []byte("\n")); n != 1 || got.Len() > 4096 || bytes.ContainsAny(got.Bytes(), "\x1b\r") {
		t.Errorf("%d lines, %d bytes: %q", n, got.Len(), &got)
	}
	if lines := logLines(t, got.Bytes()); len(lines) != 1 || lines[0].Verdict != Denied {
		t.Errorf("%+v", lines)
	}
}
