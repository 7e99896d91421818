package egress

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// plain forwards one request that came in absolute form, on a connection to the
// server that is used for nothing else. It says whether the client may send
// another one.
//
// The server gets a head that we wrote: its Host is the name that was judged,
// and its framing is ours. Whatever the client's head could have meant to
// somebody else does not travel.
func (c *conn) plain(ctx context.Context, h head) (more bool) {
	isHead := h.method == "HEAD"
	t, err := absoluteTarget(h.method, h.target)
	if err != nil {
		c.badRequest(h, err)
		return false
	}
	c.tr.path = pathOnly(t.origin)
	if h.hasHost {
		same, err := sameHost(t, h.host, 80)
		if err != nil {
			c.badRequest(h, err)
			return false
		}
		if !same {
			c.answerOutcome(reached{outcome: outcome{Denied, ReasonHostMismatch, ""}}, t, ProtocolHTTP, isHead)
			return false
		}
	}
	if h.upgrade {
		c.answerOutcome(reached{outcome: outcome{Denied, ReasonUpgrade, ""}}, t, ProtocolHTTP, isHead)
		return false
	}
	r := c.p.reach(ctx, c.nc.LocalAddr(), t)
	if r.up == nil {
		c.answerOutcome(r, t, ProtocolHTTP, isHead)
		return false
	}
	nc, name, out := r.up, r.name, r.outcome
	defer nc.Close()
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	defer stop()
	full := c.p.whenSpent(func() {
		nc.Close()
		c.nc.Close()
	})
	defer full()
	c.trace(r)
	c.undecided(false)

	x := exchange{c: c, h: h, up: &meter{Conn: nc, idle: or(c.p.IdleTimeout, idleTimeout), now: c.p.Now, spend: c.p.spend}}
	more, err = x.run(name, t)
	switch {
	case errors.Is(err, errBadBody):
		out.verdict, out.reason = Denied, ReasonBadRequest
	case err != nil && c.p.spent():
		out.verdict, out.reason = Denied, ReasonMaxBytes
	case x.answered || ctx.Err() != nil:
	case errors.Is(err, errCutBody):
		out.verdict, out.reason = Failed, ReasonCancelled
	default:
		out.verdict, out.reason = Failed, ReasonUpstream
	}
	c.p.Ledger.add(out.attempt(name, t.port, ProtocolHTTP)).ended(c.tr, x.up.in, x.up.sent(), c.p.Now())
	if x.answered {
		if err != nil || !more {
			c.linger()
		}
		return more && err == nil
	}
	if errors.Is(err, errBadBody) {
		c.refuse(400, isHead, Meaning(ReasonBadRequest)+": "+errBadBody.Error()+"\n", "bad request")
		return false
	}
	c.refuse(502, isHead, explain(out.attempt(name, t.port, ProtocolHTTP)), out.verdict+" by untrusted-steps ("+out.reason+")")
	return false
}

// exchange is one request and its response.
type exchange struct {
	c        *conn
	h        head
	up       *meter
	answered bool // the client has the head of a response
}

func (x *exchange) run(name string, t target) (more bool, err error) {
	w := bufio.NewWriter(x.up)
	x.writeHead(w, name, t)
	if err := w.Flush(); err != nil {
		return false, err
	}

	sent := make(chan error, 1)
	var whole atomic.Bool
	if x.h.chunked || x.h.length > 0 {
		if x.h.expect {
			if err := x.c.write("HTTP/1.1 100 Continue\r\n\r\n"); err != nil {
				return false, err
			}
		}
		// A server may answer before it has read everything.
		x.c.each = x.up.idle
		go func() {
			buf := x.c.p.buffer()
			defer x.c.p.bufs.Put(buf)
			err := sendBody(w, x.c.br, x.h, *buf, &whole)
			sent <- err // first, so that the cause is there when its effect is seen
			if errors.Is(err, errBadBody) || errors.Is(err, errCutBody) {
				x.up.Close() // without an end: the server must not act on half of it
			}
		}()
	} else {
		sent <- nil
	}

	more, err = x.relay()

	select {
	case sendErr := <-sent:
		x.c.each = 0
		if sendErr != nil {
			more = false
			if err != nil || errors.Is(sendErr, errBadBody) { // the cause, not what followed from it
				err = sendErr
			}
		}
		return more, err
	default:
	}
	x.up.Close() // the answer is complete, nothing more is needed there
	if whole.Load() {
		// So is the body; its sender is only a moment behind the server.
		<-sent
		x.c.each = 0
		return more, err
	}
	// The body is not, and where it ends is unknown: the connection ends here.
	x.c.stop.Store(true)
	x.c.nc.SetReadDeadline(x.c.p.Now())
	if sendErr := <-sent; errors.Is(sendErr, errBadBody) {
		err = sendErr
	}
	x.c.each = 0
	return false, err
}

// writeHead writes the request as the server gets it.
func (x *exchange) writeHead(w *bufio.Writer, name string, t target) {
	host := name
	if t.port != 80 {
		host += ":" + strconv.Itoa(t.port)
	}
	fmt.Fprintf(w, "%s %s HTTP/1.1\r\nHost: %s\r\n", x.h.method, t.origin, host)
	for _, f := range x.h.endToEnd() {
		fmt.Fprintf(w, "%s: %s\r\n", f.name, f.value)
	}
	switch {
	case x.h.chunked:
		w.WriteString("Transfer-Encoding: chunked\r\n")
	case x.h.hasLength():
		fmt.Fprintf(w, "Content-Length: %d\r\n", x.h.length)
	}
	w.WriteString("Connection: close\r\n\r\n")
}

func (h *head) hasLength() bool {
	for _, f := range h.fields {
		if strings.EqualFold(f.name, "Content-Length") {
			return true
		}
	}
	return false
}

// relay reads the response and hands it to the client.
func (x *exchange) relay() (more bool, err error) {
	limit := &io.LimitedReader{R: x.up, N: maxRespHead}
	br := bufio.NewReader(limit)
	var resp *http.Response
	for range maxInterim {
		resp, err = http.ReadResponse(br, &http.Request{Method: x.h.method})
		if err != nil {
			return false, fmt.Errorf("read the response: %w", err)
		}
		if resp.StatusCode >= 200 {
			break
		}
		if resp.StatusCode < 100 {
			return false, errors.New("the status is not a number from 100")
		}
		if resp.StatusCode == http.StatusSwitchingProtocols {
			return false, errors.New("the server switches protocols unasked")
		}
		if x.h.minor == 1 && resp.StatusCode != http.StatusContinue {
			var b strings.Builder
			fmt.Fprintf(&b, "HTTP/1.1 %03d %s\r\n", resp.StatusCode, http.StatusText(resp.StatusCode))
			cleanResponse(resp.Header)
			resp.Header.Write(&b)
			b.WriteString("\r\n")
			if err := x.c.write(b.String()); err != nil {
				return false, err
			}
		}
	}
	if resp.StatusCode < 200 {
		return false, errors.New("the server sends nothing but interim responses")
	}
	// The body is not closed: that would read an endless one to its end. The
	// connection under it is closed instead.
	limit.N = 1<<63 - 1 // a body is bounded by time, and by what the client takes
	return x.writeResponse(resp)
}

// writeResponse writes the response in framing of our own.
func (x *exchange) writeResponse(resp *http.Response) (more bool, err error) {
	more = x.h.minor == 1 && !x.h.close
	noBody := x.h.method == "HEAD" || resp.StatusCode == http.StatusNoContent || resp.StatusCode == http.StatusNotModified
	chunked := false
	length := resp.Header.Get("Content-Length")
	cleanResponse(resp.Header)

	w := bufio.NewWriter(x.c)
	fmt.Fprintf(w, "HTTP/1.1 %03d %s\r\n", resp.StatusCode, phrase(resp.StatusCode))
	resp.Header.Write(w)
	switch {
	case noBody:
		if length != "" && resp.StatusCode != http.StatusNoContent && strings.Trim(length, "0123456789") == "" {
			fmt.Fprintf(w, "Content-Length: %s\r\n", length)
		}
	case resp.ContentLength >= 0:
		fmt.Fprintf(w, "Content-Length: %d\r\n", resp.ContentLength)
	case x.h.minor == 1:
		chunked = true
		w.WriteString("Transfer-Encoding: chunked\r\n")
	default:
		more = false
	}
	if !more {
		w.WriteString("Connection: close\r\n")
	}
	w.WriteString("\r\n")
	x.answered = true
	if err := w.Flush(); err != nil || noBody {
		return more, err
	}

	buf := x.c.p.buffer()
	defer x.c.p.bufs.Put(buf)
	if !chunked {
		return more, copyFlush(w, w, resp.Body, *buf)
	}
	cw := httputil.NewChunkedWriter(w)
	if err := copyFlush(cw, w, resp.Body, *buf); err != nil {
		return false, err // no last chunk: the client must see that it is not all
	}
	cw.Close()
	w.WriteString("\r\n")
	return more, w.Flush()
}

// pathOnly is what a log may hold of a request's path: queries carry secrets.
func pathOnly(origin string) string {
	path, _, _ := strings.Cut(origin, "?")
	return path
}

func phrase(code int) string {
	if s := http.StatusText(code); s != "" {
		return s
	}
	return "Status"
}

// cleanResponse drops the fields that are about the server's connection.
func cleanResponse(header http.Header) {
	for _, v := range append(header["Connection"], header["Proxy-Connection"]...) {
		for _, name := range listItems(v) {
			header.Del(name)
		}
	}
	for name := range header {
		n := lowerASCII(name)
		if has(hopByHop, n) || strings.HasPrefix(n, "proxy-") {
			delete(header, name)
		}
	}
}

// meter is a connection to a server that counts, and that no side can hold open
// by doing nothing.
type meter struct {
	net.Conn
	idle time.Duration
	now  func() time.Time
	in   uint64 // read by one goroutine
	out  atomic.Uint64

	spend func(n int) error // counts against what the step may move
}

func (m *meter) Read(b []byte) (int, error) {
	m.SetReadDeadline(m.now().Add(m.idle))
	n, err := m.Conn.Read(b)
	m.in += uint64(n)
	if e := m.spend(n); e != nil {
		err = e
	}
	return n, err
}

func (m *meter) Write(b []byte) (int, error) {
	m.SetWriteDeadline(m.now().Add(m.idle))
	n, err := m.Conn.Write(b)
	m.out.Add(uint64(n))
	if e := m.spend(n); e != nil {
		err = e
	}
	return n, err
}

func (m *meter) sent() uint64 { return m.out.Load() }
