package egress

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Policy is what one step may reach. The zero value is nothing at all.
type Policy struct {
	Allow []Rule
	// Deny wins over Allow and over Audit, on every port the rule names; a deny
	// rule without a port covers all of them.
	Deny []Rule
	// Audit lets through whatever no rule covers, for as long as its addresses
	// are public.
	Audit bool
}

// Request is a destination as a client wrote it. Untrusted.
type Request struct {
	Host string
	Port int
}

// Decision is the answer to a request. The zero value refuses.
type Decision struct {
	Allow  bool
	Name   string // the canonical name, empty if the host is none
	Rule   string // the rule that covers the name, if one does
	Reason string // why not; if Allow, audit or empty
}

// place is a destination's host, read.
type place struct {
	name string     // canonical; of an address, its own canonical form
	addr netip.Addr // where the host is an address, in whatever spelling
}

// Decide judges a destination by its name and port alone. It looks nothing up:
// a question to a name server already is a message to whoever runs it.
func (p Policy) Decide(r Request) Decision {
	d, _ := p.decide(r)
	return d
}

// decide gives also the rule that allows.
func (p Policy) decide(r Request) (Decision, Rule) {
	if a, ok := literalAddr(r.Host); ok {
		return p.decideAddr(r, a)
	}
	name, reason := canonicalName(r.Host)
	if reason != "" {
		return Decision{Reason: reason}, Rule{}
	}
	if isMetadataName(name) {
		return Decision{Name: name, Reason: ReasonMetadata}, Rule{}
	}
	at := place{name: name}
	if d, ok := p.denied(at, r.Port); ok {
		return Decision{Name: name, Rule: d.String(), Reason: ReasonDenyRule}, Rule{}
	}
	if a, ok := p.allowed(at, r.Port); ok {
		return Decision{Allow: true, Name: name, Rule: a.String()}, a
	}
	if p.Audit && r.Port > 0 {
		return Decision{Allow: true, Name: name, Reason: ReasonAudit}, Rule{}
	}
	for _, a := range p.Allow {
		if a.covers(at) {
			return Decision{Name: name, Rule: a.String(), Reason: ReasonPort}, Rule{}
		}
	}
	return Decision{Name: name, Reason: ReasonNoRule}, Rule{}
}

// decideAddr judges an address literal. Only a tcp:// rule for that address lets
// one through, and only in the one spelling that no program reads as another.
func (p Policy) decideAddr(r Request, a netip.Addr) (Decision, Rule) {
	public, why := AddrVerdict(a)
	if why == ReasonMetadata {
		return Decision{Reason: ReasonMetadata}, Rule{}
	}
	at := place{name: a.String(), addr: a}
	if d, ok := p.denied(place{at.name, a.Unmap()}, r.Port); ok {
		return Decision{Rule: d.String(), Reason: ReasonDenyRule}, Rule{}
	}
	if strings.TrimSuffix(strings.TrimPrefix(r.Host, "["), "]") != at.name {
		return Decision{Reason: ReasonIPLiteral}, Rule{}
	}
	if rule, ok := p.allowed(at, r.Port); ok {
		return Decision{Allow: true, Name: at.name, Rule: rule.String()}, rule
	}
	if p.Audit && public && r.Port > 0 {
		return Decision{Allow: true, Name: at.name, Reason: ReasonAudit}, Rule{}
	}
	return Decision{Reason: ReasonIPLiteral}, Rule{}
}

func (p Policy) denied(at place, port int) (Rule, bool) {
	for _, d := range p.Deny {
		if d.refuses(at, port) {
			return d, true
		}
	}
	return Rule{}, false
}

// allowed finds the rule that lets most through, because a list allows what any
// one of its rules allows; among equals, the first.
func (p Policy) allowed(at place, port int) (best Rule, ok bool) {
	top := -1
	for _, a := range p.Allow {
		if !a.covers(at) || !a.coversPort(port) {
			continue
		}
		grants := 0
		if a.tcp {
			grants += 2
		}
		if a.private {
			grants++
		}
		if grants > top {
			best, top = a, grants
		}
	}
	return best, top >= 0
}

// hint is the line that would allow a destination, empty where none would.
func hint(host string, port int, reason string) string {
	if reason != ReasonNoRule && reason != ReasonPort {
		return ""
	}
	s := host
	if port != 80 && port != 443 {
		s += ":" + strconv.Itoa(port)
	}
	// Not every name can be a rule, and localhost would only be refused later.
	r, err := ParseRule(s)
	if err != nil || r.name == "localhost" {
		return ""
	}
	return r.String()
}

// AddressEntry is the entry of egressAllow that would allow an address, as it is
// written in a steps file; empty where none would.
func AddressEntry(host string, port int) string {
	a, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	if err != nil || port <= 0 {
		return ""
	}
	e := Entry{To: tcpPrefix + netip.AddrPortFrom(a, uint16(port)).String()}
	if _, err := ParseEntry(e); err == nil {
		return fmt.Sprintf("{to: %q}", e.To)
	}
	e.Private = true
	if _, err := ParseEntry(e); err == nil {
		return fmt.Sprintf("{to: %q, private: true}", e.To)
	}
	return ""
}
