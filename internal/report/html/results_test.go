package html

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// attacks are texts that would act on a page or mislead a reader if they were
// anything but text. Those that run set window.pwned.
var attacks = []string{
	`</script><script>window.pwned=1</script>`,
	`<!--<script>window.pwned=1</script>-->`,
	`"><img src=x onerror="window.pwned=1">`,
	`'><svg/onload=window.pwned=1>`,
	`</noscript><img src=x onerror=window.pwned=1>`,
	`</title></style></textarea></pre></details><script>window.pwned=1</script>`,
	`<a href="javascript:window.pwned=1" autofocus onfocus=window.pwned=1>x</a>`,
	`<meta http-equiv=refresh content="0;url=http://beacon.invalid/">`,
	`<link rel=stylesheet href=http://beacon.invalid/x.css><base href=http://beacon.invalid/>`,
	`<iframe srcdoc="<script>parent.pwned=1</script>"></iframe>`,
	`&lt;script&gt;window.pwned=1&lt;/script&gt;&#60;b&#62;`,
	`{{.}}${window.pwned=1}` + "`${window.pwned=1}`",
	"\u2028window.pwned=1\u2029", "a\x00b\x1b[2J\x1b]0;title\x07\x7f", "\xff\xfe\xc3(", "\u202egnp.exe\u2066", "e" + strings.Repeat("\u0301", 40),
	"::error::forged", "##[error]forged", `__proto__`, `\u003c/script\u003e`,
}

func attack(i int) string { return attacks[i%len(attacks)] }

// hostile is a result in which everything a step could choose is an attack, and
// more than that: a report may come from a file.
func hostile() (*steps.Result, fstest.MapFS) {
	files := fstest.MapFS{}
	r := &steps.Result{Schema: 1, Verdict: "fail", DurationMs: 9000, Tool: steps.Tool{Name: attack(0), Version: attack(1)},
		Host:  steps.Host{OS: attack(2), Kernel: attack(3), Arch: attack(4), Proof: []steps.Proof{{Control: attack(5), How: attack(6), Engine: attack(8)}}},
		Notes: attacks, StartedAt: attack(7), Refusal: &steps.Refusal{Cause: strings.Join(attacks, "\n"), Fix: attacks}}
	for i, a := range attacks {
		dir := fmt.Sprintf("steps/s%d/", i)
		s := steps.StepResult{ID: a, Name: a, Engine: a, EngineVersion: a, Kernel: a, Status: "failed", StartedMs: int64(i) * 100, DurationMs: 500, Reason: a, Tail: a + "\n" + a, EngineNote: a,
			Violations: []steps.Violation{{Type: a, Message: a}}, Notes: []string{a}, EgressProposal: []string{a}, EgressUnused: []string{a},
			Stdout: steps.Output{Path: dir + "stdout.log", Bytes: 10, Truncated: i == 1}, Stderr: steps.Output{Path: dir + "stderr.log", Bytes: 10},
			Patch: &steps.Patch{Path: dir + "changes.patch", Bytes: 10, Files: 1}, First: []string{"first.txt"},
			Results: []steps.CellResult{{a: a}, {"text/plain": a}, {"text/markdown": a}, {"text/html": "<table><tr><th>" + a + "</th></tr><tr><td>" + a + "</td></tr></table>"},
				{"text/html": a}, {"image/png": a}, {"image/jpeg": "steps/../../" + a}, {"image/png": dir + "stdout.log"}},
			ResultFiles: []steps.ResultFile{{Result: 7, MIME: "image/png", Path: dir + "stdout.log", Bytes: 10}, {Result: 6, MIME: "image/jpeg", Path: "steps/../../" + a}, {Result: 0, MIME: a, Path: a}},
			Attempts:    2, Flaky: true, Tries: []steps.Try{{Reason: a, Stdout: steps.Output{Path: dir + "try-1/stdout.log", Bytes: 10}}}}
		if i == 2 {
			s.Status = a // no word of ours
		}
		for k, verdict := range []string{"allowed", "denied", "failed", a} {
			s.Egress = append(s.Egress, steps.EgressRecord{Host: a, Port: k, Protocol: a, Verdict: verdict, Reason: a, Rule: a, Count: 1})
		}
		s.Files = []steps.FileChange{
			{Path: a, Change: "modified", Type: a, Mode: a, Target: a, From: a, PathBytes: "AA=="},
			{Path: "gone-" + a, Change: "deleted", Type: "file"}, {Path: "first.txt", Change: a, Type: "file"}, {Path: ".git/" + a, Change: "created", Type: "file"},
		}
		files[dir+"stdout.log"] = &fstest.MapFile{Data: []byte("needle one\n" + strings.Join(attacks, "\r\n") + "\nNEEDLE two\n")}
		files[dir+"try-1/stdout.log"] = &fstest.MapFile{Data: []byte("earlier " + a)}
		files[dir+"stderr.log"] = &fstest.MapFile{Data: []byte(a)}
		files[dir+"changes.patch"] = &fstest.MapFile{Data: []byte("diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-" + strings.ReplaceAll(a, "\n", "") + "\n--- looks like a head\n+" + a + "\n same\n")}
		r.Steps = append(r.Steps, s)
	}
	return r, files
}

func options(r *steps.Result) Options {
	return Options{
		Verdict: r.Verdict + ": " + attack(0), Engines: attack(9), Warnings: attacks,
		Words: func(s *steps.StepResult) Words {
			return Words{Outcome: "exit 1", Note: s.Name, Reason: s.Reason, Time: "0.5 s", Memory: "1 of 512 MiB", Requests: "1 ok", Files: "4", Notes: s.Notes,
				Tries: []string{s.Reason}, Boundary: s.Engine}
		},
		Look: func(f *steps.FileChange) string {
			if strings.HasPrefix(f.Path, ".git/") {
				return "protected"
			}
			return ""
		},
		Top:     []Top{{Word: attack(8), Items: attacks}},
		Meaning: func(reason string) string { return "about " + reason },
	}
}

func render(t testing.TB, r *steps.Result, o Options) string {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, r, o); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
