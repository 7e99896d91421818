package boxinit

import (
	"net/netip"
	"testing"
)

func TestAnAddressThatTheEngineGaveIsNotAddedAgain(t *testing.T) {
	for at, want := range map[string]bool{
		"127.0.0.1": true, "127.64.0.1": true, // of every loopback
		"198.51.100.7": false, "203.0.113.1": false, // of no machine
	} {
		if got := answers(netip.MustParseAddr(at).As4()); got != want {
			t.Errorf("%s answers: %v, want %v", at, got, want)
		}
	}
	// It needs no capability then, which this test may not have.
	if err := addLoopback(0, addr("127.64.0.1:0")); err != nil {
		t.Error(err)
	}
	if err := addLoopback(0, addr("[2001:db8::1]:0")); err == nil {
		t.Error("an IPv6 address is taken")
	}
}

// addr is how our side writes an address and a port.
func addr(s string) Addr {
	a := netip.MustParseAddrPort(s)
	return Addr{IP: a.Addr().AsSlice(), Port: a.Port()}
}

func TestAnAddressIsNamedAsPeopleWriteIt(t *testing.T) {
	for in, want := range map[string]string{
		"127.0.0.1:80": "127.0.0.1:80", "203.0.113.7:0": "203.0.113.7", "[::ffff:192.0.2.1]:53": "192.0.2.1:53",
		"[2001:db8::1]:443": "[2001:db8:0:0:0:0:0:1]:443", "[::2]:0": "0:0:0:0:0:0:0:2",
	} {
		if got := addr(in).String(); got != want {
			t.Errorf("%s is named %s, want %s", in, got, want)
		}
	}
}
