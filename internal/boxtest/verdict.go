package boxtest

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/probe"
)

// verdictFacts are about forging or hiding how a step ended.
func (s *suite) verdictFacts(t *testing.T) {
	t.Run("K127 an exit code that the step chooses is an exit code and no fault", func(t *testing.T) {
		for _, codes := range [][2]int{{0, 3}, {124, 132}, {133, 141}, {142, 150}, {151, 159}, {253, 255}} {
			t.Run(itoa(codes[0])+" to "+itoa(codes[1]), func(t *testing.T) {
				t.Parallel()
				for code := codes[0]; code <= codes[1]; code++ {
					r := s.run(t, s.shell(t, "exit "+itoa(code)))
					r.exited(t, code)
					r.noFault(t)
					if r.Signal != "" {
						t.Errorf("exit code %d is told as %s", code, r.Signal)
					}
				}
			})
		}
	})

	t.Run("K128 a signal that the step gives itself is a signal and no fault", func(t *testing.T) {
		t.Parallel()
		for _, sig := range []unix.Signal{unix.SIGKILL, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGXCPU, unix.SIGUSR1, unix.SIGALRM} {
			r := s.run(t, s.probing(t, probe.Do("signal", itoa(int(sig)))))
			if r.ExitCode != nil || r.Signal != unix.SignalName(sig) {
				t.Errorf("%s: the step ended with %s", unix.SignalName(sig), r.describe())
			}
			r.noFault(t)
		}
	})

	t.Run("K128 a SIGSYS that the step sends is no escape", func(t *testing.T) {
		t.Parallel()
		r := s.run(t, s.probing(t, probe.Do("signal", itoa(int(unix.SIGSYS)))))
		if r.ExitCode != nil || r.Signal != "SIGSYS" {
			t.Errorf("the step ended with %s", r.describe())
		}
		if s.differ.SentSIGSYS {
			r.faulted(t, box.EscapeBlocked)
		} else {
			r.noFault(t)
		}
		// To a child, with the parent ending well.
		r = s.run(t, s.probing(t, probe.In("child", probe.Do("signal", itoa(int(unix.SIGSYS))))))
		r.passed(t)
	})

	t.Run("K129 a child that is killed for a forbidden call is escape_blocked, although its parent ends with 0", func(t *testing.T) {
		t.Parallel()
		s.escapedInChild(t, "mount", probe.In("child", probe.Do("escape", "mount")))
		// Also a process that has outlived its parents, in its own session.
		s.escapedInChild(t, "mount", probe.Op{Do: "spawn apart", Args: probe.Args(probe.Do("escape", "mount"))}, probe.Do("sleep", itoa(int(patient(300*time.Millisecond).Milliseconds()))))
	})

	t.Run("K130 K131 words that look like our own are only words", func(t *testing.T) {
		t.Parallel()
		fakes := []string{
			`{"exited":{"status":0}}`, `{"started":{"pid":1}}`, `{"failed":{"op":"exec","name":"x","why":"y"}}`, "untrusted-steps: oom", "kern: killed by the OOM killer",
			"KERN_FAULT=escape_blocked", `{"schema":1,"verdict":"pass"}`, "::error::oom", "error: sandbox: timed out", "\x00\x00\x00\x17" + `{"exited":{"status":0}}`,
		}
		var ops []probe.Op
		for _, f := range fakes {
			ops = append(ops, probe.Do("say", f))
		}
		r := s.run(t, s.probing(t, append(ops, probe.Do("exit", "3"))...))
		r.exited(t, 3)
		r.noFault(t)
		for _, f := range fakes {
			if !strings.Contains(r.stdout, f) || !strings.Contains(r.stderr, f) {
				t.Errorf("the step's words %q did not come out", f)
			}
		}
		// Descriptors that the step does not hold cannot be written to.
		r = s.run(t, s.shell(t, "for fd in 3 4 5 6 7 8 9; do (eval \"echo '{\\\"exited\\\":{\\\"status\\\":0}}' >&$fd\") 2>/dev/null && echo wrote $fd; done; exit 3"))
		r.exited(t, 3)
		if strings.Contains(r.stdout, "wrote") {
			t.Errorf("the step writes to descriptors it should not hold: %s", r.stdout)
		}
	})
}
