package steps

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

func TestHints(t *testing.T) {
	const words = "curl: (6) Could not resolve host: packages.example.com\n"
	code := func(n int) *int { return &n }
	timeout, oom := &box.Fault{Type: box.Timeout}, &box.Fault{Type: box.OOM}
	unresolved := func(hosts ...string) (list []EgressRecord) {
		for _, h := range hosts {
			list = append(list, EgressRecord{Host: h, Port: 443, Verdict: "failed", Reason: "resolve", Count: 1})
		}
		return list
	}
	for _, tc := range []struct {
		sentence string
		step     PlanStep
		result   StepResult
		noRoute  uint64
		want     []string
	}{
		{"a step that passed gets none", PlanStep{}, StepResult{Status: StatusPassed, Network: "none", ExitCode: code(0), Tail: words}, 0, nil},
		{"an exit code alone says nothing of a network", PlanStep{}, StepResult{Status: StatusFailed, Network: "none", ExitCode: code(1), Tail: "No module named 'app'\n"}, 0, nil},
		{"nor does a deadline", PlanStep{}, StepResult{Status: StatusFailed, Network: "none", Fault: timeout}, 0, nil},
		{"nor a refused connection, which is to the box itself", PlanStep{}, StepResult{Status: StatusFailed, Network: "none", ExitCode: code(1), Tail: "connect: ECONNREFUSED 127.0.0.1:5432: Connection refused\n"}, 0, nil},
		{"an exit code, and words about a network", PlanStep{}, StepResult{Status: StatusFailed, Network: "none", ExitCode: code(1), Tail: words}, 0, []string{hintNoNetwork}},
		{"a deadline, and words", PlanStep{}, StepResult{Status: StatusFailed, Network: "none", Fault: timeout, Tail: words}, 0, []string{hintNoNetwork}},
		{"an exit code, and what the kernel counted", PlanStep{}, StepResult{Status: StatusFailed, Network: "none", ExitCode: code(1)}, 2,
			[]string{hintNoNetwork, "the kernel counted 2 attempts to reach an address, without a network to do so; which, it does not say"}},
		{"what went past the proxy of a step that passed", PlanStep{}, StepResult{Status: StatusPassed, Network: "allowlist", ExitCode: code(0)}, 1,
			[]string{"the kernel counted an attempt to reach an address past the proxy, where there is no way; which, it does not say"}},
		{"and of one without a network", PlanStep{}, StepResult{Status: StatusPassed, Network: "none", ExitCode: code(0)}, 1,
			[]string{"the kernel counted an attempt to reach an address, without a network to do so; which, it does not say"}},
		{"another fault has another cause", PlanStep{}, StepResult{Status: StatusFailed, Network: "none", Fault: oom, ExitCode: code(1), Tail: words}, 0, nil},
		{"a violation too", PlanStep{}, StepResult{Status: StatusFailed, Network: "none", ExitCode: code(1), Violations: []Violation{{}}, Tail: words}, 0, nil},
		{"a command that is not there too", PlanStep{}, StepResult{Status: StatusFailed, Network: "none", ExitCode: code(127), Tail: words}, 0, nil},
		{"exit code 0 where another was expected needed none", PlanStep{}, StepResult{Status: StatusFailed, Network: "none", ExitCode: code(0), Tail: words}, 0, nil},
		{"an expected failure is none", PlanStep{}, StepResult{Status: StatusPassed, Network: "none", ExitCode: code(1), Tail: words}, 0, nil},
		{"what has no verdict has no cause we know", PlanStep{}, StepResult{Status: StatusError, Network: "none", ExitCode: code(1), Tail: words}, 0, nil},
		{"the host's own network is one", PlanStep{}, StepResult{Status: StatusFailed, Network: "host", ExitCode: code(1), Tail: words}, 0, nil},
		{"rules that nothing asked, and no word of a network", PlanStep{}, StepResult{Status: StatusFailed, Network: "allowlist", ExitCode: code(1)}, 0, nil},
		{"rules that nothing asked", PlanStep{}, StepResult{Status: StatusFailed, Network: "allowlist", ExitCode: code(1), Tail: words}, 0, []string{hintNoProxy}},
		{"and a deadline", PlanStep{}, StepResult{Status: StatusFailed, Network: "allowlist", Fault: timeout, Tail: words}, 0, []string{hintNoProxy}},
		{"rules that nothing had to ask", PlanStep{}, StepResult{Status: StatusPassed, Network: "allowlist", ExitCode: code(0)}, 0, nil},
		{"a proxy that was reached", PlanStep{}, StepResult{Status: StatusFailed, Network: "allowlist", ExitCode: code(1), Tail: words, Egress: []EgressRecord{{Host: "a.b", Verdict: "allowed"}}}, 0, nil},
		{"pip's word that it installs nothing here", PlanStep{}, StepResult{Status: StatusFailed, Network: "none", ExitCode: code(1), Tail: "error: externally-managed-environment\n\nhint: See PEP 668\n"}, 0, []string{hintManaged}},
		{"in a setup that is not what is missing", PlanStep{Setup: "pip install x"}, StepResult{Status: StatusFailed, Network: "none", ExitCode: code(1), Tail: "error: externally-managed-environment\n"}, 0, nil},
		{"nor where the step passed", PlanStep{}, StepResult{Status: StatusPassed, Network: "none", ExitCode: code(0), Tail: "error: externally-managed-environment\n"}, 0, nil},
		{"names that did not resolve, each once, whatever became of the step", PlanStep{}, StepResult{Status: StatusPassed, Network: "allowlist", ExitCode: code(0), Egress: unresolved("a.b", "a.b", "c.d")}, 0, []string{"a.b, c.d did not resolve on this host"}},
		{"a few of many", PlanStep{}, StepResult{Status: StatusPassed, Egress: unresolved("a", "b", "c", "d", "e", "f", "g", "(others)")}, 0, []string{"a, b, c, d, e and 2 more did not resolve on this host"}},
		{"a name that would pass for words of ours", PlanStep{}, StepResult{Status: StatusPassed, Egress: unresolved("a\n::error::b")}, 0, []string{inert("a\n::error::b") + " did not resolve on this host"}},
		{"variables that the caller does not have", PlanStep{PassEnv: []string{"A", "B", "C"}}, StepResult{Status: StatusPassed, PassedEnv: []string{"B"}}, 0, []string{"passEnv: not in the caller's environment, so the step did not have it: A, C"}},
		{"variables that are all there", PlanStep{PassEnv: []string{"A"}}, StepResult{Status: StatusPassed, PassedEnv: []string{"A"}}, 0, nil},
	} {
		if diff := cmp.Diff(tc.want, hints(tc.step, &tc.result, box.Outcome{NoRoute: tc.noRoute})); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tc.sentence, diff)
		}
	}
}

func TestAFullPlaceInMemoryIsNamedWithTheLineToWrite(t *testing.T) {
	s := PlanStep{ShmBytes: 1 << 20, Tmpfs: []box.Tmpfs{{Target: "/tmp", Bytes: 64 << 20}, {Target: "/x\n::error::y", Bytes: 3<<20 + 1}}}
	got := hints(s, &StepResult{Status: StatusPassed, Network: "none"}, box.Outcome{Full: []box.FullTmpfs{{Target: "/tmp"}, {Target: "/dev/shm"}, {Target: s.Tmpfs[1].Target, Files: true}}})
	odd := inert(s.Tmpfs[1].Target)
	want := []string{
		"/tmp was full: all of its 64 MiB were in use when the step ended; to allow more, write tmpfs: {/tmp: 128m}, which counts as memory (memoryMb)",
		"/dev/shm was full: all of its 1 MiB were in use when the step ended; to allow more, write tmpfs: {/dev/shm: 2m}, which counts as memory (memoryMb)",
		odd + " was full: there was no room for one more file in its 4 MiB when the step ended; to allow more, write tmpfs: {" + odd + ": 8m}, which counts as memory (memoryMb)",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestProgramsOfASetupAreNotOnPath(t *testing.T) {
	n, one := 127, 1
	const said = "/step/script.sh: 1: pytest: not found\n"
	made := &layer{changes: []workspace.Change{{Path: ".deps/bin"}, {Path: ".deps/bin/pytest"}, {Path: ".deps/pytest/main.py"}}}
	failed := StepResult{Status: StatusFailed, ExitCode: &n, Tail: said}
	for _, tc := range []struct {
		sentence string
		result   StepResult
		over     *layer
		want     string
	}{
		{"one that the shell names", failed, made, "programs of .deps/bin are not on PATH: write python3 -m pytest, or .deps/bin/pytest"},
		{"one that nobody names", StepResult{Status: StatusFailed, ExitCode: &n}, made, "programs of .deps/bin are not on PATH: write python3 -m NAME, or .deps/bin/NAME"},
		{"another command", StepResult{Status: StatusFailed, ExitCode: &n, Tail: "/step/script.sh: 1: node: not found\n"}, made, ""},
		{"no setup", failed, nil, ""},
		{"a setup without programs", failed, &layer{changes: []workspace.Change{{Path: ".deps/pytest/main.py"}}}, ""},
		{"another exit code", StepResult{Status: StatusFailed, ExitCode: &one, Tail: said}, made, ""},
		{"an exit code that was expected", StepResult{Status: StatusPassed, ExitCode: &n, Tail: said}, made, ""},
		{"a fault", StepResult{Status: StatusFailed, ExitCode: &n, Fault: &box.Fault{Type: box.OOM}, Tail: said}, made, ""},
	} {
		if got := depsPrograms(PlanStep{Language: "sh"}, &tc.result, tc.over); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.sentence, got, tc.want)
		}
	}
}

func TestWordsAboutANetwork(t *testing.T) {
	for _, line := range []string{
		"curl: (6) Could not resolve host: a.example", "npm error code EAI_AGAIN", "Error: getaddrinfo ENOTFOUND a.example",
		"socket.gaierror: [Errno -3] Temporary failure in name resolution", "socket.gaierror: [Errno -2] Name or service not known",
		"dial tcp: lookup a.example: no such host", "wget: bad address 'a.example'", "java.net.UnknownHostException: a.example",
		"failed to lookup address information: x", "connect: Network is unreachable", "fatal: unable to access 'https://a/': Could not resolve host: a",
		"ping: sendto: Network is unreachable",
	} {
		if !networkWords().MatchString("x\n" + line + "\n") {
			t.Errorf("%q is not taken for words about a network", line)
		}
	}
	for _, line := range []string{
		"ModuleNotFoundError: No module named 'app'", "dd: error writing '/tmp/big': No space left on device", "Connection refused", "dial tcp 127.0.0.1:80: connect: connection refused",
		"404 not found", "could not resolve dependency", "cannot resolve symbol x", "write: Bad address", "timeout waiting for server", "",
	} {
		if networkWords().MatchString(line) {
			t.Errorf("%q is taken for words about a network", line)
		}
	}
}

func TestTheCommandThatAShellDidNotFind(t *testing.T) {
	for tail, want := range map[string]string{
		"hello\n/step/script.sh: 1: node: not found\n":       "node",
		"/step/script.sh: line 12: go: command not found\n":  "go",
		"/step/script.sh: line 1: x: y: command not found\n": "",
		"node: not found, said the program\n":                "",
		"/step/script.sh: 1: node: not found\nbye\n":         "",
		"": "",
	} {
		n := 127
		sr := &StepResult{Status: StatusFailed, ExitCode: &n, Tail: tail}
		if got := missing(PlanStep{Language: "sh"}, sr); got != want {
			t.Errorf("%q: %q, want %q", tail, got, want)
		}
		for _, s := range []PlanStep{{Language: "python"}, {}} {
			if got := missing(s, sr); got != "" {
				t.Errorf("%+v: %q", s, got)
			}
		}
		for _, sr := range []*StepResult{{Status: StatusPassed, ExitCode: &n, Tail: tail}, {Status: StatusFailed, Tail: tail}, {Status: StatusFailed, ExitCode: &n, Fault: &box.Fault{}, Tail: tail}} {
			if got := missing(PlanStep{Language: "sh"}, sr); got != "" {
				t.Errorf("%+v: %q", sr, got)
			}
		}
	}
}
