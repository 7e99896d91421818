// Command untrusted-steps runs a list of steps nobody has read yet, each in a
// box of its own, and says how each ended, whom it talked to and what it
// changed.
//
// It is the whole of the program: flags and action inputs come in here, exit
// statuses go out, and every part is told here what clock, environment and
// folders to use. Nothing imports it.
package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/boxinit"
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/host"
	"github.com/untrusted-steps/untrusted-steps/internal/kern"
	"github.com/untrusted-steps/untrusted-steps/internal/native"
)

func main() {
	// A box's first process is this same program. It must be that before
	// anything else, flags included.
	if native.IsChild(os.Args) {
		native.Child(os.Args)
	}
	if boxinit.IsChild(os.Args) {
		boxinit.Main(os.Args)
	}
	if kern.IsLauncher(os.Args) {
		kern.Launch()
	}
	if host.IsTry(os.Args) {
		host.Try(os.Args)
	}
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv, lookupEnv: os.LookupEnv, environ: os.Environ, unsetenv: os.Unsetenv}
	os.Exit(a.main(os.Args[1:]))
}

// app is the program with what it uses of the world.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string
	lookupEnv      func(string) (string, bool)
	environ        func() []string // nil: no presets of this machine
	unsetenv       func(string) error

	problems []problem // what kept a run from being begun
}

// verb is one word of the command line.
type verb struct {
	name, args, does string
	run              func(a *app, args []string) int
}

// verbs is filled by a function, because help lists the verbs.
func verbs() []verb {
	return []verb{
		{"run", "[flags] FILE", "run the steps of a file ('-' reads stdin)", (*app).run},
		{"check", "FILE", "say what is wrong with a file; nothing runs", (*app).check},
		{"plan", "[flags] FILE", "show what would run, every default filled in", (*app).plan},
		{"report", "FILE --format F", "write a report.json again: F is json, summary, table, junit or sarif", (*app).report},
		{"merge", "--out D REPORT...", "make one report and verdict of those of all shards", (*app).merge},
		{"schema", "[report|policy]", "print the JSON Schema of the steps file, of report.json or of a policy", (*app).schema},
		{"snapshot", "FILE.tar.gz", "pack the workspace, without what is secret in it", (*app).snapshot},
		{"restore", "FILE.tar.gz", "put a snapshot back; one with links or paths that leave is refused", (*app).restore},
		{"doctor", "[flags]", "say what this machine can enforce, and what to type where it cannot", (*app).doctor},
		{"prepare", "[--undo]", "add to this host what boxes need and it lacks, or take it away again", (*app).prepare},
		{"kern", "install|path", "fetch and verify the kern binary, or say which one is used", (*app).kern},
		{"version", "", "print the version", (*app).version},
		{"help", "", "print this", (*app).help},
	}
}

// later are verbs of the design that are not built yet. They are refused by
// name: to answer with anything else would be to pretend.
var later = map[string]bool{"pin": true, "mcp": true}

func (a *app) main(args []string) int {
	if len(args) == 0 {
		if a.getenv("GITHUB_ACTIONS") == "true" {
			return a.fromInputs()
		}
		a.usage(a.stderr)
		return exitUsage
	}
	switch args[0] {
	case "-h", "-help", "--help":
		return a.help(nil)
	case "-version", "--version":
		return a.version(nil)
	}
	for _, v := range verbs() {
		if v.name == args[0] {
			return v.run(a, args[1:])
		}
	}
	if later[args[0]] {
		return a.wrong("%s is not built yet", args[0])
	}
	return a.misused("%q is no verb; the verbs are %s", args[0], strings.Join(verbNames(), ", "))
}

func verbNames() []string {
	var out []string
	for _, v := range verbs() {
		out = append(out, v.name)
	}
	return out
}

// wrong says what is wrong with what was asked for. It repeats names that others
// chose, so it is one line and inert.
func (a *app) wrong(format string, args ...any) int {
	text := gha.Inert(fmt.Sprintf(format, args...))
	fmt.Fprintf(a.stderr, "untrusted-steps: %s\n", text)
	a.problems = append(a.problems, problem{text: text})
	return exitUsage
}

// misused is wrong for a command line that is not one of ours, and says where
// those are listed.
func (a *app) misused(format string, args ...any) int {
	a.wrong(format, args...)
	fmt.Fprintln(a.stderr, "  untrusted-steps help lists what there is")
	return exitUsage
}

// print writes an answer to stdout. One that nobody got is none: a script must
// not take an empty file for it.
func (a *app) print(text string) int {
	if _, err := io.WriteString(a.stdout, text); err != nil {
		fmt.Fprintf(a.stderr, "untrusted-steps: write to stdout: %v\n", err)
		return exitNoVerdict
	}
	return exitPass
}

func (a *app) help([]string) int {
	var b strings.Builder
	a.usage(&b)
	return a.print(b.String())
}

func (a *app) version([]string) int { return a.print(toolName + " " + toolVersion() + "\n") }

func (a *app) usage(w io.Writer) {
	fmt.Fprintf(w, "Run steps nobody has read yet, each in its own box.\n\nUsage:\n")
	for _, v := range verbs() {
		fmt.Fprintf(w, "  untrusted-steps %-22s %s\n", strings.TrimSpace(v.name+" "+v.args), v.does)
	}
	fmt.Fprint(w, `
Flags of run and plan (they may stand after FILE; --workspace also of snapshot and restore):
  --workspace DIR     the folder the steps work in (default: the current one)
  --out DIR           where the report goes, outside the workspace (default: a new temporary folder)
  --engine NAME       auto, kern or native (default: auto)
  --jobs N            steps at a time (default: 1)
  --policy FILE       refuse a steps file that asks for more than this file allows (also of check)
  --only ID,...       run these steps only
  --shard I/N         run part I of N, and leave the others to other machines
  --durations FILE    split by the times of this report.json, the same for every shard
  --only-report       run everything, and leave the workspace as it is
  --json              report on stdout, log on stderr (plan: the plan as JSON)
  --kern-sha256 HEX   accept the kern binary of that sum; the report says so
  --allow-events E,.. run for pull_request_target, workflow_run or issue_comment all the same
  --host-setup WORD   off adds nothing to this host; auto adds the least that is missing and takes it away at
                      the end; sysctl lets all programs use user namespaces where AppArmor forbids it (default: off)

Flags of merge, whose REPORTs are report.json files or the folders they are in:
  --out DIR           where the report goes
  --file FILE         the steps file that all shards must be of (with its --only and --workspace)
  --json              report on stdout, log on stderr

Flags of doctor:
  --json              the findings as JSON
  --engine NAME       which engine's box has to run: auto, kern or native (default: auto, any of them)
  --workspace DIR     the workspace whose disk is looked at (default: the current one)
  --kern-sha256 HEX   accept the kern binary of that sum

Flags of prepare:
  --undo              take away what was added for this account
  --dry-run           print the commands, and run none
  --host-setup WORD   auto or sysctl, as for run (default: auto)

Exit status of run and merge:
  0 no step closes the gate     1 a step failed or was skipped    2 the file or the flags are wrong
  3 this host cannot enforce it 4 no verdict for some step        130 cancelled
doctor ends with 0 if a full box ran, and with 3 if none did; prepare with 3 if something is still missing.
report ends with 0 whatever the verdict was, and with 2 for a file that is no report.json.
`)
}
