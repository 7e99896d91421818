package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
)

// pty is a terminal: what a program writes to it is kept, and what we type it reads.
type pty struct {
	*os.File // our end
	end      *os.File

	mu   sync.Mutex
	seen bytes.Buffer
	gone chan struct{}
}

// openPTY makes a terminal of so many columns.
func openPTY(t *testing.T, columns uint16) *pty {
	t.Helper()
	p, err := newPTY(columns)
	need.Met(t, "pty", err)
	t.Cleanup(func() {
		p.end.Close()
		p.Close()
		<-p.gone
	})
	return p
}

func newPTY(columns uint16) (*pty, error) {
	// Not blocking, so that closing it ends whoever reads.
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/ptmx: %w", err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: columns})
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	ours := os.NewFile(uintptr(fd), "/dev/ptmx")
	end, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	p := &pty{File: ours, end: end, gone: make(chan struct{})}
	go func() {
		defer close(p.gone)
		buf := make([]byte, 4096)
		for {
			n, err := ours.Read(buf)
			p.mu.Lock()
			p.seen.Write(buf[:n])
			p.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return p, nil
}

// text is all that was written so far, with line ends as they are in a file.
func (p *pty) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.ReplaceAll(p.seen.String(), "\r\n", "\n")
}

// all waits until everything that was written is here, and gives it.
func (p *pty) all(t *testing.T) string {
	t.Helper()
	const mark = "that is all"
	if _, err := io.WriteString(p.end, mark); err != nil {
		t.Fatal(err)
	}
	if !eventually(10*time.Second, func() bool { return strings.HasSuffix(p.text(), mark) }) {
		t.Fatalf("the terminal shows %q", p.text())
	}
	return strings.TrimSuffix(p.text(), mark)
}

// ourColours are the escape sequences that we may write, but for the one that
// erases the line of progress.
var ourColours = regexp.MustCompile("\x1b\\[(?:1;31|0|2|3[123])m")

const erases = "\r\x1b[K"

// hostileSteps try to bring colour and worse to a terminal, by what their file
// says and by what they print.
const hostileSteps = `
steps:
  - id: one
    name: "\e[32mone\e[0m \e[2J##[error]x"
    run: printf '\033[32mgreen\033[0m \033[2J\033]0;title\007\n'
  - id: two
    run: printf '\r\033[K[9/9] two passed\n'; exit 3
    continueOnError: true
  - {id: three, run: exit 4}
  - {id: four, needs: three, run: 'true'}
`

// TestColourOnATerminal: a person on a terminal gets colour and progress, and only
// ours; whoever else reads gets none.
func TestColourOnATerminal(t *testing.T) {
	boxtest.Boxes(t)
	for name, c := range map[string]struct {
		env              []string
		pipe, json       bool
		colour, progress bool
	}{
		"a terminal":                        {env: []string{"TERM=xterm"}, colour: true, progress: true},
		"its log, when the report is asked": {env: []string{"TERM=xterm"}, json: true, colour: true, progress: true},
		"NO_COLOR":                          {env: []string{"TERM=xterm", "NO_COLOR=1"}, progress: true},
		"NO_COLOR that says 0":              {env: []string{"TERM=xterm", "NO_COLOR=0"}, progress: true},
		"NO_COLOR that says nothing":        {env: []string{"TERM=xterm", "NO_COLOR="}, colour: true, progress: true},
		"a dumb terminal":                   {env: []string{"TERM=dumb"}},
		"one that does not say what it is":  {},
		"a runner's":                        {env: []string{"TERM=xterm", "GITHUB_ACTIONS=true"}},
		"a pipe":                            {env: []string{"TERM=xterm"}, pipe: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := openPTY(t, 70)
			r := prepare(t, "native", hostileSteps)
			r.cmd.Env = append(r.cmd.Env, c.env...)
			if !c.pipe {
				r.cmd.Stdout, r.cmd.Stderr = p.end, p.end
			}
			if c.json {
				r.cmd.Args = append(r.cmd.Args, "--json")
				r.cmd.Stdout = &r.log
			}
			if err := r.cmd.Start(); err != nil {
				t.Fatal(err)
			}
			code, text := r.end(), p.all(t)
			if c.pipe {
				text = r.log.String()
			}
			if code != exitFail {
				t.Fatalf("exit status %d\n%s", code, text)
			}
			if got := strings.Contains(text, "\x1b[3"); got != c.colour {
				t.Errorf("colour: %v\n%q", got, text)
			}
			if got := strings.Contains(text, erases); got != c.progress {
				t.Errorf("progress: %v\n%q", got, text)
			}
			if c.json && strings.Contains(r.log.String(), "\x1b") {
				t.Errorf("the report has an escape character: %s", &r.log)
			}
			rest := seen(text)
			if strings.Contains(rest, "\x1b") {
				t.Errorf("an escape sequence that is not ours: %q", rest)
			}
			if c.colour {
				for _, want := range []string{
					"\x1b[2mone | \x1b[0mgreen \\x1b[2J\\x1b]0;title\\x07\n",
					"\x1b[2mtwo | \x1b[0m\\x1b[K[9/9] two passed\n",
					"\x1b[2m[1/4] \x1b[0mone \x1b[32mpassed\x1b[0m",
					"\x1b[2m[3/4] \x1b[0mthree \x1b[31mfailed\x1b[0m: ",
					"\x1b[33mskipped\x1b[0m", "\x1b[33mfailed (excused)\x1b[0m", "\x1b[31mfail\x1b[0m: ",
				} {
					if !strings.Contains(text, want) {
						t.Errorf("no %q in\n%q", want, text)
					}
				}
			}
			table := rest[max(0, strings.Index(rest, "STEP")):]
			for line := range strings.Lines(table[:max(0, strings.Index(table, "fail: "))]) {
				if cells := len(strings.TrimSuffix(line, "\n")); cells > 70 && !c.pipe {
					t.Errorf("%d cells on a terminal of 70: %q", cells, line)
				}
			}
		})
	}
}

// TestAnswersOnATerminal: what runs nothing has colour by the same rule, and what
// programs read has none.
func TestAnswersOnATerminal(t *testing.T) {
	dir := t.TempDir()
	report := `{"schema": 1, "verdict": "fail", "steps": [{"id": "\u001b[32mone", "status": "failed", "exitCode": 3, "reason": "\u001b[2J"}]}`
	if err := os.WriteFile(filepath.Join(dir, "report.json"), []byte(report), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, env string
		args      []string
		want      []string
		plain     bool
	}{
		{"a table", "TERM=xterm", []string{"report", "report.json", "--format", "table"}, []string{"\x1b[31mfailed\x1b[0m", "\x1b[31mfail\x1b[0m: "}, false},
		{"a table without colour", "NO_COLOR=1", []string{"report", "report.json", "--format", "table"}, []string{"failed", "fail: "}, true},
		{"a form for programs", "TERM=xterm", []string{"report", "report.json", "--format", "json"}, []string{`"verdict"`}, true},
		{"a mistake", "TERM=xterm", []string{"run"}, []string{"\x1b[1;31muntrusted-steps:\x1b[0m run takes one FILE"}, false},
		{"a mistake on a dumb terminal", "TERM=dumb", []string{"run"}, []string{"untrusted-steps: run takes one FILE"}, true},
		{"a mistake that quotes colours", "TERM=xterm", []string{"\x1b[32mrun"}, []string{"\x1b[1;31muntrusted-steps:\x1b[0m \"\\x1b[32mrun\" is no verb"}, false},
	} {
		p := openPTY(t, 80)
		cmd := exec.Command("/proc/self/exe", c.args...)
		cmd.Args[0], cmd.Dir, cmd.Stdout, cmd.Stderr = toolName, dir, p.end, p.end
		cmd.Env = []string{"TERM=xterm", c.env}
		_ = cmd.Run() // its exit status is held elsewhere
		text := p.all(t)
		for _, w := range c.want {
			if !strings.Contains(text, w) {
				t.Errorf("%s: no %q in %q", c.name, w, text)
			}
		}
		if strings.Contains(ourColours.ReplaceAllString(text, ""), "\x1b") || c.plain && strings.Contains(text, "\x1b") {
			t.Errorf("%s: %q", c.name, text)
		}
	}
}

// seen is what stands on a screen that was wide enough: no colours, and nothing
// that was erased.
func seen(text string) string {
	var b strings.Builder
	for i, part := range strings.Split(text, erases) {
		if i > 0 {
			kept := b.String()[:strings.LastIndexByte(b.String(), '\n')+1]
			b.Reset()
			b.WriteString(kept)
		}
		b.WriteString(part)
	}
	return ourColours.ReplaceAllString(b.String(), "")
}
