package egress

import (
	"io"
	"net"
	"strings"
	"testing"
)

// Attack 65: an internal target only with the marker, and recorded as such; a
// metadata service never.
func TestAttack65PrivateTargets(t *testing.T) {
	for name, c := range map[string]struct {
		e     Entry
		addrs []string
		want  string
	}{
		"a private address with the marker":           {Entry{To: "tcp://db.corp.test:5432", Private: true}, []string{"10.0.0.5"}, "allowed:private"},
		"a name on this machine with the marker":      {Entry{To: "tcp://db.corp.test:5432", Private: true}, []string{"9.9.9.9"}, "allowed:private"},
		"loopback with the marker":                    {Entry{To: "tcp://db.corp.test:5432", Private: true}, []string{"127.0.0.1", "::1"}, "allowed:private"},
		"the marker and a public address":             {Entry{To: "tcp://db.corp.test:5432", Private: true}, []string{goodAddr}, "allowed"},
		"a private address without the marker":        {Entry{To: "tcp://db.corp.test:5432"}, []string{"10.0.0.5"}, "denied:non_public"},
		"one private address of two, without it":      {Entry{To: "tcp://db.corp.test:5432"}, []string{goodAddr, "10.0.0.5"}, "denied:non_public"},
		"metadata with the marker (60)":               {Entry{To: "tcp://db.corp.test:5432", Private: true}, []string{"169.254.169.254"}, "denied:metadata"},
		"metadata beside a private address (60)":      {Entry{To: "tcp://db.corp.test:5432", Private: true}, []string{"10.0.0.5", "168.63.129.16"}, "denied:metadata"},
		"an address inside another with the marker":   {Entry{To: "tcp://db.corp.test:5432", Private: true}, []string{"::ffff:10.0.0.5"}, "denied:non_public"},
		"no host at all with the marker":              {Entry{To: "tcp://db.corp.test:5432", Private: true}, []string{"0.0.0.0"}, "denied:non_public"},
		"a deny rule for the address wins (49)":       {Entry{To: "tcp://db.corp.test:5432", Private: true}, []string{"10.6.6.6"}, "denied:deny_rule"},
		"a private name for HTTP and TLS, marked":     {Entry{To: "db.corp.test:5432", Private: true}, []string{"10.0.0.5"}, "allowed:private"},
		"a private name for HTTP and TLS, not marked": {Entry{To: "db.corp.test:5432"}, []string{"10.0.0.5"}, "denied:non_public"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.proxy.Policy.Allow = entries(t, c.e)
			deny, err := ParseDeny("10.6.6.6")
			if err != nil {
				t.Fatal(err)
			}
			w.proxy.Policy.Deny = deny
			w.names["db.corp.test"] = addrs(c.addrs...)
			var got int64
			for _, a := range c.addrs {
				o := w.serveRaw(net.JoinHostPort(a, "5432"), func(nc net.Conn) { io.Copy(nc, nc) })
				defer func() { got += o.bytes.Load() }()
			}
			hello := string(records(makeHello(sniExt("db.corp.test")), 1<<14))
			var nc net.Conn
			if w.proxy.Policy.Allow[0].TCP() {
				dial := w.forwarded(t)
				w.start()
				nc = dial()
			} else {
				w.start()
				nc, _ = w.connect("db.corp.test:5432")
			}
			io.WriteString(nc, hello)
			closeWrite(nc)
			back, _ := io.ReadAll(nc)
			allowed := strings.HasPrefix(c.want, "allowed")
			if (string(back) == hello) != allowed {
				t.Errorf("%d bytes came back", len(back))
			}
			if !allowed && len(w.dialled()) != 0 {
				t.Errorf("dialled %q", w.dialled())
			}
			wantOnly(t, w.end(), "db.corp.test", map[string]uint64{c.want: 1})
		})
	}
}

// Attack 65 by address. A program that was given the address goes through the
// forward; one that knows the proxy may ask it for the same.
func TestAttack65APrivateAddressLiteral(t *testing.T) {
	w := newWorld(t)
	w.proxy.Policy.Allow = entries(t, Entry{To: "tcp://10.0.0.5:5432", Private: true})
	w.serveRaw("10.0.0.5:5432", func(nc net.Conn) { io.Copy(nc, nc) })
	other := w.serveRaw("10.0.0.6:5432", func(nc net.Conn) { io.Copy(nc, nc) })
	dial := w.forwarded(t)
	w.start()
	tunnel, code := w.connect("10.0.0.5:5432")
	if code != 200 {
		t.Fatalf("CONNECT: %d", code)
	}
	for what, nc := range map[string]net.Conn{"the forward": dial(), "CONNECT": tunnel} {
		io.WriteString(nc, "hello")
		closeWrite(nc)
		if got, err := io.ReadAll(nc); string(got) != "hello" {
			t.Errorf("control: %s: %q, %v", what, got, err)
		}
	}
	for _, target := range []string{"10.0.0.6:5432", "10.0.0.5:5433", "0x0a000005:5432", "10.5:5432", "[::ffff:10.0.0.5]:5432", "10.0.0.5.:5432"} {
		if _, code := w.connect(target); code != 403 {
			t.Errorf("CONNECT %s: %d", target, code)
		}
	}
	if len(w.lookedUp()) != 0 {
		t.Errorf("looked up %q", w.lookedUp())
	}
	untouched(t, "another address", other)
	wantOnly(t, w.end(), "10.0.0.5", map[string]uint64{"allowed:private": 2, "denied:ip_literal": 1})
}
