package egress

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"testing"
)

// Attacks 50 to 54: what a tunnel must open with. Each wrong opening reaches
// the connected server with not one byte.
func TestAttack50To54ATunnelOpensWithTheRightHello(t *testing.T) {
	goodHello := makeHello(sniExt("good.test"))
	for name, c := range map[string]struct {
		raw  []byte
		want string
	}{
		"evil server name (50)":           {records(makeHello(sniExt("evil.test")), 1<<14), "denied:sni_mismatch"},
		"evil server name in pieces (50)": {records(makeHello(sniExt("evil.test")), 3), "denied:sni_mismatch"},
		"two server names (50)":           {records(makeHello(sniExt("good.test", "evil.test")), 1<<14), "denied:sni_mismatch"},
		"a name beside it allowed (50)":   {records(makeHello(sniExt("front.test")), 1<<14), "denied:sni_mismatch"},
		"no server name (51)":             {records(makeHello(), 1<<14), "denied:no_sni"},
		"an address as the name (51)":     {records(makeHello(sniExt(goodAddr)), 1<<14), "denied:sni_mismatch"},
		"real ECH (53)":                   {records(makeHello(sniExt("public.front.test"), echExt), 1<<14), "denied:ech"},
		"an SSH banner (54)":              {[]byte("SSH-2.0-OpenSSH_9.9\r\n"), "denied:not_tls"},
		"plain HTTP (54)":                 {[]byte(plainGet("good.test")), "denied:not_tls"},
		"a hello with a tail (56)":        {records(append(makeHello(sniExt("good.test")), makeHello(sniExt("evil.test"))...), 1<<14), "denied:not_tls"},
		"nothing":                         {nil, "failed:no_hello"},
		"half a hello":                    {records(goodHello, 1<<14)[:20], "failed:no_hello"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "good.test", "front.test")
			good := w.serveRaw(goodAddr+":443", func(c net.Conn) { io.Copy(io.Discard, c) })
			w.start()
			w.tunnelBytes("good.test:443", c.raw)
			if b := good.bytes.Load(); b != 0 {
				t.Errorf("the server got %d bytes", b)
			}
			// The control goes through the same proxy to the same server.
			for _, ok := range [][]byte{records(goodHello, 1<<14), records(goodHello, 5), records(makeHello(sniExt("GOOD.test."), echExt), 1<<14)} {
				before := good.bytes.Load()
				w.tunnelBytes("good.test:443", append(ok, "and more"...))
				if got := good.bytes.Load() - before; got != int64(len(ok)+8) {
					t.Errorf("control: the server got %d bytes of %d", got, len(ok)+8)
				}
			}
			// Our raw server hangs up after the client did, which is no failure.
			wantOnly(t, w.end(), "good.test", map[string]uint64{"allowed": 3, c.want: 1})
		})
	}
}

func TestARealClientsHelloInPieces(t *testing.T) {
	w, _, evil := goodAndEvil(t, "good.test")
	w.reached(t)
	// A real client with another name than it asked the tunnel for.
	if _, err := w.get("good.test:443", "evil.test", "evil.test"); err == nil || !contains(err.Error(), "unrecognized name") {
		t.Errorf("SNI evil.test in a tunnel to good.test: %v", err)
	}
	if _, err := w.get("good.test:443", "front.test", "front.test"); err == nil {
		t.Error("SNI front.test, on the same server, in a tunnel to good.test")
	}
	untouched(t, "evil", evil)
	// Bytes one by one, and the hello together with CONNECT.
	hello := clientHello(t, &tls.Config{ServerName: "good.test"})
	c, _ := w.connect("good.test:443")
	for _, b := range hello {
		c.Write([]byte{b})
	}
	if n, err := c.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Errorf("hello byte by byte: no ServerHello: %v", err)
	}
	c.Close()
	d := w.conn()
	io.WriteString(d, "CONNECT good.test:443 HTTP/1.1\r\n\r\n"+string(hello))
	buf := make([]byte, len(established)+1)
	if _, err := io.ReadFull(d, buf); err != nil || !strings.HasPrefix(string(buf), established) || buf[len(established)] != recordHandshake {
		t.Errorf("hello with CONNECT: %q, %v", buf, err)
	}
	d.Close()
	recs := w.end()
	wantOnly(t, recs, "good.test", map[string]uint64{"allowed": 3, "denied:sni_mismatch": 2})
}

// A server's bytes do not reach a client that has not said whom it talks to.
func TestNothingComesOutOfATunnelBeforeTheHello(t *testing.T) {
	w := newWorld(t, "good.test")
	w.serveRaw(goodAddr+":443", func(c net.Conn) { io.WriteString(c, "SSH-2.0-banner\r\n"); io.Copy(io.Discard, c) })
	w.start()
	c, _ := w.connect("good.test:443")
	c.(*net.TCPConn).CloseWrite()
	if got, _ := io.ReadAll(c); len(got) != 0 {
		t.Errorf("without a hello: %q", got)
	}
	c, _ = w.connect("good.test:443")
	c.Write(records(makeHello(sniExt("good.test")), 1<<14))
	c.(*net.TCPConn).CloseWrite()
	if got, _ := io.ReadAll(c); string(got) != "SSH-2.0-banner\r\n" {
		t.Errorf("control: with a hello: %q", got)
	}
	wantOnly(t, w.end(), "good.test", map[string]uint64{"failed:no_hello": 1, "allowed": 1})
}

// Attacks 55 and 59 are facts: what is asked for inside TLS is not seen, and a
// client that checks no certificate still talks to an address of the allowed
// name.
func TestAttack55And59WhatTLSHidesChangesNoAddress(t *testing.T) {
	w, good, evil := goodAndEvil(t, "good.test")
	if body, err := w.get("good.test:443", "good.test", "front.test"); err != nil || body != "hello from front.test" {
		t.Errorf("fact: a front answers for any of its names: %q, %v", body, err)
	}
	c, _ := w.connect("good.test:443")
	tc := tls.Client(c, &tls.Config{ServerName: "good.test", InsecureSkipVerify: true})
	if err := tc.Handshake(); err != nil {
		t.Error(err)
	}
	tc.Close()
	untouched(t, "evil", evil)
	if good.conns.Load() != 2 {
		t.Errorf("the good server saw %d connections, want 2", good.conns.Load())
	}
	wantOnly(t, w.end(), "good.test", map[string]uint64{"allowed": 2})
}

// Attack 57 is a fact as well: a client of HTTP/2 may ask one server for another
// name of its certificate on the same connection. It reaches that server and no
// other one, and what is on record is the name the tunnel is for.
func TestAttack57CoalescedRequestsStayOnTheServerOfTheTunnel(t *testing.T) {
	w := newWorld(t, "good.test")
	cert := w.cert("good.test", "front.test", "evil.test")
	good, evil := w.listen(goodAddr+":443"), w.serveHTTP(evilAddr+":443", cert, nil)
	srv := &http.Server{
		Handler:   http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, r.Proto+" "+r.Host) }),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{*cert}}, ErrorLog: log.New(io.Discard, "", 0),
	}
	go srv.ServeTLS(countedListener{good.ln, good}, "", "")
	defer srv.Close()
	w.start()
	c, code := w.connect("good.test:443")
	if code != 200 {
		t.Fatalf("CONNECT: %d", code)
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	transport := &http.Transport{
		Protocols: protocols,
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			tc := tls.Client(c, &tls.Config{ServerName: "good.test", RootCAs: w.pool, NextProtos: []string{"h2"}})
			return tc, tc.HandshakeContext(ctx)
		},
	}
	conn, err := transport.NewClientConn(t.Context(), "https", "good.test:443")
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"good.test", "front.test", "evil.test"} {
		req, err := http.NewRequest("GET", "https://"+host+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := conn.RoundTrip(req)
		if err != nil {
			t.Fatalf("%s: %v", host, err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(body) != "HTTP/2.0 "+host {
			t.Errorf("%s: %q", host, body)
		}
	}
	conn.Close()
	c.Close()
	untouched(t, "evil", evil)
	if n := good.conns.Load(); n != 1 {
		t.Errorf("%d connections to the good server", n)
	}
	recs := w.end()
	wantOnly(t, recs, "good.test", map[string]uint64{"allowed": 1})
	for _, host := range []string{"front.test", "evil.test"} {
		wantOnly(t, recs, host, map[string]uint64{})
	}
	if l := w.lookedUp(); len(l) != 1 {
		t.Errorf("looked up %q", l)
	}
}

// Attack 56: what comes after the hello, be it early data, a second hello or a
// renegotiation, goes where the tunnel goes.
func TestAttack56NothingAfterTheHelloChangesTheDestination(t *testing.T) {
	w := newWorld(t, "good.test", "evil.test:8443")
	good := w.serveRaw(goodAddr+":443", func(c net.Conn) { io.Copy(c, c) })
	evil := w.serveRaw(evilAddr+":443", func(c net.Conn) { io.Copy(c, c) })
	w.start()
	hello := records(makeHello(sniExt("good.test")), 1<<14)
	second := records(makeHello(sniExt("evil.test")), 1<<14)
	early := append([]byte{23, 3, 3, 0, 5}, "early"...)
	c, _ := w.connect("good.test:443")
	c.Write(append(append([]byte(nil), hello...), early...)) // 0-RTT: in one piece with the hello
	back := make([]byte, len(hello)+len(early))
	if _, err := io.ReadFull(c, back); err != nil {
		t.Errorf("control: early data: %v", err)
	}
	c.Write(second)
	io.WriteString(c, "CONNECT evil.test:443 HTTP/1.1\r\n\r\n")
	c.(*net.TCPConn).CloseWrite()
	if got, _ := io.ReadAll(c); !contains(string(got), string(second)) {
		t.Error("the second hello did not go where the first one went")
	}
	untouched(t, "evil", evil)
	if n := good.conns.Load(); n != 1 {
		t.Errorf("%d connections to the good server", n)
	}
	recs := w.end()
	wantOnly(t, recs, "good.test", map[string]uint64{"allowed": 1})
	wantOnly(t, recs, "evil.test", map[string]uint64{})
	if len(w.dialled()) != 1 || len(w.lookedUp()) != 1 {
		t.Errorf("looked up %q, dialled %q", w.lookedUp(), w.dialled())
	}
}
