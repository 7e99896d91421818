package egress

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"
)

// conn is one connection from the box.
type conn struct {
	p  *Proxy
	nc net.Conn
	br *bufio.Reader // all reading before a tunnel goes through it

	tr      trace         // of the attempt at hand
	counted bool          // as undecided
	each    time.Duration // deadline of every single read; 0: the one that is set
	stop    atomic.Bool   // no more reading
}

func newConn(p *Proxy, nc net.Conn) *conn {
	c := &conn{p: p, nc: nc}
	c.br = bufio.NewReader(c)
	return c
}

// Read reads from the client. It is there for br.
func (c *conn) Read(b []byte) (int, error) {
	if c.each > 0 {
		c.nc.SetReadDeadline(c.p.Now().Add(c.each))
	}
	if c.stop.Load() {
		return 0, os.ErrDeadlineExceeded
	}
	return c.nc.Read(b)
}

// Write writes to the client, who may not let us wait for ever.
func (c *conn) Write(b []byte) (int, error) {
	c.nc.SetWriteDeadline(c.p.Now().Add(or(c.p.IdleTimeout, idleTimeout)))
	return c.nc.Write(b)
}

func (c *conn) readBy(d time.Duration) { c.nc.SetReadDeadline(c.p.Now().Add(d)) }

// began starts an attempt.
func (c *conn) began() { c.tr = trace{began: c.p.Now()} }

// trace notes what a destination turned out to be.
func (c *conn) trace(r reached) { c.tr.address, c.tr.private = r.address, r.private }

// record records an attempt that is over.
func (c *conn) record(r reached, host string, port int, protocol string) {
	c.trace(r)
	c.p.Ledger.add(r.attempt(host, port, protocol)).ended(c.tr, 0, 0, c.p.Now())
	c.undecided(false)
}

// undecided says whether this connection may hold a request not judged yet.
func (c *conn) undecided(yes bool) {
	if yes != c.counted {
		c.counted = yes
		if yes {
			c.p.pending.add(1)
		} else {
			c.p.pending.add(-1)
		}
	}
}

func (c *conn) overload() {
	c.write(answerText(503, "too many connections", Meaning(ReasonOverload)+"\n", true))
}

// serve takes one request after the other. Any refusal ends the connection:
// what follows a request we did not accept has no certain beginning.
func (c *conn) serve(ctx context.Context) {
	headTime := or(c.p.HeadTimeout, headTimeout)
	c.readBy(headTime)
	for {
		c.began()
		raw, err := readHead(c.br, func() {
			c.began()
			c.readBy(headTime)
		})
		if err != nil {
			c.brokenHead(ctx, raw, err)
			return
		}
		h, err := parseHead(raw)
		if err != nil {
			c.badRequest(h, err)
			return
		}
		c.tr.method = h.method
		if h.method == "CONNECT" {
			c.connect(ctx, h)
			return
		}
		if !c.plain(ctx, h) {
			return
		}
		c.undecided(true)
		c.readBy(nextTimeout)
	}
}

// brokenHead deals with a head that did not come to its end.
func (c *conn) brokenHead(ctx context.Context, raw []byte, err error) {
	var h head
	if i := bytes.IndexAny(raw, "\r\n"); i >= 0 {
		h.requestLine(string(raw[:i])) // for the record only; its error changes nothing
	}
	switch {
	case errors.Is(err, errNotHTTP), errors.Is(err, errBareLF), errors.Is(err, errHeadTooLong):
	case len(raw) == 0 || ctx.Err() != nil:
		return // said nothing, asked for nothing
	case errors.Is(err, io.EOF):
		err = errors.New("the request head ends in the middle")
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = errors.New("the request head took too long")
	default:
		err = errors.New("the connection broke in the middle of the request head")
	}
	c.badRequest(h, err)
}

// badRequest records and answers a request that is not one. It is a denial if
// it still names a destination: a request made to be misread is an attempt.
func (c *conn) badRequest(h head, why error) {
	protocol, out := ProtocolHTTP, outcome{Denied, ReasonBadRequest, ""}
	var t target
	var err error
	if h.method == "CONNECT" {
		protocol = ProtocolConnect
		t, err = connectTarget(h.target)
	} else {
		t, err = absoluteTarget(h.method, h.target)
	}
	if errors.Is(err, errNoDestination) {
		out.verdict = Failed
	}
	c.record(reached{outcome: out}, t.host, t.port, protocol)
	c.refuse(400, h.method == "HEAD", Meaning(ReasonBadRequest)+": "+why.Error()+"\n", "bad request")
}

// answerOutcome records and answers a request that was denied or failed.
func (c *conn) answerOutcome(r reached, t target, protocol string, isHead bool) {
	host := t.host
	if r.name != "" {
		host = r.name
	}
	c.record(r, host, t.port, protocol)
	code := 502
	if r.verdict == Denied {
		code = 403
	}
	c.refuse(code, isHead, explain(r.attempt(host, t.port, protocol)), r.verdict+" by untrusted-steps ("+r.reason+")")
}
