package egress_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// run runs a steps file in the lab, with the lab's certificate at hand.
func (n *internet) run(t *testing.T, engine, steps string, during func(tell string)) *run {
	t.Helper()
	return start(t, job{engine: engine, lab: n.lab, files: map[string][]byte{"ca.pem": n.ca}, steps: steps, during: during})
}

const curls = "defaults: {env: {CURL_CA_BUNDLE: /workspace/ca.pem}}\n"

func TestEveryAttemptIsInTheLedgerWithItsRuleOrItsReason(t *testing.T) {
	n := newInternet(t)
	eachEngine(t, func(t *testing.T, engine string) {
		r := n.run(t, engine, curls+`
steps:
- {id: plain, egressAllow: [origin.test], run: 'curl -fsS http://origin.test/a?secret=1'}
- {id: tls, egressAllow: [origin.test], run: 'curl -fsS https://origin.test/b?secret=1'}
- {id: no-rule, egressAllow: [origin.test], run: 'curl -fsS http://evil.test/ || exit 3'}
- {id: port, egressAllow: ['origin.test:443'], run: 'curl -fsS http://origin.test/ || exit 3'}
- {id: deny, egressAllow: ['*.origin.test'], egressDeny: [a.origin.test], run: 'curl -fsS http://www.origin.test/; curl -fsS http://a.origin.test/ || exit 3'}
- {id: deny-in-audit, egressMode: audit, egressDeny: [evil.test], run: 'curl -fsS http://evil.test/ || exit 3'}
- {id: private-in-audit, egressMode: audit, run: 'curl -fsS http://lan.internal/ || exit 3'}
- {id: literal, egressAllow: [origin.test], run: 'curl -fsS http://192.0.2.10/ || exit 3'}
- {id: metadata, egressAllow: [{to: metadata.test, private: true}], run: 'curl -fsS http://metadata.test/ || exit 3'}
- {id: metadata-literal, egressMode: audit, run: 'curl -fsS http://169.254.169.254/ || exit 3'}
- {id: one-private-of-two, egressAllow: [rebound.test], run: 'curl -fsS http://rebound.test/ || exit 3'}
- {id: another-sni, egressAllow: [origin.test], run: 'curl -fsS --connect-to evil.test:443:origin.test:443 https://evil.test/ || exit 3'}
- {id: not-tls, egressAllow: [origin.test], run: 'curl -fsSp http://origin.test:443/ || exit 3'}
- {id: private, egressAllow: [{to: lan.internal, private: true}], run: 'curl -fsS http://lan.internal/'}
- {id: nobody, egressAllow: [nobody.test], run: 'curl -fsS http://nobody.test/ || exit 0'}
`, nil)
		r.exits(1)
		type want struct {
			host     string
			port     int
			protocol string
			verdict  string
			reason   string
			rule     string
			says     string // the fault names it
		}
		for id, w := range map[string][]want{
			"plain":              {{"origin.test", 80, "http", "allowed", "", "origin.test", ""}},
			"tls":                {{"origin.test", 443, "https", "allowed", "", "origin.test", ""}},
			"no-rule":            {{"evil.test", 80, "http", "denied", "no_rule", "", `add "evil.test" to egressAllow`}},
			"port":               {{"origin.test", 80, "http", "denied", "port", "origin.test:443", `add "origin.test" to egressAllow`}},
			"deny":               {{"a.origin.test", 80, "http", "denied", "deny_rule", "a.origin.test", "a.origin.test"}, {"www.origin.test", 80, "http", "allowed", "", "*.origin.test", ""}},
			"deny-in-audit":      {{"evil.test", 80, "http", "denied", "deny_rule", "evil.test", "evil.test"}},
			"private-in-audit":   {{"lan.internal", 80, "http", "denied", "non_public", "", "lan.internal"}},
			"literal":            {{"192.0.2.10", 80, "http", "denied", "ip_literal", "", "192.0.2.10"}},
			"metadata":           {{"metadata.test", 80, "http", "denied", "metadata", "metadata.test", "metadata.test"}},
			"metadata-literal":   {{"169.254.169.254", 80, "http", "denied", "metadata", "", "169.254.169.254"}},
			"one-private-of-two": {{"rebound.test", 80, "http", "denied", "non_public", "rebound.test", "rebound.test"}},
			"another-sni":        {{"origin.test", 443, "https", "denied", "sni_mismatch", "origin.test", "origin.test"}},
			"not-tls":            {{"origin.test", 443, "connect", "denied", "not_tls", "origin.test", "origin.test"}},
			"private":            {{"lan.internal", 80, "http", "allowed", "private", "lan.internal", ""}},
			"nobody":             {{"nobody.test", 80, "http", "failed", "resolve", "nobody.test", ""}},
		} {
			st := r.step(id)
			var got, wanted []connection
			for _, e := range st.Egress {
				if e.Count != 1 || (e.Verdict == "allowed") != (e.BytesIn > 0) {
					r.errorf("step %s: the ledger has %+v", id, e)
				}
				got = append(got, connection{Host: e.Host, Port: e.Port, Protocol: e.Protocol, Verdict: e.Verdict, Reason: e.Reason, Rule: e.Rule})
			}
			fault := ""
			for _, x := range w {
				wanted = append(wanted, connection{Host: x.host, Port: x.port, Protocol: x.protocol, Verdict: x.verdict, Reason: x.reason, Rule: x.rule})
				if x.verdict == "denied" {
					fault = "egress_denied"
					if st.Fault == nil || !strings.Contains(st.Fault.Message, x.says) {
						r.errorf("step %s: the fault is %+v, want it to say %s", id, st.Fault, x.says)
					}
				}
			}
			if diff := cmp.Diff(wanted, sorted(got)); diff != "" {
				r.errorf("step %s: the ledger (-want +got):\n%s", id, diff)
			}
			switch {
			case fault == "" && (st.Fault != nil || st.Status != "passed"):
				r.errorf("step %s: %s, fault %+v", id, st.Status, st.Fault)
			case fault != "" && (st.Fault == nil || st.Fault.Type != fault || st.ExitCode == nil || *st.ExitCode != 3):
				r.errorf("step %s: fault %+v, exit code %v; want %s and the step's own 3", id, st.Fault, st.ExitCode, fault)
			}
		}
		for _, l := range r.lines() {
			if strings.Contains(l.Path, "?") || strings.Contains(fmt.Sprint(l), "secret") {
				r.errorf("egress.jsonl tells a query: %+v", l)
			}
			if l.Step == "plain" && (l.Method != "GET" || l.Path != "/a") || l.Step == "tls" && (l.SNI != "origin.test" || l.Path != "") || l.Step == "another-sni" && l.SNI != "evil.test" {
				r.errorf("egress.jsonl has %+v", l)
			}
		}
		if diff := cmp.Diff([]string{"origin.test/a", "origin.test/b", "www.origin.test/"}, n.good.requests()); diff != "" {
			t.Errorf("the origin was asked (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"lan.internal/"}, n.lan.requests()); diff != "" {
			t.Errorf("the private server was asked (-want +got):\n%s", diff)
		}
	})
	n.evil.untouched(t, "the evil server")
	n.metadata.untouched(t, "the metadata service")
	// The control: both would have answered.
	for addr, o := range map[string]*origin{"198.51.100.66:80": n.evil, "169.254.169.254:80": n.metadata} {
		c := n.dial(t, addr)
		fmt.Fprintf(c, "GET / HTTP/1.0\r\n\r\n")
		if _, err := c.Read(make([]byte, 1)); err != nil || len(o.requests()) != 1 {
			t.Errorf("control: %s, asked from outside a box: %v", addr, err)
		}
	}
}

func sorted(list []connection) []connection {
	slices.SortFunc(list, func(a, b connection) int { return strings.Compare(a.Host, b.Host) })
	return list
}

func TestGitClonesOverHTTPSThroughAnAllowRule(t *testing.T) {
	n := newInternet(t)
	repo := gitRepository(t, n.dir)
	eachEngine(t, func(t *testing.T, engine string) {
		n.serveFiles(t, repo, func() {
			clone := "GIT_SSL_CAINFO=/workspace/ca.pem git clone -q https://www.origin.test:8443/repo.git clone && cat clone/hello.txt"
			r := n.run(t, engine, fmt.Sprintf(`
steps:
- {id: denied, egressAllow: [www.origin.test], run: %[1]s, continueOnError: true}
- {id: allowed, egressAllow: ['www.origin.test:8443'], run: %[1]s}
`, quoted(clone)), nil)
			r.exits(0)
			if got := r.stdout("allowed"); got != "a file that came by https" {
				r.errorf("the clone has %q", got)
			}
			if e := r.only("allowed", "www.origin.test", 8443); e.Verdict != "allowed" || e.Protocol != "https" || e.BytesIn == 0 {
				r.errorf("the ledger has %+v", e)
			}
			if f := r.step("denied").Fault; f == nil || !strings.Contains(f.Message, `add "www.origin.test:8443" to egressAllow`) {
				r.errorf("the fault is %+v", f)
			}
		})
	})
}

func TestAnExpectedDenialIsANoteAndNoFault(t *testing.T) {
	n := newInternet(t)
	eachEngine(t, func(t *testing.T, engine string) {
		r := n.run(t, engine, curls+`
steps:
- {id: expected, egressAllow: [origin.test], expectDenied: ['**.test'], run: 'curl -fsS http://origin.test/; curl -fsS http://evil.test/ || true'}
- {id: other-name, egressAllow: [origin.test], expectDenied: [www.origin.test], run: 'curl -fsS http://evil.test/ || true'}
- {id: other-port, egressAllow: [origin.test], expectDenied: ['evil.test:443'], run: 'curl -fsS http://evil.test/ || true'}
- {id: one-of-two, egressAllow: [origin.test], expectDenied: [evil.test], run: 'curl -fsS http://evil.test/ http://a.origin.test/ || true'}
- {id: tolerated, egressAllow: [origin.test], tolerate: [egress_denied], run: 'curl -fsS http://evil.test/ || true'}
`, nil)
		r.exits(1)
		for id, faulty := range map[string]bool{"expected": false, "other-name": true, "other-port": true, "one-of-two": true, "tolerated": false} {
			st := r.step(id)
			if faulty != (st.Fault != nil) || faulty != (st.Status == "failed") || faulty && st.Fault.Type != "egress_denied" {
				r.errorf("step %s: %s, fault %+v", id, st.Status, st.Fault)
			}
			for _, e := range st.Egress {
				if want := e.Host == "evil.test" && (id == "expected" || id == "one-of-two"); e.Expected != want {
					r.errorf("step %s: the ledger has %+v", id, e)
				}
			}
		}
		if f := r.step("one-of-two").Fault; f != nil && !strings.Contains(f.Message, "a.origin.test") {
			r.errorf("the fault is about the denial that was expected: %+v", f)
		}
		if ev := r.step("tolerated").Events; len(ev) != 1 || ev[0].Type != "egress_denied" {
			r.errorf("what is tolerated is not among the events: %+v", ev)
		}
	})
	n.evil.untouched(t, "the evil server")
}

func TestADownloadIsCutAtEgressMaxBytes(t *testing.T) {
	n := newInternet(t)
	eachEngine(t, func(t *testing.T, engine string) {
		const limit, most = 1_000_000, 1_000_000 + 4<<20 // what each connection has in its hands may go over
		r := n.run(t, engine, curls+fmt.Sprintf(`
steps:
- {id: plain, egressAllow: [origin.test], egressMaxBytes: %[1]d, run: 'curl -fsSo /dev/null http://origin.test/?n=900000000 || exit 3'}
- {id: tls, egressAllow: [origin.test], egressMaxBytes: %[1]d, run: 'curl -fsSo /dev/null https://origin.test/?n=900000000 || exit 3'}
- {id: tcp, egressAllow: ['tcp://origin.test:80'], egressMaxBytes: %[1]d, run: 'unset http_proxy HTTP_PROXY; curl -fsSo /dev/null http://origin.test/?n=900000000 || exit 3'}
- {id: after, egressAllow: [origin.test], egressMaxBytes: %[1]d, run: 'curl -fsSo /dev/null http://origin.test/?n=900000000 || curl -fsS http://origin.test/after || exit 3'}
- {id: under, egressAllow: [origin.test], egressMaxBytes: %[1]d, run: 'curl -fsSo /dev/null http://origin.test/?n=900000'}
- {id: free, egressAllow: [origin.test], run: 'curl -fsSo /dev/null http://origin.test/?n=9000000'}
`, limit), nil)
		r.exits(1)
		for _, id := range []string{"plain", "tls", "tcp", "after"} {
			st := r.step(id)
			var in uint64
			for _, e := range st.Egress {
				in += e.BytesIn
			}
			if st.ExitCode == nil || *st.ExitCode != 3 || in < limit/2 || in > most {
				r.errorf("step %s: exit code %v, %d bytes came in, want at most %d and a bit", id, st.ExitCode, in, limit)
			}
			if st.Status != "failed" {
				r.errorf("step %s is %s", id, st.Status)
			}
		}
		if st := r.step("after"); st.Fault == nil || st.Fault.Type != "egress_denied" || !strings.Contains(st.Fault.Message, "max_bytes") {
			r.errorf("a request past the bound: the fault is %+v", st.Fault)
		}
		for id, in := range map[string]uint64{"under": 900_000, "free": 9_000_000} {
			if st := r.step(id); st.Status != "passed" || r.only(id, "origin.test", 80).BytesIn < in {
				r.errorf("step %s: %s, the ledger has %+v", id, st.Reason, st.Egress)
			}
		}
		if slices.Contains(n.good.requests(), "origin.test/after") {
			t.Error("a request past the bound reached the origin")
		}
	})
}

func TestRulesUnusedAndWiderThanTheirUseAreListed(t *testing.T) {
	n := newInternet(t)
	eachEngine(t, func(t *testing.T, engine string) {
		r := n.run(t, engine, curls+`
steps:
- id: one
  egressAllow: [origin.test, '**.origin.test', 'evil.test:443', '*.example.com', 'tcp://db.example.com:5432', {to: lan.internal, private: true}, preset:github]
  run: |
    curl -fsS http://origin.test/ https://www.origin.test/ http://a.origin.test/
`, nil)
		r.exits(0)
		st := r.step("one")
		want := []string{"evil.test:443", "*.example.com", "tcp://db.example.com:5432", `{to: "lan.internal", private: true}`, "preset:github"}
		if diff := cmp.Diff(want, st.Unused); diff != "" {
			r.errorf("unused rules (-want +got):\n%s", diff)
		}
		wide := map[string][]string{}
		for _, f := range st.TooWide {
			wide[f.Rule] = f.Narrower
		}
		if diff := cmp.Diff(map[string][]string{"origin.test": {"origin.test:80"}, "**.origin.test": {"a.origin.test:80", "www.origin.test"}}, wide); diff != "" {
			r.errorf("rules that are too wide (-want +got):\n%s", diff)
		}
		// With what is narrower in their place nothing is left to say.
		narrow := []string{}
		for _, list := range wide {
			narrow = append(narrow, list...)
		}
		again := n.run(t, engine, curls+"steps:\n- id: one\n  run: curl -fsS http://origin.test/ https://www.origin.test/ http://a.origin.test/\n  "+strings.ReplaceAll(list(narrow), "\n", "\n  "), nil)
		again.exits(0)
		if st := again.step("one"); len(st.Unused) > 0 || len(st.TooWide) > 0 {
			again.errorf("of the narrower list, unused %v, too wide %v", st.Unused, st.TooWide)
		}
	})
	n.evil.untouched(t, "the evil server")
}
