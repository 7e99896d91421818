package egress

import (
	"context"
	"errors"
	"io"
	"os"
)

const established = "HTTP/1.1 200 Connection established\r\n\r\n"

// alertUnrecognizedName is a TLS record with the fatal alert of that name, so
// that a client says something better than "connection closed".
const alertUnrecognizedName = "\x15\x03\x03\x00\x02\x02\x70"

// connect opens a tunnel for TLS. The server is connected to first, so that a
// client learns of a dead one in time, but gets no byte before the ClientHello
// is there and names the host that was asked for; nor does the client get one.
//
// Under a tcp:// rule, and in an audit, a tunnel may carry anything.
func (c *conn) connect(ctx context.Context, h head) {
	t, err := connectTarget(h.target)
	if err != nil {
		c.badRequest(h, err)
		return
	}
	if h.hasHost {
		same, err := sameHost(t, h.host, t.port)
		if err != nil {
			c.badRequest(h, err)
			return
		}
		if !same {
			c.answerOutcome(reached{outcome: outcome{Denied, ReasonHostMismatch, ""}}, t, ProtocolConnect, false)
			return
		}
	}
	r := c.p.reach(ctx, c.nc.LocalAddr(), t)
	if r.up == nil {
		c.answerOutcome(r, t, ProtocolConnect, false)
		return
	}
	defer r.up.Close()
	stop := context.AfterFunc(ctx, func() { r.up.Close() })
	defer stop()
	if err := c.write(established); err != nil {
		c.end(ctx, r, outcome{Failed, ReasonNoHello, r.outcome.rule}, t.port, ProtocolConnect)
		return
	}
	if r.rule.tcp || c.p.Policy.Audit {
		c.raw(ctx, r, t.port, ProtocolConnect)
		return
	}

	c.readBy(or(c.p.HelloTimeout, helloTimeout))
	raw, msg, err := readHello(c.br)
	if err != nil && !errors.Is(err, errNotTLS) {
		// Nothing, or the beginning of a hello, and then no more.
		c.end(ctx, r, outcome{Failed, ReasonNoHello, r.outcome.rule}, t.port, ProtocolConnect)
		return
	}
	var parsed hello
	if err == nil {
		parsed, err = parseHello(msg)
	}
	c.tr.sni = parsed.serverName
	if reason := judgeHello(r.name, parsed, err); reason != "" {
		protocol := ProtocolConnect
		if reason != ReasonNotTLS {
			protocol = ProtocolHTTPS
		}
		r.up.Close()
		c.end(ctx, r, outcome{Denied, reason, r.outcome.rule}, t.port, protocol)
		if protocol == ProtocolHTTPS {
			c.write(alertUnrecognizedName)
		}
		c.linger()
		return
	}

	c.trace(r)
	e := c.p.Ledger.add(r.attempt(r.name, t.port, ProtocolHTTPS))
	c.undecided(false)
	// What the client sent after its hello waits in our buffer.
	rest, _ := c.br.Peek(c.br.Buffered())
	res := c.p.tunnel(ctx, c.nc, r.up, append(raw, rest...), nil)
	if out := res.outcome(r.outcome); out != r.outcome {
		e = e.becomes(out.attempt(r.name, t.port, ProtocolHTTPS))
	}
	e.ended(c.tr, res.in, res.out, c.p.Now())
}

// raw carries a connection that may speak any protocol, and records what it
// looked like.
func (c *conn) raw(ctx context.Context, r reached, port int, protocol string) {
	c.trace(r)
	e := c.p.Ledger.add(r.attempt(r.name, port, protocol))
	c.undecided(false)
	first, _ := c.br.Peek(c.br.Buffered())
	seen := new(sniffer)
	res := c.p.tunnel(ctx, c.nc, r.up, first, seen)

	out := r.outcome
	word, h, err := seen.verdict()
	c.tr.sni = h.serverName
	switch {
	case word == "tls" && !r.rule.tcp && judgeHello(r.name, h, err) == "":
		protocol = ProtocolHTTPS
	case word == "" && protocol == ProtocolConnect: // not a byte
	case word == "":
		protocol = ProtocolTCP + "/unknown"
	default:
		protocol = ProtocolTCP + "/" + word
		if !r.rule.tcp { // an audit's tunnel that no rule for a name would have allowed
			out.rule, out.reason = "", ReasonAudit
		}
	}
	if out = res.outcome(out); out != r.outcome || protocol != e.a.protocol {
		e = e.becomes(out.attempt(r.name, port, protocol))
	}
	e.ended(c.tr, res.in, res.out, c.p.Now())
}

// end records what a tunnel came to that never opened.
func (c *conn) end(ctx context.Context, r reached, out outcome, port int, protocol string) {
	if out.verdict == Failed {
		out.reason = ended(ctx, out.reason)
	}
	r.outcome = out
	c.record(r, r.name, port, protocol)
}

// isTimeout says whether a deadline of ours passed.
func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// isEnd says whether the other side finished in order.
func isEnd(err error) bool { return errors.Is(err, io.EOF) }
