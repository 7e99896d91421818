// Command untrusted-steps runs a list of steps nobody has read yet, each in a
// box of its own, and says how each ended, whom it talked to and what it
// changed.
//
// It is the whole of the program: flags and action inputs come in here, exit
// statuses go out, and every part is told here what clock, environment and
// folders to use. Nothing imports it.
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/host"
	"github.com/untrusted-steps/untrusted-steps/internal/session"
)

func main() {
	// Helpers of ours are this same program: a box's first process, the launcher of
	// kern and what runs in probe boxes. They are so before main (see boxinit), but
	// for this one.
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

	engines []session.Candidate // to choose from; nil is all there are

	args     []string  // as they were typed
	problems []problem // what kept a run from being begun
}

func (a *app) main(args []string) int {
	a.args = args
	if len(args) == 0 {
		if a.getenv("GITHUB_ACTIONS") == "true" {
			return a.fromInputs()
		}
		fmt.Fprint(a.stderr, overview())
		return exitUsage
	}
	switch args[0] {
	case "-h", "-help", "--help":
		return a.help(args[1:])
	case "-version", "--version":
		return a.version(args[1:])
	}
	v := verbOf(args[0])
	if v == nil {
		return a.unknownVerb(args[0])
	}
	return v.run(a, args[1:])
}

// wrong says what is wrong with what was asked for. It repeats names that others
// chose, so it is one line and inert.
func (a *app) wrong(format string, args ...any) int {
	text := gha.Inert(fmt.Sprintf(format, args...))
	a.say(a.stderr, a.stderr, gha.Line{{Text: toolName + ":", Style: gha.Alarm}, {Text: " " + text}})
	a.problems = append(a.problems, problem{text: text})
	return exitUsage
}

// next says what to do about what is wrong. Whoever is stopped by a mistake gets
// the way on with it.
func (a *app) next(code int, hint string) int {
	a.say(a.stderr, a.stderr, gha.Words("  "+hint))
	return code
}

// misused is wrong for a way to use a verb that it does not have.
func (a *app) misused(o *options, format string, args ...any) int {
	return a.next(a.wrong(format, args...), o.seeHelp())
}

// seeHelp is where to read how to ask for it.
func (o *options) seeHelp() string {
	if o.verb == "" { // by the inputs of the action
		return "action.yml says what each input takes"
	}
	return seeHelp(o.verb)
}

// note says something of ours on stderr. It may quote what others chose, so it is
// one line and inert.
func (a *app) note(format string, args ...any) {
	a.say(a.stderr, a.stderr, gha.Words(toolName+": "+fmt.Sprintf(format, args...)))
}

// print writes an answer for people to stdout, each line of it inert: it may
// begin with a name that others chose.
func (a *app) print(text string) int {
	var b strings.Builder
	for line := range strings.Lines(text) {
		body, ended := strings.CutSuffix(line, "\n")
		b.WriteString(gha.InertLine(body))
		if ended {
			b.WriteByte('\n')
		}
	}
	return a.answer([]byte(b.String()))
}

// printJSON writes an answer for programs to stdout. It is inert and has the same
// values.
func (a *app) printJSON(text []byte) int { return a.answer(gha.InertJSON(nil, text)) }

// printAs prints an answer that has both forms.
func (a *app) printAs(asJSON bool, text, program func(io.Writer) error) int {
	var b bytes.Buffer
	write := text
	if asJSON {
		write = program
	}
	if err := write(&b); err != nil {
		a.note("%v", err)
		return exitNoVerdict
	}
	if asJSON {
		return a.printJSON(b.Bytes())
	}
	return a.print(b.String())
}

// answer writes to stdout what is inert already. An answer
// that nobody got is none: a script must not take an empty file for it.
func (a *app) answer(text []byte) int {
	if _, err := a.stdout.Write(text); err != nil {
		a.note("write to stdout: %v", err)
		return exitNoVerdict
	}
	return exitPass
}

func (a *app) version(args []string) int {
	if _, code, ok := a.parse("version", args); !ok {
		return code
	}
	return a.print(toolName + " " + toolVersion() + "\n")
}
