package egress_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
)

// sshOptions is how git and ssh are told of the test's keys; nothing in it is about
// the way out.
const sshOptions = "-F none -i /workspace/client -o UserKnownHostsFile=/workspace/known -o IdentitiesOnly=yes -o BatchMode=yes -o ConnectTimeout=10"

func (s *servers) commands() map[string]string {
	clone := func(at string) string {
		return fmt.Sprintf(`export GIT_SSH_COMMAND="ssh %s"; rm -rf /tmp/clone; git clone -q ssh://%s@%s%s /tmp/clone; git -C /tmp/clone rev-parse HEAD; cat /tmp/clone/hello.txt`, sshOptions, s.as.name, at, s.repository)
	}
	return map[string]string{
		"clone-22":   clone("git.internal"),
		"clone-2222": clone("localhost:2222"),
		"ssh":        fmt.Sprintf("head -c 200000 /dev/zero > /tmp/in; ssh %s -p 2222 %s@127.0.0.1 'wc -c; head -c 300000 /dev/zero' < /tmp/in > /tmp/out; head -n 1 /tmp/out", sshOptions, s.as.name),
		"psql":       `psql -h db.internal -U tester -d postgres -Atc "select 6*7, repeat('x', 5)"`,
		"redis":      `redis-cli -h cache.internal set key value; redis-cli -h cache.internal get key`,
		"redis-lan":  `redis-cli -h lan.internal ping`,
		"redis-addr": `redis-cli -h 10.77.0.5 ping`,
	}
}

// tcpSteps are the commands by what they reach.
var tcpSteps = []struct {
	id, host string
	port     int
	protocol string
}{
	{"clone-22", "git.internal", 22, "tcp/ssh"},
	{"clone-2222", "localhost", 2222, "tcp/ssh"},
	{"ssh", "127.0.0.1", 2222, "tcp/ssh"},
	{"psql", "db.internal", 5432, "tcp/postgres"},
	{"redis", "cache.internal", 6379, "tcp/redis"},
	{"redis-lan", "lan.internal", 6379, "tcp/redis"},
	{"redis-addr", "10.77.0.5", 6379, "tcp/redis"},
}

// steps writes a steps file in which each command has the list that allow gives.
func (s *servers) steps(defaults string, allow func(host string, port int) string) string {
	var b strings.Builder
	b.WriteString("version: 1\ndefaults: {timeoutS: 20, memoryMb: 768" + defaults + "}\nsteps:\n")
	for _, c := range tcpSteps {
		fmt.Fprintf(&b, "- id: %s\n  run: %q\n", c.id, s.commands()[c.id])
		if a := allow(c.host, c.port); a != "" {
			fmt.Fprintf(&b, "  egressAllow: [%s]\n", a)
		}
	}
	return b.String()
}

func private(host string, port int) string {
	return fmt.Sprintf(`{to: "tcp://%s:%d", private: true}`, host, port)
}

func TestUnchangedClientsReachRealServersThroughTCPRules(t *testing.T) {
	s := newServers(t)
	eachEngine(t, func(t *testing.T, engine string) {
		before := s.reached(t)
		r := start(t, job{engine: engine, lab: s.lab, files: s.sshFiles, steps: s.steps("", private)})
		r.exits(0)
		s.arrived(t, r, before)
	})
}

// arrived holds a run of every command against what the servers know.
func (s *servers) arrived(t *testing.T, r *run, before reached) {
	t.Helper()
	says := map[string]string{
		"clone-22": s.commit + "\n" + strings.TrimSpace(s.payload), "clone-2222": s.commit + "\n" + strings.TrimSpace(s.payload),
		"ssh": "200000", "psql": "42|xxxxx", "redis": "OK\nvalue", "redis-lan": "PONG", "redis-addr": "PONG",
	}
	logged := map[string]int{}
	for _, l := range r.lines() {
		logged[l.Step]++
		if !l.Private || l.Verdict != "allowed" || l.Address != "127.0.0.1" && l.Address != "10.77.0.5" || l.First.IsZero() || l.Last.Before(l.First) {
			r.errorf("egress.jsonl: %+v", l)
		}
	}
	for _, c := range tcpSteps {
		if got := r.stdout(c.id); got != says[c.id] {
			r.errorf("step %s says %q, want %q", c.id, got, says[c.id])
		}
		got := r.only(c.id, c.host, c.port)
		want := connection{Host: c.host, Port: c.port, Protocol: c.protocol, Verdict: "allowed", Reason: "private",
			Rule: fmt.Sprintf("tcp://%s:%d", c.host, c.port), Count: 1, BytesIn: got.BytesIn, BytesOut: got.BytesOut}
		if c.id == "redis" {
			want.Count = 2
		}
		if got != want || got.BytesIn == 0 || got.BytesOut == 0 {
			r.errorf("step %s: the ledger has %+v, want %+v with bytes both ways", c.id, got, want)
		}
		if logged[c.id] != int(want.Count) {
			r.errorf("step %s: egress.jsonl has %d lines, want %d", c.id, logged[c.id], want.Count)
		}
		if st := r.step(c.id); len(st.Unused) > 0 || len(st.TooWide) > 0 || st.Network != "allowlist" {
			r.errorf("step %s: unused %v, too wide %v, network %s", c.id, st.Unused, st.TooWide, st.Network)
		}
	}
	if c := r.only("ssh", "127.0.0.1", 2222); c.BytesOut < 200000 || c.BytesIn < 300000 {
		r.errorf("200,000 bytes went out by ssh and 300,000 came in; the ledger has %d out and %d in", c.BytesOut, c.BytesIn)
	}
	after := s.reached(t)
	if got, want := (reached{after.ssh - before.ssh, after.pg - before.pg, after.redis - before.redis}), (reached{3, 1, len(tcpSteps) - 3}); got != want {
		r.errorf("the servers count %+v connections, want %+v", got, want)
	}
}

func TestAStepWithoutTheRuleReachesNoServer(t *testing.T) {
	s := newServers(t)
	eachEngine(t, func(t *testing.T, engine string) {
		before := s.reached(t)
		for _, c := range []struct {
			name  string
			allow func(host string, port int) string
		}{
			{"no list", func(string, int) string { return "" }},
			{"a list of another host", func(string, int) string { return "origin.test" }},
			{"another port of the host", func(host string, port int) string { return private(host, port+1) }},
			{"the name without tcp://", func(host string, port int) string {
				if strings.Contains(host, "10.77") || strings.Contains(host, "127.0") {
					return "origin.test"
				}
				return fmt.Sprintf(`{to: "%s:%d", private: true}`, host, port)
			}},
		} {
			r := start(t, job{engine: engine, lab: s.lab, files: s.sshFiles, steps: s.steps("", c.allow)})
			r.exits(1)
			for _, st := range r.Steps {
				if st.Status != "failed" || st.ExitCode == nil || *st.ExitCode == 0 {
					r.errorf("%s: step %s is %s: %s", c.name, st.ID, st.Status, st.Reason)
				}
				// Nothing got as far as the proxy: what has no listener is not there.
				if len(st.Egress) > 0 {
					r.errorf("%s: step %s: the ledger has %+v", c.name, st.ID, st.Egress)
				}
			}
			if got := r.lines(); len(got) > 0 {
				r.errorf("%s: egress.jsonl has %+v", c.name, got)
			}
		}
		if after := s.reached(t); after != before {
			t.Errorf("the servers were reached: %+v, before %+v", after, before)
		}
	})
}

func TestAPrivateAddressWithoutTheMarkerIsDenied(t *testing.T) {
	s := newServers(t)
	eachEngine(t, func(t *testing.T, engine string) {
		before := s.reached(t)
		named := func(host string, port int) string {
			if host == "127.0.0.1" || host == "10.77.0.5" {
				return "origin.test" // such a rule is not accepted, see below
			}
			return fmt.Sprintf(`"tcp://%s:%d"`, host, port)
		}
		r := start(t, job{engine: engine, lab: s.lab, files: s.sshFiles, steps: s.steps("", named)})
		r.exits(1)
		for _, c := range tcpSteps {
			if named(c.host, c.port) == "origin.test" {
				continue
			}
			st := r.step(c.id)
			if st.Fault == nil || st.Fault.Type != "egress_denied" || !strings.Contains(st.Fault.Message, c.host) || !strings.Contains(st.Fault.Message, "non_public") {
				r.errorf("step %s: the fault is %+v", c.id, st.Fault)
			}
			if got := r.only(c.id, c.host, c.port); got.Verdict != "denied" || got.Reason != "non_public" || got.BytesIn+got.BytesOut > 0 {
				r.errorf("step %s: the ledger has %+v", c.id, got)
			}
		}
		if after := s.reached(t); after != before {
			t.Errorf("the servers were reached: %+v, before %+v", after, before)
		}
	})
	for _, rule := range []string{"tcp://127.0.0.1:2222", "tcp://10.77.0.5:6379"} {
		out, code := check(t, "steps: [{run: 'true', egressAllow: ['"+rule+"']}]")
		if code != 2 || !strings.Contains(out, "private: true") {
			t.Errorf("check of %s without private: exit status %d: %s", rule, code, out)
		}
	}
}

func TestADenyRuleWinsOverATCPRule(t *testing.T) {
	s := newServers(t)
	eachEngine(t, func(t *testing.T, engine string) {
		before := s.reached(t)
		r := start(t, job{engine: engine, lab: s.lab, files: s.sshFiles, steps: s.steps(", egressDeny: [git.internal, 'localhost:2222', 'tcp://127.0.0.1:2222', db.internal, '**.internal', 10.77.0.5]", private)})
		r.exits(1)
		for _, c := range tcpSteps {
			got := r.only(c.id, c.host, c.port)
			if got.Verdict != "denied" || got.Reason != "deny_rule" {
				r.errorf("step %s: the ledger has %+v", c.id, got)
			}
		}
		if after := s.reached(t); after != before {
			t.Errorf("the servers were reached: %+v, before %+v", after, before)
		}
	})
}

// A normal user's box has no capability on the host, and yet ports below 1024.
func TestANormalUsersStepReachesALowPort(t *testing.T) {
	s := newServers(t)
	eachEngine(t, func(t *testing.T, engine string) {
		before := s.reached(t)
		r := start(t, job{engine: engine, lab: s.lab, files: s.sshFiles, uid: 61_234, steps: s.steps(", requireLimits: false", private)})
		r.exits(0)
		s.arrived(t, r, before)
	})
}

// check runs `untrusted-steps check` on a text.
func check(t *testing.T, text string) (out string, code int) {
	t.Helper()
	file := filepath.Join(boxtest.OpenDir(t), "steps.yml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return output(t, program, "check", file)
}
