package kern

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
)

// TestLiveCancelledWhileItStarts: whenever the cancel comes, it is a cancel and
// nothing else, and nothing is left: no process, no folder.
func TestLiveCancelledWhileItStarts(t *testing.T) {
	boxtest.Need(t, "kern")
	temp := shortDir(t)
	e, err := Open(context.Background(), Options{Getenv: os.Getenv, View: hostView, Temp: temp, Program: static(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	run := make([]byte, 6)
	rand.Read(run)
	m, err := limits.Open(limits.Config{RunID: hex.EncodeToString(run), XDGRuntimeDir: os.Getenv("XDG_RUNTIME_DIR")})
	var refused *limits.Refusal
	if err != nil && !errors.As(err, &refused) {
		t.Fatal(err)
	}
	if err == nil {
		defer m.Close()
	}
	started := 0
	for after := time.Duration(0); after < 45*time.Millisecond; after += 1500 * time.Microsecond {
		g := limits.None()
		if refused == nil {
			if g, err = m.New("cancelled", limits.Caps{MemoryBytes: 128 << 20, Pids: 64}); err != nil {
				t.Fatal(err)
			}
		}
		s := liveSpec(t, "sleep", "20")
		s.MemoryBytes, s.Pids = 128<<20, 64
		ctx, cancel := context.WithCancel(context.Background())
		if after == 0 {
			cancel()
		}
		begun := time.Now()
		time.AfterFunc(after, cancel)
		out := box.Run(ctx, box.Job{Spec: s, Engine: e, Group: g, Stdout: io.Discard, Stderr: io.Discard, MaxOutput: 1 << 20, Started: func() { started++ }})
		cancel()
		if ev := out.Evidence; !ev.Cancelled || ev.Lost != "" || ev.InitKilled {
			t.Errorf("a cancel after %v: %+v", after, ev)
		}
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("a cancel after %v: it took %v", after, took)
		}
		if refused == nil {
			if empty, err := g.Empty(); err != nil || !empty {
				t.Errorf("a cancel after %v: processes are left (%v)", after, err)
			}
			if err := g.Close(); err != nil {
				t.Errorf("a cancel after %v: %v", after, err)
			}
		}
		wantEmpty(t, temp)
	}
	t.Logf("%d steps had begun", started)
}
