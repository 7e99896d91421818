package egress

import (
	"context"
	"encoding/json"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// chained is a name server whose allowed names are other names in truth.
func chained(t *testing.T) *net.Resolver {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pc.Close() })
	names := map[string]string{ // a name, or an address
		"plain.test.": goodAddr,
		"cdn.test.":   "edge.cdn.example.", "edge.cdn.example.": "x.cdn.example.", "x.cdn.example.": goodAddr,
		"toevil.test.": "evil.test.", "evil.test.": evilAddr,
		"tohost.test.": "db.internal.example.", "db.internal.example.": "10.0.0.5",
		"tometa.test.": "metadata.example.", "metadata.example.": "169.254.169.254",
		"toself.test.": "localhost.", "localhost.": "127.0.0.1",
		"ring.test.": "gnir.test.", "gnir.test.": "ring.test.",
	}
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
			at := q.Name
			for range 6 {
				to, ok := names[at.String()]
				if !ok {
					m.RCode = dnsmessage.RCodeNameError
					break
				}
				h := dnsmessage.ResourceHeader{Name: at, Class: q.Class, TTL: 0}
				if a, err := netip.ParseAddr(to); err == nil {
					if q.Type == dnsmessage.TypeA {
						h.Type = dnsmessage.TypeA
						m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: a.As4()}})
					}
					break
				}
				h.Type = dnsmessage.TypeCNAME
				next := dnsmessage.MustNewName(to)
				m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.CNAMEResource{CNAME: next}})
				at = next
			}
			if out, err := m.Pack(); err == nil {
				_, _ = pc.WriteTo(out, from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", pc.LocalAddr().String())
	}}
}

// Attack 25: what an allowed name is an alias of is judged by its addresses, as
// the name's own would be. The resolver follows the aliases and does not tell
// them; the address that was dialled is in the log.
func TestAttack25AnAliasIsJudgedByTheAddressesItLeadsTo(t *testing.T) {
	r := chained(t)
	list := []string{"plain.test", "cdn.test", "toevil.test", "tohost.test", "tometa.test", "toself.test", "ring.test", "good.test"}
	w := newWorld(t, list...)
	cert := w.cert(list...)
	good := w.serveHTTP(goodAddr+":443", cert, nil)
	evil := w.serveHTTP(evilAddr+":443", cert, nil)
	inside := map[string]*origin{}
	for _, a := range []string{"10.0.0.5", "169.254.169.254", "127.0.0.1"} {
		inside[a] = w.serveHTTP(a+":443", cert, nil)
	}
	fixed := w.proxy.Resolve
	w.proxy.Resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
		if host == "good.test" {
			return fixed(ctx, host)
		}
		return resolveWith(ctx, r, host)
	}
	var log strings.Builder
	w.ledger.Log = &log
	w.start()

	for _, host := range []string{"plain.test", "cdn.test", "toevil.test"} {
		if body, err := w.get(host+":443", host, host); err != nil || body != "hello from "+host {
			t.Errorf("%s, which leads to a public address: %q, %v", host, body, err)
		}
	}
	for host, want := range map[string]int{"tohost.test": 403, "tometa.test": 403, "toself.test": 403, "ring.test": 502} {
		if _, code := w.connect(host + ":443"); code != want {
			t.Errorf("%s: status %d, want %d", host, code, want)
		}
	}
	// What an alias leads to is not allowed by that.
	for _, host := range []string{"evil.test", "edge.cdn.example", "db.internal.example"} {
		if _, code := w.connect(host + ":443"); code != 403 {
			t.Errorf("%s: status %d", host, code)
		}
	}
	w.reached(t)
	for a, o := range inside {
		untouched(t, a, o)
	}
	if good.conns.Load() != 3 || evil.conns.Load() != 1 {
		t.Errorf("the good origin got %d connections, the other one %d, want 3 and 1", good.conns.Load(), evil.conns.Load())
	}
	recs := w.end()
	for host, want := range map[string]string{
		"plain.test": "allowed", "cdn.test": "allowed", "toevil.test": "allowed", "tohost.test": "denied:non_public", "tometa.test": "denied:metadata",
		"toself.test": "denied:non_public", "ring.test": "failed:resolve", "evil.test": "denied:no_rule", "edge.cdn.example": "denied:no_rule", "db.internal.example": "denied:no_rule",
	} {
		wantOnly(t, recs, host, map[string]uint64{want: 1})
	}
	dialled := map[string]string{}
	for text := range strings.Lines(log.String()) {
		var l line
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatal(err)
		}
		if l.Verdict == Allowed {
			dialled[l.Host] = l.Address
		}
	}
	for host, want := range map[string]string{"plain.test": goodAddr, "cdn.test": goodAddr, "toevil.test": evilAddr} {
		if a := dialled[host]; a != want && a != want+":443" {
			t.Errorf("the log has %q as the address of %s, want %s", a, host, want)
		}
	}
}
