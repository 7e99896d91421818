package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"crypto/tls"
)

// goodAndEvil is a world with a good and an evil origin on 80 and 443.
func goodAndEvil(t testing.TB, allow ...string) (w *world, good, evil *origin) {
	t.Helper()
	w = newWorld(t, allow...)
	good = w.serveHTTP(goodAddr+":443", w.cert("good.test", "front.test", "sub.good.test"), nil)
	evil = w.serveHTTP(evilAddr+":443", w.cert("evil.test"), nil)
	w.serveHTTP(goodAddr+":80", nil, nil)
	return w.start(), good, evil
}

// reached is the control of a test: the allowed way works.
func (w *world) reached(t testing.TB) {
	t.Helper()
	body, err := w.get("good.test:443", "good.test", "good.test")
	if err != nil || body != "hello from good.test" {
		t.Errorf("control: good.test over TLS: %q, %v", body, err)
	}
}

// untouched fails if an origin was so much as connected to.
func untouched(t testing.TB, what string, o *origin) {
	t.Helper()
	if c, b := o.conns.Load(), o.bytes.Load(); c != 0 || b != 0 {
		t.Errorf("%s got %d connections and %d bytes", what, c, b)
	}
}

func TestAProgramsOwnClientWorks(t *testing.T) {
	w, _, _ := goodAndEvil(t, "good.test")
	proxyURL := &url.URL{Scheme: "http", Host: w.addr}
	client := &http.Client{Transport: &http.Transport{
		Proxy: http.ProxyURL(proxyURL), TLSClientConfig: &tls.Config{RootCAs: w.pool}, ForceAttemptHTTP2: true,
	}}
	defer client.CloseIdleConnections()
	for _, u := range []string{"https://good.test/", "http://good.test/", "https://good.test./"} {
		resp, err := client.Get(u)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 200 || !strings.HasPrefix(string(body), "hello from good.test") {
			t.Errorf("%s: %d %q", u, resp.StatusCode, body)
		}
	}
	if _, err := client.Get("https://evil.test/"); err == nil || !contains(err.Error(), "denied by untrusted-steps (no_rule)") {
		t.Errorf("https://evil.test: %v", err)
	}
	resp, err := client.Get("http://evil.test/")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != 403 || !contains(string(body), "add this line to egressAllow of the step:\n  - evil.test\n") {
		t.Errorf("http://evil.test: %d %q", resp.StatusCode, body)
	}
	client.CloseIdleConnections()
	var https Record
	for _, r := range w.end() {
		if r.Host == "good.test" && r.Protocol == ProtocolHTTPS {
			https = r
		}
	}
	if https.Verdict != Allowed || https.Rule != "good.test" || https.BytesIn == 0 || https.BytesOut == 0 || https.Port != 443 {
		t.Errorf("record of https://good.test: %+v", https)
	}
	wantOnly(t, w.ledger.Records(), "evil.test", map[string]uint64{"denied:no_rule": 2})
}

// Attack 8: the client's own idea of an address counts for nothing.
func TestAttack8TheProxyResolvesItself(t *testing.T) {
	w, good, evil := goodAndEvil(t, "good.test")
	// What curl --connect-to and --resolve come to: the right name, and a Host
	// and an address of the client's choice.
	w.reached(t)
	if _, code := w.connect(evilAddr + ":443"); code != 403 {
		t.Errorf("CONNECT to the evil address: %d", code)
	}
	untouched(t, "evil", evil)
	if good.conns.Load() == 0 {
		t.Error("control: the good origin saw nothing")
	}
	wantOnly(t, w.end(), evilAddr, map[string]uint64{"denied:ip_literal": 1})
}

// Attacks 2 and 13: literals of every kind, and the host's own loopback.
func TestAttack13HostLoopbackIsNotReached(t *testing.T) {
	w := newWorld(t, "good.test", "localhost:"+"1", "inside.test:8080", "inside.test")
	w.serveHTTP(goodAddr+":443", w.cert("good.test"), nil)
	host := w.serveHTTP("127.0.0.1:8080", nil, nil)
	w.names["inside.test"] = addrs("127.0.0.1")
	w.names["localhost"] = addrs("127.0.0.1")
	w.start()
	for _, target := range []string{
		"127.0.0.1:8080", "[::ffff:127.0.0.1]:8080", "[::1]:8080", "2130706433:8080", "0x7f.1:8080", "0:8080",
		"localhost:8080", "localhost.:8080", "inside.test:8080",
	} {
		if _, code := w.connect(target); code != 403 {
			t.Errorf("CONNECT %s: %d", target, code)
		}
		if got := status(w.ask(plainGet(target))); got != 403 {
			t.Errorf("GET http://%s/: %d", target, got)
		}
	}
	untouched(t, "a service on the host's loopback", host)
	w.reached(t)
	recs := w.end()
	wantOnly(t, recs, "inside.test", map[string]uint64{"denied:non_public": 2})
	wantOnly(t, recs, "2130706433", map[string]uint64{"denied:ip_literal": 2})
	wantOnly(t, recs, "localhost", map[string]uint64{"denied:port": 4})
}

// Attack 15: when the listener breaks, Serve says so, and what was open closes.
func TestAttack15ABrokenListenerIsReported(t *testing.T) {
	w, _, _ := goodAndEvil(t, "good.test")
	w.reached(t)
	c, code := w.connect("good.test:443")
	if code != 200 {
		t.Fatalf("control: CONNECT: %d", code)
	}
	w.ln.Close()
	select {
	case err := <-w.served:
		if err == nil || !errors.Is(err, net.ErrClosed) {
			t.Errorf("serve returned %v, want an error about the listener", err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("serve went on without a listener")
	}
	if n, err := c.Read(make([]byte, 1)); err == nil {
		t.Errorf("an open tunnel gave %d bytes after the proxy was lost", n)
	}
	if _, err := net.Dial("tcp", w.addr); err == nil {
		t.Error("the proxy still takes connections")
	}
	w.cancel = nil // already served out
}

func TestABugWhileServingEndsTheStepsNetwork(t *testing.T) {
	w, _, _ := goodAndEvil(t, "good.test", "bug.test")
	w.reached(t)
	w.proxy.Dial = nil // what a bug would come to: a panic in a connection
	w.ask(plainGet("good.test"))
	select {
	case err := <-w.served:
		if err == nil || !contains(err.Error(), "bug") {
			t.Errorf("serve returned %v", err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("serve went on")
	}
	w.cancel = nil
}

// Attack 17: a tunnel does not outlive the step.
func TestAttack17TunnelsEndWithTheStep(t *testing.T) {
	w := newWorld(t, "good.test")
	w.serveRaw(goodAddr+":443", func(c net.Conn) { io.Copy(c, c) })
	w.start()
	c, code := w.connect("good.test:443")
	if code != 200 {
		t.Fatalf("CONNECT: %d", code)
	}
	hello := records(makeHello(sniExt("good.test")), 1<<14)
	c.Write(hello)
	if _, err := io.ReadFull(c, make([]byte, len(hello))); err != nil {
		t.Fatalf("control: the tunnel carries nothing: %v", err)
	}
	recs := w.end()
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the tunnel is still open")
	}
	wantOnly(t, recs, "good.test", map[string]uint64{"allowed": 1})
	if r := recs[0]; r.BytesIn != uint64(len(hello)) || r.BytesOut != uint64(len(hello)) {
		t.Errorf("bytes %d in, %d out, want %d each", r.BytesIn, r.BytesOut, len(hello))
	}
}

func TestServeRefusesToRunWithoutItsParts(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := (&Proxy{}).Serve(context.Background(), ln); err == nil {
		t.Error("a proxy without a ledger served")
	}
	if _, err := net.Dial("tcp", ln.Addr().String()); err == nil {
		t.Error("its listener is still open")
	}
}

func TestEnvironPointsAtTheBoxesLoopback(t *testing.T) {
	got := Environ(3128)
	want := []string{
		"http_proxy=http://127.0.0.1:3128", "https_proxy=http://127.0.0.1:3128", "no_proxy=127.0.0.1,localhost,::1",
		"HTTP_PROXY=http://127.0.0.1:3128", "HTTPS_PROXY=http://127.0.0.1:3128", "NO_PROXY=127.0.0.1,localhost,::1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

// Attack 22 to 27: what is asked of name servers.
func TestAttack22ADeniedNameIsNeverLookedUp(t *testing.T) {
	w, _, _ := goodAndEvil(t, "good.test", "*.wild.test")
	for i := range 20 {
		w.connect(fmt.Sprintf("secret%d.evil.test:443", i))
		w.ask(plainGet(fmt.Sprintf("secret%d.evil.test", i)))
		w.connect(fmt.Sprintf("secret%d.good.test:443", i)) // attack 23
		w.connect(fmt.Sprintf("a.secret%d.wild.test:443", i))
	}
	w.connect("good.test:8443") // the port is judged first, too
	if got := w.lookedUp(); len(got) != 0 {
		t.Errorf("looked up %q", got)
	}
	w.reached(t)
	if got := w.lookedUp(); !slices.Equal(got, []string{"good.test"}) {
		t.Errorf("control: looked up %q", got)
	}
	recs := w.end()
	wantOnly(t, recs, "secret3.evil.test", map[string]uint64{"denied:no_rule": 2})
	wantOnly(t, recs, "secret3.good.test", map[string]uint64{"denied:no_rule": 1})
	wantOnly(t, recs, "a.secret3.wild.test", map[string]uint64{"denied:no_rule": 1})
}

// Attack 24: an answer is judged whole, and what was judged is dialled, without
// a second question.
func TestAttack24Rebinding(t *testing.T) {
	w := newWorld(t, "good.test", "rebind.test", "mixed.test")
	w.serveHTTP(goodAddr+":443", w.cert("good.test", "rebind.test"), nil)
	inside := w.serveHTTP("127.0.0.1:443", nil, nil)
	w.names["mixed.test"] = addrs(goodAddr, "127.0.0.1")
	asked := 0
	w.proxy.Resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
		if host == "rebind.test" {
			if asked++; asked > 1 {
				return addrs("127.0.0.1"), nil
			}
			return addrs(goodAddr), nil
		}
		return w.resolve(ctx, host)
	}
	w.start()
	if body, err := w.get("rebind.test:443", "rebind.test", "rebind.test"); err != nil || body != "hello from rebind.test" {
		t.Errorf("control: the first answer is public: %q, %v", body, err)
	}
	if asked != 1 {
		t.Errorf("the name was looked up %d times for one request", asked)
	}
	if _, code := w.connect("rebind.test:443"); code != 403 {
		t.Errorf("the second answer is loopback: %d", code)
	}
	if _, code := w.connect("mixed.test:443"); code != 403 {
		t.Errorf("a mixed answer: %d", code)
	}
	untouched(t, "loopback", inside)
	for _, d := range w.dialled() {
		if d != goodAddr+":443" {
			t.Errorf("dialled %s", d)
		}
	}
	recs := w.end()
	wantOnly(t, recs, "rebind.test", map[string]uint64{"allowed": 1, "denied:non_public": 1})
	wantOnly(t, recs, "mixed.test", map[string]uint64{"denied:non_public": 1})
}

// Attack 26: a resolver that is slow, silent, empty or endless.
func TestAttack26AResolverThatDoesNotAnswer(t *testing.T) {
	w := newWorld(t, "good.test", "silent.test", "empty.test", "huge.test", "nowhere.test")
	w.serveHTTP(goodAddr+":443", w.cert("good.test"), nil)
	w.proxy.ResolveTimeout = 100 * time.Millisecond
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	w.proxy.Resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
		switch host {
		case "silent.test":
			<-hang // and does not care for its context
			return nil, nil
		case "empty.test":
			return nil, nil
		case "huge.test":
			return make([]netip.Addr, maxAddrs+1), nil
		}
		return w.resolve(ctx, host)
	}
	w.start()
	for _, host := range []string{"silent.test", "empty.test", "huge.test", "nowhere.test"} {
		began := time.Now()
		if _, code := w.connect(host + ":443"); code != 502 {
			t.Errorf("%s: %d", host, code)
		}
		if d := time.Since(began); d > 2*time.Second {
			t.Errorf("%s took %v", host, d)
		}
	}
	w.reached(t)
	recs := w.end()
	for _, host := range []string{"silent.test", "empty.test", "huge.test", "nowhere.test"} {
		wantOnly(t, recs, host, map[string]uint64{"failed:resolve": 1})
	}
}

func TestADeadServerIsAFailureAndNoDenial(t *testing.T) {
	w := newWorld(t, "good.test", "dead.test", "second.test", "mute.test")
	w.serveHTTP(goodAddr+":443", w.cert("good.test", "second.test"), nil)
	w.serveHTTP(goodAddr+":80", nil, nil)
	w.serveRaw("192.0.2.50:443", func(c net.Conn) { c.Read(make([]byte, 1)) })
	w.serveRaw("192.0.2.50:80", func(c net.Conn) { c.Read(make([]byte, 1)) })
	w.names["dead.test"] = addrs("192.0.2.99")
	w.names["second.test"] = addrs("192.0.2.99", goodAddr)
	w.names["mute.test"] = addrs("192.0.2.50")
	w.start()
	if _, code := w.connect("dead.test:443"); code != 502 {
		t.Errorf("CONNECT: %d", code)
	}
	if got := w.ask(plainGet("dead.test")); status(got) != 502 || !contains(got, "failed (dial)") {
		t.Errorf("GET: %q", got)
	}
	if body, err := w.get("second.test:443", "second.test", "second.test"); err != nil || body == "" {
		t.Errorf("control: the second address answers: %q, %v", body, err)
	}
	if _, err := w.get("mute.test:443", "mute.test", "mute.test"); err == nil {
		t.Error("a server that hangs up gave an answer")
	}
	if got := status(w.ask(plainGet("mute.test"))); got != 502 {
		t.Errorf("GET from a server that hangs up: %d", got)
	}
	recs := w.end()
	wantOnly(t, recs, "dead.test", map[string]uint64{"failed:dial": 2})
	wantOnly(t, recs, "second.test", map[string]uint64{"allowed": 1})
	wantOnly(t, recs, "mute.test", map[string]uint64{"failed:upstream": 2})
}
