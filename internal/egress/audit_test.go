package egress

import (
	"io"
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Attack 135 and item 5 of the egress issue: an audit lets through what is
// public, whatever it is, and nothing else.
func TestAnAuditLetsThroughWhatIsPublic(t *testing.T) {
	w := newWorld(t, "good.test")
	w.proxy.Policy.Audit = true
	w.proxy.Policy.Allow = append(w.proxy.Policy.Allow, entries(t, Entry{To: "in.corp.test", Private: true})...)
	w.proxy.Policy.Deny = rules(t, "ads.test")
	w.names["ads.test"] = addrs(evilAddr)
	w.names["inside.test"] = addrs("10.0.0.5")
	w.names["in.corp.test"] = addrs("10.0.0.5")
	w.names["meta.test"] = addrs("169.254.169.254")
	w.serveHTTP(goodAddr+":443", w.cert("good.test", "front.test"), nil)
	w.serveHTTP(evilAddr+":443", w.cert("evil.test"), nil)
	w.serveHTTP(evilAddr+":80", nil, nil)
	w.serveHTTP("10.0.0.5:80", nil, nil)
	w.serveRaw(evilAddr+":22", func(c net.Conn) { io.WriteString(c, "SSH-2.0-x\r\n"); io.Copy(io.Discard, c) })
	w.start()

	w.reached(t)
	if body, err := w.get("evil.test:443", "evil.test", "evil.test"); err != nil || body != "hello from evil.test" {
		t.Errorf("https://evil.test: %q, %v", body, err)
	}
	if got := w.ask(plainGet("evil.test")); status(got) != 200 {
		t.Errorf("http://evil.test: %q", got)
	}
	if got := w.ask(plainGet("in.corp.test")); status(got) != 200 {
		t.Errorf("control: a private rule: %q", got)
	}
	w.tunnelBytes("evil.test:22", []byte("SSH-2.0-y\r\n"))
	w.tunnelBytes(evilAddr+":22", []byte("SSH-2.0-y\r\n"))
	if _, err := w.get("good.test:443", "front.test", "front.test"); err != nil {
		t.Errorf("another server name: %v", err)
	}
	w.tunnelBytes("front.test:443", nil)
	for _, target := range []string{"inside.test:80", "meta.test:80", "ads.test:443", "10.0.0.5:80", "169.254.169.254:80", "metadata.google.internal:80", "0xc6336442:22", "evil.test:0"} {
		if _, code := w.connect(target); code != 403 && code != 400 {
			t.Errorf("CONNECT %s: %d", target, code)
		}
	}
	recs := w.end()
	for host, want := range map[string]map[string]uint64{
		"good.test":                {"allowed": 1, "allowed:audit": 1},
		"evil.test":                {"allowed:audit": 3, "denied:bad_request": 1},
		"front.test":               {"allowed:audit": 1},
		evilAddr:                   {"allowed:audit": 1},
		"in.corp.test":             {"allowed:private": 1},
		"inside.test":              {"denied:non_public": 1},
		"meta.test":                {"denied:metadata": 1},
		"ads.test":                 {"denied:deny_rule": 1},
		"10.0.0.5":                 {"denied:ip_literal": 1},
		"169.254.169.254":          {"denied:metadata": 1},
		"metadata.google.internal": {"denied:metadata": 1},
		"0xc6336442":               {"denied:ip_literal": 1},
	} {
		wantOnly(t, recs, host, want)
	}
	for _, r := range recs {
		if r.Reason == ReasonAudit && r.Rule != "" {
			t.Errorf("an audit names a rule: %+v", r)
		}
	}
	want := []string{
		"evil.test", "front.test",
		"tcp://evil.test:22", "tcp://good.test:443", "tcp://" + evilAddr + ":22",
		`{to: "in.corp.test:80", private: true}`,
	}
	if diff := cmp.Diff(want, Proposal(recs), sorted); diff != "" {
		t.Errorf("proposal (-want +got):\n%s", diff)
	}

	// What was proposed lets the same through once it is enforced.
	w2 := newWorld(t)
	for _, text := range Proposal(recs) {
		e := Entry{To: text}
		if strings.HasPrefix(text, "{") {
			e = Entry{To: "in.corp.test:80", Private: true}
		}
		w2.proxy.Policy.Allow = append(w2.proxy.Policy.Allow, entries(t, e)...)
	}
	w2.names = w.names
	w2.serveHTTP(goodAddr+":443", w2.cert("good.test", "front.test"), nil)
	w2.serveHTTP(evilAddr+":443", w2.cert("evil.test"), nil)
	w2.serveHTTP(evilAddr+":80", nil, nil)
	w2.serveHTTP("10.0.0.5:80", nil, nil)
	w2.serveRaw(evilAddr+":22", func(c net.Conn) { io.Copy(io.Discard, c) })
	w2.start()
	w2.reached(t)
	if _, err := w2.get("evil.test:443", "evil.test", "evil.test"); err != nil {
		t.Error(err)
	}
	w2.ask(plainGet("evil.test"))
	w2.ask(plainGet("in.corp.test"))
	w2.tunnelBytes("evil.test:22", []byte("SSH-2.0-y\r\n"))
	w2.tunnelBytes(evilAddr+":22", []byte("SSH-2.0-y\r\n"))
	for _, r := range w2.end() {
		if r.Verdict != Allowed {
			t.Errorf("under the proposal: %+v", r)
		}
	}
}

func TestTheSameRequestsWithoutAnAuditAreDenied(t *testing.T) {
	p := Policy{Allow: rules(t, "good.test")}
	audit := p
	audit.Audit = true
	for _, r := range []Request{{"evil.test", 443}, {"evil.test", 22}, {"good.test", 22}, {"9.9.9.9", 443}} {
		if d := p.Decide(r); d.Allow {
			t.Errorf("%v: enforced: %+v", r, d)
		}
		if d := audit.Decide(r); !d.Allow || d.Reason != ReasonAudit || d.Rule != "" {
			t.Errorf("%v: audited: %+v", r, d)
		}
	}
	if d := audit.Decide(Request{"good.test", 443}); !d.Allow || d.Reason != "" || d.Rule != "good.test" {
		t.Errorf("what a rule allows, audited: %+v", d)
	}
}
