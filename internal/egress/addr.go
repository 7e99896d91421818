package egress

import (
	"fmt"
	"net"
	"net/netip"
)

// metadataAddrs are the services from which a machine in a cloud reads its own
// credentials. Some lie in public ranges, so a range test alone lets them
// through.
var metadataAddrs = []netip.Addr{
	netip.MustParseAddr("169.254.169.254"),    // AWS, Google, Azure, OpenStack and most others
	netip.MustParseAddr("169.254.169.253"),    // AWS name server
	netip.MustParseAddr("169.254.169.123"),    // AWS clock
	netip.MustParseAddr("169.254.170.2"),      // AWS task credentials
	netip.MustParseAddr("169.254.170.23"),     // AWS pod credentials
	netip.MustParseAddr("169.254.0.23"),       // Tencent
	netip.MustParseAddr("169.254.10.10"),      // Tencent
	netip.MustParseAddr("169.254.42.42"),      // Scaleway
	netip.MustParseAddr("100.100.100.200"),    // Alibaba
	netip.MustParseAddr("168.63.129.16"),      // Azure wireserver, a public address
	netip.MustParseAddr("192.0.0.192"),        // Oracle
	netip.MustParseAddr("fd00:ec2::254"),      // AWS
	netip.MustParseAddr("fd00:ec2::253"),      // AWS name server
	netip.MustParseAddr("fd00:ec2::23"),       // AWS pod credentials
	netip.MustParseAddr("fd20:ce::254"),       // Google
	netip.MustParseAddr("fd00:42::42"),        // Scaleway
	netip.MustParseAddr("fd00:c1::a9fe:a9fe"), // Oracle
	netip.MustParseAddr("fe80::a9fe:a9fe"),    // OpenStack
}

// metadataNames answer with one of those addresses inside a cloud. They are
// listed so that the reason is the true one; the address test would refuse them
// anyway.
var metadataNames = []string{
	"metadata", "metadata.google.internal", "metadata.goog",
	"instance-data", "instance-data.ec2.internal", "metadata.tencentyun.com",
}

func isMetadataName(name string) bool {
	for _, m := range metadataNames {
		if name == m {
			return true
		}
	}
	return false
}

// documentation are the ranges of RFC 5737. No host has them, which makes them
// the addresses to test with: they count as public, also on this machine.
var documentation = []netip.Prefix{
	netip.MustParsePrefix("192.0.2.0/24"),
	netip.MustParsePrefix("198.51.100.0/24"),
	netip.MustParsePrefix("203.0.113.0/24"),
}

// nonPublic4 is what IPv4 has beside public unicast (IANA's special-purpose
// registry, and what is reserved).
var nonPublic4 = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("10.0.0.0/8"),
	netip.MustParsePrefix("100.64.0.0/10"), // carrier-grade NAT
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.88.99.0/24"), // 6to4 relays
	netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("198.18.0.0/15"), // benchmarking
	netip.MustParsePrefix("224.0.0.0/4"),   // multicast
	netip.MustParsePrefix("240.0.0.0/4"),   // reserved, broadcast
}

// public6 is all of IPv6 that is public unicast; nonPublic6 are the holes in it.
// What IANA hands out later is refused until someone puts it here.
var (
	public6    = netip.MustParsePrefix("2000::/3")
	nonPublic6 = []netip.Prefix{
		netip.MustParsePrefix("2001::/23"),     // protocol assignments, Teredo and ORCHID among them
		netip.MustParsePrefix("2001:db8::/32"), // documentation
		netip.MustParsePrefix("2002::/16"),     // 6to4
		netip.MustParsePrefix("3fff::/20"),     // documentation
	}
)

// AddrVerdict says whether a resolved address may be dialled. Everything but
// plain public unicast is refused as metadata or non_public. An address that
// carries an IPv4 one inside (mapped, translated, tunnelled) is refused
// whatever is inside: what would be dialled is not what would be judged. The
// inside only picks the reason.
//
// It cannot know a network's own translation prefix (RFC 6052): where one is in
// use, the gateway behind it has to keep private addresses out.
func AddrVerdict(a netip.Addr) (ok bool, reason string) {
	if !a.IsValid() {
		return false, ReasonNonPublic
	}
	bare := a.WithZone("")
	if isMetadataAddr(bare) {
		return false, ReasonMetadata
	}
	if inner, ok := embedded4(bare); ok {
		if isMetadataAddr(inner) {
			return false, ReasonMetadata
		}
		return false, ReasonNonPublic
	}
	if a.Zone() != "" {
		return false, ReasonNonPublic
	}
	if a.Is4() {
		return allOr(!within(a, nonPublic4))
	}
	return allOr(public6.Contains(a) && !within(a, nonPublic6))
}

func allOr(public bool) (bool, string) {
	if public {
		return true, ""
	}
	return false, ReasonNonPublic
}

// privateVerdict is AddrVerdict for the target of a rule marked private: also
// addresses of private networks, of this link and of this machine, but still no
// metadata service, nothing with another address inside, and nothing that is
// not one host.
func privateVerdict(a netip.Addr) (ok bool, reason string) {
	ok, reason = AddrVerdict(a)
	if ok || reason == ReasonMetadata {
		return ok, reason
	}
	if !a.IsValid() || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() || within(a, noHost) {
		return false, ReasonNonPublic
	}
	if _, inside := embedded4(a); inside && !a.IsLoopback() {
		return false, ReasonNonPublic
	}
	return true, ""
}

// noHost are ranges in which no address is one host's.
var noHost = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("192.88.99.0/24"),
	netip.MustParsePrefix("240.0.0.0/4"),
}

func isMetadataAddr(a netip.Addr) bool {
	for _, m := range metadataAddrs {
		if a == m {
			return true
		}
	}
	return false
}

func isDocumentation(a netip.Addr) bool { return within(a, documentation) }

func within(a netip.Addr, list []netip.Prefix) bool {
	for _, p := range list {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

var (
	nat64      = netip.MustParsePrefix("64:ff9b::/96")
	nat64Local = netip.MustParsePrefix("64:ff9b:1::/48")
	sixToFour  = netip.MustParsePrefix("2002::/16")
	teredo     = netip.MustParsePrefix("2001::/32")
	compatible = netip.MustParsePrefix("::/96")
	siit       = netip.MustParsePrefix("::ffff:0:0:0/96")
)

// embedded4 finds the IPv4 address inside an IPv6 one of a known kind.
func embedded4(a netip.Addr) (netip.Addr, bool) {
	if a.Is4() {
		return netip.Addr{}, false
	}
	b := a.As16()
	last := netip.AddrFrom4([4]byte(b[12:16]))
	switch {
	case a.Is4In6():
		return a.Unmap(), true
	case nat64.Contains(a), nat64Local.Contains(a), siit.Contains(a), compatible.Contains(a):
		return last, true
	case sixToFour.Contains(a):
		return netip.AddrFrom4([4]byte(b[2:6])), true
	case teredo.Contains(a):
		return netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]}), true
	case b[8]&^2 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe: // ISATAP
		return last, true
	}
	return netip.Addr{}, false
}

// SystemHostAddrs lists the addresses of this machine: a step that may reach
// them reaches whatever else listens here.
func SystemHostAddrs() ([]netip.Addr, error) {
	ifaddrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list this machine's addresses: %w", err)
	}
	addrs := make([]netip.Addr, 0, len(ifaddrs))
	for _, ia := range ifaddrs {
		p, err := netip.ParsePrefix(ia.String())
		if err != nil {
			return nil, fmt.Errorf("read this machine's address %q: %w", ia, err)
		}
		addrs = append(addrs, p.Addr().Unmap())
	}
	return addrs, nil
}
