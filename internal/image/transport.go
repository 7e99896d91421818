package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// Network is how registries are reached. Images are fetched by the host, not from
// within a box, and whoever writes the steps names the registry. So the registry
// itself may be anywhere but where machines learn about themselves; whatever it sends
// us to has to be public.
type Network struct {
	// Public judges an address; nil takes none for public.
	Public func(netip.Addr) bool
	// Proxy is the caller's, as http.Transport has it; nil is none.
	Proxy func(*http.Request) (*url.URL, error)
	// Dial connects; nil is the system's own.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Stall ends a pull of which nothing comes any more; 0 is DefaultStall.
	Stall time.Duration
}

// SystemProxy is the proxy that HTTPS_PROXY, HTTP_PROXY and NO_PROXY name.
func SystemProxy(r *http.Request) (*url.URL, error) { return http.ProxyFromEnvironment(r) }

// DefaultStall is how long a registry may say nothing.
const DefaultStall = time.Minute

// guarded is the way to one registry.
type guarded struct {
	net      Network
	registry string // host or host:port
	inner    *http.Transport
	// private: the registry is in a network of the caller's own, and what it sends
	// to may be there as well.
	private atomic.Bool
}

// errUnsafe: a registry sent us somewhere we do not go.
var errUnsafe = errors.New("not followed")

func newGuarded(n Network, registry string) *guarded {
	g := &guarded{net: n, registry: registry}
	g.inner = &http.Transport{
		Proxy: n.Proxy, DialContext: g.dial, ForceAttemptHTTP2: true,
		TLSHandshakeTimeout: 20 * time.Second, ResponseHeaderTimeout: g.stall(), MaxIdleConnsPerHost: pullsAtOnce, IdleConnTimeout: 30 * time.Second,
		// A layer is packed already, and its size is known.
		DisableCompression: true,
	}
	return g
}

func (g *guarded) stall() time.Duration {
	if g.net.Stall > 0 {
		return g.net.Stall
	}
	return DefaultStall
}

// RoundTrip speaks TLS, but to this machine itself. The library would speak plain HTTP
// to every private address and .local name.
func (g *guarded) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !loopbackName(r.URL.Hostname()) {
		if r.URL.Host != g.registry {
			return nil, fmt.Errorf("%s sends to %s://%s: %w: it is not encrypted", g.registry, r.URL.Scheme, r.URL.Host, errUnsafe)
		}
		r = r.Clone(r.Context())
		r.URL.Scheme = "https"
	}
	if loopbackName(r.URL.Hostname()) && r.URL.Host != g.registry {
		return nil, fmt.Errorf("%s sends to %s: %w: it is this machine", g.registry, r.URL.Host, errUnsafe)
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	w := &watch{after: g.stall(), cancel: cancel}
	w.timer = time.AfterFunc(w.after, w.bark)
	resp, err := g.inner.RoundTrip(r.WithContext(ctx))
	if err != nil {
		w.end()
		return nil, err
	}
	w.body = resp.Body
	resp.Body = w
	return resp, nil
}

// watch ends a response whose body has stopped to come.
type watch struct {
	body   io.ReadCloser
	after  time.Duration
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

func (w *watch) bark() {
	w.cancel(fmt.Errorf("nothing came for %s", w.after))
}

func (w *watch) end() {
	w.timer.Stop()
	w.cancel(nil)
}

func (w *watch) Read(p []byte) (int, error) {
	n, err := w.body.Read(p)
	w.timer.Reset(w.after)
	return n, err
}

func (w *watch) Close() error {
	w.end()
	return w.body.Close()
}

func loopbackName(host string) bool {
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && a.Unmap().IsLoopback()
}

// dial looks names up once, and connects to what it judged.
func (g *guarded) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	err = fmt.Errorf("%s has no address", host)
	for _, a := range addrs {
		if why := g.forbidden(host, port, a.Unmap()); why != "" {
			err = fmt.Errorf("connect to %s (%s): %w: %s", host, a, errUnsafe, why)
			continue
		}
		var c net.Conn
		if c, err = g.connect(ctx, network, net.JoinHostPort(a.Unmap().String(), port)); err == nil {
			return c, nil
		}
	}
	return nil, err
}

func (g *guarded) connect(ctx context.Context, network, addr string) (net.Conn, error) {
	if g.net.Dial != nil {
		return g.net.Dial(ctx, network, addr)
	}
	d := net.Dialer{Timeout: 20 * time.Second}
	return d.DialContext(ctx, network, addr)
}

// forbidden says why an address is not connected to. Where a proxy stands between, it
// is the proxy's address that is judged here, and the proxy that judges the rest.
func (g *guarded) forbidden(host, port string, a netip.Addr) string {
	switch {
	case a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified():
		return "no registry is there"
	case g.net.Public != nil && g.net.Public(a), g.isProxy(host):
		return ""
	case g.isRegistry(host, port):
		if a.IsPrivate() {
			g.private.Store(true)
		}
		return ""
	case a.IsPrivate() && g.private.Load():
		return ""
	}
	return "it is not a public address, and not the registry's own"
}

func (g *guarded) isRegistry(host, port string) bool {
	return net.JoinHostPort(host, port) == withPort(g.registry, port)
}

// withPort gives a registry that names no port this one.
func withPort(registry, port string) string {
	if host, p, err := net.SplitHostPort(registry); err == nil {
		return net.JoinHostPort(host, p)
	}
	return net.JoinHostPort(strings.Trim(registry, "[]"), port)
}

// isProxy says whether a host is the caller's own proxy.
func (g *guarded) isProxy(host string) bool {
	if g.net.Proxy == nil {
		return false
	}
	for _, scheme := range []string{"https", "http"} {
		u, err := g.net.Proxy(&http.Request{URL: &url.URL{Scheme: scheme, Host: g.registry}})
		if err == nil && u != nil && u.Hostname() == host {
			return true
		}
	}
	return false
}
