package egress

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// world is a small internet on loopback: names, addresses of RFC 5737 and the
// servers behind them. What the proxy looked up and dialled, and every byte a
// server got, is counted, so that a test measures reach and not words.
type world struct {
	t      testing.TB
	proxy  *Proxy
	ledger *Ledger
	addr   string // of the proxy, on loopback
	pool   *x509.CertPool

	mu      sync.Mutex
	names   map[string][]netip.Addr
	hosts   map[string]*origin // by address:port
	lookups []string
	dials   []string

	cancel context.CancelFunc
	served chan error
	ln     net.Listener
	onEnd  func() // after Drain
}

// origin is a server that counts.
type origin struct {
	ln    net.Listener
	conns atomic.Int64
	bytes atomic.Int64
	mu    sync.Mutex
	reqs  []string // "METHOD host uri" of each request
}

func (o *origin) requests() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]string(nil), o.reqs...)
}

type countedListener struct {
	net.Listener
	o *origin
}

func (l countedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.o.conns.Add(1)
	return &countedConn{c, l.o}, nil
}

type countedConn struct {
	net.Conn
	o *origin
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.o.bytes.Add(int64(n))
	return n, err
}

func (c *countedConn) CloseWrite() error { return c.Conn.(*net.TCPConn).CloseWrite() }

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func rules(t testing.TB, list ...string) []Rule {
	t.Helper()
	var out []Rule
	for _, s := range list {
		r, err := ParseRule(s)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

const (
	goodAddr = "192.0.2.10"
	evilAddr = "198.51.100.66"
)

// newWorld starts a proxy with the given rules. good.test and front.test are
// served by the good origin over TLS and plain HTTP, evil.test by the evil one.
func newWorld(t testing.TB, allow ...string) *world {
	t.Helper()
	w := &world{t: t, ledger: new(Ledger), hosts: map[string]*origin{}, names: map[string][]netip.Addr{
		"good.test":     addrs(goodAddr),
		"sub.good.test": addrs(goodAddr),
		"front.test":    addrs(goodAddr),
		"evil.test":     addrs(evilAddr),
	}}
	w.proxy = &Proxy{
		Policy:  Policy{Allow: rules(t, allow...)},
		Ledger:  w.ledger,
		Resolve: w.resolve, Dial: w.dial, Now: time.Now,
		HostAddrs:   func() ([]netip.Addr, error) { return addrs("127.0.0.1", goodAddr, "9.9.9.9"), nil },
		HeadTimeout: 2 * time.Second, HelloTimeout: 2 * time.Second,
		ResolveTimeout: time.Second, DialTimeout: 2 * time.Second, IdleTimeout: 5 * time.Second,
	}
	return w
}

func (w *world) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lookups = append(w.lookups, host)
	if a, ok := w.names[host]; ok {
		return a, nil
	}
	return nil, errors.New("no such host")
}

func (w *world) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	w.mu.Lock()
	w.dials = append(w.dials, addr)
	o := w.hosts[addr]
	w.mu.Unlock()
	if o == nil {
		return nil, errors.New("connection refused")
	}
	return SystemDial(ctx, "tcp", o.ln.Addr().String())
}

func (w *world) lookedUp() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.lookups...)
}

func (w *world) dialled() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.dials...)
}

// listen puts an origin at an address of the small internet.
func (w *world) listen(addr string) *origin {
	w.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { ln.Close() })
	o := &origin{ln: ln}
	w.mu.Lock()
	w.hosts[addr] = o
	w.mu.Unlock()
	return o
}

// serveHTTP serves plain HTTP at an address, or TLS if cert is there.
func (w *world) serveHTTP(addr string, cert *tls.Certificate, h http.HandlerFunc) *origin {
	w.t.Helper()
	o := w.listen(addr)
	if h == nil {
		h = func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, "hello from "+r.Host) }
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		o.mu.Lock()
		o.reqs = append(o.reqs, r.Method+" "+r.Host+" "+r.RequestURI)
		o.mu.Unlock()
		h(rw, r)
	})}
	var ln net.Listener = countedListener{o.ln, o}
	if cert != nil {
		ln = tls.NewListener(ln, &tls.Config{Certificates: []tls.Certificate{*cert}})
	}
	srv.ErrorLog = log.New(io.Discard, "", 0)
	go srv.Serve(ln)
	w.t.Cleanup(func() { srv.Close() })
	return o
}

// serveRaw hands every connection at an address to h.
func (w *world) serveRaw(addr string, h func(net.Conn)) *origin {
	o := w.listen(addr)
	go func() {
		for {
			c, err := (countedListener{o.ln, o}).Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				h(c)
			}()
		}
	}()
	return o
}

// cert makes a certificate for several names and has clients of this world
// trust it.
func (w *world) cert(names ...string) *tls.Certificate {
	w.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		w.t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "origin"}, DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		w.t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		w.t.Fatal(err)
	}
	if w.pool == nil {
		w.pool = x509.NewCertPool()
	}
	w.pool.AddCert(leaf)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// start starts the proxy. At the end of the test it has to end in order.
func (w *world) start() *world {
	w.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	return w.startOn(ln)
}

func (w *world) startOn(ln net.Listener) *world {
	w.t.Helper()
	w.ln, w.addr = ln, ln.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	w.served = make(chan error, 1)
	go func() { w.served <- w.proxy.Serve(ctx, ln) }()
	w.t.Cleanup(func() { w.end() })
	return w
}

// end is what a caller does once the box is dead.
func (w *world) end() []Record {
	w.t.Helper()
	if w.cancel == nil {
		return w.ledger.Records()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := w.proxy.Drain(ctx); err != nil {
		w.t.Error(err)
	}
	w.cancel()
	w.cancel = nil
	if w.onEnd != nil {
		w.onEnd()
	}
	if err := <-w.served; err != nil {
		w.t.Errorf("serve: %v", err)
	}
	return w.ledger.Records()
}

func (w *world) conn() net.Conn {
	w.t.Helper()
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		w.t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(10 * time.Second))
	w.t.Cleanup(func() { c.Close() })
	return c
}

// ask sends bytes on a connection of their own and returns all that came back.
func (w *world) ask(raw string) string {
	w.t.Helper()
	c := w.conn()
	defer c.Close()
	io.WriteString(c, raw)
	c.(*net.TCPConn).CloseWrite()
	got, _ := io.ReadAll(c)
	return string(got)
}

// status is the status code of what ask returned; 0 if there is none.
func status(answer string) int {
	var code int
	fmt.Sscanf(answer, "HTTP/1.1 %d", &code)
	return code
}

// connect asks for a tunnel and returns the connection and the answer's status.
func (w *world) connect(target string) (net.Conn, int) {
	w.t.Helper()
	c := w.conn()
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target)
	br := bufio.NewReaderSize(c, 16)
	resp, err := http.ReadResponse(br, &http.Request{Method: "CONNECT"})
	if err != nil {
		w.t.Fatalf("CONNECT %s: %v", target, err)
	}
	return c, resp.StatusCode
}

// get fetches https://target/ through a tunnel asked for as target, with the
// given server name, and returns the body.
func (w *world) get(target, sni, host string) (string, error) {
	w.t.Helper()
	c, code := w.connect(target)
	defer c.Close()
	if code != 200 {
		return "", fmt.Errorf("CONNECT: status %d", code)
	}
	tc := tls.Client(c, &tls.Config{ServerName: sni, RootCAs: w.pool})
	if err := tc.Handshake(); err != nil {
		return "", err
	}
	fmt.Fprintf(tc, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host)
	resp, err := http.ReadResponse(bufio.NewReader(tc), nil)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// plainGet is a request in absolute form.
func plainGet(host string) string {
	return fmt.Sprintf("GET http://%s/ HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host, host)
}

// tunnelBytes opens a tunnel and sends raw bytes in it.
func (w *world) tunnelBytes(target string, raw []byte) {
	w.t.Helper()
	c, code := w.connect(target)
	defer c.Close()
	if code != 200 {
		w.t.Fatalf("CONNECT %s: status %d", target, code)
	}
	c.Write(raw)
	c.(*net.TCPConn).CloseWrite()
	io.Copy(io.Discard, c)
}

// clientHello is the first message a Go client sends.
func clientHello(t testing.TB, cfg *tls.Config) []byte {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	go tls.Client(a, cfg).Handshake()
	b.SetDeadline(time.Now().Add(5 * time.Second))
	raw, _, err := readHello(b)
	if err != nil {
		t.Fatalf("read a Go client's hello: %v", err)
	}
	return raw
}

// waitActive waits until the proxy serves exactly n connections.
func (w *world) waitActive(n int64) {
	w.t.Helper()
	for end := time.Now().Add(5 * time.Second); w.proxy.active.Load() != n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("%d connections are served, want %d", w.proxy.active.Load(), n)
		}
	}
}

// find returns the counts of the records for a host, by "verdict:reason".
func find(records []Record, host string) map[string]uint64 {
	out := map[string]uint64{}
	for _, r := range records {
		if r.Host == host {
			key := r.Verdict
			if r.Reason != "" {
				key += ":" + r.Reason
			}
			out[key] += r.Count
		}
	}
	return out
}

// wantOnly fails unless the host's records come to exactly these.
func wantOnly(t testing.TB, records []Record, host string, want map[string]uint64) {
	t.Helper()
	got := find(records, host)
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("records of %s: got %v, want %v", host, got, want)
	}
}

func contains(s, sub string) bool { return strings.Contains(s, sub) }
