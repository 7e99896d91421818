package egress

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// plainWorld serves good.test and evil.test in plain HTTP on 80 and 443.
func plainWorld(t testing.TB, h http.HandlerFunc, allow ...string) (w *world, good, evil *origin) {
	t.Helper()
	w = newWorld(t, allow...)
	good = w.serveHTTP(goodAddr+":80", nil, h)
	evil = w.serveHTTP(evilAddr+":80", nil, nil)
	return w.start(), good, evil
}

func (w *world) plainReached(t testing.TB) {
	t.Helper()
	if got := w.ask(plainGet("good.test")); status(got) != 200 || !contains(got, "hello from good.test") {
		t.Errorf("control: http://good.test/: %q", got)
	}
}

// Attack 28, 29, 30 and 32 through the proxy: the answer, and no reach.
func TestAttack28To32WhereTo(t *testing.T) {
	w, _, evil := plainWorld(t, nil, "good.test")
	for target, want := range map[string]int{
		evilAddr + ":80":               403,
		"3325256770:80":                403, // the evil address as a number
		"0xc6336442:80":                403,
		"[::ffff:" + evilAddr + "]:80": 403,
		"good.test:22":                 403,
		"good.test:6379":               403,
		"good.test:0":                  400,
		"good.test:65536":              400,
		"good.test":                    400,
		"good.test:443\t":              400,
		"evilgood.test:80":             403,
		"good.test.evil.test:80":       403,
		"good-test:80":                 403,
		"gооd.test:80":                 403, // Cyrillic
		"evil.test:80@good.test:80":    400,
		"good.test:80#evil.test:80":    400,
	} {
		if got := status(w.ask("CONNECT " + target + " HTTP/1.1\r\n\r\n")); got != want {
			t.Errorf("CONNECT %s: %d, want %d", target, got, want)
		}
	}
	untouched(t, "evil", evil)
	if got := w.lookedUp(); len(got) != 0 {
		t.Errorf("looked up %q", got)
	}
	w.plainReached(t)
	recs := w.end()
	wantOnly(t, recs, "gооd.test", map[string]uint64{"denied:bad_name": 1})
	wantOnly(t, recs, "good.test.evil.test", map[string]uint64{"denied:no_rule": 1})
	if got := find(recs, "good.test"); got["denied:port"] != 2 || got["denied:bad_request"] != 3 || got["allowed"] != 1 {
		t.Errorf("records of good.test: %v", got)
	}
}

// Attack 34 and 35.
func TestAttack34HostAndURLDisagree(t *testing.T) {
	w, good, evil := plainWorld(t, nil, "good.test")
	for name, c := range map[string]struct {
		raw  string
		want int
	}{
		"another host":              {"GET http://good.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n", 403},
		"the other way round":       {"GET http://evil.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n", 403},
		"another port":              {"GET http://good.test/ HTTP/1.1\r\nHost: good.test:8080\r\n\r\n", 403},
		"an address":                {"GET http://good.test/ HTTP/1.1\r\nHost: " + evilAddr + "\r\n\r\n", 403},
		"CONNECT with another host": {"CONNECT good.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n", 403},
		"two hosts in one field":    {"GET http://good.test/ HTTP/1.1\r\nHost: good.test, evil.test\r\n\r\n", 400},
		"two ports":                 {"GET http://good.test/ HTTP/1.1\r\nHost: good.test:80:80\r\n\r\n", 403},
		"a user name":               {"GET http://good.test/ HTTP/1.1\r\nHost: x@good.test\r\n\r\n", 400},
		"an empty port":             {"GET http://good.test/ HTTP/1.1\r\nHost: good.test:\r\n\r\n", 400},
		"an empty Host":             {"GET http://good.test/ HTTP/1.1\r\nHost:\r\n\r\n", 400},
		"two Host fields":           {"GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\nHost: evil.test\r\n\r\n", 400},
		"a folded Host":             {"GET http://good.test/ HTTP/1.1\r\nHost:\r\n evil.test\r\n\r\n", 400},
	} {
		if got := status(w.ask(c.raw)); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	untouched(t, "good", good)
	untouched(t, "evil", evil)
	for _, ok := range []string{"good.test", "GOOD.test", "good.test.", "good.test:80"} {
		raw := "GET http://good.test/ HTTP/1.1\r\nHost: " + ok + "\r\nConnection: close\r\n\r\n"
		if got := w.ask(raw); status(got) != 200 || !contains(got, "hello from good.test") {
			t.Errorf("control: Host: %s: %q", ok, got)
		}
	}
	recs := w.end()
	if got := find(recs, "good.test"); got["denied:host_mismatch"] != 5 || got["allowed"] != 4 || got["denied:bad_request"] != 6 {
		t.Errorf("records of good.test: %v", got)
	}
}

// Attack 36, 37 and 47: each of these is answered 400 and nothing travels.
func TestAttack36And37Smuggling(t *testing.T) {
	w, good, evil := plainWorld(t, nil, "good.test")
	const two = "GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n"
	for name, raw := range map[string]string{
		"bare line feeds":    "GET http://good.test/ HTTP/1.1\nHost: good.test\n\n",
		"a folded line":      "GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\nX: a\r\n b\r\n\r\n",
		"a space in a name":  "GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\nX : a\r\n\r\n",
		"CL and TE":          "POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + two,
		"two CLs":            "POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\nContent-Length: 0\r\nContent-Length: 4\r\n\r\n" + two,
		"an odd TE":          "POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: xchunked\r\n\r\n" + two,
		"a body of CONNECT":  "CONNECT good.test:443 HTTP/1.1\r\nContent-Length: 9\r\n\r\n" + two,
		"HTTP/2":             "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"SOCKS 5":            "\x05\x01\x00",
		"SOCKS 4":            "\x04\x01\x00\x50\xc6\x33\x64\x42\x00",
		"TLS to the proxy":   string(records(makeHello(sniExt("good.test")), 1<<14)),
		"ftp":                "GET ftp://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n",
		"gopher":             "GET gopher://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n",
		"https in plain":     "GET https://good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n",
		"a request to us":    "GET / HTTP/1.1\r\nHost: good.test\r\n\r\n",
		"a head over 16 KiB": "GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\nX: " + strings.Repeat("a", 20<<10) + "\r\n\r\n",
		"a head broken off":  "GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\n",
	} {
		got := w.ask(raw)
		if status(got) != 400 || strings.Count(got, "HTTP/1.1 4") != 1 || !contains(got, "Connection: close") {
			t.Errorf("%s: %q", name, got)
		}
	}
	untouched(t, "good", good)
	untouched(t, "evil", evil)
	w.plainReached(t)
	recs := w.end()
	if got := find(recs, "good.test"); got["denied:bad_request"] != 10 || got["allowed"] != 1 {
		t.Errorf("records of good.test: %v", got)
	}
	wantOnly(t, recs, "evil.test", map[string]uint64{"denied:bad_request": 2})
	wantOnly(t, recs, "", map[string]uint64{"failed:bad_request": 5})
}

// Attack 37, in the body, where the head has long been forwarded.
func TestAttack37ChunksThatCanBeReadTwoWays(t *testing.T) {
	var whole []string
	w, good, evil := plainWorld(t, func(rw http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err == nil {
			whole = append(whole, string(b))
		}
		io.WriteString(rw, "took it")
	}, "good.test")
	const head = "POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n\r\n"
	for _, body := range []string{"5;x=y\r\nhello\r\n0\r\n\r\n", "5\r\nhello\r\n0\r\nX: y\r\n\r\n", "5\nhello\r\n0\r\n\r\n", "4\r\nhello\r\n0\r\n\r\n"} {
		got := w.ask(head + body + "GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n")
		if status(got) != 400 || strings.Count(got, "HTTP/1.1 ") != 1 {
			t.Errorf("%q: %q", body, got)
		}
	}
	if len(whole) != 0 {
		t.Errorf("the server took %q for a whole body", whole)
	}
	got := w.ask(head + "5\r\nhello\r\n0\r\n\r\n" + plainGet("good.test"))
	if strings.Count(got, "HTTP/1.1 200") != 2 || !slices.Equal(whole, []string{"hello", ""}) {
		t.Errorf("control: %q, bodies %q", got, whole)
	}
	untouched(t, "evil", evil)
	if good.conns.Load() == 0 {
		t.Error("control: nothing reached the good server")
	}
	wantOnly(t, w.end(), "good.test", map[string]uint64{"denied:bad_request": 4, "allowed": 2})
}

// Attack 38: the second request on a connection is judged like the first.
func TestAttack38EveryRequestIsJudged(t *testing.T) {
	w, good, evil := plainWorld(t, nil, "good.test")
	const g = "GET http://good.test/a HTTP/1.1\r\nHost: good.test\r\n\r\n"
	const e = "GET http://evil.test/b HTTP/1.1\r\nHost: evil.test\r\n\r\n"
	got := w.ask(g + g + e + g)
	if n := strings.Count(got, "HTTP/1.1 200"); n != 2 {
		t.Errorf("%d requests succeeded, want 2: %q", n, got)
	}
	if strings.Count(got, "HTTP/1.1 403") != 1 {
		t.Errorf("the third was not denied: %q", got)
	}
	untouched(t, "evil", evil)
	if reqs := good.requests(); !slices.Equal(reqs, []string{"GET good.test /a", "GET good.test /a"}) {
		t.Errorf("the good server saw %q", reqs)
	}
	recs := w.end()
	wantOnly(t, recs, "good.test", map[string]uint64{"allowed": 2})
	wantOnly(t, recs, "evil.test", map[string]uint64{"denied:no_rule": 1})
}

// Attack 40: the server gets our head, whatever the client's says about
// connections.
func TestAttack40HopByHopFieldsStay(t *testing.T) {
	var seen http.Header
	var host string
	w, _, evil := plainWorld(t, func(rw http.ResponseWriter, r *http.Request) {
		seen, host = r.Header.Clone(), r.Host
	}, "good.test")
	got := w.ask("GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\nConnection: Host, X-Hop, keep-alive\r\nX-Hop: 1\r\n" +
		"Proxy-Authorization: Basic eDp5\r\nProxy-Connection: keep-alive\r\nTE: trailers\r\nKeep-Alive: 9\r\nX-End: 1\r\nAccept-Encoding: x\r\n\r\n" +
		"GET http://evil.test/ HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
	if strings.Count(got, "HTTP/1.1 200") != 1 || strings.Count(got, "HTTP/1.1 403") != 1 {
		t.Errorf("answers: %q", got)
	}
	if host != "good.test" {
		t.Errorf("Host at the server: %q", host)
	}
	want := http.Header{"X-End": {"1"}, "Accept-Encoding": {"x"}, "Connection": {"close"}}
	if fmt.Sprint(seen) != fmt.Sprint(want) {
		t.Errorf("fields at the server: %v, want %v", seen, want)
	}
	untouched(t, "evil", evil)
	// HTTP/1.0 gets one answer, closed at its end.
	if got := w.ask("GET http://good.test/ HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + plainGet("good.test")); strings.Count(got, "HTTP/1.1 200") != 1 {
		t.Errorf("HTTP/1.0: %q", got)
	}
}

func TestAttack40HopByHopFieldsOfAResponseStay(t *testing.T) {
	w := newWorld(t, "good.test")
	w.serveRaw(goodAddr+":80", func(c net.Conn) {
		c.Read(make([]byte, 4096))
		io.WriteString(c, "HTTP/1.1 200 OK\r\nConnection: X-Mine\r\nX-Mine: 1\r\nProxy-Authenticate: Basic\r\nKeep-Alive: 5\r\nX-Kept: 1\r\nContent-Length: 2\r\n\r\nok")
	})
	w.start()
	got := w.ask("GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n")
	if want := "HTTP/1.1 200 OK\r\nX-Kept: 1\r\nContent-Length: 2\r\n\r\nok"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Attack 41: no other protocol starts on a judged connection.
func TestAttack41UpgradeIsRefused(t *testing.T) {
	w, good, _ := plainWorld(t, nil, "good.test")
	for _, proto := range []string{"h2c", "websocket", "TLS/1.0"} {
		raw := "GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\nConnection: Upgrade\r\nUpgrade: " + proto + "\r\n\r\n"
		if got := status(w.ask(raw)); got != 403 {
			t.Errorf("Upgrade: %s: %d", proto, got)
		}
	}
	untouched(t, "good", good)
	w.plainReached(t)
	wantOnly(t, w.end(), "good.test", map[string]uint64{"denied:upgrade": 3, "allowed": 1})
}

func TestAttack41AServerCannotSwitchProtocolsUnasked(t *testing.T) {
	w := newWorld(t, "good.test")
	w.serveRaw(goodAddr+":80", func(c net.Conn) {
		c.Read(make([]byte, 4096))
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nanything")
	})
	w.start()
	if got := w.ask(plainGet("good.test")); status(got) != 502 || contains(got, "anything") {
		t.Errorf("got %q", got)
	}
	wantOnly(t, w.end(), "good.test", map[string]uint64{"failed:upstream": 1})
}

// Attack 42: a redirect is the client's to follow, and is judged like any
// request.
func TestAttack42RedirectsAreJudged(t *testing.T) {
	for _, code := range []int{301, 302, 307, 308} {
		w, _, evil := plainWorld(t, func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/inside" {
				io.WriteString(rw, "hello")
				return
			}
			http.Redirect(rw, r, "http://evil.test/", code)
		}, "good.test")
		got := w.ask(plainGet("good.test"))
		if status(got) != code || !contains(got, "Location: http://evil.test/") {
			t.Errorf("control: the redirect is passed on: %q", got)
		}
		if got := status(w.ask(plainGet("evil.test"))); got != 403 {
			t.Errorf("following a %d: %d", code, got)
		}
		untouched(t, "evil", evil)
	}
}

// Attack 44: the proxy does not proxy to itself.
func TestAttack44TheProxyItselfIsNoDestination(t *testing.T) {
	w, _, _ := plainWorld(t, nil, "good.test", "loop.test:"+"1", "me.test")
	w.mu.Lock()
	w.names["me.test"] = addrs("9.9.9.9") // an address of this host, though public
	w.mu.Unlock()
	_, port, _ := net.SplitHostPort(w.addr)
	for _, target := range []string{w.addr, "localhost:" + port, "[::1]:" + port, "0.0.0.0:" + port, "[::ffff:127.0.0.1]:" + port} {
		if got := w.ask("CONNECT " + target + " HTTP/1.1\r\n\r\n"); status(got) != 403 || !contains(got, "(self)") {
			t.Errorf("CONNECT %s: %q", target, got)
		}
	}
	if got := w.ask("CONNECT me.test:443 HTTP/1.1\r\n\r\n"); status(got) != 403 || !contains(got, "(self)") { // attack 62
		t.Errorf("CONNECT to this host's public address: %q", got)
	}
	if d := w.dialled(); len(d) != 0 {
		t.Errorf("dialled %q", d)
	}
	w.plainReached(t) // whose address, one of RFC 5737, is this host's too
	if got := find(w.end(), "localhost"); got["denied:self"] != 1 {
		t.Errorf("records of localhost: %v", got)
	}
}
