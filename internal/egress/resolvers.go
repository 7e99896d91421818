package egress

import (
	"net/netip"
	"slices"
)

// ResolverWarning says in what way a rule of an allowlist lets a step look up
// names by itself, past our resolver; empty if it does not. A step that can ask
// a public resolver for names can tell it anything, label by label, and no name
// of it is in the ledger: that is a way out which looks like a small rule.
//
// It is a word of warning and not a refusal: tests of a DNS client are a reason
// to have such a rule. The lists are what is widely known, and not complete.
func ResolverWarning(r Rule) string {
	switch {
	case r.port == 853:
		return "port 853 is DNS over TLS: the step can look up any name there, and tell its owner anything by it"
	case r.port == 53:
		return "port 53 is DNS: the step can look up any name there, and tell its owner anything by it"
	case r.addr.IsValid() && slices.Contains(resolverAddrs(), r.addr):
		return "is a public DNS resolver: the step can look up any name there, and tell its owner anything by it"
	}
	if r.depth == everyName {
		return "" // force says that it covers everything
	}
	for _, name := range resolverNames() {
		if r.coversName(name) {
			return name + " is a public DNS resolver over HTTPS: the step can look up any name there, and tell its owner anything by it"
		}
	}
	return ""
}

// resolverNames are public services of DNS over HTTPS and TLS.
func resolverNames() []string {
	return []string{
		"dns.google", "dns64.dns.google", "8888.google",
		"cloudflare-dns.com", "one.one.one.one", "1dot1dot1dot1.cloudflare-dns.com", "mozilla.cloudflare-dns.com",
		"chrome.cloudflare-dns.com", "security.cloudflare-dns.com", "family.cloudflare-dns.com", "dns64.cloudflare-dns.com",
		"dns.quad9.net", "dns9.quad9.net", "dns10.quad9.net", "dns11.quad9.net", "dns12.quad9.net",
		"doh.opendns.com", "dns.opendns.com", "doh.familyshield.opendns.com", "dns.umbrella.com", "doh.umbrella.com",
		"dns.adguard-dns.com", "family.adguard-dns.com", "unfiltered.adguard-dns.com", "dns.adguard.com",
		"dns.nextdns.io", "doh.cleanbrowsing.org", "dns.controld.com", "freedns.controld.com",
		"dns.mullvad.net", "base.dns.mullvad.net", "adblock.dns.mullvad.net", "doh.mullvad.net",
		"dns.alidns.com", "doh.pub", "dot.pub", "doh.360.cn", "dns.sb", "doh.sb", "doh.dns.sb",
		"dns0.eu", "zero.dns0.eu", "dnsforge.de", "dns.digitale-gesellschaft.ch", "dns.switch.ch", "doh.libredns.gr",
		"odvr.nic.cz", "ordns.he.net", "public.dns.iij.jp", "dns.twnic.tw", "doh.ffmuc.net", "wikimedia-dns.org",
		"anycast.uncensoreddns.org", "unicast.uncensoreddns.org", "doh.xfinity.com", "dns.njal.la", "doh.applied-privacy.net",
	}
}

// resolverAddrs are addresses of the same kind, which a tcp:// rule can name.
func resolverAddrs() []netip.Addr {
	var out []netip.Addr
	for _, s := range []string{
		"8.8.8.8", "8.8.4.4", "1.1.1.1", "1.0.0.1", "1.1.1.2", "1.1.1.3", "9.9.9.9", "9.9.9.10", "149.112.112.112",
		"208.67.222.222", "208.67.220.220", "94.140.14.14", "94.140.15.15", "76.76.2.0", "76.76.10.0", "185.228.168.9",
		"2001:4860:4860::8888", "2001:4860:4860::8844", "2606:4700:4700::1111", "2606:4700:4700::1001", "2620:fe::fe", "2620:fe::9",
	} {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}
