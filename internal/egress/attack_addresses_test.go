package egress

import (
	"fmt"
	"net/netip"
	"testing"
)

// Attacks 60 and 61 behind an allowed name: the address refuses it, nothing is
// dialled, and one bad address spoils the answer.
func TestAttack60And61AnAllowedNameWithAForbiddenAddress(t *testing.T) {
	w := newWorld(t, "good.test", "*.bad.test")
	w.serveHTTP(goodAddr+":443", w.cert("good.test"), nil)
	want := map[string]string{}
	for i, c := range []struct{ addr, reason string }{
		{"169.254.169.254", "metadata"}, {"fd00:ec2::254", "metadata"}, {"100.100.100.200", "metadata"},
		{"168.63.129.16", "metadata"}, {"::ffff:169.254.169.254", "metadata"}, {"64:ff9b::a9fe:a9fe", "metadata"},
		{"10.0.0.1", "non_public"}, {"172.16.5.4", "non_public"}, {"192.168.1.1", "non_public"}, {"100.64.0.1", "non_public"},
		{"fc00::1", "non_public"}, {"fe80::1", "non_public"}, {"224.0.0.1", "non_public"}, {"255.255.255.255", "non_public"},
		{"0.0.0.0", "non_public"}, {"::", "non_public"}, {"::1", "non_public"}, {"127.0.0.1", "non_public"},
		{"64:ff9b::c000:20a", "non_public"}, {"2002:c000:20a::1", "non_public"}, {"2001::1", "non_public"},
		{"::ffff:192.0.2.10", "non_public"}, {"9.9.9.9", "self"},
	} {
		host := fmt.Sprintf("n%d.bad.test", i)
		w.names[host] = addrs(goodAddr, c.addr)
		w.serveHTTP("["+c.addr+"]:443", nil, nil)
		want[host] = c.reason
	}
	w.start()
	for host := range want {
		if _, code := w.connect(host + ":443"); code != 403 {
			t.Errorf("%s, which is %v: %d", host, w.names[host], code)
		}
	}
	if d := w.dialled(); len(d) != 0 {
		t.Errorf("dialled %q", d)
	}
	w.reached(t)
	recs := w.end()
	for host, reason := range want {
		wantOnly(t, recs, host, map[string]uint64{"denied:" + reason: 1})
	}
}

// Attack 60 by name and by literal.
func TestAttack60MetadataByNameAndLiteral(t *testing.T) {
	w, _, _ := goodAndEvil(t, "good.test")
	for _, target := range []string{"169.254.169.254", "[fd00:ec2::254]", "metadata.google.internal", "2852039166", "0xa9fea9fe", "168.63.129.16"} {
		if got := w.ask(plainGet(target)); status(got) != 403 || !contains(got, "(metadata)") {
			t.Errorf("http://%s/: %q", target, got)
		}
	}
	if got := w.lookedUp(); len(got) != 0 {
		t.Errorf("looked up %q", got)
	}
	w.reached(t)
}

// Attack 62: unknown own addresses rule nothing out, so nothing is dialled.
func TestAttack62OwnAddressesThatCannotBeListed(t *testing.T) {
	w := newWorld(t, "good.test")
	w.serveHTTP(goodAddr+":443", w.cert("good.test"), nil)
	list := w.proxy.HostAddrs
	broken := true
	w.proxy.HostAddrs = func() (a []netip.Addr, err error) {
		if broken {
			return nil, fmt.Errorf("no netlink")
		}
		return list()
	}
	w.start()
	if _, code := w.connect("good.test:443"); code != 502 || len(w.dialled()) != 0 {
		t.Errorf("status %d, dialled %q", code, w.dialled())
	}
	broken = false
	w.reached(t)
	wantOnly(t, w.end(), "good.test", map[string]uint64{"failed:host_addrs": 1, "allowed": 1})
}
