package egress

import (
	"net/netip"
	"testing"
)

// Attacks 2, 60, 61.
func TestAddrVerdict(t *testing.T) {
	for _, c := range []struct{ why, addr, want string }{
		{"a public address", "93.184.216.34", ""},
		{"a public address", "1.1.1.1", ""},
		{"a public address", "2606:4700:4700::1111", ""},
		{"a public address", "2a00:1450:4001::200e", ""},
		{"just outside 10/8", "11.0.0.0", ""},
		{"just outside 100.64/10", "100.128.0.0", ""},
		{"just outside 172.16/12", "172.32.0.0", ""},
		{"just below multicast", "223.255.255.255", ""},
		{"RFC 5737 counts as public", "192.0.2.1", ""},
		{"RFC 5737 counts as public", "198.51.100.1", ""},
		{"RFC 5737 counts as public", "203.0.113.255", ""},

		{"AWS, Google, Azure metadata", "169.254.169.254", ReasonMetadata},
		{"AWS metadata over IPv6", "fd00:ec2::254", ReasonMetadata},
		{"AWS metadata with a zone", "fd00:ec2::254%eth0", ReasonMetadata},
		{"Alibaba metadata", "100.100.100.200", ReasonMetadata},
		{"Azure wireserver", "168.63.129.16", ReasonMetadata},
		{"OpenStack metadata", "fe80::a9fe:a9fe", ReasonMetadata},
		{"Oracle metadata", "192.0.0.192", ReasonMetadata},
		{"metadata mapped", "::ffff:169.254.169.254", ReasonMetadata},
		{"metadata through NAT64", "64:ff9b::a9fe:a9fe", ReasonMetadata},
		{"metadata through local NAT64", "64:ff9b:1::a9fe:a9fe", ReasonMetadata},
		{"metadata through 6to4", "2002:a9fe:a9fe::1", ReasonMetadata},
		{"metadata through Teredo", "2001:0:4136:e378:8000:63bf:5601:5601", ReasonMetadata},
		{"wireserver mapped", "::ffff:168.63.129.16", ReasonMetadata},

		{"this network", "0.0.0.0", ReasonNonPublic},
		{"this network", "0.1.2.3", ReasonNonPublic},
		{"RFC 1918", "10.0.0.1", ReasonNonPublic},
		{"RFC 1918", "172.16.0.1", ReasonNonPublic},
		{"RFC 1918", "172.31.255.255", ReasonNonPublic},
		{"RFC 1918", "192.168.1.1", ReasonNonPublic},
		{"carrier-grade NAT", "100.64.0.1", ReasonNonPublic},
		{"loopback", "127.0.0.1", ReasonNonPublic},
		{"loopback", "127.255.255.254", ReasonNonPublic},
		{"link-local", "169.254.1.1", ReasonNonPublic},
		{"protocol assignments", "192.0.0.8", ReasonNonPublic},
		{"6to4 relay", "192.88.99.1", ReasonNonPublic},
		{"benchmarking", "198.18.0.1", ReasonNonPublic},
		{"multicast", "224.0.0.1", ReasonNonPublic},
		{"reserved", "240.0.0.1", ReasonNonPublic},
		{"broadcast", "255.255.255.255", ReasonNonPublic},
		{"unspecified", "::", ReasonNonPublic},
		{"loopback", "::1", ReasonNonPublic},
		{"IPv4-compatible", "::93.184.216.34", ReasonNonPublic},
		{"mapped public address", "::ffff:93.184.216.34", ReasonNonPublic},
		{"mapped private address", "::ffff:10.0.0.1", ReasonNonPublic},
		{"translated (SIIT)", "::ffff:0:93.184.216.34", ReasonNonPublic},
		{"NAT64 of a public address", "64:ff9b::5db8:d822", ReasonNonPublic},
		{"local NAT64", "64:ff9b:1::1", ReasonNonPublic},
		{"6to4 of a public address", "2002:5db8:d822::1", ReasonNonPublic},
		{"Teredo", "2001::1", ReasonNonPublic},
		{"ORCHID", "2001:20::1", ReasonNonPublic},
		{"ISATAP", "2606:4700::5efe:a00:1", ReasonNonPublic},
		{"ISATAP with the universal bit", "2606:4700::200:5efe:a00:1", ReasonNonPublic},
		{"ULA", "fc00::1", ReasonNonPublic},
		{"ULA", "fd12:3456::1", ReasonNonPublic},
		{"link-local", "fe80::1", ReasonNonPublic},
		{"link-local with a zone", "fe80::1%lo", ReasonNonPublic},
		{"site-local", "fec0::1", ReasonNonPublic},
		{"multicast", "ff02::1", ReasonNonPublic},
		{"IPv6 documentation", "2001:db8::1", ReasonNonPublic},
		{"IPv6 documentation", "3fff::1", ReasonNonPublic},
		{"discard", "100::1", ReasonNonPublic},
		{"unassigned space", "4000::1", ReasonNonPublic},
		{"segment routing", "5f00::1", ReasonNonPublic},
	} {
		t.Run(c.why+" "+c.addr, func(t *testing.T) {
			ok, reason := AddrVerdict(netip.MustParseAddr(c.addr))
			if ok != (c.want == "") || reason != c.want {
				t.Errorf("%s: got %v %q, want %q", c.addr, ok, reason, c.want)
			}
		})
	}
	if ok, _ := AddrVerdict(netip.Addr{}); ok {
		t.Error("no address at all is allowed")
	}
}

func TestOwnAddressesAreListed(t *testing.T) {
	list, err := SystemHostAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range list {
		if a.Unmap() == netip.MustParseAddr("127.0.0.1") {
			return
		}
	}
	t.Errorf("127.0.0.1 is not among %v", list)
}
