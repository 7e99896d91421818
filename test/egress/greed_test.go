package egress_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// holds opens ten thousand connections, or as many at a time as the box may, and
// keeps them while another program of ours runs a box beside it.
const holds = `import resource, socket, os, time
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
room = hard - 64
held = []
for i in range(%d):
    held.append(socket.create_connection(("127.0.0.1", 3128)))
    if len(held) > room:
        held.pop(-2).close()
open("/tell/begun", "w").close()
end = time.time() + 60
while not os.path.exists("/tell/go"):
    if time.time() > end: raise SystemExit("nobody let go")
    time.sleep(0.02)
silent = 0
for s in held:
    s.settimeout(0.002)
    try: s.recv(12)
    except TimeoutError: silent += 1
    except OSError: pass
print(len(held), silent)`

// Attack 45, with the program as it is: its memory is bounded, and neither a
// later step nor another run sees anything of it.
func TestAttack45TenThousandIdleConnectionsOfAStepCostABoundedAmount(t *testing.T) {
	const many, most = 10_000, 96 << 20
	n := newInternet(t)
	eachEngine(t, func(t *testing.T, engine string) {
		fetch := "steps:\n- {id: fetch, egressAllow: [origin.test], run: 'curl -fsS -m 10 http://origin.test/'}\n"
		r := n.run(t, engine, fmt.Sprintf("steps:\n- {id: holds, language: python, timeoutS: 120, mounts: {TELL: /tell}, egressAllow: [origin.test], run: %s}\n- {id: next, egressAllow: [origin.test], run: 'curl -fsS -m 10 http://origin.test/'}\n",
			quoted(fmt.Sprintf(holds, many))), func(tell string) {
			await(t, tell+"/begun")
			other := n.run(t, engine, fetch, nil)
			other.exits(0)
			if got := other.stdout("fetch"); got != "hello from origin.test" {
				other.errorf("another run beside it got %q", got)
			}
			touch(t, tell+"/go")
		})
		r.exits(0)
		held, silent, ok := strings.Cut(r.stdout("holds"), " ")
		h, err1 := strconv.Atoi(held)
		kept, err2 := strconv.Atoi(silent)
		if !ok || err1 != nil || err2 != nil {
			r.fatalf("the step says %q, %q", r.stdout("holds"), r.stderr("holds"))
		}
		if h < many {
			t.Logf("the box may have so few descriptors that it held %d of %d at a time", h, many)
		}
		if kept < 1 || kept > 1024 {
			r.errorf("of %d connections held, %d were served; want 1024 at most", h, kept)
		}
		var refused uint64
		for _, e := range r.step("holds").Egress {
			if e.Verdict == "failed" && e.Reason == "overload" {
				refused += e.Count
			}
		}
		// Who says nothing is let go after ten seconds, which makes room for others.
		if refused < many/2 {
			r.errorf("the ledger counts %d that were turned away, of %d", refused, many)
		}
		if got := r.stdout("next"); got != "hello from origin.test" {
			r.errorf("the next step got %q", got)
		}
		if r.peak > most {
			r.errorf("the run took %d MiB at its peak, want %d at most", r.peak>>20, most>>20)
		}
		t.Logf("%d held, %d served, %d turned away in all, %d MiB at the peak of the largest process of the run", h, kept, refused, r.peak>>20)
	})
}
