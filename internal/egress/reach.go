package egress

import (
	"context"
	"net"
	"net/netip"
	"strconv"
)

// outcome is what an attempt came to. The zero value is none.
type outcome struct{ verdict, reason, rule string }

func (o outcome) attempt(host string, port int, protocol string) attempt {
	return attempt{host: shown(host), port: port, protocol: protocol, verdict: o.verdict, reason: o.reason, rule: o.rule}
}

// reached is what came of a destination. up is nil unless the verdict is
// allowed.
type reached struct {
	outcome
	up      net.Conn
	name    string // canonical; empty if the host is none
	rule    Rule   // the one that allows; the zero rule in an audit
	address string // that was dialled
	private bool   // that address is not public
}

// reach judges a destination and connects to it. It is the only place that
// looks a name up and the only place that dials, in this order: the name is
// judged, looked up once, every address of the answer is judged, and those very
// addresses are dialled.
func (p *Proxy) reach(ctx context.Context, local net.Addr, t target) reached {
	d, rule := p.Policy.decide(Request{Host: t.host, Port: t.port})
	r := reached{name: d.Name, rule: rule}
	if !d.Allow {
		// A forward listens at its own target's address, so there this would
		// hide the deny rule that refused.
		if d.Reason != ReasonDenyRule && p.isSelf(local, t) {
			d.Reason = ReasonSelf
		}
		r.outcome = outcome{Denied, d.Reason, d.Rule}
		return r
	}
	if p.spent() {
		r.outcome = outcome{Denied, ReasonMaxBytes, d.Rule}
		return r
	}
	var addrs []netip.Addr
	if a, err := netip.ParseAddr(d.Name); err == nil {
		addrs = []netip.Addr{a}
	} else {
		addrs, r.outcome = p.resolve(ctx, d.Name)
	}
	if r.verdict == "" {
		r.outcome, r.private = p.judge(addrs, rule.private, t.port)
	}
	if r.outcome.rule == "" {
		r.outcome.rule = d.Rule
	}
	if r.verdict != "" {
		return r
	}
	if r.up, r.address = p.dial(ctx, addrs, t.port); r.up == nil {
		r.outcome = outcome{Failed, ended(ctx, ReasonDial), d.Rule}
		return r
	}
	reason := d.Reason
	if r.private {
		reason = ReasonPrivate
	}
	r.outcome = outcome{Allowed, reason, d.Rule}
	return r
}

// isSelf recognises this proxy by the address the client reached it at.
func (p *Proxy) isSelf(local net.Addr, t target) bool {
	at, err := netip.ParseAddrPort(local.String())
	if err != nil || int(at.Port()) != t.port {
		return false
	}
	if a, ok := literalAddr(t.host); ok {
		return a.Unmap() == at.Addr().Unmap() || a.Unmap().IsLoopback() || a.IsUnspecified()
	}
	name, _ := canonicalName(t.host)
	return name == "localhost"
}

func (p *Proxy) resolve(ctx context.Context, name string) ([]netip.Addr, outcome) {
	ctx, cancel := context.WithTimeout(ctx, or(p.ResolveTimeout, resolveTimeout))
	defer cancel()
	type answer struct {
		addrs []netip.Addr
		err   error
	}
	// A resolver that ignores its context must not hold the step either.
	got := make(chan answer, 1)
	go func() {
		addrs, err := p.Resolve(ctx, name)
		got <- answer{addrs, err}
	}()
	select {
	case a := <-got:
		if a.err == nil && len(a.addrs) > 0 && len(a.addrs) <= maxAddrs {
			return a.addrs, outcome{}
		}
	case <-ctx.Done():
	}
	return nil, outcome{verdict: Failed, reason: ended(ctx, ReasonResolve)}
}

// judge refuses a name for any one of its addresses: picking the good ones
// would let an answer say one thing to us and another to the next that asks.
// private says that the rule allows addresses that are not public; used, that
// there are some.
func (p *Proxy) judge(addrs []netip.Addr, private bool, port int) (out outcome, used bool) {
	own, err := p.ownAddrs()
	if err != nil {
		return outcome{verdict: Failed, reason: ReasonHostAddrs}, false
	}
	for _, a := range addrs {
		if d, ok := p.Policy.denied(place{addr: a.Unmap()}, port); ok {
			return outcome{Denied, ReasonDenyRule, d.String()}, false
		}
		ok, reason := AddrVerdict(a)
		if ok && !isDocumentation(a) && isOwn(a, own) { // a documentation address is a test origin on this machine
			ok, reason = false, ReasonSelf
		}
		if ok {
			continue
		}
		if private {
			used = true
			if ok, _ := privateVerdict(a); ok {
				continue
			}
		}
		return outcome{verdict: Denied, reason: reason}, false
	}
	return outcome{}, used
}

// ownAddrs lists this machine's addresses, afresh every second: the list is a
// walk through the kernel's interfaces, and no box can make it change.
func (p *Proxy) ownAddrs() ([]netip.Addr, error) {
	now := p.Now()
	p.mu.Lock()
	own, listed := p.own, p.ownListed
	p.mu.Unlock()
	if age := now.Sub(listed); !listed.IsZero() && age >= 0 && age < ownAddrsAge {
		return own, nil
	}
	own, err := p.HostAddrs()
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.own, p.ownListed = own, now
	return own, nil
}

func isOwn(a netip.Addr, own []netip.Addr) bool {
	for _, o := range own {
		if a == o {
			return true
		}
	}
	return false
}

// dial tries the addresses in the order of the answer.
func (p *Proxy) dial(ctx context.Context, addrs []netip.Addr, port int) (net.Conn, string) {
	total := or(p.DialTimeout, dialTimeout)
	ctx, cancel := context.WithTimeout(ctx, total)
	defer cancel()
	each := total
	if len(addrs) > 1 {
		each = total / 2 // one dead address must not use up the time of the next
	}
	for _, a := range addrs[:min(len(addrs), maxDials)] {
		one, cancel := context.WithTimeout(ctx, each)
		up, err := p.Dial(one, "tcp", net.JoinHostPort(a.String(), strconv.Itoa(port)))
		cancel()
		if err == nil {
			return up, a.String()
		}
		if ctx.Err() != nil {
			return nil, ""
		}
	}
	return nil, ""
}

// ended tells "it did not work" from "the step was over".
func ended(ctx context.Context, reason string) string {
	if ctx.Err() == context.Canceled {
		return ReasonCancelled
	}
	return reason
}
