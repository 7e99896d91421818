package egress

import (
	"net"
	"slices"
	"testing"
)

func TestAttack20ARuleForAPublicResolverIsWarnedOf(t *testing.T) {
	for rule, want := range map[string]bool{
		"dns.google": true, "DNS.Google.": true, "dns.google:443": true, "cloudflare-dns.com": true, "tcp://dns.quad9.net:443": true,
		"*.quad9.net": true, "**.cloudflare-dns.com": true, "resolver.example.com:853": true, "tcp://resolver.example.com:853": true,
		"tcp://ns.example.com:53": true, "tcp://8.8.8.8:443": true, "tcp://[2620:fe::fe]:443": true,
		"google.com": false, "*.google.com": false, "quad9.net": false, "example.com": false, "example.com:8530": false, "tcp://192.0.2.1:443": false,
	} {
		r, err := ParseRule(rule)
		if err != nil {
			t.Fatal(err)
		}
		if got := ResolverWarning(r); (got != "") != want {
			t.Errorf("%s: warning %q, want one: %v", rule, got, want)
		}
	}
	if got := ResolverWarning(Rule{}); got != "" {
		t.Errorf("the zero rule: %q", got)
	}
	// Our own presets open no such way, and the lists are in order.
	for _, p := range Presets() {
		for _, r := range entries(t, Entry{To: "preset:" + p.Name}) {
			if w := ResolverWarning(r); w != "" {
				t.Errorf("preset %s, %s: %s", p.Name, r, w)
			}
		}
	}
	names := resolverNames()
	for i, n := range names {
		if c, reason := canonicalName(n); c != n || reason != "" || slices.Contains(names[:i], n) {
			t.Errorf("%s is not in its canonical form, or is there twice", n)
		}
	}
	for _, a := range resolverAddrs() {
		if ok, why := AddrVerdict(a); !ok {
			t.Errorf("%s: %s", a, why)
		}
	}
}

// Attack 20: DNS over TLS and over HTTPS, by name and by address, is like any
// other request: nobody looks the resolver's own name up, and nobody calls it.
func TestAttack20ResolversOfOnesOwnAreNoException(t *testing.T) {
	names := []string{"dns.google", "cloudflare-dns.com", "dns.quad9.net", "doh.opendns.com", "mozilla.cloudflare-dns.com"}
	addresses := []string{"8.8.8.8", "1.1.1.1", "9.9.9.9", "[2606:4700:4700::1111]"}
	setUp := func(allow ...string) (*world, *origin) {
		w := newWorld(t, append(allow, "good.test")...)
		w.serveHTTP(goodAddr+":443", w.cert("good.test"), nil)
		resolver := w.serveHTTP(evilAddr+":443", w.cert(names...), nil)
		w.mu.Lock()
		for _, n := range names {
			w.names[n] = addrs(evilAddr)
		}
		for _, a := range addresses {
			w.hosts[a+":443"], w.hosts[a+":853"] = resolver, resolver
		}
		w.hosts[evilAddr+":853"], w.hosts[evilAddr+":80"] = resolver, resolver
		w.mu.Unlock()
		return w.start(), resolver
	}
	w, resolver := setUp()
	for _, host := range append(slices.Clone(names), addresses...) {
		for _, port := range []string{"443", "853"} {
			if _, code := w.connect(net.JoinHostPort(trimBrackets(host), port)); code != 403 {
				t.Errorf("CONNECT %s:%s: %d", host, port, code)
			}
		}
		if got := w.ask("GET http://" + host + "/dns-query?dns=AAAB HTTP/1.1\r\nHost: " + host + "\r\n\r\n"); status(got) != 403 {
			t.Errorf("GET http://%s/dns-query: %q", host, got)
		}
	}
	untouched(t, "the resolver", resolver)
	if l, d := w.lookedUp(), w.dialled(); len(l) != 0 || len(d) != 0 {
		t.Errorf("looked up %q, dialled %q", l, d)
	}
	w.reached(t)
	recs := w.end()
	for _, n := range names {
		wantOnly(t, recs, n, map[string]uint64{"denied:no_rule": 3})
	}
	for _, a := range addresses {
		wantOnly(t, recs, a, map[string]uint64{"denied:ip_literal": 3})
	}

	// The control: one that is listed is reached like any other host.
	w, resolver = setUp("dns.google")
	if body, err := w.get("dns.google:443", "dns.google", "dns.google"); err != nil || body != "hello from dns.google" {
		t.Errorf("a resolver that is listed: %q, %v", body, err)
	}
	if _, code := w.connect("dns.google:853"); code != 403 {
		t.Errorf("its other port: %d", code)
	}
	if resolver.conns.Load() != 1 {
		t.Errorf("the resolver got %d connections", resolver.conns.Load())
	}
	wantOnly(t, w.end(), "dns.google", map[string]uint64{"allowed": 1, "denied:port": 1})
}

func trimBrackets(s string) string {
	if s[0] == '[' {
		return s[1 : len(s)-1]
	}
	return s
}
