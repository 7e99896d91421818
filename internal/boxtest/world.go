package boxtest

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/egress"
)

// world is a small internet on loopback: names, documentation addresses and
// two servers behind them, which write down what reached them.
type world struct {
	proxy  *egress.Proxy
	ledger *egress.Ledger
	good   *origin
	evil   *origin

	mu      sync.Mutex
	lookups []string
}

type origin struct {
	server *httptest.Server
	mu     sync.Mutex
	seen   []string
	gone   chan struct{} // closed when a request for /slow was let go
}

const (
	goodAddr = "192.0.2.10"
	evilAddr = "198.51.100.66"
	stopAddr = "203.0.113.9"
)

// newWorld starts a proxy with these rules. stopName makes it stop.
func newWorld(t testing.TB, allow ...string) *world {
	t.Helper()
	w := &world{ledger: &egress.Ledger{}, good: newOrigin(t), evil: newOrigin(t)}
	var rules []egress.Rule
	for _, a := range allow {
		r, err := egress.ParseRule(a)
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, r)
	}
	w.proxy = &egress.Proxy{
		Policy: egress.Policy{Allow: rules}, Ledger: w.ledger, Resolve: w.resolve, Dial: w.dial, Now: time.Now,
		HostAddrs: func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil },
	}
	return w
}

func newOrigin(t testing.TB) *origin {
	o := &origin{gone: make(chan struct{})}
	o.server = httptest.NewServer(o.handler())
	t.Cleanup(o.server.Close)
	return o
}

// overTLS makes an origin one with a certificate that nobody has signed.
func (o *origin) overTLS(t testing.TB) {
	o.server = httptest.NewTLSServer(o.handler())
	t.Cleanup(o.server.Close)
}

func (o *origin) handler() http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		o.mu.Lock()
		o.seen = append(o.seen, r.Host+r.URL.Path)
		o.mu.Unlock()
		if r.URL.Path == "/slow" {
			<-r.Context().Done()
			close(o.gone)
			return
		}
		if r.URL.Path == "/endless" {
			for block := make([]byte, 64<<10); ; {
				if _, err := rw.Write(block); err != nil {
					return
				}
			}
		}
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(rw, "hello from "+r.Host)
	})
}

func (o *origin) requests() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]string(nil), o.seen...)
}

// stopName is a name that, connected to, makes the proxy break, as a bug in it would.
const stopName = "stop.test"

func (w *world) resolve(_ context.Context, host string) ([]netip.Addr, error) {
	w.mu.Lock()
	w.lookups = append(w.lookups, host)
	w.mu.Unlock()
	switch host {
	case "good.test":
		return []netip.Addr{netip.MustParseAddr(goodAddr)}, nil
	case "evil.test":
		return []netip.Addr{netip.MustParseAddr(evilAddr)}, nil
	case "inside.test":
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	case "slow.test":
		time.Sleep(300 * time.Millisecond)
		return []netip.Addr{netip.MustParseAddr("10.0.0.1")}, nil
	case stopName:
		return []netip.Addr{netip.MustParseAddr(stopAddr)}, nil
	}
	return nil, errors.New("no such host")
}

func (w *world) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	if host == stopAddr {
		panic("the test makes the proxy stop")
	}
	to := map[string]*origin{goodAddr: w.good, evilAddr: w.evil}[host]
	if to == nil {
		return nil, errors.New("connection refused")
	}
	var d net.Dialer
	return d.DialContext(ctx, network, to.server.Listener.Addr().String())
}

func (w *world) lookedUp() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.lookups...)
}

// count sums the records of a host, as verdict:reason.
func (w *world) count(host string) map[string]uint64 {
	out := map[string]uint64{}
	for _, r := range w.ledger.Records() {
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
