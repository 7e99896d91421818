package egress_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEveryOneOf2000DenialsIsCountedAlsoThoseOfTheLastMoment(t *testing.T) {
	// Nobody waits for an answer, and the step ends right after the last.
	const flood = `import os, socket
held = []
def ask(host):
    s = socket.create_connection(("127.0.0.1", 3128))
    s.sendall(("CONNECT %s:443 HTTP/1.1\r\nHost: %s:443\r\n\r\n" % (host, host)).encode())
    held.append(s)
    if len(held) > 200:
        held.pop(0).close()
for i in range(500):
    ask("same.evil.test")
    ask("n%d.evil.test" % i)
if os.fork() == 0:
    for i in range(500):
        ask("child.evil.test")
        ask("c%d.evil.test" % i)
    os._exit(0)
os.wait()
os._exit(0)`
	n := newInternet(t)
	eachEngine(t, func(t *testing.T, engine string) {
		r := n.run(t, engine, "steps:\n- {id: flood, language: python, egressAllow: [origin.test], run: "+quoted(flood)+"}\n", nil)
		r.exits(1)
		st := r.step("flood")
		hosts := map[string]uint64{}
		var total uint64
		for _, e := range st.Egress {
			if e.Verdict != "denied" || e.Reason != "no_rule" {
				r.fatalf("the ledger has %+v", e)
			}
			hosts[e.Host] += e.Count
			total += e.Count
		}
		if total != 2000 || len(hosts) != 1002 || hosts["same.evil.test"] != 500 || hosts["child.evil.test"] != 500 || hosts["c499.evil.test"] != 1 {
			r.errorf("the ledger counts %d denials of %d hosts, want 2000 of 1002", total, len(hosts))
		}
		lines := map[string]uint64{}
		for _, l := range r.lines() {
			if l.Step != "flood" || l.Verdict != "denied" {
				r.fatalf("egress.jsonl has %+v", l)
			}
			lines[l.Host]++
		}
		if diff := cmp.Diff(hosts, lines); diff != "" {
			r.errorf("report.json and egress.jsonl disagree (-report +jsonl):\n%.2000s", diff)
		}
		var events uint64
		for _, e := range st.Events {
			events += e.Count
		}
		if st.Fault == nil || st.Fault.Type != "egress_denied" || events != 2000 {
			r.errorf("fault %+v, %d events, want egress_denied and 2000", st.Fault, events)
		}
	})
}
