package report

import (
	"fmt"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// saved are the results that every writer is tested with.
func saved() map[string]*steps.Result {
	all := map[string]*steps.Result{
		"pass": pass(), "faults": faults(), "refused": refused(), "error": lost(),
		"cancelled": cancelled(), "hostile": hostile(2), "limits": notEnforced(), "writes": writers(), "empty": {Schema: 1},
		"placed": placed(), "elsewhere": elsewhere(), "merged": merged(), "part": part(),
	}
	for _, r := range all {
		oneByOne(r)
	}
	all["together"] = together()
	return all
}

// oneByOne lets each step begin where the one before it ended.
func oneByOne(r *steps.Result) *steps.Result {
	at := int64(0)
	for i := range r.Steps {
		s := &r.Steps[i]
		if s.DurationMs > 1e6 { // nobody's
			continue
		}
		s.StartedMs = at
		at += s.StartupMs + s.DurationMs
	}
	return r
}

func ptr[T any](v T) *T { return &v }

func result(verdict string, list ...steps.StepResult) *steps.Result {
	return &steps.Result{
		Schema: 1, Verdict: verdict, Tool: steps.Tool{Name: "untrusted-steps", Version: "1.2.3"},
		Host: steps.Host{OS: "linux", Kernel: "6.18.44", Arch: "amd64", Cgroup: "v2", Runner: "local", Proof: []steps.Proof{
			{Control: "memory_cap", OK: true, How: "a probe was killed at its cap of 16 MiB", Ms: 12.34},
			{Control: "denied_name", OK: true, How: "CONNECT denied.invalid:443 was answered 403", Ms: 3},
		}},
		Steps: list, StartedAt: "2026-11-30T08:00:00Z", DurationMs: 4321,
	}
}

func step(id, status string) steps.StepResult {
	return steps.StepResult{
		ID: id, Name: id, Engine: "native", EngineVersion: "1.2.3", Status: status,
		DurationMs: 1234, StartupMs: 5, EgressMode: "enforce", Network: "none", Workspace: "unchanged",
		Stdout: steps.Output{Path: "steps/" + id + "/stdout.log", Bytes: 10},
		Stderr: steps.Output{Path: "steps/" + id + "/stderr.log"},
		Limits: steps.Limits{MemoryMb: 512, Pids: 256, DiskMb: 1024, Enforced: []string{"memory", "pids"}, By: "cgroup2"},
		Usage:  steps.Usage{PeakMemoryBytes: 12<<20 + 1, CPUMs: 900, PeakPids: 3},
	}
}

func exited(id, status string, code int) steps.StepResult {
	s := step(id, status)
	s.ExitCode = &code
	return s
}

// waiting is a step that never began.
func waiting(id, status, reason string) steps.StepResult {
	s := step(id, status)
	s.DurationMs, s.StartupMs, s.Usage, s.Reason = 0, 0, steps.Usage{}, reason
	s.Limits.Enforced, s.Limits.By = nil, ""
	s.Stdout, s.Stderr = steps.Output{}, steps.Output{}
	return s
}

// again gives a step earlier tries that ended so, as a run tells of them.
func again(s *steps.StepResult, reasons ...string) {
	s.Attempts, s.Flaky = len(reasons)+1, s.Status == steps.StatusPassed
	for i, reason := range reasons {
		dir := steps.TryFolder(s.ID, i+1)
		s.Tries = append(s.Tries, steps.Try{
			Reason: reason, DurationMs: 20, Stdout: steps.Output{Path: dir + "/stdout.log", Bytes: 6}, Stderr: steps.Output{Path: dir + "/stderr.log"},
			Patch: &steps.Patch{Path: dir + "/changes.patch", Bytes: 99, Files: 1},
		})
		s.Notes = append(s.Notes, s.TrySays(i))
	}
}

func pass() *steps.Result {
	plain := exited("build", steps.StatusPassed, 0)
	plain.Name = "Build the thing"
	plain.Workspace, plain.FilesTotal = "committed", 3
	plain.Files = []steps.FileChange{
		{Path: "dist/app", Change: "created", Type: "file", Size: 1024, Mode: "0755", SHA256: strings.Repeat("ab", 32)},
		{Path: "dist/latest", Change: "created", Type: "symlink", Mode: "0777", Target: "app"},
		{Path: "old.txt", Change: "deleted", Type: "file"},
	}
	net := exited("install", steps.StatusPassed, 0)
	net.Network = "allowlist"
	net.Egress = []steps.EgressRecord{{Host: "registry.example", Port: 443, Protocol: "https", Verdict: "allowed", Rule: "registry.example", Count: 4, BytesIn: 1000, BytesOut: 200}}
	net.EgressUnused = []string{"unused.example:443"}
	want := step("hang", steps.StatusPassed)
	want.Fault = &box.Fault{Type: box.Timeout, Message: "still running after 1s (timeoutS)"}
	want.Events = []box.Event{{Type: box.Timeout, Message: want.Fault.Message, Count: 1}}
	want.Expected = &steps.Expect{Fault: box.Timeout}
	want.Reason = "timeout, as expected: still running after 1s (timeoutS)"
	excused := exited("flaky", steps.StatusFailed, 3)
	excused.Excused, excused.Reason, excused.Tail = true, "the step ended with exit code 3", "one\ntwo\n"
	r := result(steps.VerdictPass, plain, net, want, excused)
	r.Notes = []string{"engine: native 1.2.3; not kern, because no verified kern binary was found", "--only-report: nothing that a step changed is in the workspace"}
	return r
}

// faults has a step for each fault type there is.
func faults() *steps.Result {
	r := result(steps.VerdictFail)
	for i, k := range box.Kinds {
		s := step(fmt.Sprintf("step-%d", i+1), steps.StatusFailed)
		s.Fault = &box.Fault{Type: k.Type, Message: "what was measured for " + string(k.Type)}
		s.Events = []box.Event{{Type: k.Type, Message: s.Fault.Message, Count: 2}}
		s.Reason = string(k.Type) + ": " + s.Fault.Message
		s.Tail = "last line of " + s.ID + "\n"
		if k.Type == box.EgressDenied {
			s.Network = "allowlist"
			s.ExitCode = ptr(0)
			s.Egress = []steps.EgressRecord{
				{Host: "evil.example", Port: 443, Protocol: "connect", Verdict: "denied", Reason: "no_rule", Count: 2},
				{Host: "ok.example", Port: 443, Protocol: "https", Verdict: "allowed", Rule: "ok.example", Count: 1, BytesIn: 5, BytesOut: 6},
				{Host: "gone.example", Port: 80, Protocol: "http", Verdict: "failed", Reason: "resolve", Rule: "gone.example", Count: 1},
			}
			s.Events[0].Message = `evil.example:443 refused (no_rule); to allow it, add "evil.example" to egressAllow`
		}
		r.Steps = append(r.Steps, s)
	}
	own := exited("own", steps.StatusFailed, 137)
	own.Reason = "the step ended with exit code 137"
	own.Violations = []steps.Violation{{Type: "link_escape", Message: "a link leaves the workspace: x -> /etc/passwd"}}
	own.Workspace, own.FilesTotal, own.First = "discarded", 4, []string{"sub/.git/hooks/pre-commit"}
	own.Files = []steps.FileChange{
		{Path: "a", Change: "modified", Type: "file", Size: 1, Mode: "0644"},
		{Path: "b", Change: "deleted", Type: "file"},
		{Path: "sub/.git/hooks/pre-commit", Change: "created", Type: "file", Size: 5, Mode: "0755"},
		{Path: "tool", Change: "mode", Type: "file", Size: 5, Mode: "4755"},
	}
	signal := step("signal", steps.StatusFailed)
	signal.Signal, signal.Reason = ptr("SIGKILL"), "the step was ended by its own SIGKILL"
	skipped := waiting("after", steps.StatusSkipped, "it needs own, which did not pass")
	r.Steps = append(r.Steps, own, signal, skipped)
	return r
}

func refused() *steps.Result {
	r := result(steps.VerdictRefused)
	r.Host.Cgroup, r.Host.CgroupFound = "", "v1"
	r.Host.Proof[0].OK, r.Host.Proof[0].How = false, "no cgroup of ours can cap memory"
	r.Refusal = &steps.Refusal{Cause: "requireLimits: memory and pids cannot be capped here\nno cgroup is delegated to this user",
		Fix: []string{"systemd-run --user --scope -p Delegate=yes untrusted-steps run steps.yml"}}
	return r
}

func lost() *steps.Result {
	s := step("a", steps.StatusError)
	s.Reason = "no verdict: the box's first process ended with code 1 and no report (while the step ran)"
	s.EngineNote = "kern: warning: something\n"
	return result(steps.VerdictError, s, exited("b", steps.StatusPassed, 0))
}

func cancelled() *steps.Result {
	running := step("b", steps.StatusCancelled)
	running.Reason = "the run was cancelled while this step ran"
	return result(steps.VerdictCancelled, exited("a", steps.StatusPassed, 0), running,
		waiting("c", steps.StatusCancelled, "the run was cancelled before this step began"))
}

func notEnforced() *steps.Result {
	a, b := exited("a", steps.StatusPassed, 0), exited("b", steps.StatusPassed, 0)
	a.Limits.Enforced, a.Limits.By = nil, ""
	a.Engine, a.Unobserved = "kern", []string{"escape_blocked: by a grandchild"}
	b.Network = "host"
	c := exited("c", steps.StatusPassed, 0)
	c.Network, c.EgressMode = "allowlist", "audit"
	c.Egress = []steps.EgressRecord{
		{Host: "two.example", Port: 8443, Protocol: "https", Verdict: "allowed", Reason: "audit", Count: 2},
		{Host: "one.example", Port: 443, Protocol: "https", Verdict: "allowed", Count: 1},
	}
	c.EgressProposal = []string{"one.example", "two.example:8443"}
	return result(steps.VerdictPass, a, b, c)
}

// writers has a step for each thing that can become of what a step wrote.
func writers() *steps.Result {
	built := exited("build", steps.StatusPassed, 0)
	built.Workspace, built.WorkspaceBy = "committed", "overlay"
	built.Files = []steps.FileChange{
		{Path: "b.txt", Change: "created", Type: "file", Size: 3, Mode: "0644", From: "a.txt"},
		{Path: "a.txt", Change: "deleted", Type: "file", Size: 3, Mode: "0644"},
		{Path: "dist/app", Change: "created", Type: "file", Size: 1024, Mode: "0755"},
		{Path: "go.sum", Change: "modified", Type: "file", Size: 812, Mode: "0644"},
		{Path: "\uFFFD", PathBytes: "/w==", Change: "created", Type: "file", Mode: "0644"},
	}
	built.FilesTotal = len(built.Files)
	built.First = []string{"go.sum", "a.txt"}
	built.Notes = []string{`what git refreshes by itself is not committed: ".git/index"`}
	built.Patch = &steps.Patch{Path: "steps/build/changes.patch", Bytes: 900, Files: 4, Left: 1, Masked: 2, MaskedFiles: []string{"dist/app", "b.txt"}}
	built.Limits.DiskBy, built.Usage.DiskBytes, built.Usage.DiskInodes = "loop", 3<<20+1, 5

	guarded := exited("guarded", steps.StatusFailed, 0)
	guarded.Violations = []steps.Violation{
		{Type: "protected_path", Message: `".git/hooks/pre-commit" was created; git obeys it`},
		{Type: "protected_path", Message: `".github/workflows/ci.yml" was modified; CI obeys it`},
		{Type: "link_escape", Message: `"x" is a link to "/etc/passwd": its target lies outside the workspace`},
	}
	guarded.Reason, guarded.Workspace = guarded.Violations[0].Message, "discarded"
	guarded.Files = []steps.FileChange{
		{Path: ".git/hooks/pre-commit", Change: "created", Type: "file", Size: 5, Mode: "0755"},
		{Path: ".github/workflows/ci.yml", Change: "modified", Type: "file", Size: 5, Mode: "0644"},
		{Path: "x", Change: "created", Type: "symlink", Mode: "0777", Target: "/etc/passwd"},
	}
	guarded.First, guarded.FilesTotal = []string{".git/hooks/pre-commit", ".github/workflows/ci.yml"}, 3

	both := exited("both", steps.StatusFailed, 1)
	both.Fault = &box.Fault{Type: box.DiskLimit, Message: "the step wrote 1025 MiB: diskMb is 1024"}
	both.Events = []box.Event{{Type: box.DiskLimit, Message: both.Fault.Message, Count: 1}}
	both.Violations = []steps.Violation{{Type: "workspace_limit", Message: "more than 1000000 entries"}}
	both.Reason, both.Workspace = both.Violations[0].Message, "discarded"
	both.Limits.DiskBy, both.Usage.DiskBytes = "sampler", 1025<<20

	kept := exited("kept", steps.StatusFailed, 2)
	kept.Workspace, kept.WorkspaceBy, kept.Reason = "kept", "copy", "the step ended with exit code 2"
	kept.Files, kept.FilesTotal = []steps.FileChange{{Path: "log", Change: "created", Type: "file", Size: 1, Mode: "0644"}}, 1

	unlisted := exited("unlisted", steps.StatusPassed, 0)
	unlisted.Workspace, unlisted.First = "committed", []string{"Makefile"}
	return result(steps.VerdictFail, built, guarded, both, kept, unlisted)
}

// attacks are texts that would act in a log, a terminal or on a page.
var attacks = []string{
	"PWN::error::x", "::error::PWN", "##[error]PWN", "PWN\r\n::add-mask::a\n##[group]x", "\xff\xfePWN",
	"PWN | a | b |\n|---|", "PWN `code` ``` ````", "```\nPWN", "~~~PWN", "PWN\\", "PWN\\|x", `PWN\" \' \\`,
	"<img src=https://evil.example/PWN>", "<details><summary>PWN", "</code></td></table>PWN", "<!-- PWN", "PWN -->", "&lt;PWN&#60;",
	"@PWN", "me@evil.example PWN", "#123 PWN", "PWN/repo#1", "GH-1 PWN", "https://evil.example/PWN", "www.evil.example/PWN", "WWW.PWN", "mailto:PWN@x.y",
	"[PWN](javascript:alert(1))", "![PWN](https://evil.example)", "*PWN* _PWN_ __PWN__ ~~PWN~~", "$PWN$ $$PWN$$", ":tada: PWN", "PWN 0123456789abcdef0123456789abcdef01234567",
	"# PWN", "> PWN", "- PWN", "1. PWN", "    PWN", "===\nPWN", "| PWN |", "\u202ePWN\u2066", "PWN\u200b", "\x1b[2J\x1b[31mPWN", "\x1b]0;PWN\x07", "PWN\x00", "", " ", "\t",
	"PWN" + strings.Repeat("\u0301", 50), strings.Repeat("PWN`", 200), strings.Repeat("日本", 100) + "PWN", "=cmd|'PWN'!A1", "{{PWN}} ${{ secrets.PWN }}",
}

// hostile has an attack in every field that takes text, ours included: a
// report may be read from a file.
func hostile(each int) *steps.Result {
	n := 0
	next := func() string { n++; return attacks[n%len(attacks)] }
	r := result(next())
	r.Tool = steps.Tool{Name: next(), Version: next()}
	r.Host = steps.Host{OS: next(), Kernel: next(), Arch: next(), Cgroup: next(), Runner: next(), Proof: []steps.Proof{{Control: next(), How: next()}, {Control: next(), How: next(), OK: true}}}
	r.Notes = []string{next(), next()}
	r.Refusal = &steps.Refusal{Cause: next(), Fix: []string{next(), next()}}
	for _, status := range []string{steps.StatusFailed, steps.StatusPassed, steps.StatusSkipped, steps.StatusError, steps.StatusCancelled, "::PWN"} {
		for range each {
			s := steps.StepResult{
				ID: next(), Name: next(), Engine: next(), EngineVersion: next(), EngineDigest: next(), ImageDigest: attacks[1], Status: status, Signal: ptr(next()),
				Fault:  &box.Fault{Type: box.FaultType(next()), Message: next()},
				Events: []box.Event{{Type: box.EgressDenied, Message: next(), Count: 2}, {Type: box.FaultType(next()), Message: next(), Count: 1}},
				Stdout: steps.Output{Path: next()}, Network: next(), EgressMode: "audit", Workspace: next(), Reason: next(), EngineNote: next(),
				Egress:         []steps.EgressRecord{{Host: next(), Port: 1, Protocol: next(), Verdict: next(), Reason: next(), Rule: next(), Count: 1}},
				EgressProposal: []string{next()}, EgressUnused: []string{next()}, Unobserved: []string{next()},
				Results: []steps.CellResult{{next(): next()}, nil, {"text/plain": next()}, {"text/markdown": next() + "\n" + next()},
					{"text/html": "<table><tr><th>" + next() + "</th></tr><tr><td>" + next() + "</td></tr></table>"}, {"text/html": next()}, {"image/png": next()}, {"image/svg+xml": next()}},
				ResultFiles: []steps.ResultFile{{Result: 6, MIME: "image/png", Path: next(), Bytes: 1}, {Result: 0, MIME: next(), Path: next()}},
				Files:       []steps.FileChange{{Path: next(), Change: next(), Type: next(), Mode: "4" + next(), Target: next(), From: next()}, {Path: ".git/" + next(), Change: "deleted", Type: "file"}},
				First:       []string{next(), ".git/" + next()}, Notes: []string{next(), next()}, WorkspaceBy: next(),
				Patch: &steps.Patch{Path: next(), Files: 1, Left: 1, Masked: 3, MaskedFiles: []string{next(), next()}}, Usage: steps.Usage{DiskBytes: 1, DiskInodes: 1},
				FilesTotal: 2, Violations: []steps.Violation{{Type: next(), Message: next()}}, PassedEnv: []string{next()},
				Attempts: 2, Flaky: true, Tries: []steps.Try{{Reason: next(), Stdout: steps.Output{Path: next(), Bytes: 1}, Stderr: steps.Output{Path: next(), Bytes: 1}, Patch: &steps.Patch{Path: next()}}},
				Tail: next() + "\n" + next() + "\r" + next(), Limits: steps.Limits{Enforced: []string{next()}, By: next(), DiskBy: next()},
			}
			if n%3 == 0 {
				s.Signal, s.Fault = nil, nil
			}
			r.Steps = append(r.Steps, s)
		}
	}
	return r
}
