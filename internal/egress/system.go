package egress

import (
	"context"
	"fmt"
	"net"
	"net/netip"
)

// SystemResolve asks this machine's resolver for a name as it stands: the final
// dot keeps search domains of resolv.conf from being added, which would look up
// another name than the one that was judged. A name without a dot is therefore
// not found in the hosts file; localhost, which has no other place, is what it
// is everywhere (RFC 6761).
func SystemResolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if host == "localhost" {
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}, nil
	}
	return resolveWith(ctx, &net.Resolver{PreferGo: true}, host)
}

func resolveWith(ctx context.Context, r *net.Resolver, host string) ([]netip.Addr, error) {
	addrs, err := r.LookupNetIP(ctx, "ip", host+".")
	if err != nil {
		return nil, fmt.Errorf("resolve %s: %w", host, err)
	}
	for i, a := range addrs {
		// Some resolvers hand out IPv4 in its 16-byte form. What is unwrapped
		// here is judged and dialled as the IPv4 address it then is.
		addrs[i] = a.Unmap()
	}
	return addrs, nil
}

// SystemDial connects to an address. It is given addresses only, never names.
func SystemDial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, network, addr)
}
