package boxinit

import (
	"net/netip"
	"testing"
)

func TestAnAddressThatTheEngineGaveIsNotAddedAgain(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1": true, "127.64.0.1": true, // of every loopback
		"198.51.100.7": false, "203.0.113.1": false, // of no machine
	} {
		if got := answers(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s answers: %v, want %v", addr, got, want)
		}
	}
	// It needs no capability then, which this test may not have.
	if err := addLoopback(0, netip.MustParseAddr("127.64.0.1")); err != nil {
		t.Error(err)
	}
	if err := addLoopback(0, netip.MustParseAddr("2001:db8::1")); err == nil {
		t.Error("an IPv6 address is taken")
	}
}
