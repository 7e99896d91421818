package boxtest

import (
	"strings"
	"testing"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/probe"
)

// maxArg is the longest argument, or variable with its name, that the kernel takes,
// without the zero byte at its end.
const maxArg = 128<<10 - 1

// publishedFacts are what kern publishes of its boxes that no other group has.
// docs/kern-sandbox.md lists all of it, with the fact or test that holds each.
func (s *suite) publishedFacts(t *testing.T) {
	t.Run("an argument as long as the kernel takes arrives whole, a longer one is exec_failed", func(t *testing.T) {
		t.Parallel()
		long := strings.Repeat("x", maxArg)
		r := s.run(t, s.spec(t, "sh", "-c", `echo "${#1}"`, "sh", long))
		r.passed(t)
		if r.stdout != itoa(maxArg)+"\n" {
			t.Errorf("%s", r.describe())
		}
		s.run(t, s.spec(t, "true", long+"x")).faulted(t, box.ExecFailed)
	})

	t.Run("a variable as long as the kernel takes arrives whole, a longer one is exec_failed", func(t *testing.T) {
		t.Parallel()
		j := s.shell(t, `echo "${#A}"`)
		j.Env = append(j.Env, "A="+strings.Repeat("x", maxArg-len("A=")))
		r := s.run(t, j)
		r.passed(t)
		if r.stdout != itoa(maxArg-len("A="))+"\n" {
			t.Errorf("%s", r.describe())
		}
		j = s.shell(t, "true")
		j.Env = append(j.Env, "A="+strings.Repeat("x", maxArg-len("A=")+1))
		s.run(t, j).faulted(t, box.ExecFailed)
	})

	t.Run("a variable arrives as it is: blanks, line breaks, quotes and signs", func(t *testing.T) {
		t.Parallel()
		values := map[string]string{"TRAIL": "a \t ", "LEAD": "  a", "LINES": "a\nB=b\n\n", "QUOTED": `"a" 'b'`, "HASH": "#a", "WIDE": "a\u00a0\u3000", "EMPTY": "", "EQUALS": "a=b=", "RETURN": "a\r"}
		var names []string
		j := s.shell(t, "")
		for name, value := range values {
			names = append(names, name)
			j.Env = append(j.Env, name+"="+value)
		}
		j.Argv = append([]string{"sh", "-c", `for n; do eval "printf '%s:[%s]\n' $n \"\$$n\""; done`, "sh"}, names...)
		r := s.run(t, j)
		r.passed(t)
		for name, value := range values {
			if !strings.Contains(r.stdout, name+":["+value+"]\n") {
				t.Errorf("%s is not %q: %s", name, value, r.describe())
			}
		}
	})

	t.Run("a process that goes on in the background does not hold up the end, nor the output", func(t *testing.T) {
		t.Parallel()
		r := s.run(t, s.shell(t, "sleep 25 & (sleep 25; echo late) & echo out; exit 3"))
		r.exited(t, 3)
		r.noFault(t)
		if r.stdout != "out\n" || r.took > patient(20*time.Second) {
			t.Errorf("after %v: %s", r.took, r.describe())
		}
	})

	t.Run("K130 a failure that prints the runtime's own words, and nothing else, is the step's", func(t *testing.T) {
		t.Parallel()
		for code, words := range map[int]string{
			1: "error: sandbox: unprivileged user namespaces are unavailable", 125: "kern: sandbox setup failed: mount", 126: "kern: cannot start 'sh' in box: Permission denied",
			127: "kern: cannot start 'sh' in box: No such file or directory", 137: "kern: the box ran out of memory and was OOM-killed", 159: "kern: seccomp",
		} {
			r := s.run(t, s.spec(t, "sh", "-c", `echo "$1" >&2; exit "$2"`, "sh", words, itoa(code)))
			r.exited(t, code)
			r.noFault(t)
			if r.stderr != words+"\n" {
				t.Errorf("%d: %s", code, r.describe())
			}
		}
	})

	t.Run("a file of the workspace can be given to nobody else", func(t *testing.T) {
		t.Parallel()
		j := s.probing(t, probe.Do("chown", "mine", "5", "5"), probe.Do("chown", "mine", "0", "0"))
		put(t, j.Workspace, "mine", "", 0o600)
		a := s.run(t, j).answers(t, 2)
		refused(t, "give it to uid 5", a[0])
		works(t, "give it to oneself", a[1])
	})
}
