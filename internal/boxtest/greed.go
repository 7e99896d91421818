package boxtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/probe"
)

// greedFacts are about a step that wants more of the proxy than its share.
func (s *suite) greedFacts(t *testing.T) {
	t.Run("C45 a head of one byte a second is cut off, and costs its own connection only", func(t *testing.T) {
		t.Parallel()
		const given = 3 * time.Second
		w := newWorld(t, "good.test")
		w.proxy.HeadTimeout = given
		r := s.asking(t, w, probe.Do("drip and ask", proxyAddr, request("good.test", "/slow-head"), "1000", request("good.test", "/beside")))
		a := r.answers(t, 1)
		if !strings.HasPrefix(a[0].Text, "HTTP/1.1 400 ") || a[0].N < given.Milliseconds()-100 || a[0].N > 20_000 {
			t.Errorf("the slow head, which had %v: %s", given, tell(a[0]))
		}
		if len(a[0].List) == 0 {
			t.Error("control: nothing was asked beside it")
		}
		for _, line := range a[0].List {
			if line != "HTTP/1.1 200 OK" {
				t.Errorf("beside it, on another connection: %q", line)
			}
		}
		if got := w.count(""); fmt.Sprint(got) != "map[failed:bad_request:1]" {
			t.Errorf("the ledger has %v of the slow head", got)
		}
		for _, path := range w.good.requests() {
			if path != "good.test/beside" {
				t.Errorf("the origin was asked for %s", path)
			}
		}
	})

	t.Run("C45 ten thousand idle connections of a box leave another box its network", func(t *testing.T) {
		t.Parallel()
		const many = 10_000
		w := newWorld(t, "good.test")
		w.proxy.HeadTimeout = patient(5 * time.Minute) // nobody is let go for being slow
		sync := OpenDir(t)
		j := s.probing(t, probe.Do("hold many", proxyAddr, strconv.Itoa(many), "/sync/go"))
		j.Network, j.proxy, j.TimeoutS = box.NetworkAllowlist, w.proxy, patient(90*time.Second).Seconds()
		j.Mounts = append(j.Mounts, box.Mount{Source: sync, Target: "/sync", ReadOnly: true})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			// The other box: in the same process, while the first one holds all it can get.
			for end := time.Now().Add(patient(60 * time.Second)); w.count("")["failed:overload"] < 100; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					t.Error("control: nobody was turned away")
					break
				}
			}
			other := newWorld(t, "good.test")
			q := s.probing(t, get("good.test", "/a"), get("good.test", "/b"))
			q.Network, q.proxy = box.NetworkAllowlist, other.proxy
			r := s.run(t, q)
			if strings.Count(r.stdout, "200 OK") != 2 || r.Fault != nil {
				t.Errorf("the other box: %s", r.describe())
			}
			if err := os.WriteFile(filepath.Join(sync, "go"), nil, 0o644); err != nil {
				t.Error(err)
			}
		}()
		r := s.run(t, j)
		<-ended
		a := r.answers(t, 1)
		if len(a[0].List) != 2 || a[0].N != many {
			t.Fatalf("the box opened %s, want %d", tell(a[0]), many)
		}
		held, _ := strconv.Atoi(a[0].List[0])
		away, _ := strconv.Atoi(a[0].List[1])
		if held < many {
			t.Logf("the box may have %d descriptors, so it held %d connections of %d at a time", held+64, held, many)
		}
		served := many - int(w.count("")["failed:overload"])
		if served < 1 || served > maxServed || away < held-served {
			t.Errorf("%d were served at a time and %d of %d held ones turned away, want at most %d and all the others", served, away, held, maxServed)
		}
	})

	t.Run("C46 an endless answer ends at egressMaxBytes", func(t *testing.T) {
		t.Parallel()
		const most = 2 * mib
		w := newWorld(t, "good.test")
		w.proxy.MaxBytes = most
		r := s.asking(t, w, probe.Do("drain", proxyAddr, request("good.test", "/endless")), get("good.test", "/after"))
		r.exited(t, 0)
		r.faulted(t, box.EgressDenied)
		a := parse(t, r.stdout)
		if !a[0].OK() || a[0].N < most/2 || a[0].N > most+64<<10 {
			t.Errorf("the box got %s of it, want about %d bytes", tell(a[0]), most)
		}
		if !strings.HasPrefix(a[1].Text, "HTTP/1.1 403 ") || !strings.Contains(a[1].Text, "max_bytes") {
			t.Errorf("a request afterwards: %s", tell(a[1]))
		}
		if got := w.count("good.test"); got["denied:max_bytes"] != 2 {
			t.Errorf("the ledger has %v", got)
		}
		w = newWorld(t, "good.test")
		w.proxy.MaxBytes = most
		if a := s.asking(t, w, get("good.test", "/small"), get("good.test", "/after")).answers(t, 2); !strings.Contains(a[1].Text, "200 OK") {
			t.Errorf("control: a box that stays below: %s", tell(a[1]))
		}
	})
}

// maxServed is how many connections of one step are served at a time.
const maxServed = 1024
