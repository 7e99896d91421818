package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// ProxyPort is the port of the box's 127.0.0.1 that no tcp:// rule may have,
// because the proxy listens there.
const ProxyPort = 3128

// Forward is what the box needs for one tcp:// rule: a listener, whose
// connections are carried to the rule's target and to nowhere else.
type Forward struct {
	Rule Rule
	Host string // the rule's name or address
	Port int
	// Listen is where the box listens for it. A program that knows no proxy
	// gets there by the name, through the box's hosts file.
	Listen netip.AddrPort
	// NeedsAddr: the rule is about an address, and the box has to have that
	// address on its loopback before it can listen there.
	NeedsAddr bool
}

// Forwards gives one forward for every target of a tcp:// rule. Names get
// addresses of their own out of 127.64.0.0/16, so that two of them can have the
// same port; localhost and addresses are what they are.
func Forwards(rules []Rule) ([]Forward, error) {
	var out []Forward
	byListen := map[netip.AddrPort]Forward{}
	for _, r := range rules {
		if r.tcp && r.addr.IsValid() {
			byListen[netip.AddrPortFrom(r.addr, 0)] = Forward{} // taken, for names
		}
	}
	byName := map[string]netip.Addr{}
	next := netip.MustParseAddr("127.64.0.0")
	for _, r := range rules {
		if !r.tcp {
			continue
		}
		f := Forward{Rule: r, Host: r.Host(), Port: r.port}
		addr := r.addr
		switch known, ok := byName[r.name]; {
		case addr.IsValid():
			f.NeedsAddr = !addr.IsLoopback()
		case r.name == "localhost":
			addr = netip.MustParseAddr("127.0.0.1")
		case ok:
			addr = known
		default:
			for next = next.Next(); ; next = next.Next() {
				if _, taken := byListen[netip.AddrPortFrom(next, 0)]; !taken {
					break
				}
			}
			addr = next
			byName[r.name] = addr
		}
		f.Listen = netip.AddrPortFrom(addr, uint16(r.port))
		if f.Listen == netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), ProxyPort) {
			return nil, fmt.Errorf("egress rule %q: port %d of the box's 127.0.0.1 is the proxy's", r, ProxyPort)
		}
		if other, taken := byListen[f.Listen]; taken {
			same := other.Host == f.Host
			if same && other.Rule.private == r.private {
				continue // the same line twice, or a preset that holds it too
			}
			if same {
				return nil, fmt.Errorf("egress rule %q is there twice, with private: true and without", r)
			}
			return nil, fmt.Errorf("egress rules %q and %q would both listen on %s in the box", other.Rule, r, f.Listen)
		}
		if len(out) == maxForwards {
			return nil, fmt.Errorf("more than %d tcp:// rules", maxForwards)
		}
		byListen[f.Listen] = f
		out = append(out, f)
	}
	return out, nil
}

// HostsLines are the lines of the box's hosts file through which programs find
// the listeners by name.
func HostsLines(forwards []Forward) []string {
	var lines []string
	seen := map[string]bool{}
	for _, f := range forwards {
		if f.Rule.addr.IsValid() || f.Host == "localhost" || seen[f.Host] {
			continue
		}
		seen[f.Host] = true
		lines = append(lines, f.Listen.Addr().String()+" "+f.Host)
	}
	return lines
}

// ServeForward carries what connects to ln to the target of f. It is Serve for a
// listener of a tcp:// rule: the same ends, the same bounds, and Drain covers it.
func (p *Proxy) ServeForward(ctx context.Context, ln net.Listener, f Forward) error {
	if !f.Rule.tcp || f.Host == "" || f.Port == 0 {
		ln.Close()
		return errors.New("egress: bug: a forward without a tcp:// rule")
	}
	return p.serve(ctx, ln, service{
		each:     func(c *conn, ctx context.Context) { c.forward(ctx, f) },
		turnAway: (*conn).reset, protocol: ProtocolTCP,
	})
}

// forward carries one connection. Nobody in it knows of a proxy: a refusal can
// only be a reset.
func (c *conn) forward(ctx context.Context, f Forward) {
	c.began()
	r := c.p.reach(ctx, c.nc.LocalAddr(), target{host: f.Host, port: f.Port})
	if r.up == nil {
		c.record(r, f.Host, f.Port, ProtocolTCP)
		c.reset()
		return
	}
	defer r.up.Close()
	stop := context.AfterFunc(ctx, func() { r.up.Close() })
	defer stop()
	c.raw(ctx, r, f.Port, ProtocolTCP)
}

// reset ends a connection so that the client's program says it was refused, not
// that it came to its end.
func (c *conn) reset() {
	if h, ok := c.nc.(interface{ SetLinger(int) error }); ok {
		h.SetLinger(0)
	}
	c.nc.Close()
}
